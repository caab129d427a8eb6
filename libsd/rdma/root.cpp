// The root folder, then and now.
#include "libsd/rdma/root.hpp"
#include "libsd/base/start_section.hpp"
#include "libsd/control/sys.hpp"
#include <cstdint>
#include <fcntl.h>
#include <sys/stat.h>

namespace sd::rdma {

namespace {

/// All 0: it could not be read.
struct Root {
    uint64_t device = 0, inode = 0;
};
Root at_start;

[[gnu::always_inline]] inline Root read_root() noexcept {
    struct stat st;
    if (sys::call(SYS_newfstatat, AT_FDCWD, sys::arg("/"), sys::arg(&st), 0) < 0)
        return {};
    return {st.st_dev, st.st_ino};
}

} // namespace

SD_START_CODE void remember_root() noexcept { at_start = read_root(); }

bool is_root_as_ever() noexcept {
    const Root now = read_root();
    return now.inode != 0 && now.inode == at_start.inode && now.device == at_start.device;
}

} // namespace sd::rdma
