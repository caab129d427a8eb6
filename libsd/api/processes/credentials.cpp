// Calls that make a process somebody else, with fewer rights as a rule. What can be undone (another effective
// user, whom the saved one can take back) is left to the C library: it is not interposed.
#include "libsd/api/wrap.hpp"
#include "libsd/vfs/family/crossing.hpp"
#include <climits>
#include <linux/capability.h>
#include <unistd.h>

using namespace sd;

namespace {

constexpr unsigned kMayChangeGroups = 6, kMayChangeUsers = 7; // CAP_SETGID, CAP_SETUID

using Ids = unsigned[3]; ///< real, effective, saved

bool capable(unsigned capability) noexcept {
    __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
    __user_cap_data_struct data[2]{};
    return sys::call(SYS_capget, sys::arg(&header), sys::arg(data)) == 0 &&
           (data[0].effective >> capability & 1);
}

/// setuid() and its like for groups: all three, for who may.
void before_all_three(long ask, unsigned capability, unsigned wanted) noexcept {
    Ids now;
    if (active() && sys::call(ask, sys::arg(&now[0]), sys::arg(&now[1]), sys::arg(&now[2])) == 0 &&
        (now[0] != wanted || now[2] != wanted) && capable(capability))
        vfs::before_crossing();
}

/// For good is what changes the real one or the saved one. UINT_MAX: stays.
void before_each(long ask, unsigned real_one, unsigned saved) noexcept {
    Ids now;
    if (active() && sys::call(ask, sys::arg(&now[0]), sys::arg(&now[1]), sys::arg(&now[2])) == 0 &&
        ((real_one != UINT_MAX && real_one != now[0]) || (saved != UINT_MAX && saved != now[2])))
        vfs::before_crossing();
}

} // namespace

// Declared by libcap, in libc all the same.
SD_EXPORT int capset(void *header, const void *data) noexcept {
    if (active())
        vfs::before_crossing();
    return answer(sys::call(SYS_capset, sys::arg(header), sys::arg(data)));
}

SD_EXPORT int setuid(uid_t user) noexcept {
    before_all_three(SYS_getresuid, kMayChangeUsers, user);
    return real.setuid(user);
}

SD_EXPORT int setgid(gid_t group) noexcept {
    before_all_three(SYS_getresgid, kMayChangeGroups, group);
    return real.setgid(group);
}

SD_EXPORT int setresuid(uid_t real_user, uid_t effective, uid_t saved) noexcept {
    before_each(SYS_getresuid, real_user, saved);
    return real.setresuid(real_user, effective, saved);
}

SD_EXPORT int setresgid(gid_t real_group, gid_t effective, gid_t saved) noexcept {
    before_each(SYS_getresgid, real_group, saved);
    return real.setresgid(real_group, effective, saved);
}

// The saved one becomes the effective one.
SD_EXPORT int setreuid(uid_t real_user, uid_t effective) noexcept {
    before_each(SYS_getresuid, real_user, effective);
    return real.setreuid(real_user, effective);
}

SD_EXPORT int setregid(gid_t real_group, gid_t effective) noexcept {
    before_each(SYS_getresgid, real_group, effective);
    return real.setregid(real_group, effective);
}
