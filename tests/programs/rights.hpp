// Giving up rights, and what must be out of reach afterwards.
#pragma once
#include "tests/programs/cases.hpp"
#include "tests/programs/mapped.hpp"

#include <grp.h>
#include <linux/capability.h>
#include <sys/syscall.h>

namespace sdtest {

inline constexpr uid_t kNobody = 65534, kSomebodyElse = 65533;

inline void become(uid_t user) {
    if (geteuid() != 0) // SD_E2E_STRANGERS
        return;
    MUST(setgroups(0, nullptr));
    MUST(setgid(user));
    MUST(setuid(user));
}

inline void become_nobody() { become(kNobody); }

inline void give_up_capabilities() {
    __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
    const __user_cap_data_struct none[2]{};
    MUST(syscall(SYS_capset, &header, none));
}

// What is in reach of whoever shares it: the records of connections, and the links they go over.
inline std::set<std::string> all_shared() {
    std::set<std::string> files = mapped("sd-family");
    files.merge(mapped("sd-link"));
    return files;
}

} // namespace sdtest
