// Gives the device's memory up while the program's threads run: anonymous memory with the same contents takes
// its place, a piece at a time. The module has writes to a piece wait meanwhile (FREEZE).
//
// Between the copy and the exchange nobody may unmap the piece, or map something else there: it would be
// covered. So whoever changes mappings in the window counts in `changes`, and looks at `leaver` behind that;
// who leaves sets `leaver`, and looks at `changes` behind that. One of the two sees the other: either the
// change waits until the piece is exchanged, or the piece is left for another time. A forked child has
// neither: the word names the process, and what its parent's threads were counted for is not waited for long.
#include "kmod-zerocopy/include/linux/socksdirect_zerocopy.h"
#include "libpages/changes.hpp"
#include "libpages/device.hpp"
#include "libpages/next.hpp"
#include "libpages/settings.hpp"
#include "libpages/slots.hpp"
#include "libsd/control/sys.hpp"

#include <cerrno>

namespace sd::pages {

constinit std::atomic<int> changes{0};
constinit std::atomic<long> leaver{0};

bool wait_for_leaver() noexcept {
    const long own = sys::getpid();
    long who = 0;
    while ((who = leaver.load(std::memory_order_seq_cst)) == own)
        sys::sched_yield();
    return who == 0;
}

namespace {

/// Writes to a piece wait for about as long as copying it takes. Each one stays a mapping of its own, of
/// which a process may have 65530: large blocks are cut into fewer.
constexpr size_t kPiece = size_t{1} << 20, kMostPieces = 64;
constexpr unsigned kTries = 20000; ///< for a change to come to an end
/// The device's, as long as some memory of it is left.
constinit std::atomic<int> own_descriptor{-1};

bool no_change_is_under_way() noexcept {
    for (unsigned i = 0; i < kTries; ++i) {
        if (changes.load(std::memory_order_seq_cst) == 0)
            return true;
        sys::sched_yield();
    }
    return false;
}

/// With `leaver` set. False: it is still the device's. Memory that is not the device's is none of ours.
bool exchange(int fd, uintptr_t at, size_t length) noexcept {
    const Next &n = next();
    const Mapped m = mapped_behind(at);
    if (!m.end || m.from >= at + length || !m.shared)
        return true; // it has changed
    if (m.from > at || m.end < at + length)
        return false;
    void *const copy = n.mmap(nullptr, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (copy == MAP_FAILED)
        return false;
    sdzc_freeze what{
        .address = at, .length = length, .to = reinterpret_cast<uintptr_t>(copy), .flags = 0, .reserved = 0};
    void *const to = reinterpret_cast<void *>(at);
    if (n.ioctl(fd, SDZC_FREEZE, &what) == 0) {
        // What is moved over it ends the waiting, too.
        if ((m.protection == (PROT_READ | PROT_WRITE) || n.mprotect(copy, length, m.protection) == 0) &&
            n.mremap(copy, length, length, MREMAP_MAYMOVE | MREMAP_FIXED, to) == to)
            return true;
        what.to = 0;
        what.flags = SDZC_FREEZE_THAW;
        n.ioctl(fd, SDZC_FREEZE, &what);
        errno = ENOMEM;
    }
    const bool others = errno == EFAULT; // the program's own, that it has put there
    n.munmap(copy, length);
    return others;
}

/// The caller's own stack may lie in such memory; it would wait for itself.
bool is_below_our_feet(uintptr_t at, size_t length) noexcept {
    constexpr size_t kReach = size_t{64} << 10;
    const auto here = reinterpret_cast<uintptr_t>(__builtin_frame_address(0));
    return here + kReach > at && here < at + length + kReach;
}

/// Does it while nobody changes mappings. False: that could not be had, or it returned false.
template <class F> bool alone(F what) noexcept {
    long nobody = 0;
    if (!leaver.compare_exchange_strong(nobody, sys::getpid(), std::memory_order_seq_cst))
        return false;
    const bool done = no_change_is_under_way() && what();
    leaver.store(0, std::memory_order_seq_cst);
    return done;
}

bool leave_piece(int fd, uintptr_t at, size_t length) noexcept {
    return !is_below_our_feet(at, length) && alone([=] { return exchange(fd, at, length); });
}

/// False: some of it is still the device's.
bool leave_all(int fd) noexcept {
    const uintptr_t end = window.load(std::memory_order_relaxed) + kWindow;
    bool all = true;
    for (uintptr_t at = end - kWindow; at < end;) {
        const Mapped m = mapped_behind(at);
        if (!m.end || m.from >= end)
            break;
        const uintptr_t to = m.end < end ? m.end : end;
        uintptr_t from = m.from > at ? m.from : at;
        const size_t part = whole_pages((to - from) / kMostPieces), piece = part > kPiece ? part : kPiece;
        for (; m.shared && from < to; from += piece)
            all &= leave_piece(fd, from, to - from < piece ? to - from : piece);
        at = to;
    }
    return all;
}

} // namespace

long leave_device() noexcept {
    const int saved = errno;
    least_block.store(kNever, std::memory_order_relaxed);
    least_mapping.store(kNever, std::memory_order_relaxed);
    if (module.version.load(std::memory_order_relaxed) < 3)
        return 0; // it cannot freeze
    // A handler of this thread that writes to what is frozen would wait for itself.
    uint64_t mask = 0;
    sys::block_signals(&mask);
    long who = leaver.load(std::memory_order_relaxed);
    if (who != 0 && who != sys::getpid())
        leaver.compare_exchange_strong(who, 0, std::memory_order_seq_cst); // of a parent's thread
    // From here on nobody else has the descriptor, so that what is left can only become less.
    bool all = alone([] {
        if (own_descriptor.load(std::memory_order_relaxed) < 0)
            own_descriptor.store(take_descriptor(), std::memory_order_relaxed);
        return true;
    });
    const int fd = own_descriptor.load(std::memory_order_relaxed);
    if (all && fd >= 0 && is_device(fd)) {
        release_kept();
        if ((all = leave_all(fd))) {
            own_descriptor.store(-1, std::memory_order_relaxed);
            sys::close(fd);
        }
    }
    sys::restore_signals(&mask);
    errno = saved;
    return all ? 0 : -EBUSY;
}

} // namespace sd::pages
