// Whether a program would load the library: real ones of every kind, some of them built here.
#include "libsd/api/processes/exec_env.hpp"
#include "libsd/api/processes/loadable.hpp"
#include "tests/support/skip.hpp"

#include <catch2/catch.hpp>

#include <cstddef>
#include <cstdlib>
#include <dirent.h>
#include <elf.h>
#include <fcntl.h>
#include <fstream>
#include <functional>
#include <iterator>
#include <string>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

namespace {

bool would_load(int dirfd, const char *path, int flags) {
    return sd::loading_of(dirfd, path, flags) == sd::Loading::loads;
}
bool would_load_from_path(const char *file) { return sd::loading_from_path(file) == sd::Loading::loads; }

class Directory {
  public:
    Directory() {
        REQUIRE(mkdtemp(path_) != nullptr);
        REQUIRE(chmod(path_, 0755) == 0);
    }
    ~Directory() { REQUIRE(std::system(("rm -rf " + std::string(path_)).c_str()) == 0); }
    std::string name(const std::string &file) const { return std::string(path_) + "/" + file; }
    std::string write(const std::string &file, const std::string &text, mode_t mode = 0755) const {
        std::ofstream(name(file)) << text;
        REQUIRE(chmod(name(file).c_str(), mode) == 0);
        return name(file);
    }
    /// A copy of a program of the system.
    std::string copy(const std::string &program, const std::string &file, mode_t mode) const {
        REQUIRE(std::system(("cp " + program + " " + name(file)).c_str()) == 0);
        REQUIRE(chmod(name(file).c_str(), mode) == 0);
        return name(file);
    }
    /// False where the compiler cannot do that.
    bool build(const std::string &file, const std::string &options) const {
        write("program.c", "int main(void) { return 0; }\n");
        return std::system(
                   ("cc " + options + " -o " + name(file) + " " + name("program.c") + " 2>/dev/null").c_str()) ==
               0;
    }

  private:
    char path_[64] = "/tmp/sd-loadable-XXXXXX";
};

/// The answer in a child that changed something about itself first.
bool in_child(const std::function<void()> &prepare, const std::string &path) {
    const pid_t child = fork();
    if (child == 0) {
        prepare();
        _exit(would_load(AT_FDCWD, path.c_str(), 0) ? 1 : 0);
    }
    int status = 0;
    REQUIRE(waitpid(child, &status, 0) == child);
    REQUIRE(WIFEXITED(status));
    return WEXITSTATUS(status) == 1;
}

void become_nobody() {
    if (setresgid(65534, 65534, 65534) < 0 || setresuid(65534, 65534, 65534) < 0)
        _exit(99);
}

size_t open_numbers() {
    size_t n = 0;
    DIR *d = opendir("/proc/self/fd");
    while (readdir(d))
        ++n;
    closedir(d);
    return n;
}

bool load(const std::string &path) {
    errno = 77;
    const size_t before = open_numbers();
    const bool answer = would_load(AT_FDCWD, path.c_str(), 0);
    REQUIRE(open_numbers() == before);
    return answer;
}

/// The test is not preloaded itself: what counts as the library is this program, named as if it were.
struct Remembered {
    Remembered() {
        char path[4096] = {};
        REQUIRE(realpath("/proc/self/exe", path) != nullptr);
        // The name as the linker has it may be relative: found by its last part
        setenv("LD_PRELOAD", path, 1);
        sd::remember_environment();
        unsetenv("LD_PRELOAD");
        REQUIRE(std::string(sd::preloaded_as()) == path);
    }
};

} // namespace

TEST_CASE("programs of the system") {
    Remembered remembered;
    CHECK(load("/bin/sh"));
    CHECK(load("/usr/bin/env"));
    CHECK(would_load_from_path("sh"));
    CHECK(load("/no/such/program")); // the exec will fail
    CHECK(load("/etc/passwd"));
    CHECK(load("/tmp"));
    CHECK(errno != 0);
    errno = 77;
    CHECK(would_load(AT_FDCWD, "/bin/sh", 0));
    CHECK(errno == 77);
}

TEST_CASE("a static program, and scripts for it") {
    Remembered remembered;
    Directory directory;
    if (!directory.build("static", "-static"))
        SKIP_TEST("no static C library");
    CHECK_FALSE(load(directory.name("static")));
    if (directory.build("pie", "-static-pie"))
        CHECK_FALSE(load(directory.name("pie")));
    REQUIRE(directory.build("dynamic", ""));
    CHECK(load(directory.name("dynamic")));
    if (directory.build("small", "-m32"))
        CHECK_FALSE(load(directory.name("small")));

    CHECK(load(directory.write("script", "#!/bin/sh\n")));
    CHECK(load(directory.write("with-argument", "#! \t/usr/bin/env  sh\n")));
    CHECK_FALSE(load(directory.write("one", "#!" + directory.name("static") + "\n")));
    CHECK_FALSE(load(directory.write("two", "#!" + directory.name("one") + " argument\n")));
    CHECK_FALSE(load(directory.write("three", "#! " + directory.name("two"))));
    CHECK(load(directory.write("loop", "#!" + directory.name("loop") + "\n"))); // ELOOP
    CHECK(load(directory.write("nothing", "#!\n")));
    CHECK(load(directory.write("plain", "echo\n"))); // ENOEXEC; execvp has the shell run it

    setenv("PATH", ("/nowhere:" + directory.name("")).c_str(), 1);
    CHECK_FALSE(would_load_from_path("static"));
    CHECK_FALSE(would_load_from_path("two"));
    CHECK(would_load_from_path("dynamic"));
    CHECK(would_load_from_path("plain"));
    CHECK(would_load_from_path("not-there"));
    CHECK_FALSE(would_load_from_path(directory.name("static").c_str()));
    setenv("PATH", "/usr/bin:/bin", 1);

    const int at = open(directory.name("").c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC);
    CHECK_FALSE(would_load(at, "static", 0));
    CHECK(would_load(at, "dynamic", 0));
    const int fd = open(directory.name("static").c_str(), O_PATH | O_CLOEXEC);
    CHECK_FALSE(would_load(fd, "", AT_EMPTY_PATH));
    close(fd);
    close(at);
    REQUIRE(symlink("static", directory.name("link").c_str()) == 0);
    CHECK_FALSE(load(directory.name("link")));
    CHECK(would_load(AT_FDCWD, directory.name("link").c_str(), AT_SYMLINK_NOFOLLOW)); // ELOOP
}

TEST_CASE("programs that change who one is") {
    if (geteuid() != 0)
        SKIP_TEST("needs root");
    Remembered remembered;
    Directory directory;
    const std::string plain = directory.copy("/bin/true", "plain", 0755);
    const std::string user = directory.copy("/bin/true", "user", 04755);
    const std::string group = directory.copy("/bin/true", "group", 02755);
    const std::string locked = directory.copy("/bin/true", "locked", 02745); // no S_IXGRP: a mark for locking
    const std::string hidden = directory.copy("/bin/true", "hidden", 04711);
    const std::string script = directory.write("script", "#!" + user + "\n");
    CHECK(load(user)); // root already
    CHECK(load(group));
    CHECK(in_child(become_nobody, plain));
    CHECK_FALSE(in_child(become_nobody, user));
    CHECK_FALSE(in_child(become_nobody, group));
    CHECK(in_child(become_nobody, locked));
    CHECK_FALSE(in_child(become_nobody, hidden));
    CHECK_FALSE(in_child(become_nobody, script));
    CHECK(in_child(
        [] {
            become_nobody();
            prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
        },
        user));
    CHECK_FALSE(in_child([] { (void)!setresuid(1000, 65534, 0); }, plain)); // real and effective differ
    if (std::system(("setcap cap_net_raw+ep " + plain + " 2>/dev/null").c_str()) == 0) {
        CHECK(load(plain));
        CHECK_FALSE(in_child(become_nobody, plain));
    }
}

TEST_CASE("the library out of reach") {
    if (geteuid() != 0)
        SKIP_TEST("needs root");
    Remembered remembered;
    Directory directory;
    if (!directory.build("dynamic", ""))
        SKIP_TEST("no compiler");
    const std::string root = directory.name("");
    CHECK_FALSE(in_child([&root] { (void)!chroot(root.c_str()); }, "/dynamic"));
}

TEST_CASE("what stumbles over the library, and what ignores it") {
    Remembered remembered;
    Directory directory;
    const auto loading = [&directory](const std::string &file) {
        return sd::loading_of(AT_FDCWD, directory.name(file).c_str(), 0);
    };
    if (!directory.build("dynamic", "") || !directory.build("static", "-static"))
        SKIP_TEST("no compiler, or no static C library");
    CHECK(loading("dynamic") == sd::Loading::loads);
    CHECK(loading("static") == sd::Loading::ignores);

    // Another dynamic linker, and one that has only the name of glibc's.
    const std::string linker = directory.name("ld-linux-x86-64.so.2");
    REQUIRE(directory.build("other", "-Wl,--dynamic-linker=/lib/ld-musl-x86_64.so.1"));
    REQUIRE(directory.build("own", "-Wl,--dynamic-linker=" + linker));
    directory.copy(directory.name("static"), "ld-linux-x86-64.so.2", 0755);
    CHECK(loading("own") == sd::Loading::stumbles);
    directory.copy("/lib64/ld-linux-x86-64.so.2", "ld-linux-x86-64.so.2", 0755);
    CHECK(loading("own") == sd::Loading::loads);
    if (access("/lib/ld-musl-x86_64.so.1", X_OK) == 0)
        CHECK(loading("other") == sd::Loading::stumbles);

    // Another word size and another machine, by their headers.
    std::ifstream in(directory.name("static"), std::ios::binary);
    std::string bytes((std::istreambuf_iterator<char>(in)), {});
    bytes[EI_CLASS] = ELFCLASS32;
    directory.write("narrow", bytes);
    CHECK(loading("narrow") == sd::Loading::stumbles);
    bytes[EI_CLASS] = ELFCLASS64;
    bytes[offsetof(Elf64_Ehdr, e_machine)] = static_cast<char>(EM_AARCH64);
    directory.write("elsewhere", bytes);
    CHECK(loading("elsewhere") == sd::Loading::stumbles);
    directory.write("script", "#!" + directory.name("elsewhere") + "\n");
    CHECK(loading("script") == sd::Loading::stumbles);
}

TEST_CASE("a program that would stumble gets the environment as given but for the library") {
    Remembered remembered;
    using sd::ExecEnvironment;
    const std::string library = sd::preloaded_as(), first = "FIRST=1", last = "LAST=1";
    const auto given = [&](std::string preload, sd::Loading there) {
        char *const list[] = {const_cast<char *>(first.c_str()), preload.data(),
                              const_cast<char *>(last.c_str()), nullptr};
        SD_EXEC_ENVIRONMENT(environment, list, there);
        std::string text;
        for (char *const *e = environment; *e; ++e)
            text += std::string(*e) + "\n";
        return text;
    };
    using sd::Loading;
    CHECK(given("LD_PRELOAD=" + library, Loading::stumbles) == "FIRST=1\nLAST=1\n");
    CHECK(given("LD_PRELOAD=/a.so:" + library + " /b.so", Loading::stumbles) ==
          "FIRST=1\nLD_PRELOAD=/a.so:/b.so\nLAST=1\n");
    CHECK(given("LD_PRELOAD=" + library + ":/x/libsd-pages.so:/b.so", Loading::stumbles) ==
          "FIRST=1\nLD_PRELOAD=/b.so\nLAST=1\n");
    CHECK(given("LD_PRELOAD=/a.so", Loading::stumbles) == "FIRST=1\nLD_PRELOAD=/a.so\nLAST=1\n");
    CHECK(given("LD_PRELOAD=/a.so", Loading::ignores) == "FIRST=1\nLD_PRELOAD=" + library + ":/a.so\nLAST=1\n");
    CHECK(given("LD_PRELOAD=" + library, Loading::loads) == "FIRST=1\nLD_PRELOAD=" + library + "\nLAST=1\n");
}
