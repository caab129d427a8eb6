// A program that is installed set-user-ID, or with capabilities: says what it finds, talks to itself over
// TCP, and starts another as the user it has become.
#include "tests/programs/process.hpp"

#include <sys/auxv.h>

using namespace sdtest;

int main(int argc, char **) {
    say("secure: %s", yes_no(getauxval(AT_SECURE) != 0));
    say("five is open: %s", yes_no(fcntl(5, F_GETFD) >= 0));
    for (const char *name : {"SD_MONITOR", "SD_CONTROL_FD", "SD_EXEC_FD", "SD_STATS_FILE"})
        say("%s: %s", name, yes_no(getenv(name) != nullptr));
    const Pair pair = make_pair();
    send_all(pair.client, "hello");
    say("%s", receive(pair.server, 5).c_str());
    say("%s", receive(pair.client, send_all(pair.server, "back") ? 4 : 0).c_str());
    const pid_t child = spawn([&] {
        send_all(pair.client, "child");
        close(pair.client);
    });
    say("%s", receive(pair.server, 5).c_str());
    reap("child", child);
    for (const int fd : {pair.client, pair.server, pair.listener})
        close(fd);
    if (argc > 1)
        return 0;
    if (setgid(getegid()) < 0 || setuid(geteuid()) < 0)
        give_up("setuid");
    say("and its own:");
    execl("/proc/self/exe", "privileged", "once", static_cast<char *>(nullptr));
    give_up("exec");
}
