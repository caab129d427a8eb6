#include "libsd/vfs/sharing/exec_rights.hpp"
#include "libsd/control/sys.hpp"
#include <cstdint>
#include <cstring>
#include <fcntl.h>
#include <linux/securebits.h>
#include <sys/prctl.h>
#include <unistd.h>

namespace sd {

namespace {

/// The hexadecimal number behind `name` in a text of /proc; false: it is not there.
bool number_behind(const char *text, const char *name, uint64_t *value) noexcept {
    const char *at = strstr(text, name);
    if (!at)
        return false;
    *value = 0;
    for (at += strlen(name); *at == ' ' || *at == '\t'; ++at) {
    }
    for (; (*at >= '0' && *at <= '9') || (*at >= 'a' && *at <= 'f'); ++at)
        *value = *value << 4 | static_cast<uint64_t>(*at <= '9' ? *at - '0' : *at - 'a' + 10);
    return true;
}

} // namespace

bool exec_changes_rights() noexcept {
    const long fd = sys::call(SYS_openat, AT_FDCWD, sys::arg("/proc/self/status"), O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return false;
    char text[4096];
    const long n = sys::read(static_cast<int>(fd), text, sizeof text - 1);
    sys::close(static_cast<int>(fd));
    text[n > 0 ? n : 0] = '\0';
    uint64_t inheritable, permitted, bounding, ambient;
    if (!number_behind(text, "\nCapInh:", &inheritable) || !number_behind(text, "\nCapPrm:", &permitted) ||
        !number_behind(text, "\nCapBnd:", &bounding) || !number_behind(text, "\nCapAmb:", &ambient))
        return false;
    uid_t real, effective, saved;
    sys::call(SYS_getresuid, sys::arg(&real), sys::arg(&effective), sys::arg(&saved));
    const bool as_root =
        (real == 0 || effective == 0) && !(sys::call(SYS_prctl, PR_GET_SECUREBITS) & SECBIT_NOROOT);
    return (as_root ? inheritable | bounding : ambient) != permitted;
}

} // namespace sd
