// Starting programs while a connection is open that they inherit: posix_spawn, system, popen.
#include "tests/programs/cases.hpp"
#include "tests/programs/process.hpp"

#include <dirent.h>
#include <sched.h>
#include <spawn.h>
#include <sys/stat.h>

using namespace sdtest;

namespace {

std::string own_path() {
    char path[4096] = {};
    MUST(readlink("/proc/self/exe", path, sizeof path - 1));
    return path;
}

// A connection that the child inherits, and that must work afterwards in the parent.
class Live {
  public:
    Live() : pair_(make_pair()) {}
    ~Live() {
        send_all(pair_.client, "there");
        say("connection: %s", receive(pair_.server, 5).c_str());
        send_all(pair_.server, "back");
        say("connection: %s", receive(pair_.client, 4).c_str());
    }
    const Pair &operator*() const { return pair_; }

  private:
    Pair pair_;
};

class Actions {
  public:
    Actions() { posix_spawn_file_actions_init(&actions_); }
    ~Actions() { posix_spawn_file_actions_destroy(&actions_); }
    posix_spawn_file_actions_t *operator&() { return &actions_; }

  private:
    posix_spawn_file_actions_t actions_;
};

class Directory {
  public:
    Directory() {
        if (!mkdtemp(path_))
            give_up("mkdtemp");
    }
    ~Directory() { MUST(system(("rm -r " + path()).c_str())); }
    std::string path() const { return path_; }
    std::string file(const char *name, const char *text, mode_t mode) const {
        std::string name_there = path() + "/" + name;
        const int fd = MUST(open(name_there.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
        MUST(write(fd, text, strlen(text)));
        MUST(fchmod(fd, mode));
        MUST(close(fd));
        return name_there;
    }

  private:
    char path_[32] = "/tmp/sd-spawning-XXXXXX";
};

using Function = int (*)(pid_t *, const char *, const posix_spawn_file_actions_t *, const posix_spawnattr_t *,
                         char *const[], char *const[]);

// Starts something and says what came of it.
void start(const char *label, Function function, const std::string &program, std::vector<const char *> arguments,
           const posix_spawn_file_actions_t *actions = nullptr, const posix_spawnattr_t *attributes = nullptr) {
    arguments.push_back(nullptr);
    pid_t child = -77;
    const int error = function(&child, program.c_str(), actions, attributes,
                               const_cast<char *const *>(arguments.data()), environ);
    if (error != 0) {
        say("%s: %s, pid %s", label, strerrorname_np(error), child == -77 ? "untouched" : "changed");
        return;
    }
    reap(label, child);
}

void on_signal(int) {}

std::string drain(int fd) {
    std::string all;
    char chunk[512];
    for (ssize_t got; (got = read(fd, chunk, sizeof chunk)) > 0;)
        all.append(chunk, static_cast<size_t>(got));
    return all;
}

// What the program sees of itself; run as `spawning report`.
int report() {
    sigset_t mask;
    sigprocmask(SIG_BLOCK, nullptr, &mask);
    struct sigaction one {
    }, two{};
    sigaction(SIGUSR1, nullptr, &one);
    sigaction(SIGUSR2, nullptr, &two);
    say("leads group %s, leads session %s, in parent's group %s", yes_no(getpgrp() == getpid()),
        yes_no(getsid(0) == getpid()), yes_no(getpgrp() == getpgid(getppid())));
    say("USR1 %s%s, USR2 %s%s", one.sa_handler == SIG_IGN ? "ignored" : "default",
        sigismember(&mask, SIGUSR1) ? " blocked" : "", two.sa_handler == SIG_IGN ? "ignored" : "default",
        sigismember(&mask, SIGUSR2) ? " blocked" : "");
    say("policy %d", sched_getscheduler(0));
    std::string open_numbers;
    for (int fd = 0; fd < 100; ++fd)
        if (fcntl(fd, F_GETFD) >= 0)
            open_numbers += " " + std::to_string(fd);
    say("open:%s", open_numbers.c_str());
    return 0;
}

} // namespace

BEHAVIOUR("file actions on files and pipes", actions_on_files, accelerated) {
    Live live;
    Directory directory;
    const std::string input = directory.file("input", "from a file\n", 0600);
    int ends[2];
    MUST(pipe2(ends, O_CLOEXEC));
    Actions actions;
    SHOW(posix_spawn_file_actions_addopen(&actions, 0, "input", O_RDONLY | O_CLOEXEC, 0));
    SHOW(posix_spawn_file_actions_addchdir_np(&actions, "/"));
    {
        Actions other; // the order counts: a relative name before and after the change of directory
        posix_spawn_file_actions_addopen(&other, 0, "input", O_RDONLY, 0);
        start("no such file here", posix_spawn, "/bin/true", {"true"}, &other);
    }
    Actions right;
    posix_spawn_file_actions_addchdir_np(&right, directory.path().c_str());
    posix_spawn_file_actions_addopen(&right, 0, "input", O_RDONLY, 0);
    posix_spawn_file_actions_adddup2(&right, ends[1], 1);
    posix_spawn_file_actions_adddup2(&right, 1, 2);
    posix_spawn_file_actions_addopen(&right, 70, "made", O_WRONLY | O_CREAT, 0640);
    posix_spawn_file_actions_addclose(&right, 71);
    start("cat", posix_spawnp, "sh", {"sh", "-c", "cat; echo error >&2; pwd | wc -l; echo inside >&70"}, &right);
    MUST(close(ends[1]));
    say("%s", drain(ends[0]).c_str());
    const int made = MUST(open((directory.path() + "/made").c_str(), O_RDONLY));
    say("%s", drain(made).c_str());
    struct stat facts {};
    MUST(fstat(made, &facts));
    say("mode %o", facts.st_mode & 0777);
}

BEHAVIOUR("numbers in the child", numbers_in_the_child, accelerated) {
    Live live;
    const int marked = MUST(fcntl(0, F_DUPFD_CLOEXEC, 60));
    Actions actions;
    posix_spawn_file_actions_addclosefrom_np(&actions, 3);
    start("closed from 3 on", posix_spawn, own_path(), {"report", "report"}, &actions);
    Actions same;
    posix_spawn_file_actions_adddup2(&same, marked, marked);
    posix_spawn_file_actions_adddup2(&same, marked, 61);
    posix_spawn_file_actions_addopen(&same, 62, "/dev/null", O_RDWR, 0);
    posix_spawn_file_actions_addclose(&same, 61);
    posix_spawn_file_actions_adddup2(&same, 62, 63);
    posix_spawn_file_actions_adddup2(&same, 63, (*live).client); // in the child only
    posix_spawn_file_actions_addclose(&same, (*live).server);
    start("same number", posix_spawn, own_path(), {"report", "report"}, &same);
    SHOW_BOOL((fcntl(marked, F_GETFD) & FD_CLOEXEC) != 0);
    SHOW_BOOL(fcntl(62, F_GETFD) == -1);
}

BEHAVIOUR("errors", spawn_errors, accelerated) {
    Live live;
    Directory directory;
    const std::string plain = directory.file("plain", "not a program\n", 0644);
    const std::string script = directory.file("script", "echo ran; exit 5\n", 0755);
    const std::string lost = directory.file("lost", "#!/no/such/interpreter\n", 0755);
    for (const Function function : {&posix_spawn, &posix_spawnp}) {
        start("missing", function, directory.path() + "/none", {"none"});
        start("a directory", function, directory.path(), {"directory"});
        start("not executable", function, plain, {"plain"});
        start("no interpreter line", function, script, {"script"});
        start("interpreter missing", function, lost, {"lost"});
        start("below a file", function, plain + "/below", {"below"});
        start("empty", function, "", {"empty"});
        start("true", function, "/bin/true", {"true"});
        start("false", function, "/bin/false", {"false"});
    }
    MUST(setenv("PATH", ("/no/such/directory:" + directory.path() + ":/usr/bin:/bin").c_str(), 1));
    start("searched", posix_spawnp, "true", {"true"});
    start("denied", posix_spawnp, "plain", {"plain"});
    start("no interpreter line, searched", posix_spawnp, "script", {"script"});
    start("nowhere", posix_spawnp, "no-such-program", {"none"});
    start("too long", posix_spawnp, std::string(300, 'x'), {"none"});
    start("not searched", posix_spawn, "true", {"true"});
    Actions bad;
    posix_spawn_file_actions_adddup2(&bad, 90, 91);
    start("a number that is not open", posix_spawn, "/bin/true", {"true"}, &bad);
    Actions same;
    posix_spawn_file_actions_adddup2(&same, 90, 90);
    start("the same twice", posix_spawn, "/bin/true", {"true"}, &same);
    Actions nowhere;
    posix_spawn_file_actions_addchdir_np(&nowhere, "/no/such/directory");
    start("chdir", posix_spawn, "/bin/true", {"true"}, &nowhere);
    Actions file;
    posix_spawn_file_actions_addopen(&file, 60, plain.c_str(), O_RDONLY, 0);
    posix_spawn_file_actions_addfchdir_np(&file, 60);
    start("fchdir", posix_spawn, "/bin/true", {"true"}, &file);
    Actions group;
    posix_spawn_file_actions_addtcsetpgrp_np(&group, (*live).client);
    start("tcsetpgrp", posix_spawn, "/bin/true", {"true"}, &group);
    SHOW(waitpid(-1, nullptr, WNOHANG)); // no child is left over
}

BEHAVIOUR("attributes", spawn_attributes, accelerated) {
    Live live;
    signal(SIGUSR1, SIG_IGN);
    signal(SIGUSR2, on_signal);
    sigset_t one, two;
    sigemptyset(&one);
    sigaddset(&one, SIGUSR1);
    sigemptyset(&two);
    sigaddset(&two, SIGUSR2);
    MUST(sigprocmask(SIG_BLOCK, &two, nullptr));
    const sched_param parameter{};
    const auto with = [&](const char *label, int flags) {
        posix_spawnattr_t attributes;
        posix_spawnattr_init(&attributes);
        posix_spawnattr_setflags(&attributes, static_cast<short>(flags));
        posix_spawnattr_setsigmask(&attributes, &one);
        posix_spawnattr_setsigdefault(&attributes, &one);
        posix_spawnattr_setschedpolicy(&attributes, SCHED_BATCH);
        posix_spawnattr_setschedparam(&attributes, &parameter);
        Actions actions;
        posix_spawn_file_actions_addclosefrom_np(&actions, 3);
        start(label, posix_spawn, own_path(), {"report", "report"}, &actions, &attributes);
        posix_spawnattr_destroy(&attributes);
    };
    with("nothing", 0);
    with("group", POSIX_SPAWN_SETPGROUP);
    with("session", POSIX_SPAWN_SETSID);
    with("both", POSIX_SPAWN_SETSID | POSIX_SPAWN_SETPGROUP);
    with("mask", POSIX_SPAWN_SETSIGMASK);
    with("defaults", POSIX_SPAWN_SETSIGDEF);
    with("scheduler", POSIX_SPAWN_SETSCHEDULER);
    with("parameter", POSIX_SPAWN_SETSCHEDPARAM);
    with("ids", POSIX_SPAWN_RESETIDS | POSIX_SPAWN_USEVFORK);
    sigset_t now;
    sigprocmask(SIG_BLOCK, nullptr, &now);
    SHOW_BOOL(sigismember(&now, SIGUSR2) && !sigismember(&now, SIGUSR1));
}

BEHAVIOUR("values of system", system_values, accelerated) {
    Live live;
    static int children = 0;
    signal(SIGCHLD, [](int) { ++children; });
    signal(SIGINT, on_signal);
    SHOW_BOOL(system(nullptr) != 0);
    SHOW(system("true"));
    SHOW(WEXITSTATUS(system("exit 3")));
    SHOW(WTERMSIG(system("kill -TERM $$")));
    SHOW(WEXITSTATUS(system("no-such-command 2>/dev/null")));
    SHOW(WEXITSTATUS(system("kill -INT $PPID; exit 4"))); // ignored meanwhile
    struct sigaction now {};
    sigaction(SIGINT, nullptr, &now);
    SHOW_BOOL(now.sa_handler == on_signal);
    sigset_t mask;
    sigprocmask(SIG_BLOCK, nullptr, &mask);
    SHOW_BOOL(!sigismember(&mask, SIGCHLD));
    SHOW_BOOL(children > 0);
    signal(SIGCHLD, SIG_IGN);
    SHOW(system("true")); // nobody left to wait for
    signal(SIGCHLD, SIG_DFL);
    SHOW(setenv("PATH", "/nowhere", 1));
    SHOW(WEXITSTATUS(system("true 2>/dev/null"))); // the shell's own
    SHOW(WEXITSTATUS(system("ls 2>/dev/null")));
}

BEHAVIOUR("a cancelled system", cancelled_system, accelerated) {
    Live live;
    pthread_t thread;
    MUST(-pthread_create(
        &thread, nullptr,
        [](void *) -> void * { return system("exec sleep 100") == 0 ? nullptr : &output_fd; }, nullptr));
    sleep_ms(100);
    MUST(-pthread_cancel(thread));
    void *result = nullptr;
    MUST(-pthread_join(thread, &result));
    SHOW_BOOL(result == PTHREAD_CANCELED);
    SHOW(waitpid(-1, nullptr, WNOHANG)); // killed and reaped
    struct sigaction now {};
    sigaction(SIGINT, nullptr, &now);
    SHOW_BOOL(now.sa_handler == SIG_DFL);
}

BEHAVIOUR("popen both ways", popen_both_ways, accelerated) {
    Live live;
    FILE *output = popen("echo one; echo two; exit 7", "r");
    char line[64];
    while (output && fgets(line, sizeof line, output))
        say("%.3s", line);
    SHOW(WEXITSTATUS(pclose(output)));
    FILE *input = popen("read a; test \"$a\" = hello", "w");
    SHOW_BOOL(fputs("hello\n", input) > 0);
    SHOW(pclose(input));
    SHOW(WEXITSTATUS(pclose(popen("no-such-command 2>/dev/null", "r"))));
    SHOW(WTERMSIG(pclose(popen("kill -KILL $$", "r"))));
    SHOW(WEXITSTATUS(fclose(opaque(popen("exit 6", "r"))))); // the same in libc
    for (const char *mode : {"rw", "x", "", "rx", "er", "re", "we", "ee"}) {
        errno = 0;
        FILE *f = popen("true", mode);
        say("%s: %s%s", mode, f ? "ok" : strerrorname_np(errno),
            f && (fcntl(fileno(f), F_GETFD) & FD_CLOEXEC) ? " marked" : "");
        if (f)
            SHOW_BOOL(WIFEXITED(pclose(f)));
    }
    FILE *plain = fopen("/dev/null", "r");
    SHOW(pclose(opaque(plain)));
    signal(SIGCHLD, SIG_IGN);
    FILE *unwaited = popen("true", "r");
    SHOW(pclose(unwaited));
}

// The command uses the connection itself.
BEHAVIOUR("commands use the connection", commands_on_the_connection, accelerated) {
    const Pair pair = make_pair();
    MUST(dup2(pair.server, 9));
    MUST(close(pair.server));
    send_all(pair.client, "one line\n");
    SHOW(system("read a <&9 && echo \"answer to $a\" >&9"));
    say("%s", receive(pair.client, 18).c_str());
    send_all(pair.client, "two lines\n");
    FILE *output = popen("read a <&9 && echo $a", "r");
    char line[64] = {};
    SHOW_BOOL(output && fgets(line, sizeof line, output));
    say("%.9s", line);
    SHOW(pclose(output));
    FILE *input = popen("cat >&9", "w");
    fputs("to the peer", input);
    SHOW(pclose(input));
    say("%s", receive(pair.client, 11).c_str());
    MUST(shutdown(pair.client, SHUT_WR));
    SHOW(system("test -z \"$(cat <&9)\"")); // a shell's own children have it, too
    send_all(9, "still here");
    say("%s", receive(pair.client, 10).c_str());
}

// A command must not hold the pipes of earlier ones, else these would never end.
BEHAVIOUR("many commands at once", many_commands, accelerated) {
    Live live;
    FILE *streams[20];
    for (FILE *&f : streams)
        f = popen("cat >/dev/null; exit 2", "w");
    int good = 0;
    for (FILE *f : streams) {
        fputs("something\n", f);
        good += WEXITSTATUS(pclose(f)) == 2;
    }
    SHOW(good);
    good = 0;
    for (int i = 0; i < 50; ++i) {
        FILE *f = popen("echo x", "r");
        good += f && fgetc(f) == 'x' && pclose(f) == 0;
    }
    SHOW(good);
}

// The pipe's end has the right number from the start.
BEHAVIOUR("popen without standard numbers", popen_without_standard_numbers, accelerated) {
    Live live;
    output_fd = MUST(fcntl(1, F_DUPFD_CLOEXEC, 50));
    close(0);
    close(1);
    FILE *output = popen("echo text", "r");
    char line[64] = {};
    SHOW_BOOL(output && fgets(line, sizeof line, output));
    say("%.4s", line);
    SHOW(pclose(output));
    FILE *input = popen("read a; test \"$a\" = hello", "w");
    SHOW_BOOL(input && fputs("hello\n", input) > 0);
    SHOW(pclose(input));
}

// Threads start programs at the same time, and another forks children that go on without exec.
BEHAVIOUR("several threads start programs", spawning_in_threads, accelerated) {
    Live live;
    std::atomic<int> good{0};
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t)
        threads.emplace_back([&good, t] {
            for (int i = 0; i < 10; ++i) {
                if (t == 0) {
                    const pid_t child = fork();
                    if (child == 0) {
                        sleep_ms(20);
                        _exit(0);
                    }
                    good += child > 0 && waitpid(child, nullptr, 0) == child;
                } else if (t == 1) {
                    good += system("true") == 0;
                } else if (t == 2) {
                    FILE *f = popen("echo x", "r");
                    good += f && fgetc(f) == 'x' && pclose(f) == 0;
                } else {
                    char name[] = "true";
                    char *arguments[] = {name, nullptr};
                    pid_t child = 0;
                    good += posix_spawnp(&child, "true", nullptr, nullptr, arguments, environ) == 0 &&
                            waitpid(child, nullptr, 0) == child;
                }
            }
        });
    for (std::thread &thread : threads)
        thread.join();
    SHOW(good.load());
    sigset_t mask;
    sigprocmask(SIG_BLOCK, nullptr, &mask);
    SHOW_BOOL(sigisemptyset(&mask) != 0);
}

int main(int argc, char **argv) {
    if (argc == 2 && strcmp(argv[1], "report") == 0)
        return report();
    return run_behaviour(argc, argv);
}
