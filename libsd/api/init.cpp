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
#include <pthread.h>

using namespace sd;

extern "C" int __cxa_atexit(void (*function)(void *), void *argument, void *library) noexcept;

namespace {

SD_FORK_CODE void reset_in_child() noexcept {
    reset_signals_in_child();
    reset_aio_in_child();
    reset_shell_in_child();
    reset_urings_in_child();
}

void end_of_process(void *) { vfs::at_exit(); }
void quick_end_of_process() { vfs::at_exit(); }

__attribute__((constructor(101))) void start() noexcept {
    bind_real_symbols();
    remember_environment();
    init_signals();
    init_lending();
    pthread_atfork(nullptr, nullptr, reset_in_child);
    // Registered for no library and before anybody else, hence run after all of the program's exit handlers and destructors.
    __cxa_atexit(end_of_process, nullptr, nullptr);
    at_quick_exit(quick_end_of_process);
    vfs::init();
    follow_presence();
    unsetenv("SD_EXEC_FD"); // was for us alone
    for (int fd = 0; fd < 3; ++fd)
        check_standard(fd); // sockets that came with an exec
}

} // namespace
