// Helpers of the behaviour programs that use several processes or threads.
#pragma once

#include "tests/programs/common.hpp"
#include "tests/programs/crossing.hpp"

#include <atomic>
#include <csignal>
#include <cstring>
#include <functional>
#include <sys/un.h>
#include <sys/wait.h>
#include <thread>

namespace sdtest {

// Runs `body` in a forked child, which then ends through exit().
inline pid_t spawn(const std::function<void()> &body) {
    const pid_t pid = MUST(fork());
    if (pid == 0) {
        become_a_stranger();
        body();
        exit(0);
    }
    return pid;
}

inline bool peer_is_gone(int fd) { return (poll_now(fd, POLLRDHUP, kPatience) & POLLRDHUP) != 0; }

/// libsd's monitor, where there is one, stopped in the meantime.
class StoppedMonitor {
  public:
    StoppedMonitor() {
        const char *path = getenv("SD_MONITOR");
        if (!path)
            return;
        const int fd = MUST(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
        sockaddr_un name{};
        name.sun_family = AF_UNIX;
        strncpy(name.sun_path, path, sizeof name.sun_path - 1);
        MUST(connect(fd, reinterpret_cast<const sockaddr *>(&name), sizeof name));
        ucred peer{};
        socklen_t length = sizeof peer;
        MUST(getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &length));
        close(fd);
        pid_ = peer.pid;
        MUST(kill(pid_, SIGSTOP));
    }
    ~StoppedMonitor() {
        if (pid_ > 0)
            kill(pid_, SIGCONT);
    }
    StoppedMonitor(const StoppedMonitor &) = delete;
    StoppedMonitor &operator=(const StoppedMonitor &) = delete;

  private:
    pid_t pid_ = 0;
};

// Waits for a child and says how it ended.
inline void reap(const char *label, pid_t pid) {
    int status = 0;
    while (waitpid(pid, &status, 0) < 0) {
        if (errno != EINTR)
            give_up("waitpid");
    }
    if (WIFSIGNALED(status))
        say("%s: killed by SIG%s", label, sigabbrev_np(WTERMSIG(status)));
    else
        say("%s: exit %d", label, WEXITSTATUS(status));
}

// One byte, with room for a descriptor.
class DescriptorMessage {
  public:
    DescriptorMessage() {
        header.msg_iov = &part_;
        header.msg_iovlen = 1;
        header.msg_control = control_;
        header.msg_controllen = sizeof control_;
    }
    DescriptorMessage(const DescriptorMessage &) = delete;
    DescriptorMessage &operator=(const DescriptorMessage &) = delete;
    msghdr header{};

  private:
    char byte_ = 'd';
    iovec part_{&byte_, 1};
    alignas(cmsghdr) char control_[CMSG_SPACE(sizeof(int))] = {};
};

// Sends a descriptor over a Unix socket, with one byte. What sendmsg returns.
inline ssize_t send_descriptor(int channel, int fd, int flags) {
    DescriptorMessage message;
    cmsghdr *header = CMSG_FIRSTHDR(&message.header);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(header), &fd, sizeof fd);
    return sendmsg(channel, &message.header, flags);
}

// The descriptor that comes with the next byte.
inline int receive_descriptor(int channel) {
    DescriptorMessage message;
    MUST(recvmsg(channel, &message.header, 0));
    const cmsghdr *header = CMSG_FIRSTHDR(&message.header);
    int fd = -1;
    if (header)
        memcpy(&fd, CMSG_DATA(header), sizeof fd);
    return fd;
}

inline void pass_descriptor(int channel, int fd) { MUST(send_descriptor(channel, fd, 0)); }

// How many mappings this process has.
inline long mappings() {
    long n = 0;
    if (FILE *f = fopen("/proc/self/maps", "r")) {
        for (int c; (c = fgetc(f)) != EOF;)
            n += c == '\n';
        fclose(f);
    }
    return n;
}

// Puts processes in order: one waits, another lets it go. A pipe, so libc sockets play no part in it.
class Gate {
  public:
    Gate() { MUST(pipe2(ends_, O_CLOEXEC)); }

    void open() const { MUST(write(ends_[1], "", 1)); }

    void pass() const {
        char byte;
        ssize_t got;
        do {
            got = read(ends_[0], &byte, 1);
        } while (got < 0 && errno == EINTR);
        if (got != 1)
            give_up("gate");
    }

  private:
    int ends_[2];
};

// Sends a signal to a thread again and again until told to stop, because a single one could come
// before the thread has entered the call it is meant to interrupt.
class Nagger {
  public:
    Nagger(pthread_t target, int signal) {
        thread_ = std::thread([this, target, signal] {
            while (!done_) {
                sleep_ms(30);
                if (!done_)
                    pthread_kill(target, signal);
            }
        });
    }

    void stop() {
        done_ = true;
        if (thread_.joinable())
            thread_.join();
    }

    ~Nagger() { stop(); }

  private:
    std::atomic<bool> done_{false};
    std::thread thread_;
};

// Sends until nothing fits any more.
inline void fill(int fd) {
    set_nonblocking(fd);
    const std::string data = pattern(65536);
    while (send(fd, data.data(), data.size(), 0) > 0) {
    }
    set_nonblocking(fd, false);
}

} // namespace sdtest
