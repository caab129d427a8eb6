// The library's constructor and what belongs to the end of the process.
#include "libsd/api/aio.hpp"
#include "libsd/api/exec_env.hpp"
#include "libsd/api/lending.hpp"
#include "libsd/api/process.hpp"
#include "libsd/api/shell.hpp"
#include "libsd/api/signal.hpp"
#include "libsd/api/standard.hpp"
#include "libsd/api/uring.hpp"
#include "libsd/api/wrap.hpp"
#include "libsd/control/around_fork.hpp"
#include <cstdlib>
#include <gnu/libc-version.h>

using namespace sd;

// What pthread_atfork and at_quick_exit are, whose own code is linked in statically.
extern "C" {
int __cxa_atexit(void (*function)(void *), void *argument, void *library) noexcept;
int __cxa_at_quick_exit(void (*function)(void *), void *library) noexcept;
int __register_atfork(void (*prepare)(), void (*parent)(), void (*child)(), void *library) noexcept;
extern void *__dso_handle [[gnu::visibility("hidden")]];
}

namespace {

SD_FORK_CODE void reset_in_child() noexcept {
    reset_signals_in_child();
    reset_aio_in_child();
    reset_shell_in_child();
    reset_urings_in_child();
}

void end_of_process(void *) { vfs::at_exit(); }

/// glibc 2.28 or newer. In another C library (musl) and under an older one everything is passed through: what the library relies on may not be there.
bool known_libc() noexcept {
    if (!gnu_get_libc_version)
        return false;
    char *end = nullptr;
    const char *version = gnu_get_libc_version();
    const long major = strtol(version, &end, 10), minor = *end == '.' ? strtol(end + 1, nullptr, 10) : 0;
    return major > 2 || (major == 2 && minor >= 28);
}

__attribute__((constructor(101))) void start() noexcept {
    bind_real_symbols();
    if (!known_libc())
        return;
    remember_environment();
    init_signals();
    init_lending();
    __register_atfork(nullptr, nullptr, reset_in_child, &__dso_handle);
    // Registered for no library and before anybody else, hence run after all of the program's exit handlers and destructors.
    __cxa_atexit(end_of_process, nullptr, nullptr);
    __cxa_at_quick_exit(end_of_process, nullptr);
    vfs::init();
    follow_presence();
    unsetenv("SD_EXEC_FD"); // was for us alone
    for (int fd = 0; fd < 3; ++fd)
        check_standard(fd); // sockets that came with an exec
}

} // namespace
