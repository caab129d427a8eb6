// sdrun: what the program it starts finds, and the private monitor that comes and goes with it.
#include "tests/unit/monitor_client.hpp"

#include "tests/support/skip.hpp"

#include <catch2/catch.hpp>

#include <cstdio>
#include <fstream>
#include <ftw.h>
#include <iterator>
#include <sys/stat.h>
#include <sys/un.h>

using namespace sd;
using namespace sd::test;

namespace {

/// A user's runtime directory of its own, so that no other monitor is found.
struct Home {
    std::string directory, socket;
    Home() {
        char name[] = "/tmp/sdrun-test-XXXXXX";
        directory = mkdtemp(name);
        setenv("XDG_RUNTIME_DIR", name, 1);
        unsetenv("SD_MONITOR");
        unsetenv("SD_CONTROL_FD");
        unsetenv("LD_PRELOAD");
        // Any library will do to see that it is preloaded.
        setenv("SD_LIBRARY", "/lib/x86_64-linux-gnu/libm.so.6", 1);
        socket = directory + "/socksdirect-" + std::to_string(geteuid()) + "/monitor.sock";
    }
    ~Home() {
        eventually([this] { return access(socket.c_str(), F_OK) != 0; });
        nftw(
            directory.c_str(), [](const char *path, const struct stat *, int, FTW *) { return remove(path); },
            8, FTW_DEPTH | FTW_PHYS);
    }
};

struct Result {
    int status;
    std::string output;
};

Result run(const std::string &arguments) {
    FILE *pipe = popen((std::string("exec " SD_RUN_PROGRAM " ") + arguments + " 2>&1").c_str(), "r");
    Result result{};
    char chunk[4096];
    for (size_t n; (n = fread(chunk, 1, sizeof chunk, pipe)) > 0;) {
        result.output.append(chunk, n);
    }
    result.status = WEXITSTATUS(pclose(pipe));
    return result;
}

/// So many at the same time, each of which has to find the monitor at that place.
void run_many(int count, const std::string &sdrun, const std::string &monitor) {
    std::vector<FILE *> pipes;
    for (int i = 0; i < count; ++i) {
        pipes.push_back(popen(("exec " + sdrun + " sh -c 'echo $SD_MONITOR; sleep 0.2'").c_str(), "r"));
    }
    for (FILE *pipe : pipes) {
        char line[256] = "";
        REQUIRE(fgets(line, sizeof line, pipe) != nullptr);
        REQUIRE(line == monitor + "\n");
        REQUIRE(pclose(pipe) == 0);
    }
}

bool system_monitor_runs() {
    const int fd = monitor::connect_monitor(monitor::kSystemSocket);
    if (fd >= 0) {
        close(fd);
    }
    return fd >= 0;
}

} // namespace

TEST_CASE("sdrun passes on the exit status, and those of env(1) where nothing ran") {
    Home home;
    REQUIRE(run("sh -c 'exit 7'").status == 7);
    REQUIRE(run("true").status == 0);
    const Result missing = run("/nonexistent/program");
    REQUIRE(missing.status == 127);
    REQUIRE_THAT(missing.output, Catch::Contains("/nonexistent/program") && Catch::Contains("No such file"));
    REQUIRE(run("/etc/passwd").status == 126);
    REQUIRE(run("").status == 125);
    REQUIRE(run("--frob true").status == 125);
    REQUIRE_THAT(run("--help").output, Catch::StartsWith("Usage: sdrun"));
    REQUIRE_THAT(run("--version").output, Catch::StartsWith("sdrun "));
    REQUIRE(run("-- echo -v").output == "-v\n");
}

TEST_CASE("sdrun puts its library in front of what is preloaded already, once") {
    Home home;
    REQUIRE(run("sh -c 'echo $LD_PRELOAD'").output == "/usr/lib/x86_64-linux-gnu/libm.so.6\n");
    setenv("LD_PRELOAD", "/lib/x86_64-linux-gnu/libdl.so.2", 1);
    REQUIRE(run("sh -c 'echo $LD_PRELOAD'").output ==
            "/usr/lib/x86_64-linux-gnu/libm.so.6:/lib/x86_64-linux-gnu/libdl.so.2\n");
    unsetenv("LD_PRELOAD");
    REQUIRE(run(SD_RUN_PROGRAM " sh -c 'echo $LD_PRELOAD'").output ==
            "/usr/lib/x86_64-linux-gnu/libm.so.6\n");
    setenv("SD_LIBRARY", "/nonexistent.so", 1);
    REQUIRE(run("sh -c 'echo =$LD_PRELOAD='").output == "==\n");
    REQUIRE_THAT(run("-v true").output, Catch::Contains("libsd.so was not found"));
}

TEST_CASE("sdrun preloads the library for large memory when it is asked to") {
    Home home;
    const std::string show = "sh -c 'echo $LD_PRELOAD $SD_ZERO_COPY'",
                      libm = "/lib/x86_64-linux-gnu/libm.so.6";
    REQUIRE_THAT(run("-v --zero-copy true").output, Catch::Contains("libsd-pages.so was not found"));
    const std::string own = home.directory + "/libsd.so", pages = home.directory + "/libsd-pages.so";
    REQUIRE(system(("cp " + libm + " " + own + " && cp " + libm + " " + pages).c_str()) == 0);
    setenv("SD_LIBRARY", own.c_str(), 1);
    REQUIRE(run(show).output == own + "\n");
    REQUIRE(run("--zero-copy " + show).output == own + ":" + pages + " 1\n");
    REQUIRE(run("--zero-copy " SD_RUN_PROGRAM " " + show).output == own + ":" + pages + " 1\n");
    setenv("SD_ZERO_COPY", "1", 1);
    REQUIRE(run(show).output == own + ":" + pages + " 1\n");
    setenv("SD_ZERO_COPY", "0", 1);
    REQUIRE(run(show).output == own + " 0\n");
    unsetenv("SD_ZERO_COPY");
}

TEST_CASE("sdrun starts a private monitor, which ends with the last program") {
    if (system_monitor_runs()) {
        SKIP_TEST("a system monitor runs here");
    }
    Home home;
    // The channel is open in the program at a number out of its way; the one of an outer sdrun is replaced.
    const Result one =
        run("sh -c 'echo $SD_MONITOR; test $SD_CONTROL_FD -ge 200 && readlink /proc/$$/fd/$SD_CONTROL_FD'");
    REQUIRE_THAT(one.output, Catch::StartsWith(home.socket + "\nsocket:["));
    REQUIRE(one.status == 0);
    const Result nested = run(SD_RUN_PROGRAM " sh -c 'ls -l /proc/$$/fd | grep -c socket:'");
    REQUIRE(nested.output == "1\n");
    REQUIRE(eventually([&] { return access(home.socket.c_str(), F_OK) != 0; }));
    struct stat st;
    REQUIRE(stat(home.socket.substr(0, home.socket.rfind('/')).c_str(), &st) == 0);
    REQUIRE((st.st_mode & 07777) == 0700);
}

TEST_CASE("many at the same time share one private monitor") {
    if (system_monitor_runs()) {
        SKIP_TEST("a system monitor runs here");
    }
    Home home;
    run_many(20, SD_RUN_PROGRAM, home.socket);
}

TEST_CASE("many wait for the one monitor that starts slowly") {
    if (system_monitor_runs()) {
        SKIP_TEST("a system monitor runs here");
    }
    Home home;
    const std::string sdrun = home.directory + "/sdrun", monitor = home.directory + "/sd-monitor",
                      started = home.directory + "/started";
    REQUIRE(system(("cp " SD_RUN_PROGRAM " " + sdrun).c_str()) == 0);
    std::ofstream(monitor) << "#!/bin/sh\necho once >> " << started << "\nsleep 2\nexec " SD_MONITOR_PROGRAM
                           << " \"$@\"\n";
    REQUIRE(chmod(monitor.c_str(), 0755) == 0);
    run_many(5, sdrun, home.socket);
    std::ifstream times(started);
    CHECK(std::string(std::istreambuf_iterator<char>(times), {}) == "once\n");
}

TEST_CASE("without a monitor the program runs all the same") {
    Home home;
    setenv("SD_MONITOR", "/nonexistent/monitor.sock", 1);
    REQUIRE(run("sh -c 'echo ran $SD_CONTROL_FD'").output == "ran\n");
    REQUIRE_THAT(run("-v true").output, Catch::Contains("no monitor"));
    unsetenv("SD_MONITOR");
    if (!system_monitor_runs()) {
        REQUIRE(run("--no-monitor sh -c 'echo ran $SD_CONTROL_FD'").output == "ran\n");
        // A directory that others could change is not trusted.
        const std::string own = home.socket.substr(0, home.socket.rfind('/'));
        mkdir(own.c_str(), 0755);
        chmod(own.c_str(), 0777);
        const Result refused = run("-v sh -c 'echo ran $SD_CONTROL_FD'");
        REQUIRE_THAT(refused.output,
                     Catch::Contains("is not a directory of mode 0700") && Catch::Contains("ran\n"));
    }
}

TEST_CASE("a monitor of another user in a place anybody can write to is not trusted") {
    if (geteuid() != 0) {
        SKIP_TEST("needs root to be two users");
    }
    Home home;
    char path[monitor::kMaxPath];
    // User 4242 finds a socket at its own path, but user 4243 listens there.
    chmod(home.directory.c_str(), 01777);
    const pid_t child = fork();
    if (child == 0) {
        if (setresuid(4242, 4242, 0) != 0 || !monitor::private_socket(path) || setresuid(0, 0, 0) != 0 ||
            setresuid(4243, 4243, 0) != 0) {
            _exit(1);
        }
        *strrchr(path, '/') = '\0';
        mkdir(path, 0755);
        path[strlen(path)] = '/';
        sockaddr_un name{};
        name.sun_family = AF_UNIX;
        strcpy(name.sun_path, path);
        const int fd = socket(AF_UNIX, SOCK_SEQPACKET, 0);
        if (bind(fd, reinterpret_cast<sockaddr *>(&name), sizeof name) != 0 || chmod(path, 0777) != 0 ||
            listen(fd, 4) != 0 || setresuid(0, 0, 0) != 0 || setresuid(4242, 4242, 4242) != 0) {
            _exit(2);
        }
        const int named = monitor::connect_monitor(path), found = monitor::connect_default_monitor(path);
        _exit(named >= 0 && found == -EPERM ? 0 : 3);
    }
    int status = 0;
    waitpid(child, &status, 0);
    REQUIRE(WEXITSTATUS(status) == 0);
    unlink((home.directory + "/socksdirect-4242/monitor.sock").c_str());
}

TEST_CASE("a runtime directory in which others can put something is not used") {
    if (geteuid() != 0) {
        SKIP_TEST("needs root to be two users");
    }
    const Home home;
    const auto place = [] {
        char path[monitor::kMaxPath];
        REQUIRE(monitor::private_socket(path));
        return std::string(path);
    };
    REQUIRE(place() == home.socket);
    chmod(home.directory.c_str(), 01777);
    CHECK(place() == home.socket); // as /tmp is
    chmod(home.directory.c_str(), 0777);
    CHECK(place() == "/tmp/socksdirect-0/monitor.sock");
    chmod(home.directory.c_str(), 0700);
    REQUIRE(chown(home.directory.c_str(), 4243, 4243) == 0); // after su, the former user's
    CHECK(place() == "/tmp/socksdirect-0/monitor.sock");
    REQUIRE(chown(home.directory.c_str(), 0, 0) == 0);
}

TEST_CASE("another user's monitor is not spoken to, although it is named") {
    if (geteuid() != 0) {
        SKIP_TEST("needs root to be two users");
    }
    const Home home;
    chmod(home.directory.c_str(), 01777);
    const std::string path = home.directory + "/monitor.sock";
    const UniqueFd listener(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    const pid_t child = fork();
    if (child == 0) { // who calls listen() is the one
        sockaddr_un name{};
        name.sun_family = AF_UNIX;
        strcpy(name.sun_path, path.c_str());
        _exit(setresuid(4243, 4243, 4243) == 0 &&
                      bind(listener.get(), reinterpret_cast<sockaddr *>(&name), sizeof name) == 0 &&
                      chmod(path.c_str(), 0777) == 0 && listen(listener.get(), 64) == 0
                  ? 0
                  : 1);
    }
    int status = -1;
    REQUIRE(waitpid(child, &status, 0) == child);
    REQUIRE(status == 0);
    setenv("SD_MONITOR", path.c_str(), 1);
    unsetenv("SD_LIBRARY"); // the real one: it connects as well
    const Result result = run("-v /bin/bash -c 'exec 3<>/dev/tcp/127.0.0.1/1; echo went on'");
    unsetenv("SD_MONITOR");
    CHECK_THAT(result.output, Catch::Contains("no monitor") && Catch::Contains("went on"));
    unsigned packets = 0;
    for (;;) {
        const UniqueFd accepted(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
        if (!accepted) {
            break;
        }
        char byte;
        packets += recv(accepted.get(), &byte, 1, MSG_DONTWAIT) > 0 ? 1 : 0;
    }
    CHECK(packets == 0);
}

TEST_CASE("few descriptors do not keep sdrun from working") {
    if (system_monitor_runs()) {
        SKIP_TEST("a system monitor runs here");
    }
    Home home;
    FILE *pipe = popen("ulimit -n 64; exec " SD_RUN_PROGRAM
                       " sh -c 'echo $SD_CONTROL_FD; readlink /proc/$$/fd/$SD_CONTROL_FD'",
                       "r");
    int fd = 0;
    char target[64] = "";
    REQUIRE(fscanf(pipe, "%d %63s", &fd, target) == 2);
    pclose(pipe);
    REQUIRE(fd >= 48);
    REQUIRE(fd < 64);
    REQUIRE_THAT(target, Catch::StartsWith("socket:"));
}
