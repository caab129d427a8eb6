#include "libsd/vfs/family/space_limit.hpp"
#include "libsd/control/hidden_fd.hpp"
#include "libsd/control/sys.hpp"
#include "libsd/layout/segment_layout.hpp"
#include "libsd/transport/link.hpp"
#include <algorithm>
#include <atomic>

namespace sd::vfs {

namespace {

/// A limit that may be read while it is set: who reads it half old finds that it is not the kernel's, and
/// leaves the kernel's as it is.
struct Remembered {
    std::atomic<rlim_t> soft{RLIM_INFINITY}, hard{RLIM_INFINITY};

    void set(const rlimit &l) noexcept {
        soft.store(l.rlim_cur);
        hard.store(l.rlim_max);
    }
    [[nodiscard]] rlimit get() const noexcept { return {soft.load(), hard.load()}; }
};

Remembered programs; ///< what the program asked for last
Remembered kernels;  ///< what the kernel was told instead; the same as long as nothing was added

long kernel_limit(const rlimit *set, rlimit *old) noexcept {
    return sys::call(SYS_prlimit64, 0, RLIMIT_AS, sys::arg(set), sys::arg(old));
}

/// The mappings of this library that are large: links, the segments of this process and of the one that it
/// was forked from, the table of descriptors.
rlim_t mapped_here() noexcept { return mapped_link_bytes() + 2 * kSegmentBytes + kMaxFd * sizeof(void *); }

rlim_t plus(rlim_t limit, rlim_t more) noexcept {
    return limit > RLIM_INFINITY - more ? RLIM_INFINITY : limit + more;
}

/// The kernel has what we told it last, and nobody else changed that.
bool ours(const rlimit &now) noexcept {
    const rlimit told = kernels.get();
    return now.rlim_cur == told.rlim_cur && now.rlim_max == told.rlim_max;
}

} // namespace

void show_space_limit(rlimit *limit) noexcept {
    if (ours(*limit))
        *limit = programs.get();
}

long set_space_limit(const rlimit &wanted) noexcept {
    rlimit now{};
    if (wanted.rlim_cur > wanted.rlim_max || kernel_limit(nullptr, &now) < 0)
        return kernel_limit(&wanted, nullptr);
    rlimit seen = now;
    show_space_limit(&seen);
    if (wanted.rlim_cur != RLIM_INFINITY)
        narrow_arenas();
    const rlim_t more = mapped_here();
    rlimit told{plus(wanted.rlim_cur, more), plus(wanted.rlim_max, more)};
    // The hard limit can only be lowered, except by who may raise it: what stays below the program's own
    // stays below the kernel's, too.
    if (wanted.rlim_max <= seen.rlim_max)
        told.rlim_max = std::min(told.rlim_max, now.rlim_max);
    told.rlim_cur = std::min(told.rlim_cur, told.rlim_max);
    const long r = kernel_limit(&told, nullptr);
    if (r == 0) {
        programs.set(wanted);
        kernels.set(told);
    }
    return r;
}

void space_limit_before_exec() noexcept {
    rlimit now{};
    if (kernel_limit(nullptr, &now) < 0 || !ours(now))
        return;
    now.rlim_cur = std::min(programs.get().rlim_cur, now.rlim_max);
    kernel_limit(&now, nullptr);
}

void space_limit_after_failed_exec() noexcept {
    rlimit now{};
    const rlimit told = kernels.get();
    if (kernel_limit(nullptr, &now) < 0 || now.rlim_max != told.rlim_max || now.rlim_cur != programs.get().rlim_cur)
        return;
    now.rlim_cur = told.rlim_cur;
    kernel_limit(&now, nullptr);
}

} // namespace sd::vfs
