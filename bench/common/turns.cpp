// Turns of programs that measure at the same time: a word in a file that all of them map counts the turns
// taken.
#include "bench/common/turns.hpp"

#include "bench/common/measure.hpp"
#include "bench/common/process.hpp"

#include <fcntl.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstdio>

namespace sd::bench {

namespace {

constexpr time_t kPatience = 60; // seconds

void wake(std::atomic<std::uint32_t> &word) {
    syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

} // namespace

Turns::Turns(const std::string &text) {
    if (text.empty()) {
        return;
    }
    const std::size_t name_end = text.find(':');
    unsigned place = 0;
    unsigned count = 0;
    int used = 0;
    if (name_end == std::string::npos ||
        std::sscanf(text.c_str() + name_end, ":%u:%u%n", &place, &count, &used) != 2 ||
        name_end + static_cast<std::size_t>(used) != text.size() || place >= count) {
        errno = 0;
        die("--turns must be FILE:PLACE:COUNT, PLACE from 0 to COUNT-1");
    }
    const int fd = open(text.substr(0, name_end).c_str(), O_RDWR | O_CLOEXEC);
    if (fd < 0 || ftruncate(fd, sizeof(Shared)) != 0) {
        die("the file of --turns");
    }
    void *memory = mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (memory == MAP_FAILED) {
        die("the file of --turns");
    }
    close(fd);
    shared_ = static_cast<Shared *>(memory);
    next_ = place;
    count_ = count;
}

void Turns::sleep_while(const std::atomic<std::uint32_t> &word, std::uint32_t value) {
    const timespec patience{kPatience, 0};
    if (syscall(SYS_futex, &word, FUTEX_WAIT, value, &patience, nullptr, 0) != 0 && errno == ETIMEDOUT) {
        die("waiting for another program's turn");
    }
}

void Turns::take() {
    if (shared_ == nullptr) {
        return;
    }
    if (next_ < count_) { // the first time
        shared_->here.fetch_add(1);
        wake(shared_->here);
        for (std::uint32_t here = 0; (here = shared_->here.load()) < count_;) {
            sleep_while(shared_->here, here);
        }
    }
    for (std::uint32_t given = 0; (given = shared_->given.load()) != next_;) {
        sleep_while(shared_->given, given);
    }
}

void Turns::give() {
    if (shared_ == nullptr) {
        return;
    }
    next_ += count_;
    shared_->given.fetch_add(1);
    wake(shared_->given);
}

void Rest::wake_with(std::uint32_t state) {
    state_.store(state, std::memory_order_release);
    wake(state_);
}

bool Rest::sleep() {
    while (state_.load(std::memory_order_acquire) == kResting) {
        syscall(SYS_futex, &state_, FUTEX_WAIT, kResting, nullptr, nullptr, 0);
    }
    return state_.load(std::memory_order_relaxed) == kWorking;
}

Windows::Windows(const Options &options) : count_(options.integer("windows")), turns_(options.text("turns")) {
    if (count_ < 1) {
        errno = 0;
        die("--windows must be 1 or more");
    }
    seconds_ = options.number("seconds") / static_cast<double>(count_);
    warmup_ = options.number("warmup") / static_cast<double>(count_);
}

double Windows::median() const {
    std::vector<double> sorted = figures_;
    std::sort(sorted.begin(), sorted.end());
    const std::size_t half = sorted.size() / 2;
    return sorted.size() % 2 == 1 ? sorted[half] : (sorted[half - 1] + sorted[half]) / 2;
}

} // namespace sd::bench
