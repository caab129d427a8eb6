// A fabric of the test's own, and the processes that use it. Each is made by fork, since what a process has
// of a device is its own, and the test itself has none.
#pragma once
#include "tests/fake_verbs/control.hpp"

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

namespace sd::test {

/// In a child, where Catch2 is not: ends it with a line that says why.
#define HOST_REQUIRE(what)                                                                                   \
    do                                                                                                       \
        if (!(what)) {                                                                                       \
            fprintf(stderr, "host %u, line %d: %s\n", ::sd::test::this_host, __LINE__, #what);               \
            _exit(1);                                                                                        \
        }                                                                                                    \
    while (0)

inline unsigned this_host = 0;

/// A folder for a fabric, whose processes this one starts: two hosts, and where faults are wanted the device.
class TwoHosts {
  public:
    explicit TwoHosts(const std::string &faults = "") {
        char name[] = "/dev/shm/fake-verbs-XXXXXX";
        folder_ = mkdtemp(name);
        setenv("SD_FAKE_VERBS", folder_.c_str(), 1);
        setenv("SD_FAKE_VERBS_FAULTS", faults.c_str(), 1);
        if (!faults.empty()) {
            device_ = fork();
            if (device_ == 0) {
                execl(SD_FAKE_VERBS_DEVICE, SD_FAKE_VERBS_DEVICE, std::to_string(getppid()).c_str(), nullptr);
                _exit(127);
            }
        }
    }
    ~TwoHosts() {
        if (device_ > 0) {
            kill(device_, SIGKILL);
            waitpid(device_, nullptr, 0);
        }
        if (system(("rm -rf " + folder_).c_str()) != 0)
            perror(folder_.c_str());
    }
    TwoHosts(const TwoHosts &) = delete;
    TwoHosts &operator=(const TwoHosts &) = delete;

    /// Runs `act` in a process of its own. True: it ended well.
    template <class Act> bool run_one(Act act) {
        const pid_t child = fork();
        if (child == 0) {
            alarm(100);
            act();
            _exit(0);
        }
        int status = -1;
        waitpid(child, &status, 0);
        return status == 0;
    }
    /// Both run `act(side, socket)`, each in a process of its own. True: both ended well.
    template <class Act> bool run(Act act) {
        int pair[2];
        if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0)
            return false;
        pid_t child[2];
        for (unsigned side = 0; side < 2; ++side) {
            child[side] = fork();
            if (child[side] == 0) {
                close(pair[1 - side]);
                alarm(100);
                act(side, pair[side]);
                _exit(0);
            }
        }
        close(pair[0]);
        close(pair[1]);
        bool well = true;
        for (const pid_t c : child) {
            int status = -1;
            waitpid(c, &status, 0);
            well = well && (status == 0 || (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL));
        }
        return well;
    }

  private:
    std::string folder_;
    pid_t device_ = -1;
};

} // namespace sd::test
