// Keeping libsd's own descriptors out of the program's way.
#include "libsd/control/hidden_fd.hpp"
#include <sys/resource.h>

namespace sd {

namespace {

std::atomic<uint64_t> hidden[kMaxFd / 64];

void set_hidden(unsigned fd, bool on) noexcept {
    if (fd >= kMaxFd)
        return;
    uint64_t bit = uint64_t{1} << (fd % 64);
    if (on)
        hidden[fd / 64].fetch_or(bit, std::memory_order_relaxed);
    else
        hidden[fd / 64].fetch_and(~bit, std::memory_order_relaxed);
}

void nobody_moves(int, int) noexcept {}

} // namespace

void (*hidden_moved)(int, int) noexcept = nobody_moves;

long hide_fd(int fd) noexcept {
    // The upper half of what the limit allows: programs fill numbers from below.
    rlimit lim{};
    sys::call(SYS_prlimit64, 0, RLIMIT_NOFILE, 0, sys::arg(&lim));
    long top = lim.rlim_cur < kMaxFd ? static_cast<long>(lim.rlim_cur) : static_cast<long>(kMaxFd);
    long start = top / 2;
    long r = sys::fcntl(fd, F_DUPFD_CLOEXEC, start);
    if (r == -EMFILE || r == -EINVAL)
        r = sys::fcntl(fd, F_DUPFD_CLOEXEC, top / 4);
    sys::close(fd);
    if (r >= static_cast<long>(kMaxFd)) {
        sys::close(static_cast<int>(r));
        return -EMFILE;
    }
    if (r >= 0)
        set_hidden(static_cast<unsigned>(r), true);
    return r;
}

void close_hidden(int fd) noexcept {
    if (fd < 0)
        return;
    set_hidden(static_cast<unsigned>(fd), false);
    sys::close(fd);
}

bool is_hidden(int fd) noexcept {
    auto n = static_cast<unsigned>(fd);
    return n < kMaxFd && (hidden[n / 64].load(std::memory_order_relaxed) >> (n % 64) & 1);
}

void mark_hidden(int fd) noexcept {
    if (fd >= 0)
        set_hidden(static_cast<unsigned>(fd), true);
}

void unhide(int fd) noexcept { set_hidden(static_cast<unsigned>(fd), false); }

unsigned next_hidden(unsigned fd) noexcept {
    for (unsigned w = fd / 64; w < kMaxFd / 64; ++w) {
        uint64_t bits = hidden[w].load(std::memory_order_relaxed);
        if (w == fd / 64)
            bits &= ~uint64_t{0} << (fd % 64);
        if (bits)
            return w * 64 + static_cast<unsigned>(__builtin_ctzll(bits));
    }
    return kMaxFd;
}

} // namespace sd
