// Calls that make a process somebody else, with fewer rights as a rule. What can be undone (another effective
// user, whom the saved one can take back; fewer effective capabilities) is no change for good: what is shared
// stays.
#include "libsd/api/processes/credentials.hpp"
#include "libsd/api/wrap.hpp"
#include "libsd/cpu/copy.hpp"
#include "libsd/vfs/family/crossing.hpp"
#include <climits>
#include <linux/capability.h>
#include <unistd.h>

using namespace sd;

namespace {

constexpr unsigned kMayChangeGroups = 6, kMayChangeUsers = 7; // CAP_SETGID, CAP_SETUID

struct Ids {
    unsigned real_one, effective, saved;
};
struct Capabilities {
    __user_cap_data_struct half[2]; ///< the lower 32, and the others
};

bool capabilities_now(Capabilities &now) noexcept {
    __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
    return sys::call(SYS_capget, sys::arg(&header), sys::arg(now.half)) == 0;
}

bool capable(unsigned capability) noexcept {
    Capabilities now{};
    return capabilities_now(now) && (now.half[0].effective >> capability & 1);
}

bool is_for_groups(long number) noexcept {
    return number == SYS_setgid || number == SYS_setregid || number == SYS_setresgid;
}

/// Does the kernel let the caller have these ids? UINT_MAX: stays.
bool may_change_ids(long number, const Ids &now, unsigned first, unsigned second, unsigned third) noexcept {
    if (capable(is_for_groups(number) ? kMayChangeGroups : kMayChangeUsers))
        return true;
    const auto has = [&now](unsigned wanted) {
        return wanted == UINT_MAX || wanted == now.real_one || wanted == now.effective;
    };
    const auto had = [&](unsigned wanted) { return has(wanted) || wanted == now.saved; };
    switch (number) {
    case SYS_setuid:
    case SYS_setgid:
        return false; // the effective one at most
    case SYS_setreuid:
    case SYS_setregid:
        return has(first) && had(second);
    default:
        return had(first) && had(second) && had(third);
    }
}

/// Does the call change the real id or the saved one, for who may?
bool changes_ids(long number, const Ids &now, unsigned first, unsigned second, unsigned third) noexcept {
    const auto becomes = [](unsigned wanted, unsigned is) { return wanted != UINT_MAX && wanted != is; };
    switch (number) {
    case SYS_setuid:
    case SYS_setgid:
        return now.real_one != first || now.saved != first;
    case SYS_setreuid:
    case SYS_setregid: // the effective one becomes the saved one, unless it is the real one again
        return becomes(first, now.real_one) ||
               (becomes(second, now.saved) && (first != UINT_MAX || second != now.real_one));
    default: // setresuid, setresgid
        return becomes(first, now.real_one) || becomes(third, now.saved);
    }
}

/// Does capset(2) take away what cannot be had back? What the kernel will refuse changes nothing.
bool changes_capabilities(const void *header, const void *data) noexcept {
    __user_cap_header_struct asked;
    Capabilities wanted{}, now{};
    if (sd_copy(&asked, header, sizeof(asked)) != 0)
        return false;
    size_t halves = 2;
    if (asked.version == _LINUX_CAPABILITY_VERSION_1)
        halves = 1;
    else if (asked.version != _LINUX_CAPABILITY_VERSION_2 && asked.version != _LINUX_CAPABILITY_VERSION_3)
        return false;
    if (sd_copy(&wanted, data, halves * sizeof(wanted.half[0])) != 0 || !capabilities_now(now))
        return false;
    return wanted.half[0].permitted != now.half[0].permitted || wanted.half[1].permitted != now.half[1].permitted;
}

bool ids_change_for_good(long number, unsigned first, unsigned second = 0, unsigned third = 0) noexcept {
    const long arguments[]{first, second, third};
    return changes_for_good(number, arguments);
}

} // namespace

bool sd::changes_for_good(long number, const long *arguments) noexcept {
    if (!active())
        return false;
    if (number == SYS_capset)
        return changes_capabilities(reinterpret_cast<const void *>(arguments[0]),
                                    reinterpret_cast<const void *>(arguments[1]));
    Ids now;
    const auto first = static_cast<unsigned>(arguments[0]), second = static_cast<unsigned>(arguments[1]),
               third = static_cast<unsigned>(arguments[2]);
    return sys::call(is_for_groups(number) ? SYS_getresgid : SYS_getresuid, sys::arg(&now.real_one),
                     sys::arg(&now.effective), sys::arg(&now.saved)) == 0 &&
           changes_ids(number, now, first, second, third) && may_change_ids(number, now, first, second, third);
}

// Declared by libcap, in libc all the same.
SD_EXPORT int capset(void *header, const void *data) noexcept {
    const long arguments[]{sys::arg(header), sys::arg(data)};
    const vfs::Crossing crossing(changes_for_good(SYS_capset, arguments));
    return answer(sys::call(SYS_capset, arguments[0], arguments[1]));
}

SD_EXPORT int setuid(uid_t user) noexcept {
    const vfs::Crossing crossing(ids_change_for_good(SYS_setuid, user));
    return real.setuid(user);
}

SD_EXPORT int setgid(gid_t group) noexcept {
    const vfs::Crossing crossing(ids_change_for_good(SYS_setgid, group));
    return real.setgid(group);
}

SD_EXPORT int setresuid(uid_t real_user, uid_t effective, uid_t saved) noexcept {
    const vfs::Crossing crossing(ids_change_for_good(SYS_setresuid, real_user, effective, saved));
    return real.setresuid(real_user, effective, saved);
}

SD_EXPORT int setresgid(gid_t real_group, gid_t effective, gid_t saved) noexcept {
    const vfs::Crossing crossing(ids_change_for_good(SYS_setresgid, real_group, effective, saved));
    return real.setresgid(real_group, effective, saved);
}

SD_EXPORT int setreuid(uid_t real_user, uid_t effective) noexcept {
    const vfs::Crossing crossing(ids_change_for_good(SYS_setreuid, real_user, effective));
    return real.setreuid(real_user, effective);
}

SD_EXPORT int setregid(gid_t real_group, gid_t effective) noexcept {
    const vfs::Crossing crossing(ids_change_for_good(SYS_setregid, real_group, effective));
    return real.setregid(real_group, effective);
}
