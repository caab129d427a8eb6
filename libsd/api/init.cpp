// The library's constructor and what belongs to the end of the process.
#include "libsd/api/processes/exec_env.hpp"
#include "libsd/api/processes/loading.hpp"
#include "libsd/api/processes/shell.hpp"
#include "libsd/api/processes/vfork_memory.hpp"
#include "libsd/api/signals/signal.hpp"
#include "libsd/api/signals/signal_mask.hpp"
#include "libsd/api/sockets/aio.hpp"
#include "libsd/api/sockets/stdio.hpp"
#include "libsd/api/syscalls/uring.hpp"
#include "libsd/api/wrap.hpp"
#include "libsd/control/fork_sections.hpp"
#include "libsd/control/text.hpp"
#include "libsd/vfs/family/process.hpp"
#include <cstdlib>
#include <gnu/libc-version.h>
#include <initializer_list>
#include <sys/auxv.h>

using namespace sd;

// What at_quick_exit is, whose own code is linked in statically.
extern "C" {
int __cxa_atexit(void (*function)(void *), void *argument, void *library) noexcept;
int __cxa_at_quick_exit(void (*function)(void *), void *library) noexcept;
}

namespace {

/// Upward::reset_in_child.
SD_FORK_CODE void reset_in_child() noexcept {
    reset_signals_in_child();
    reset_aio_in_child();
    reset_shell_in_child();
    reset_urings_in_child();
}

void end_of_process(void *) { vfs::at_exit(); }

/// glibc 2.28 or newer. In another C library (musl) and under an older one everything is passed through: what
/// the library relies on may not be there.
bool known_libc() noexcept {
    if (!gnu_get_libc_version)
        return false;
    const char *end;
    const int major = decimal(gnu_get_libc_version(), &end), minor = *end == '.' ? decimal(end + 1) : 0;
    return major > 2 || (major == 2 && minor >= 28);
}

/// A program that has gained privileges (set-user-ID, file capabilities) was started by somebody who has
/// less, and who wrote its environment. The dynamic linker ignores LD_PRELOAD there, and takes it away from
/// the programs that it starts in turn; /etc/ld.so.preload loads us all the same. So all of the library stays
/// out of use, and nothing of what users may say to it is passed on.
bool in_privileged_program() noexcept {
    if (getauxval(AT_SECURE) == 0)
        return false;
    for (const char *name :
         {"SD_MONITOR", "SD_CONTROL_FD", "SD_EXEC_FD", "SD_STATS_FILE", "SD_DISABLE", "SD_LIBRARY"})
        unsetenv(name);
    return true;
}

__attribute__((constructor(101))) void start() noexcept {
    bind_real_symbols();
    const bool out_of_use = in_privileged_program();
    if (!known_libc())
        return;
    if (!out_of_use)
        remember_environment();
    init_vfork();
    if (out_of_use)
        return;
    // Registered for no library and before anybody else, hence run after all of the program's exit handlers
    // and destructors.
    __cxa_atexit(end_of_process, nullptr, nullptr);
    __cxa_at_quick_exit(end_of_process, nullptr);
    vfs::init({.run_deferred = run_put_off,
               .expect_faults = install_fault_handler,
               .expect_faults_here = let_faults_through,
               .presence_moved = presence_moved,
               .reset_in_child = reset_in_child,
               .open_plugin = open_plugin});
    follow_presence();
    unsetenv("SD_EXEC_FD"); // was for us alone
    for (int fd = 0; fd < 3 && fd_high.load(std::memory_order_relaxed) != 0; ++fd)
        check_standard(fd); // sockets that came with an exec
}

} // namespace
