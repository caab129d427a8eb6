// poll and select on lists that may hold accelerated descriptors.
#include "libsd/vfs/descriptors/import.hpp"
#include "libsd/vfs/readiness/poll_wait.hpp"
#include "libsd/vfs/readiness/signal_mask.hpp"
#include "libsd/vfs/vfs.hpp"

namespace sd::vfs {

namespace {

int64_t to_ns(const timespec *t) noexcept {
    if (!t)
        return -1;
    return t->tv_sec > 9'000'000'000 ? INT64_MAX : int64_t{t->tv_sec} * 1'000'000'000 + t->tv_nsec;
}

// What select's three sets mean in terms of poll, as in the kernel.
constexpr short kReadable = POLLRDNORM | POLLRDBAND | POLLIN | POLLHUP | POLLERR;
constexpr short kWritable = POLLWRBAND | POLLWRNORM | POLLOUT | POLLERR;
constexpr short kExceptional = POLLPRI;
constexpr short kMeaning[3] = {kReadable, kWritable, kExceptional};

constexpr size_t kInlineWords = 16; ///< FD_SETSIZE descriptors
using Word = unsigned long;
constexpr size_t kWordBits = 8 * sizeof(Word);

/// The File behind a number. A listener that the program inherited may be waited for before anything else is
/// done with it.
File *known(int fd) noexcept {
    File *f = file_of(fd);
    if (f || static_cast<unsigned>(fd) >= kMaxFd) [[likely]]
        return f;
    import_polled(fd);
    return file_of(fd);
}

/// Is any descriptor of the list ours? False too when the list cannot be read: the kernel says so then.
bool any_ours(const pollfd *fds, size_t n) noexcept {
    pollfd part[32];
    for (size_t at = 0; at < n; at += 32) {
        const size_t m = n - at < 32 ? n - at : 32;
        if (sd_copy(part, fds + at, m * sizeof *fds))
            return false;
        for (size_t i = 0; i < m; ++i)
            if (known(part[i].fd)) // negative numbers are beyond the table
                return true;
    }
    return false;
}

/// Copies of the three bit sets, for programs that go beyond FD_SETSIZE too.
class BitSets {
  public:
    explicit BitSets(size_t words) noexcept {
        Word *at = here_;
        if (words > kInlineWords) {
            bytes_ = 3 * words * sizeof(Word);
            at = static_cast<Word *>(
                sys::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
            mark_ = CleanupStack::mark();
            if (at)
                CleanupStack::push(unmap_cleanup, at, bytes_, this);
        }
        for (size_t s = 0; s < 3; ++s)
            set[s] = at ? at + s * words : nullptr;
    }
    ~BitSets() {
        if (bytes_ && set[0]) {
            CleanupStack::forget_to(mark_);
            sys::munmap(set[0], bytes_);
        }
    }
    BitSets(const BitSets &) = delete;
    BitSets &operator=(const BitSets &) = delete;
    Word *set[3];

  private:
    Word here_[3 * kInlineWords];
    size_t bytes_ = 0;
    unsigned mark_ = 0;
};

} // namespace

long poll(pollfd *fds, nfds_t n, const timespec *timeout, const sigset_t *mask) noexcept {
    if (n == 0 || n > kMaxFd)
        return kPass;
    upward.expect_faults();
    if (!any_ours(fds, n))
        return kPass;
    CleanupStack::drop_abandoned(__builtin_frame_address(0));
    PollSpace space(n);
    if (!space)
        return -ENOMEM;
    PollList &l = space.list;
    if (sd_copy(l.all, fds, n * sizeof *fds) || !poll_classify(l))
        return kPass;
    uint64_t asked;
    if (mask && sd_copy(&asked, mask, sizeof asked))
        return -EFAULT;
    long r = poll_wait(l, to_ns(timeout), mask ? &asked : nullptr);
    if (r < 0)
        return r;
    for (size_t i = 0; i < n; ++i)
        if (sd_copy(&fds[i].revents, &l.all[i].revents, sizeof(short)))
            return -EFAULT;
    return r;
}

long select(int n, fd_set *r, fd_set *w, fd_set *e, const timespec *timeout, const sigset_t *mask) noexcept {
    if (n <= 0 || n > static_cast<int>(kMaxFd))
        return kPass;
    upward.expect_faults();
    CleanupStack::drop_abandoned(__builtin_frame_address(0));
    fd_set *given[3] = {r, w, e};
    const size_t words = (static_cast<size_t>(n) + kWordBits - 1) / kWordBits;
    BitSets in(words);
    if (!in.set[0])
        return -ENOMEM;
    size_t count = 0;
    bool ours = false;
    for (size_t k = 0; k < words; ++k) {
        Word any = 0;
        for (int s = 0; s < 3; ++s) {
            in.set[s][k] = 0;
            if (given[s] && sd_copy(&in.set[s][k], reinterpret_cast<Word *>(given[s]) + k, sizeof(Word)))
                return kPass;
            if (k == words - 1 && static_cast<size_t>(n) % kWordBits)
                in.set[s][k] &= (Word{1} << static_cast<size_t>(n) % kWordBits) - 1;
            any |= in.set[s][k];
        }
        for (; any; any &= any - 1, ++count)
            ours |= known(static_cast<int>(k * kWordBits) + __builtin_ctzl(any)) != nullptr;
    }
    if (!ours)
        return kPass;
    uint64_t asked;
    if (mask && sd_copy(&asked, mask, sizeof asked))
        return -EFAULT;
    PollSpace space(count);
    if (!space)
        return -ENOMEM;
    PollList &l = space.list;
    for (size_t k = 0, at = 0; k < words; ++k)
        for (Word any = in.set[0][k] | in.set[1][k] | in.set[2][k]; any; any &= any - 1) {
            const int bit = __builtin_ctzl(any);
            short events = 0;
            for (int s = 0; s < 3; ++s)
                if (in.set[s][k] >> bit & 1)
                    events = static_cast<short>(events | kMeaning[s]);
            l.all[at++] = {static_cast<int>(k * kWordBits) + bit, events, 0};
        }
    if (!poll_classify(l))
        return kPass;
    const int64_t ns = to_ns(timeout);
    const int64_t deadline = ns < 0 ? -1 : ns > INT64_MAX - sys::now_ns() ? INT64_MAX : sys::now_ns() + ns;
    int64_t left = ns;
    const uint64_t handled = self.handled;
    for (;;) {
        long ready = poll_wait(l, left, mask ? &asked : nullptr);
        if (ready < 0)
            return ready;
        long bits = 0;
        for (size_t i = 0; i < count; ++i) {
            const pollfd &p = l.all[i];
            if ((p.revents & POLLNVAL) && !l.file[i])
                return -EBADF; // of one that was closed while we waited the kernel says that it is ready
            const size_t k = static_cast<size_t>(p.fd) / kWordBits, bit = static_cast<size_t>(p.fd) % kWordBits;
            for (int s = 0; s < 3; ++s)
                bits += (in.set[s][k] >> bit & 1) && (p.revents & (kMeaning[s] | POLLNVAL));
        }
        // poll also ends for a hang-up or error that none of the asked sets counts; select waits on then.
        if (bits == 0 && ready > 0 && ns != 0) {
            int64_t now = sys::now_ns();
            if (deadline < 0 || now < deadline) {
                left = deadline < 0 ? -1 : deadline - now;
                timespec pause{0, 1'000'000};
                const TrueMask before(mask != nullptr);
                sys::ppoll(nullptr, 0, &pause, mask ? &asked : nullptr);
                if (self.handled != handled)
                    return -EINTR;
                continue;
            }
        }
        for (size_t i = 0; i < count; ++i) {
            const pollfd &p = l.all[i];
            const size_t k = static_cast<size_t>(p.fd) / kWordBits, bit = static_cast<size_t>(p.fd) % kWordBits;
            for (int s = 0; s < 3; ++s)
                if (!(p.revents & (kMeaning[s] | POLLNVAL)))
                    in.set[s][k] &= ~(Word{1} << bit);
        }
        for (int s = 0; s < 3; ++s)
            if (given[s] && sd_copy(given[s], in.set[s], words * sizeof(Word)))
                return -EFAULT;
        return bits;
    }
}

} // namespace sd::vfs
