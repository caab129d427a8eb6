// Numbers of system calls that newer processors do not have, as each has a successor with more arguments; and
// the kernel's name for the processor. Where a call is missing, its number is one below -1 that no other
// call has: the kernel answers ENOSYS, and no program asks for it.
#pragma once
#include <linux/audit.h>
#include <sys/syscall.h>

namespace sd::cpu {

/// What seccomp and audit call this processor.
constexpr unsigned kAuditArch = AUDIT_ARCH_X86_64;

constexpr int kCreat = SYS_creat;
constexpr int kDup2 = SYS_dup2;
constexpr int kEpollCreate = SYS_epoll_create;
constexpr int kEpollWait = SYS_epoll_wait;
constexpr int kEventfd = SYS_eventfd;
constexpr int kFork = SYS_fork;
constexpr int kInotifyInit = SYS_inotify_init;
constexpr int kOpen = SYS_open;
constexpr int kPipe = SYS_pipe;
constexpr int kPoll = SYS_poll;
constexpr int kReadlink = SYS_readlink;
constexpr int kSelect = SYS_select;
constexpr int kSignalfd = SYS_signalfd;

} // namespace sd::cpu
