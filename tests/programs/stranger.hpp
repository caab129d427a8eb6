// Starting the program that cannot be preloaded (stranger.c), also beside a parent that keeps the connection.
#pragma once
#include "tests/programs/cases.hpp"
#include "tests/programs/process.hpp"

#include <fcntl.h>

namespace sdtest {

inline std::string stranger() {
    char path[4096] = {};
    MUST(readlink("/proc/self/exe", path, sizeof path - 1));
    std::string own = path;
    return own.substr(0, own.rfind('/') + 1) + "stranger";
}

[[noreturn]] inline void become(const char *what, int fd) {
    const std::string path = stranger();
    execl(path.c_str(), "stranger", what, std::to_string(fd).c_str(), nullptr);
    give_up("exec");
}

/// The child has the connection's server end, and so has its parent.
inline pid_t start(const char *what, const Pair &pair) {
    return spawn([&] {
        close(pair.client);
        become(what, pair.server);
    });
}

/// That has begun to run: what it writes first has come.
inline pid_t start_that_stays(const Pair &pair) {
    int executed[2];
    MUST(pipe2(executed, O_CLOEXEC));
    const pid_t child = start("stays", pair);
    close(executed[1]);
    char byte;
    MUST(read(executed[0], &byte, 1)); // the end, when it is executed
    close(executed[0]);
    return child;
}

inline void end(pid_t child) {
    MUST(kill(child, SIGKILL));
    reap("child", child);
}

inline void exchange(const Pair &pair, const char *label) {
    send_all(pair.client, "request");
    say("%s %s", label, receive(pair.server, 7).c_str());
    send_all(pair.server, "reply");
    say("%s %s", label, receive(pair.client, 5).c_str());
}

} // namespace sdtest
