// What sd-bridge leaves itself.
//
// It shares memory with the processes whose connections it carries, and that memory may hold anything. So it
// can do nothing that those could not do themselves: it has their ids and no capability. Namespaces need no
// change: there is no call left by which one could be used.
#include "monitor/bridge/bridge_sandbox.hpp"

#include "monitor/sandbox/call_filter.hpp"

#include <linux/netlink.h>
#include <linux/sockios.h>
#include <sys/ioctl.h>

namespace sd::monitor {

bool enter_bridge_sandbox() {
    CallFilter filter;
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
    // Whether a pool, whose bytes have not been read yet, can be mapped.
    filter.allow(SYS_fstatfs);
    filter.allow_memory();
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
