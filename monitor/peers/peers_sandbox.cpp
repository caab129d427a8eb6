// What sd-peers leaves itself. It talks with hosts and with whoever reaches its port, so whoever takes it
// over gets TCP connections of the monitor's host, and the keys that it has for its peers; no file and no
// process.
#include "monitor/peers/peers_sandbox.hpp"

#include "monitor/sandbox/call_filter.hpp"

#include <sys/ioctl.h>

namespace sd::monitor {

bool enter_peers_sandbox() {
    CallFilter filter;
    for (const unsigned call :
         {SYS_read,          SYS_write,        SYS_readv,       SYS_writev,         SYS_pread64,
          SYS_recvfrom,      SYS_sendto,       SYS_recvmsg,     SYS_sendmsg,        cpu::kEpollWait,
          SYS_epoll_pwait,   SYS_epoll_ctl,    SYS_close,       SYS_fstat,          SYS_newfstatat,
          SYS_getsockopt,    SYS_setsockopt,   SYS_getsockname, SYS_getpeername,    SYS_shutdown,
          SYS_connect,       SYS_bind,         SYS_listen,      SYS_accept4,        SYS_munmap,
          SYS_mremap,        SYS_madvise,      SYS_brk,         SYS_sched_yield,    SYS_futex,
          SYS_clock_gettime, SYS_gettimeofday, SYS_gettid,      SYS_getpid,         SYS_lseek,
          SYS_rt_sigaction,  SYS_rt_sigreturn, SYS_getrandom,   SYS_rt_sigprocmask, SYS_restart_syscall,
          SYS_exit,          SYS_exit_group}) {
        filter.allow(call);
    }
    filter.allow_memory();
    filter.allow_with(SYS_fcntl, 1, {F_GETFD, F_SETFD, F_GETFL, F_SETFL});
    filter.allow_with(SYS_socket, 0, {AF_INET, AF_INET6});
    return filter.install();
}

} // namespace sd::monitor
