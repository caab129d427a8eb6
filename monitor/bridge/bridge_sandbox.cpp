// What sd-bridge gives up.
//
// It shares memory with the processes whose connections it carries, and that memory may hold anything. So it
// can do nothing that those could not do themselves: it has their ids and no capability. Namespaces need no
// change: there is no call left by which one could be used.
//
// All calls are made with the instruction itself: libsd, which stands in front of the C library here, must go
// on talking to the monitor, and would take a filter for the end of that.
#include "monitor/bridge/bridge_sandbox.hpp"

#include "libsd/control/sys.hpp"
#include "libsd/cpu/call_numbers.hpp"

#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <linux/audit.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/netlink.h>
#include <linux/seccomp.h>
#include <linux/sockios.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <vector>

namespace sd::monitor {

namespace {

bool done(long result) {
    if (result < 0) {
        errno = static_cast<int>(-result);
    }
    return result >= 0;
}

using Ids = std::array<unsigned, 3>;

bool read_ids(const char *text, Ids &ids) {
    char rest;
    if (sscanf(text, "%u,%u,%u%c", &ids[0], &ids[1], &ids[2], &rest) == 3) {
        return true;
    }
    errno = EINVAL;
    return false;
}

bool become(const Ids &users, const Ids &groups) {
    Ids now_users, now_groups;
    sys::call(SYS_getresuid, sys::arg(&now_users[0]), sys::arg(&now_users[1]), sys::arg(&now_users[2]));
    sys::call(SYS_getresgid, sys::arg(&now_groups[0]), sys::arg(&now_groups[1]), sys::arg(&now_groups[2]));
    const long emptied = sys::call(SYS_setgroups, 0, 0);
    if (now_users == users && now_groups == groups) {
        return true; // a monitor that may not change users has those of its own user only
    }
    return done(emptied) && done(sys::call(SYS_setresgid, groups[0], groups[1], groups[2])) &&
           done(sys::call(SYS_setresuid, users[0], users[1], users[2]));
}

// The filter is a list of questions about the number of the call, each followed by what is asked about its
// arguments.
class Filter {
  public:
    Filter() {
        add(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, arch));
        add(BPF_JMP | BPF_JEQ | BPF_K, cpu::kAuditArch, 1, 0);
        add(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS);
        add(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr));
    }
    void allow(unsigned call) {
        add(BPF_JMP | BPF_JEQ | BPF_K, call, 0, 1);
        add(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    }
    /// Where none of `bits` is set in an argument.
    void allow_without(unsigned call, unsigned argument, unsigned bits) {
        add(BPF_JMP | BPF_JEQ | BPF_K, call, 0, 4);
        load_argument(argument);
        add(BPF_JMP | BPF_JSET | BPF_K, bits, 1, 0);
        add(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
        refuse();
    }
    /// Where an argument is one of a few.
    void allow_with(unsigned call, unsigned argument, const std::vector<unsigned> &values) {
        add(BPF_JMP | BPF_JEQ | BPF_K, call, 0, static_cast<uint8_t>(2 + 2 * values.size()));
        load_argument(argument);
        for (const unsigned value : values) {
            add(BPF_JMP | BPF_JEQ | BPF_K, value, 0, 1);
            add(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
        }
        refuse();
    }
    /// Where two arguments are these.
    void allow_with_both(unsigned call, unsigned first, unsigned value, unsigned second, unsigned other) {
        add(BPF_JMP | BPF_JEQ | BPF_K, call, 0, 6);
        load_argument(first);
        add(BPF_JMP | BPF_JEQ | BPF_K, value, 0, 3);
        load_argument(second);
        add(BPF_JMP | BPF_JEQ | BPF_K, other, 0, 1);
        add(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
        refuse();
    }
    bool install() {
        refuse();
        sock_fprog program{static_cast<unsigned short>(code_.size()), code_.data()};
        return done(sys::call(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, sys::arg(&program)));
    }

  private:
    void add(unsigned code, unsigned k, uint8_t yes = 0, uint8_t no = 0) {
        code_.push_back({static_cast<uint16_t>(code), yes, no, k});
    }
    void refuse() { add(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM); }
    /// The lower half; the kernel takes no more of those that are asked about.
    void load_argument(unsigned i) {
        add(BPF_LD | BPF_W | BPF_ABS, static_cast<unsigned>(offsetof(seccomp_data, args) + 8 * i));
    }
    std::vector<sock_filter> code_;
};

} // namespace

bool give_up_privileges(const char *users, const char *groups) {
    Ids user_ids, group_ids;
    if (users != nullptr &&
        !(read_ids(users, user_ids) && read_ids(groups, group_ids) && become(user_ids, group_ids))) {
        return false;
    }
    __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
    const __user_cap_data_struct none[2]{};
    return done(sys::call(SYS_prctl, PR_SET_NO_NEW_PRIVS, 1)) &&
           done(sys::call(SYS_capset, sys::arg(&header), sys::arg(none))) &&
           done(sys::call(SYS_prctl, PR_SET_DUMPABLE, 0));
}

bool enter_bridge_sandbox() {
    Filter filter;
    for (const unsigned call :
         {SYS_read,         SYS_write,         SYS_readv,         SYS_writev,          SYS_recvfrom,
          SYS_sendto,       SYS_recvmsg,       SYS_sendmsg,       cpu::kEpollWait,     SYS_epoll_pwait,
          SYS_epoll_ctl,    SYS_epoll_create1, cpu::kPoll,        SYS_ppoll,           SYS_close,
          SYS_dup,          SYS_dup3,          SYS_fstat,         SYS_getsockopt,      SYS_setsockopt,
          SYS_getsockname,  SYS_getpeername,   SYS_shutdown,      SYS_eventfd2,        SYS_munmap,
          SYS_mremap,       SYS_madvise,       SYS_brk,           SYS_membarrier,      SYS_sched_yield,
          SYS_futex,        SYS_nanosleep,     SYS_clock_gettime, SYS_clock_nanosleep, SYS_gettid,
          SYS_getpid,       SYS_getppid,       SYS_getuid,        SYS_lseek,           SYS_rt_sigprocmask,
          SYS_rt_sigaction, SYS_rt_sigreturn,  SYS_sigaltstack,   SYS_getrandom,       SYS_restart_syscall,
          SYS_exit,         SYS_exit_group}) {
        filter.allow(call);
    }
    // Memory, but none that could be executed.
    filter.allow_without(SYS_mmap, 2, PROT_EXEC);
    filter.allow_without(SYS_mprotect, 2, PROT_EXEC);
    // F_SETOWN and the like would send signals.
    filter.allow_with(SYS_fcntl, 1,
                      {F_DUPFD, F_DUPFD_CLOEXEC, F_GETFD, F_SETFD, F_GETFL, F_SETFL, F_GET_SEALS, F_ADD_SEALS});
    filter.allow_with(SYS_ioctl, 1, {FIONREAD, SIOCATMARK, SIOCOUTQ, FIONBIO});
    // Limits are looked at, not set.
    filter.allow_with_both(SYS_prlimit64, 0, 0, 2, 0);
    // Whether the other end of a connection is still there (bridge_peer.cpp).
    filter.allow_with_both(SYS_socket, 0, AF_NETLINK, 2, NETLINK_SOCK_DIAG);
    // What another domain's peer is given to ring with.
    filter.allow_with_both(SYS_socketpair, 0, AF_UNIX, 2, 0);
    return filter.install();
}

} // namespace sd::monitor
