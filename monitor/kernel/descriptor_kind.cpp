// Kinds of descriptors, and closing those of clients.
#include "monitor/kernel/descriptor_kind.hpp"
#include "libsd/layout/channel_layout.hpp"
#include "monitor/kernel/interrupted.hpp"
#include "monitor/records/doorbell.hpp"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <cstring>
#include <deque>
#include <fcntl.h>
#include <list>
#include <map>
#include <mutex>
#include <poll.h>
#include <pthread.h>
#include <sys/socket.h>
#include <thread>
#include <unistd.h>

namespace sd::monitor {

namespace {

/// Its family; -1: it is none, or of a family whose close may take the kernel long (AF_PACKET: 14 ms each).
int socket_family(int fd) {
    int family = 0;
    socklen_t length = sizeof family;
    const bool is_socket = getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &family, &length) == 0;
    return is_socket && (family == AF_UNIX || family == AF_INET || family == AF_INET6) ? family : -1;
}

/// Whether something waits in the queue of a channel, which nobody else reads: with it descriptors, which are
/// closed together with the socket, and by whoever closes that.
bool has_queue(int channel) {
    const int on = 1; // with their senders even empty packets can be told from the end
    setsockopt(channel, SOL_SOCKET, SO_PASSCRED, &on, sizeof on);
    char byte;
    iovec io{&byte, sizeof byte};
    msghdr message{};
    message.msg_iov = &io;
    message.msg_iovlen = 1;
    const ssize_t n = recvmsg(channel, &message, MSG_PEEK | MSG_DONTWAIT);
    return n > 0 || (n == 0 && (message.msg_flags & MSG_CTRUNC) != 0);
}

/// The same of a Unix socket that somebody else may read as well, who could have us wait for that.
bool may_have_queue(int socket) {
    pollfd p{socket, POLLIN, 0};
    return poll(&p, 1, 0) != 0;
}

uid_t peer_of(int unix_socket) {
    ucred user{};
    socklen_t length = sizeof user;
    return getsockopt(unix_socket, SOL_SOCKET, SO_PEERCRED, &user, &length) == 0 ? user.uid : 0;
}

/// Threads that do nothing but close. They are never joined: one that waits for a file system ends with that.
class Closer {
  public:
    void close(UniqueFd fd, uid_t user) {
        const std::lock_guard lock(mutex_);
        ++pending_[user];
        queue_.push_back({fd.release(), user, Clock::now()});
        if (idle_ == 0 && threads_ < kMostThreads) {
            start();
        }
        wanted_.notify_one();
    }
    /// Of those that should have been over long ago, or far too many.
    bool has_many(uid_t user) {
        constexpr unsigned kMany = 8, kFarTooMany = 1024;
        constexpr std::chrono::milliseconds kLong{50};
        const std::lock_guard lock(mutex_);
        const auto it = pending_.find(user);
        if (it == pending_.end() || it->second < kMany) {
            return false;
        }
        const auto before = Clock::now() - kLong;
        const auto is_late = [&](const Entry &entry) { return entry.user == user && entry.since < before; };
        return it->second >= kFarTooMany || std::count_if(queue_.begin(), queue_.end(), is_late) +
                                                    std::count_if(closing_.begin(), closing_.end(), is_late) >=
                                                kMany;
    }

  private:
    using Clock = std::chrono::steady_clock;
    struct Entry {
        int fd;
        uid_t user;
        Clock::time_point since;
    };
    static constexpr unsigned kMostThreads = 16;

    void start() {
        sigset_t all, before;
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &before); // signals are the loop's
        try {
            std::thread([this] { work(); }).detach();
            ++threads_;
        } catch (const std::system_error &) {
            // What is in the queue stays open until a thread can be had.
        }
        pthread_sigmask(SIG_SETMASK, &before, nullptr);
    }
    [[noreturn]] void work() {
        std::unique_lock lock(mutex_);
        for (;;) {
            ++idle_;
            wanted_.wait(lock, [this] { return !queue_.empty(); });
            --idle_;
            const Entry entry = queue_.front();
            queue_.pop_front();
            const auto at = closing_.insert(closing_.end(), entry);
            lock.unlock();
            ::close(entry.fd);
            lock.lock();
            closing_.erase(at);
            if (--pending_[entry.user] == 0) {
                pending_.erase(entry.user);
            }
        }
    }

    std::mutex mutex_;
    std::condition_variable wanted_;
    std::deque<Entry> queue_;
    std::list<Entry> closing_;
    std::map<uid_t, unsigned> pending_;
    unsigned threads_ = 0, idle_ = 0;
};

Closer &closer() {
    static auto *const one = new Closer; // outlives its threads
    return *one;
}

} // namespace

bool is_channel_end(int fd) {
    char path[64], link[sizeof kChannelLink + 1];
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    const ssize_t n = readlink(path, link, sizeof link);
    return n == sizeof kChannelLink - 1 && memcmp(link, kChannelLink, sizeof kChannelLink - 1) == 0;
}

bool is_kernels_own(int fd) {
    return fcntl(fd, F_GET_SEALS) >= 0 || socket_family(fd) >= 0 || is_eventfd(fd) || is_channel_end(fd);
}

void close_received(UniqueFd fd, uid_t user) {
    const int family = socket_family(fd.get());
    if (family == AF_UNIX ? may_have_queue(fd.get()) : family < 0 && !is_kernels_own(fd.get())) {
        closer().close(std::move(fd), user);
    } else if (family > 0 && family != AF_UNIX) {
        const Interrupted soon;
        fd.reset();
    }
}

void close_client_socket(UniqueFd fd) {
    const uid_t user = peer_of(fd.get());
    close_received(std::move(fd), user);
}

void close_channel(UniqueFd fd) {
    if (has_queue(fd.get())) {
        shutdown(fd.get(), SHUT_RDWR);
        const uid_t user = peer_of(fd.get());
        closer().close(std::move(fd), user);
    }
}

bool is_holding_us_up(uid_t user) { return user != 0 && closer().has_many(user); }

} // namespace sd::monitor
