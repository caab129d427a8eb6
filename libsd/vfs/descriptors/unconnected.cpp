// Sockets that are shared before they are connected; see unconnected.hpp.
#include "libsd/vfs/descriptors/unconnected.hpp"
#include "libsd/control/fork_sections.hpp"
#include "libsd/control/sys.hpp"
#include "libsd/vfs/descriptors/numbers.hpp"
#include "libsd/vfs/descriptors/placeholder_cache.hpp"
#include "libsd/vfs/options/option_records.hpp"
#include "libsd/vfs/readiness/epoll.hpp"
#include "libsd/vfs/vfs.hpp"

namespace sd {

namespace {

/// A bit for each number that note_unconnected() was told of since a fork last found something else there.
/// Most programs make their sockets under the same few numbers again and again, so it is mostly read.
constinit std::atomic<uint64_t> noted[kMaxFd / 64];

/// What is in the table under a number meanwhile is `cached_placeholder`, which sends other threads to
/// await_shared().
SD_FORK_STATE std::atomic<bool> converting{false};

constexpr unsigned kMostNumbers = 64; ///< of one socket

/// Every number of a File, out of the table until it is put back. Signals are blocked, since a handler would
/// wait for its own thread.
class Numbers {
  public:
    explicit Numbers(File &f) noexcept : file_(f) {
        sys::block_signals(&mask_);
        converting.store(true, std::memory_order_seq_cst);
        for_each_number(f, [&](int fd) {
            if (File *expected = &f;
                count_ < kMostNumbers && fd_table[fd].compare_exchange_strong(expected, &cached_placeholder))
                number_[count_++] = fd;
        });
    }
    ~Numbers() {
        for (int fd : *this)
            if (File *expected = &cached_placeholder; !fd_table[fd].compare_exchange_strong(expected, &file_))
                release_file(&file_); // a close past the library, and the number is another's
        converting.store(false, std::memory_order_seq_cst);
        sys::restore_signals(&mask_);
    }
    Numbers(const Numbers &) = delete;
    Numbers &operator=(const Numbers &) = delete;
    const int *begin() const noexcept { return number_; }
    const int *end() const noexcept { return number_ + count_; }
    /// No call is under way on the File: each that is holds a reference (PinnedFile), unless the program has
    /// one thread.
    bool are_all() const noexcept { return file_.refs.load(std::memory_order_seq_cst) == count_; }

  private:
    File &file_;
    unsigned count_ = 0;
    int number_[kMostNumbers];
    uint64_t mask_;
};

/// The placeholder's numbers become one kernel socket. Where that cannot be (no number is left, or another
/// thread is connecting it just now) it stays what it is.
void make_real(File &f) noexcept {
    bool made = false;
    {
        const Numbers numbers(f);
        if (!numbers.are_all() || f.kind != FileKind::fresh || f.real_socket)
            return;
        SpareNumbers spare;
        const bool waits = !(f.status.load(std::memory_order_relaxed) & O_NONBLOCK);
        const long s = sys::socket(f.family, SOCK_STREAM | SOCK_CLOEXEC | (waits ? 0 : SOCK_NONBLOCK), 0);
        if (s < 0)
            return;
        if (f.unconnected.options)
            replay_options(static_cast<int>(s), *f.unconnected.options);
        for (int fd : numbers)
            made |= replace_number(fd, static_cast<int>(s)) >= 0;
        sys::close(static_cast<int>(s));
        f.real_socket = made;
    }
    if (made)
        epoll_file_became_kernel(f);
}

} // namespace

void note_unconnected(int fd) noexcept {
    auto &word = noted[static_cast<unsigned>(fd) / 64];
    const uint64_t bit = uint64_t{1} << (fd % 64);
    if (!(word.load(std::memory_order_seq_cst) & bit)) [[unlikely]]
        word.fetch_or(bit, std::memory_order_seq_cst);
}

void mark_shared(File &f) noexcept {
    if (f.unconnected.refuse_cause == 0)
        f.unconnected.refuse_cause = static_cast<uint8_t>(Cause::shared_early);
}

void await_shared(int fd) noexcept {
    while (converting.load(std::memory_order_seq_cst) && entry_of(fd) == &cached_placeholder)
        sys::sched_yield();
}

// The bit is cleared before the table is looked at, and set after the entry was made, with full fences in
// between: one of the two sees the other.
SD_FORK_CODE void share_unconnected(bool executes) noexcept {
    for (uint32_t w = 0, high = fd_high.load(std::memory_order_acquire); w * 64 < high; ++w) {
        if (noted[w].load(std::memory_order_relaxed) == 0) [[likely]]
            continue;
        for (uint64_t bits = noted[w].exchange(0, std::memory_order_seq_cst); bits; bits &= bits - 1) {
            const int fd = static_cast<int>(w * 64) + __builtin_ctzll(bits);
            File *f = fd_table[fd].load(std::memory_order_seq_cst);
            if (!f || f == &cached_placeholder || f->kind != FileKind::fresh)
                continue;
            note_unconnected(fd); // for the next fork
            if (executes && (sys::fcntl(fd, F_GETFD) & FD_CLOEXEC))
                continue;
            // One whose edges were reported stays what it is: the kernel would report them anew
            // (docs/compatibility.md).
            if (!f->real_socket && !epoll_would_repeat(*f))
                make_real(*f);
            if (f->real_socket && f->kind == FileKind::fresh)
                mark_shared(*f);
        }
    }
}

} // namespace sd
