#include "libsd/vfs/readiness/poll_by_select.hpp"
#include "libsd/control/sys.hpp"
#include <sys/mman.h>

namespace sd {

namespace {

constexpr size_t kBits = 64;
constexpr size_t kUsual = 1088 / kBits; ///< words for numbers where the library's own begin

/// Three sets side by side.
struct Sets {
    uint64_t *word;
    size_t words;

    void add(unsigned set, int fd) const noexcept {
        word[set * words + static_cast<unsigned>(fd) / kBits] |= uint64_t{1} << static_cast<unsigned>(fd) % kBits;
    }
    [[nodiscard]] bool has(unsigned set, int fd) const noexcept {
        return word[set * words + static_cast<unsigned>(fd) / kBits] >> static_cast<unsigned>(fd) % kBits & 1;
    }
};

long select(const Sets &s, pollfd *p, size_t n, const timespec *timeout, const uint64_t *mask) noexcept {
    for (size_t i = 0; i < n; ++i) {
        p[i].revents = 0;
        if (p[i].fd < 0)
            continue;
        if ((p[i].events & (POLLIN | POLLRDNORM | POLLRDHUP)) || !(p[i].events & POLLOUT))
            s.add(0, p[i].fd);
        if (p[i].events & POLLOUT)
            s.add(1, p[i].fd);
        if (p[i].events & POLLPRI)
            s.add(2, p[i].fd);
    }
    timespec left{};
    if (timeout)
        left = *timeout; // the kernel changes it
    const struct {
        const uint64_t *mask;
        size_t bytes;
    } asked{mask, sizeof *mask};
    const long r = sys::call(SYS_pselect6, static_cast<long>(s.words * kBits), sys::arg(s.word),
                             sys::arg(s.word + s.words), sys::arg(s.word + 2 * s.words),
                             sys::arg(timeout ? &left : nullptr), sys::arg(&asked));
    if (r <= 0)
        return r;
    long found = 0;
    for (size_t i = 0; i < n; ++i) {
        if (p[i].fd < 0)
            continue;
        int got = 0;
        if (s.has(0, p[i].fd))
            got |= p[i].events & (POLLIN | POLLRDNORM) ? p[i].events & (POLLIN | POLLRDNORM) : POLLHUP;
        if (s.has(1, p[i].fd))
            got |= POLLOUT;
        if (s.has(2, p[i].fd))
            got |= POLLPRI;
        p[i].revents = static_cast<short>(got);
        found += got != 0;
    }
    return found;
}

} // namespace

long poll_by_select(pollfd *p, size_t n, const timespec *timeout, const uint64_t *mask) noexcept {
    int highest = 0;
    for (size_t i = 0; i < n; ++i)
        highest = p[i].fd > highest ? p[i].fd : highest;
    const size_t words = static_cast<size_t>(highest) / kBits + 1;
    if (words <= kUsual) {
        uint64_t word[3 * kUsual]{};
        return select({word, words}, p, n, timeout, mask);
    }
    const size_t bytes = 3 * words * sizeof(uint64_t);
    void *room = sys::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (!room)
        return -EINVAL;
    const long r = select({static_cast<uint64_t *>(room), words}, p, n, timeout, mask);
    sys::munmap(room, bytes);
    return r;
}

} // namespace sd
