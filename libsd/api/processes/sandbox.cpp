// A program that puts itself into a sandbox: seccomp filters and limits on descriptors.
//
// A filter is written for the calls that the program makes on kernel sockets. libsd needs a few others to
// sleep and to wake its peers, and a filter may kill the process for them. So the filter that is installed
// begins with a few instructions of ours: they allow calls that reach nothing outside of the process, with
// the arguments that libsd uses (membarrier, sched_yield, ppoll, rt_sigprocmask, munmap, gettid;
// of futex to wait and to wake, of madvise what empties a ring, of mmap memory without a file that is not
// executable), and read and write on libsd's own descriptors but memory. All else is decided by the program's
// own instructions, which follow unchanged. What could make new connections is given up before
// (vfs/family/prepare_sandbox.cpp).
#include "libsd/api/processes/sandbox.hpp"
#include "libsd/api/signals/signal.hpp"
#include "libsd/api/wrap.hpp"
#include "libsd/control/hidden_fd.hpp"
#include "libsd/control/sandbox_state.hpp"
#include "libsd/cpu/call_numbers.hpp"
#include "libsd/vfs/family/memory_lock.hpp"
#include "libsd/vfs/family/prepare_sandbox.hpp"
#include "libsd/vfs/family/space_limit.hpp"
#include "libsd/vfs/paths/leave.hpp"
#include "libsd/vfs/paths/offer.hpp"
#include "libsd/vfs/sharing/exec.hpp"
#include <cstdarg>
#include <cstddef>
#include <iterator>
#include <linux/filter.h>
#include <linux/futex.h>
#include <linux/seccomp.h>
#include <linux/sockios.h>
#include <linux/tcp.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>

using namespace sd;

namespace {

constexpr unsigned kMaxOwn = 64;    ///< of our descriptors; more than a sandboxed program ever has
constexpr unsigned kMaxPaths = 512; ///< numbers of connections that may move between socket and ring
constexpr uint32_t kHarmless[] = {SYS_membarrier,     SYS_sched_yield, SYS_ppoll,
                                  SYS_rt_sigprocmask, SYS_munmap,      SYS_gettid};
constexpr uint32_t kNotUsedProtection = ~static_cast<uint32_t>(PROT_READ | PROT_WRITE);
constexpr uint32_t kNotUsedMapping =
    ~static_cast<uint32_t>(MAP_SHARED | MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED);
/// Wait and wake are 0 and 1.
constexpr uint32_t kNotUsedFutex = ~static_cast<uint32_t>(FUTEX_WAIT | FUTEX_WAKE | FUTEX_PRIVATE_FLAG);

/// What is mapped, and never read or written as a file.
bool is_memory(int fd) noexcept {
    struct stat st {};
    return sys::call(SYS_fstat, fd, sys::arg(&st)) < 0 || S_ISREG(st.st_mode);
}

void add(sock_filter *f, unsigned *n, uint16_t code, uint32_t k, unsigned yes = 0, unsigned no = 0) noexcept {
    f[(*n)++] = {code, static_cast<uint8_t>(yes), static_cast<uint8_t>(no), k};
}

constexpr uint16_t kLoad = BPF_LD | BPF_W | BPF_ABS, kEqual = BPF_JMP | BPF_JEQ | BPF_K,
                   kAnswer = BPF_RET | BPF_K, kJump = BPF_JMP | BPF_JA;
/// Where the lower half of the call's i-th argument lies.
constexpr uint32_t argument(unsigned i) {
    return static_cast<uint32_t>(offsetof(seccomp_data, args) + 8 * i);
}

/// What connections with a socket and a ring need besides (vfs/paths/moves.hpp), if there are any: to ask
/// what has come and gone, and recvfrom and sendto without an address, which on such a number are read and
/// write that do not wait. Begins and ends with the call's number loaded; the new end.
unsigned write_path_calls(sock_filter *f, unsigned n) noexcept {
    unsigned numbers[kMaxPaths], count = 0;
    for (unsigned fd = 0, high = fd_high.load(std::memory_order_acquire); fd < high && count < kMaxPaths; ++fd)
        if (is_path_number(fd))
            numbers[count++] = fd;
    if (count == 0)
        return n;
    add(f, &n, kEqual, SYS_getsockopt, 0, 6);
    add(f, &n, kLoad, argument(1));
    add(f, &n, kEqual, IPPROTO_TCP, 0, 3);
    add(f, &n, kLoad, argument(2));
    add(f, &n, kEqual, TCP_INFO, 0, 1);
    add(f, &n, kAnswer, SECCOMP_RET_ALLOW);
    add(f, &n, kLoad, offsetof(seccomp_data, nr));
    add(f, &n, kEqual, SYS_ioctl, 0, 6);
    add(f, &n, kLoad, argument(1));
    add(f, &n, kEqual, SIOCINQ, 2, 0);
    add(f, &n, kEqual, SIOCOUTQ, 1, 0);
    add(f, &n, kEqual, SIOCATMARK, 0, 1);
    add(f, &n, kAnswer, SECCOMP_RET_ALLOW);
    add(f, &n, kLoad, offsetof(seccomp_data, nr));
    add(f, &n, kEqual, SYS_recvfrom, 2, 0);
    add(f, &n, kEqual, SYS_sendto, 1, 0);
    unsigned others[3];
    add(f, &n, kJump, others[0] = n);
    add(f, &n, kLoad, argument(4));
    add(f, &n, kEqual, 0, 1, 0);
    add(f, &n, kJump, others[1] = n);
    add(f, &n, kLoad, argument(4) + 4);
    add(f, &n, kEqual, 0, 1, 0);
    add(f, &n, kJump, others[2] = n);
    add(f, &n, kLoad, argument(0)); // the lower half of the descriptor
    for (unsigned i = 0; i < count; ++i) {
        add(f, &n, kEqual, numbers[i], 0, 1);
        add(f, &n, kAnswer, SECCOMP_RET_ALLOW);
    }
    for (const unsigned at : others)
        f[at].k = n - at - 1;
    add(f, &n, kLoad, offsetof(seccomp_data, nr));
    return n;
}

/// The instructions that come first; how many. `f` has room for kPrefixMax.
constexpr unsigned kPrefixMax = 70 + 2 * std::size(kHarmless) + 2 * kMaxOwn + 2 * kMaxPaths;
unsigned write_prefix(sock_filter *f) noexcept {
    unsigned n = 0;
    add(f, &n, kLoad, offsetof(seccomp_data, arch));
    add(f, &n, kEqual, cpu::kAuditArch, 1, 0);
    const unsigned foreign = n;
    add(f, &n, kJump, 0); // to the end, see below
    add(f, &n, kLoad, offsetof(seccomp_data, nr));
    for (uint32_t call : kHarmless) {
        add(f, &n, kEqual, call, 0, 1);
        add(f, &n, kAnswer, SECCOMP_RET_ALLOW);
    }
    constexpr uint16_t any_bit = BPF_JMP | BPF_JSET | BPF_K;
    // Each of these goes on behind itself, with the call's number loaded.
    add(f, &n, kEqual, SYS_mmap, 0, 7);
    add(f, &n, kLoad, argument(2));
    add(f, &n, any_bit, kNotUsedProtection, 5, 0);
    add(f, &n, kLoad, argument(3));
    add(f, &n, any_bit, kNotUsedMapping, 3, 0);
    add(f, &n, kLoad, argument(4));
    add(f, &n, kEqual, UINT32_MAX, 0, 1);
    add(f, &n, kAnswer, SECCOMP_RET_ALLOW);
    add(f, &n, kLoad, offsetof(seccomp_data, nr));
    add(f, &n, kEqual, SYS_futex, 0, 3);
    add(f, &n, kLoad, argument(1));
    add(f, &n, any_bit, kNotUsedFutex, 1, 0);
    add(f, &n, kAnswer, SECCOMP_RET_ALLOW);
    add(f, &n, kLoad, offsetof(seccomp_data, nr));
    add(f, &n, kEqual, SYS_madvise, 0, 4);
    add(f, &n, kLoad, argument(2));
    add(f, &n, kEqual, MADV_DONTDUMP, 1, 0);
    add(f, &n, kEqual, MADV_REMOVE, 0, 1);
    add(f, &n, kAnswer, SECCOMP_RET_ALLOW);
    add(f, &n, kLoad, offsetof(seccomp_data, nr));
    n = write_path_calls(f, n);
    add(f, &n, kEqual, SYS_read, 2, 0);
    add(f, &n, kEqual, SYS_write, 1, 0);
    const unsigned other = n;
    add(f, &n, kJump, 0);
    add(f, &n, kLoad, argument(0)); // the lower half of the descriptor
    unsigned own = 0;
    for (unsigned fd = next_hidden(0); fd < kMaxFd && own < kMaxOwn; fd = next_hidden(fd + 1)) {
        if (is_memory(static_cast<int>(fd)))
            continue;
        ++own;
        add(f, &n, kEqual, fd, 0, 1);
        add(f, &n, kAnswer, SECCOMP_RET_ALLOW);
    }
    f[foreign].k = n - foreign - 1;
    f[other].k = n - other - 1;
    add(f, &n, BPF_LD | BPF_IMM, 0); // as a filter begins
    return n;
}

/// Calls `install` with the program's filter behind our instructions, or with the program's own where that
/// cannot be made.
template <class F> long with_prefix(const void *user, F install) noexcept {
    sock_fprog given{};
    if (active())
        install_fault_handler();
    if (!active() || sd_copy(&given, user, sizeof given) != 0 || given.len == 0 || !given.filter)
        return install(user);
    vfs::prepare_sandbox(vfs::Sandbox::filter);
    const size_t bytes = (kPrefixMax + size_t{given.len}) * sizeof(sock_filter);
    auto *all = static_cast<sock_filter *>(
        sys::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    if (!all)
        return install(user);
    const unsigned n = write_prefix(all);
    long r = -EFAULT;
    if (sd_copy(all + n, given.filter, given.len * sizeof(sock_filter)) == 0) {
        const bool before = sandboxed_flag.exchange(true);
        sock_fprog whole{static_cast<unsigned short>(n + given.len), all};
        r = install(&whole);
        if (r < 0)
            sandboxed_flag.store(before);
        else
            vfs::sandboxed_now();
    }
    // Nothing may be unmapped any more if the filter is in force; a few pages for each filter stay.
    if (r < 0)
        sys::munmap(all, bytes);
    return r < 0 && r != -EACCES ? install(user)
                                 : r; // too long, or something that the kernel explains better itself
}

/// Read, write and exit are all that is left, and none of it ours: nothing stays accelerated.
template <class F> long strictly(F install) noexcept {
    if (!active())
        return install();
    vfs::prepare_sandbox(vfs::Sandbox::no_calls);
    const bool before = sandboxed_flag.exchange(true);
    const long r = install();
    if (r < 0)
        sandboxed_flag.store(before);
    return r;
}

void before_limit(int resource, const void *limit) noexcept {
    if (!limit || !active())
        return;
    if (rlimit wanted; resource == RLIMIT_AS && sd_copy(&wanted, limit, sizeof wanted) == 0)
        vfs::before_space_limit(wanted.rlim_cur);
    if (resource != RLIMIT_NOFILE)
        return;
    make_room_below(); // a number that is kept may be beyond the new limit
    if (!sandboxed())
        vfs::prepare_sandbox(vfs::Sandbox::fewer_numbers);
}

/// prlimit(RLIMIT_AS) for this process: the program deals with its own limit, not with the kernel's
/// (libsd/vfs/family/space_limit.hpp).
long limit_space(const void *set, void *old) noexcept {
    rlimit before{}, wanted{};
    if (set && sd_copy(&wanted, set, sizeof wanted) != 0)
        return -EFAULT;
    long r = sys::call(SYS_prlimit64, 0, RLIMIT_AS, 0, sys::arg(&before));
    vfs::show_space_limit(&before);
    if (r == 0 && set)
        r = vfs::set_space_limit(wanted);
    return r == 0 && old && sd_copy(old, &before, sizeof before) != 0 ? -EFAULT : r;
}

/// prlimit. The two kinds of rlimit are one here.
int limit_resource(pid_t pid, int resource, const void *set, void *old) noexcept {
    const bool own = pid == 0 || pid == sys::getpid();
    if (own)
        before_limit(resource, set);
    if (own && resource == RLIMIT_AS && active_or_in_vfork())
        return answer(limit_space(set, old));
    return answer(raw_syscall6(SYS_prlimit64, pid, resource, reinterpret_cast<long>(set),
                               reinterpret_cast<long>(old), 0, 0));
}

} // namespace

namespace sd {

long sandbox_by_seccomp(unsigned operation, unsigned flags, void *arguments) noexcept {
    auto plain = [&](const void *p) {
        return raw_syscall6(SYS_seccomp, operation, flags, reinterpret_cast<long>(p), 0, 0, 0);
    };
    return with_errno(operation == SECCOMP_SET_MODE_FILTER   ? with_prefix(arguments, plain)
                      : operation == SECCOMP_SET_MODE_STRICT ? strictly([&] { return plain(arguments); })
                                                             : plain(arguments));
}

} // namespace sd

SD_EXPORT int prctl(int option, ...) noexcept {
    va_list list;
    va_start(list, option);
    long a[4];
    for (long &word : a)
        word = va_arg(list, long);
    va_end(list);
    auto plain = [&](long third) { return raw_syscall6(SYS_prctl, option, a[0], third, a[2], a[3], 0); };
    if (option == PR_SET_SECCOMP && a[0] == SECCOMP_MODE_FILTER)
        return answer(with_prefix(reinterpret_cast<const void *>(a[1]),
                                  [&](const void *p) { return plain(reinterpret_cast<long>(p)); }));
    if (option == PR_SET_SECCOMP && a[0] == SECCOMP_MODE_STRICT)
        return answer(strictly([&] { return plain(a[1]); }));
    return answer(plain(a[1]));
}

SD_EXPORT int prlimit64(pid_t pid, __rlimit_resource resource, const rlimit64 *limit, rlimit64 *old) noexcept {
    return limit_resource(pid, static_cast<int>(resource), limit, old);
}
SD_EXPORT int prlimit(pid_t pid, __rlimit_resource resource, const rlimit *limit, rlimit *old) noexcept {
    return limit_resource(pid, static_cast<int>(resource), limit, old);
}
SD_EXPORT int setrlimit64(__rlimit_resource_t resource, const rlimit64 *limit) noexcept {
    return limit_resource(0, static_cast<int>(resource), limit, nullptr);
}
SD_EXPORT int setrlimit(__rlimit_resource_t resource, const rlimit *limit) noexcept {
    return limit_resource(0, static_cast<int>(resource), limit, nullptr);
}
SD_EXPORT int getrlimit64(__rlimit_resource_t resource, rlimit64 *limit) noexcept {
    return limit_resource(0, static_cast<int>(resource), nullptr, limit);
}
SD_EXPORT int getrlimit(__rlimit_resource_t resource, rlimit *limit) noexcept {
    return limit_resource(0, static_cast<int>(resource), nullptr, limit);
}
SD_EXPORT int mlockall(int flags) noexcept {
    return active() && !sandboxed() ? answer(vfs::lock_memory(flags))
                                    : answer(raw_syscall6(SYS_mlockall, flags, 0, 0, 0, 0, 0));
}
SD_EXPORT int munlockall() noexcept { return answer(vfs::unlock_memory()); }
