// What measurements of sdctl calibrate share.
#pragma once
#include "monitor/sdctl/failure.hpp"

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <fmt/core.h>
#include <functional>
#include <string>
#include <sys/mman.h>
#include <thread>

namespace sd::ctl {

constexpr size_t kPage = 4096, kRing = 256 << 10, kCall = 1 << 20; ///< bytes

[[noreturn]] inline void cannot_measure(const std::string &what) {
    throw Failure(Exit::failed, fmt::format("calibrate: {}: {}", what, strerror(errno)));
}

/// Memory that is mapped for as long as this lives.
class Memory {
  public:
    Memory(size_t bytes, int flags, int fd) : bytes_(bytes) {
        void *got = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, flags, fd, 0);
        if (got == MAP_FAILED) {
            cannot_measure("memory");
        }
        at_ = static_cast<char *>(got);
    }
    Memory(const Memory &) = delete;
    Memory &operator=(const Memory &) = delete;
    ~Memory() { munmap(at_, bytes_); }
    char *at() const { return at_; }

  private:
    char *at_;
    size_t bytes_;
};

/// Keeps another processor of this process busy, as programs with threads do: flushes have to reach it.
class Spinner {
  public:
    Spinner() {
        if (std::thread::hardware_concurrency() > 1) {
            thread_ = std::thread([this] {
                while (!stop_.load(std::memory_order_relaxed)) {
                }
            });
        }
    }
    Spinner(const Spinner &) = delete;
    Spinner &operator=(const Spinner &) = delete;
    ~Spinner() {
        stop_.store(true, std::memory_order_relaxed);
        if (thread_.joinable()) {
            thread_.join();
        }
    }

  private:
    std::atomic<bool> stop_{false};
    std::thread thread_;
};

inline double seconds_of(const std::function<void()> &what, unsigned times) {
    using Clock = std::chrono::steady_clock;
    const auto begun = Clock::now();
    for (unsigned i = 0; i < times; ++i) {
        what();
    }
    return std::chrono::duration<double>(Clock::now() - begun).count() / times;
}

/// Into a ring and out of it, in turns, as over shared memory. The fences keep the compiler from leaving
/// copies out.
inline void copy_through(char *ring, size_t ring_bytes, const char *from, char *to, size_t n) {
    for (size_t at = 0; at < n; at += ring_bytes) {
        const size_t part = n - at < ring_bytes ? n - at : ring_bytes;
        memcpy(ring, from + at, part);
        std::atomic_signal_fence(std::memory_order_seq_cst);
        memcpy(to + at, ring, part);
        std::atomic_signal_fence(std::memory_order_seq_cst);
    }
}

} // namespace sd::ctl
