// Shared memory of this library's own.
#include "libsd/control/memory.hpp"
#include "libsd/control/client.hpp"
#include "libsd/control/packets.hpp"
#include "libsd/control/sys.hpp"
#include <linux/memfd.h>
#include <sys/resource.h>

namespace sd::control {

bool file_may_be(uint64_t bytes) noexcept {
    rlimit limit{};
    return sys::call(SYS_prlimit64, 0, RLIMIT_FSIZE, 0, sys::arg(&limit)) < 0 || bytes <= limit.rlim_cur;
}

long make_memory(const char *name, uint64_t bytes, int greeting) noexcept {
    if (file_may_be(bytes)) {
        const long fd = sys::memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
        if (fd < 0)
            return fd;
        long r = sys::ftruncate(static_cast<int>(fd), bytes);
        if (r == 0)
            r = sys::fcntl(static_cast<int>(fd), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
        if (r == 0)
            return fd;
        sys::close(static_cast<int>(fd));
        return r;
    }
    const wire::Memory wanted{bytes};
    Reply r;
    if (greeting < 0)
        r = request(wire::Op::memory, &wanted, sizeof wanted);
    else if (exchange(greeting, wire::Op::memory, &wanted, sizeof wanted, nullptr, 0, &r) < 0 && r.status == 0)
        r.status = -ECONNRESET;
    if (r.status == 0 && r.fds == 1)
        return r.fd[0];
    close_received(r);
    return r.status < 0 ? r.status : -EFBIG;
}

} // namespace sd::control
