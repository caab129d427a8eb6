// Waiting for children. What a process held has ended in the kernel by the time its parent has waited for it;
// the monitor hears of its death at about the same time. A connect() that comes next must not find a listener
// that is gone, so it has the monitor look first (vfs::children_ended).
#include "libsd/api/wrap.hpp"
#include <sys/resource.h>
#include <sys/wait.h>

using namespace sd;

namespace {

template <class T> T waited(T result, bool for_somebody) noexcept {
    if (for_somebody)
        vfs::children_ended.fetch_add(1, std::memory_order_release);
    return result;
}

} // namespace

SD_EXPORT pid_t wait(int *status) {
    const pid_t r = real.wait(status);
    return waited(r, r > 0);
}

SD_EXPORT pid_t waitpid(pid_t which, int *status, int options) {
    const pid_t r = real.waitpid(which, status, options);
    return waited(r, r > 0);
}

SD_EXPORT pid_t wait3(int *status, int options, rusage *usage) noexcept {
    const pid_t r = real.wait3(status, options, usage);
    return waited(r, r > 0);
}

SD_EXPORT pid_t wait4(pid_t which, int *status, int options, rusage *usage) noexcept {
    const pid_t r = real.wait4(which, status, options, usage);
    return waited(r, r > 0);
}

SD_EXPORT int waitid(idtype_t type, id_t which, siginfo_t *info, int options) {
    const int r = real.waitid(type, which, info, options);
    return waited(r, r == 0);
}
