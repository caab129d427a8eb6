// A thread that asks the kernel about sockets of clients.
#include "monitor/service/socket_question.hpp"

#include <chrono>
#include <condition_variable>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <map>
#include <mutex>
#include <sys/syscall.h>
#include <system_error>
#include <thread>

namespace sd::monitor {

namespace {

using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

constexpr auto kLook = 10ms;     ///< between two looks at a thread that has not answered
constexpr auto kLongestRun = 1s; ///< with one that runs, or waits for a processor
constexpr auto kPenalty = 2s;    ///< for a user whose socket was locked: all others have waited 20 ms for it
constexpr unsigned kMostLost = 32; ///< threads that have not come back, of all users

/// Whether a thread sleeps where no signal wakes it.
bool is_stuck(pid_t thread) {
    char path[64], text[512];
    snprintf(path, sizeof path, "/proc/self/task/%d/stat", static_cast<int>(thread));
    const UniqueFd fd(open(path, O_RDONLY | O_CLOEXEC));
    const ssize_t n = fd ? read(fd.get(), text, sizeof text - 1) : -1;
    text[n > 0 ? n : 0] = '\0';
    const char *name_end = strrchr(text, ')');
    return name_end != nullptr && name_end[1] == ' ' && name_end[2] == 'D';
}

/// What one thread and the loop have in common.
struct Worker {
    std::mutex mutex;
    std::condition_variable asked, answered;
    std::function<void()> question; ///< empty: it has been answered
    pid_t thread = 0;
    bool is_lost = false; ///< nobody waits for it any more
};

/// Threads that have not come back; with the lock.
unsigned &lost_ones(std::unique_lock<std::mutex> *lock) {
    static auto *const mutex = new std::mutex; // outlives the threads
    static unsigned lost = 0;
    *lock = std::unique_lock(*mutex);
    return lost;
}

void work(const std::shared_ptr<Worker> &own) {
    std::unique_lock lock(own->mutex);
    own->thread = static_cast<pid_t>(syscall(SYS_gettid));
    while (!own->is_lost) {
        own->asked.wait(lock, [&] { return static_cast<bool>(own->question); });
        std::function<void()> question = own->question;
        lock.unlock();
        question();
        question = nullptr; // and what it had, before anybody goes on
        lock.lock();
        own->question = nullptr;
        own->answered.notify_one();
    }
    lock.unlock();
    std::unique_lock<std::mutex> counting;
    --lost_ones(&counting);
}

std::shared_ptr<Worker> make_worker() {
    auto made = std::make_shared<Worker>();
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before); // signals are the loop's
    try {
        std::thread(work, made).detach();
    } catch (const std::system_error &) {
        made = nullptr;
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    return made;
}

} // namespace

bool run_beside(std::function<void()> question, uid_t user) {
    static std::shared_ptr<Worker> worker;
    static std::map<uid_t, Clock::time_point> not_before;
    const auto begin = Clock::now();
    std::erase_if(not_before, [&](const auto &entry) { return entry.second <= begin; });
    std::unique_lock<std::mutex> counting;
    if (not_before.count(user) != 0 || lost_ones(&counting) >= kMostLost) {
        return false;
    }
    counting.unlock();
    if (worker == nullptr && (worker = make_worker()) == nullptr) {
        return false;
    }
    std::unique_lock lock(worker->mutex);
    worker->question = std::move(question);
    worker->asked.notify_one();
    const auto is_answered = [] { return !worker->question; };
    bool was_stuck = false;
    while (!worker->answered.wait_for(lock, kLook, is_answered)) {
        const pid_t thread = worker->thread;
        const bool stuck = thread != 0 && is_stuck(thread);
        if ((stuck && was_stuck) || Clock::now() - begin > kLongestRun) {
            worker->is_lost = true;
            lock.unlock();
            worker.reset();
            ++lost_ones(&counting);
            not_before[user] = Clock::now() + kPenalty;
            return false;
        }
        was_stuck = stuck;
    }
    return true;
}

} // namespace sd::monitor
