// Kinds of descriptors, and closing those of clients.
#include "monitor/kernel/descriptor_kind.hpp"
#include "monitor/kernel/interrupted.hpp"
#include "monitor/records/doorbell.hpp"

#include <condition_variable>
#include <csignal>
#include <deque>
#include <fcntl.h>
#include <map>
#include <mutex>
#include <pthread.h>
#include <sys/socket.h>
#include <thread>

namespace sd::monitor {

namespace {

bool is_socket(int fd) {
    int type = 0;
    socklen_t length = sizeof type;
    return getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &length) == 0;
}

/// Threads that do nothing but close. They are never joined: one that waits for a file system ends with that.
class Closer {
  public:
    void close(UniqueFd fd, uid_t user) {
        const std::lock_guard lock(mutex_);
        ++pending_[user];
        queue_.push_back({fd.release(), user});
        if (idle_ == 0 && threads_ < kMostThreads) {
            start();
        }
        wanted_.notify_one();
    }
    bool has_many(uid_t user) {
        constexpr unsigned kMany = 8;
        const std::lock_guard lock(mutex_);
        const auto it = pending_.find(user);
        return it != pending_.end() && it->second >= kMany;
    }

  private:
    struct Entry {
        int fd;
        uid_t user;
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
            lock.unlock();
            ::close(entry.fd);
            lock.lock();
            if (--pending_[entry.user] == 0) {
                pending_.erase(entry.user);
            }
        }
    }

    std::mutex mutex_;
    std::condition_variable wanted_;
    std::deque<Entry> queue_;
    std::map<uid_t, unsigned> pending_;
    unsigned threads_ = 0, idle_ = 0;
};

Closer &closer() {
    static auto *const one = new Closer; // outlives its threads
    return *one;
}

} // namespace

bool is_kernels_own(int fd) {
    return fcntl(fd, F_GET_SEALS) >= 0 || is_socket(fd) || eventfd_id(fd).has_value();
}

void close_received(UniqueFd fd, uid_t user) {
    if (is_socket(fd.get())) {
        const Interrupted soon;
        fd.reset();
    } else if (is_kernels_own(fd.get())) {
        fd.reset();
    } else {
        closer().close(std::move(fd), user);
    }
}

bool is_holding_us_up(uid_t user) { return user != 0 && closer().has_many(user); }

} // namespace sd::monitor
