// What a helper of the monitor gives up.
//
// All calls are made with the instruction itself: libsd, which stands in front of the C library in sd-bridge,
// must go on talking to the monitor, and would take a change of user for the end of that.
#include "monitor/sandbox/privileges.hpp"

#include "libsd/control/sys.hpp"

#include <array>
#include <cerrno>
#include <cstdio>
#include <linux/capability.h>
#include <sys/prctl.h>

namespace sd::monitor {

namespace {

bool done(long result) {
    if (result < 0) {
        errno = static_cast<int>(-result);
    }
    return result >= 0;
}

using Ids = std::array<unsigned, 3>;

bool read_ids(const char *text, Ids &ids) {
    char rest;
    if (sscanf(text, "%u,%u,%u%c", &ids[0], &ids[1], &ids[2], &rest) == 3) {
        return true;
    }
    errno = EINVAL;
    return false;
}

bool become(const Ids &users, const Ids &groups) {
    Ids now_users, now_groups;
    sys::call(SYS_getresuid, sys::arg(&now_users[0]), sys::arg(&now_users[1]), sys::arg(&now_users[2]));
    sys::call(SYS_getresgid, sys::arg(&now_groups[0]), sys::arg(&now_groups[1]), sys::arg(&now_groups[2]));
    const long emptied = sys::call(SYS_setgroups, 0, 0);
    if (now_users == users && now_groups == groups) {
        return true; // a monitor that may not change users has those of its own user only
    }
    return done(emptied) && done(sys::call(SYS_setresgid, groups[0], groups[1], groups[2])) &&
           done(sys::call(SYS_setresuid, users[0], users[1], users[2]));
}

} // namespace

bool give_up_privileges(const char *users, const char *groups) {
    Ids user_ids, group_ids;
    if (users != nullptr &&
        !(read_ids(users, user_ids) && read_ids(groups, group_ids) && become(user_ids, group_ids))) {
        return false;
    }
    __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
    const __user_cap_data_struct none[2]{};
    return done(sys::call(SYS_prctl, PR_SET_NO_NEW_PRIVS, 1)) &&
           done(sys::call(SYS_capset, sys::arg(&header), sys::arg(none))) &&
           done(sys::call(SYS_prctl, PR_SET_DUMPABLE, 0));
}

} // namespace sd::monitor
