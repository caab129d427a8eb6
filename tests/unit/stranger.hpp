// Clients of other users than the test's, and a connection that one of them passes.
#pragma once
#include "tests/unit/monitor_pair.hpp"

#include <functional>
#include <grp.h>
#include <sys/stat.h>

namespace sd::test {

inline constexpr uid_t kOne = 65534, kOther = 65533;

/// Another user's client, in a process of its own, which does what it is told to.
class Stranger {
  public:
    using Work = std::function<int64_t(TestProcess &)>;

    /// `open`: others of the same user may look into it, as into any program that did not begin as root.
    Stranger(const MonitorProcess &monitor, uid_t user, const std::vector<Work> &works, bool open = true) {
        chmod(monitor.directory.c_str(), 0755);
        REQUIRE(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends_) == 0);
        pid_ = fork();
        if (pid_ != 0) {
            return;
        }
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (user != 0 && (setgroups(0, nullptr) != 0 || setgid(user) != 0 || setuid(user) != 0)) {
            _exit(1);
        }
        prctl(PR_SET_DUMPABLE, open ? 1 : 0);
        TestProcess process(monitor);
        for (unsigned char which; read(ends_[1], &which, 1) == 1;) {
            const int64_t result = works[which](process);
            [[maybe_unused]] ssize_t n = write(ends_[1], &result, sizeof result);
        }
        _exit(0);
    }
    ~Stranger() {
        close(ends_[0]);
        close(ends_[1]);
        kill_child(pid_);
    }
    Stranger(const Stranger &) = delete;
    Stranger &operator=(const Stranger &) = delete;

    int64_t does(unsigned char which) const {
        int64_t result = -1;
        REQUIRE(write(ends_[0], &which, 1) == 1);
        REQUIRE(read(ends_[0], &result, sizeof result) == sizeof result);
        return result;
    }
    pid_t pid() const { return pid_; }

  private:
    int ends_[2] = {-1, -1};
    pid_t pid_ = -1;
};

/// A connection's end on its way, as a process with libsd announces it; `passed` stands for it.
struct OnItsWay {
    UniqueFd passed, far;
    OnItsWay() : OnItsWay(KernelConnection(TestListener{})) {}
    /// In the process that passes it: status of the request.
    int pass(TestProcess &process, uint32_t listener, wire::BridgeStart start, uint64_t segment = 0,
             SegmentView view = {}) const {
        const Answer made =
            process.channel.ask(wire::Op::connect, wire::Connect{listener, wire::kLoopbackAddresses});
        if (made.header.status != 0) {
            return made.header.status;
        }
        const uint64_t link = made.as<wire::ConnectReply>().link_id;
        if (view.base == nullptr) {
            process.segment.open(5, link, 70, 0);
        }
        wire::Pass body{};
        body.handoff.link_id = link;
        body.handoff.ofd_index = 5;
        body.handoff.slot = 70;
        body.segment = segment;
        body.start = static_cast<uint32_t>(start);
        return process.channel.ask(wire::Op::pass, body, {passed.get(), far.get()}).header.status;
    }

  private:
    explicit OnItsWay(KernelConnection made) : passed(std::move(made.client)), far(std::move(made.server)) {}
};

inline bool is_root() { return geteuid() == 0; }

} // namespace sd::test
