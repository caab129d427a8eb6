#include "libsd/vfs/family/memory_lock.hpp"
#include "libsd/control/fork_sections.hpp"
#include "libsd/control/hidden_fd.hpp"
#include "libsd/control/sys.hpp"
#include "libsd/transport/link.hpp"
#include "libsd/vfs/descriptors/file.hpp"
#include "libsd/vfs/sharing/exec.hpp"
#include <cstring>
#include <linux/capability.h>
#include <sys/mman.h>
#include <sys/resource.h>

namespace sd::vfs {

namespace {

struct Range {
    uint64_t from = 0, to = 0;
};

uint64_t hexadecimal(const char *&at) noexcept {
    uint64_t value = 0;
    for (;; ++at) {
        const char c = *at;
        const int digit = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
        if (digit < 0)
            return value;
        value = value << 4 | static_cast<unsigned>(digit);
    }
}

/// A line of /proc/self/maps. False: it is one of ours, or not memory that can be locked.
bool programs_own(const char *line, Range *range) noexcept {
    range->from = hexadecimal(line);
    if (*line++ != '-')
        return false;
    range->to = hexadecimal(line);
    const auto table = reinterpret_cast<uint64_t>(fd_table);
    if (range->from == table || range->from >> 47 != 0)
        return false;
    if (strstr(line, "/dev/zero") &&
        (is_empty_memory(range->from, range->to) || was_a_segment(range->from, range->to)))
        return false; // where a link or a segment was
    return !strstr(line, "/memfd:sd-");
}

/// Calls fn(range) for each mapping of the program's; fn may change how it is locked. False: the list cannot
/// be read.
template <class F> bool for_each_own(F fn) noexcept {
    SpareNumbers spare;
    const long fd = sys::call(SYS_openat, AT_FDCWD, sys::arg("/proc/self/maps"), O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return false;
    char text[1024], line[128];
    size_t length = 0;
    for (long n; (n = sys::read(static_cast<int>(fd), text, sizeof text)) > 0;)
        for (long i = 0; i < n; ++i) {
            if (text[i] != '\n') {
                if (length < sizeof line - 1) // names of ours are short
                    line[length++] = text[i];
                continue;
            }
            line[length] = '\0';
            length = 0;
            if (Range r; programs_own(line, &r))
                fn(r);
        }
    sys::close(static_cast<int>(fd));
    return true;
}

bool may_lock_anything() noexcept {
    __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
    __user_cap_data_struct data[2]{};
    return sys::call(SYS_capget, sys::arg(&header), sys::arg(data)) == 0 &&
           (data[0].effective >> CAP_IPC_LOCK & 1) != 0;
}

/// As the kernel does it: nothing is locked when not everything may be, and pages that cannot be had are no
/// error.
long lock_what_there_is(bool on_fault) noexcept {
    rlimit limit{};
    sys::call(SYS_prlimit64, 0, RLIMIT_MEMLOCK, 0, sys::arg(&limit));
    if (!may_lock_anything()) {
        uint64_t bytes = 0;
        if (limit.rlim_cur == 0)
            return -EPERM;
        if (!for_each_own([&](const Range &r) { bytes += r.to - r.from; }) || bytes > limit.rlim_cur)
            return -ENOMEM;
    }
    return for_each_own([&](const Range &r) {
        sys::call(SYS_mlock2, static_cast<long>(r.from), static_cast<long>(r.to - r.from),
                  on_fault ? MLOCK_ONFAULT : 0);
    })
               ? 0
               : -ENOMEM;
}

} // namespace

long lock_memory(int flags) noexcept {
    (void)make_fd_table(); // now: what is mapped later would be filled
    const bool before = mappings_are_locked.load(std::memory_order_relaxed), later = flags & MCL_FUTURE;
    if (!(flags & (MCL_CURRENT | MCL_FUTURE)) || (flags & ~(MCL_CURRENT | MCL_FUTURE | MCL_ONFAULT)))
        return sys::call(SYS_mlockall, flags);
    if (later && !before) {
        leave_listeners_to_kernel();
        narrow_arenas();
        mappings_are_locked.store(true, std::memory_order_relaxed);
    }
    long r = 0;
    if (flags & MCL_CURRENT)
        r = lock_what_there_is(flags & MCL_ONFAULT);
    if (r == 0 && later)
        r = sys::call(SYS_mlockall, flags & ~MCL_CURRENT);
    // From now on nothing is locked by itself, which cannot be had without letting go
    else if (r == 0 && before) {
        sys::call(SYS_munlockall);
        mappings_are_locked.store(false, std::memory_order_relaxed);
        r = lock_what_there_is(flags & MCL_ONFAULT);
    }
    if (r < 0)
        mappings_are_locked.store(before, std::memory_order_relaxed);
    return r;
}

long unlock_memory() noexcept {
    const long r = sys::call(SYS_munlockall);
    if (r == 0)
        mappings_are_locked.store(false, std::memory_order_relaxed);
    return r;
}

SD_FORK_CODE void memory_lock_fork_child() noexcept {
    if (mappings_are_locked.load(std::memory_order_relaxed))
        mappings_are_locked.store(false, std::memory_order_relaxed);
}

} // namespace sd::vfs
