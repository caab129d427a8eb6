// The C library's own versions of the functions that libsd.so replaces, and of a few that it must call past
// itself.
//
// real.NAME may be called at any time, also before the library's constructor and from signal handlers: until
// bind_real_symbols() ran, plain system calls are made directly, and what is more than that binds first.
#pragma once

#include <aio.h>
#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <mqueue.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <pty.h>
#include <sched.h>
#include <spawn.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/fanotify.h>
#include <sys/inotify.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/select.h>
#include <sys/sendfile.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/timerfd.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <threads.h>
#include <unistd.h>
#include <utmp.h>
#include <wordexp.h>

#include <atomic>
#include <csetjmp>
#include <csignal>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>

extern "C" {
#include <sys/pidfd.h> // does not say so itself before glibc 2.37

// Declared in fortified builds only, or no longer.
int __vdprintf_chk(int fd, int flag, const char *format, va_list list);
[[noreturn]] void __longjmp_chk(__jmp_buf_tag *to, int value) noexcept;
int __fxstat(int version, int fd, struct stat *s) noexcept;
int __fxstat64(int version, int fd, struct stat64 *s) noexcept;
}

namespace sd {

/// One typed pointer per function of real.def.
struct Real {
#define SD_REAL_SYS(name, number) decltype(&::name) name;
#define SD_REAL_RAW(name) decltype(&::name) name;
#define SD_REAL_LIBC(name) decltype(&::name) name;
#define SD_REAL_JUMP(name) void (*name)(__jmp_buf_tag *, int) noexcept;
#include "libsd/api/real.def"
#undef SD_REAL_SYS
#undef SD_REAL_RAW
#undef SD_REAL_LIBC
};

extern constinit Real real;

/// Do real.open, real.close and real.dup lead straight into the C library? Not where another preloaded
/// library or a sanitizer stands behind this one. Written by bind_real_symbols().
extern constinit std::atomic<bool> libc_is_next;

/// Looks up every function of real.def behind this library in the search order. The constructor calls it;
/// calling it again, or from several threads at once, is harmless: each pointer is stored whole, and always
/// to the same value.
void bind_real_symbols() noexcept;

} // namespace sd
