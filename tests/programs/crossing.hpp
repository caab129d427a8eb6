// Programs of two processes as two users.
#pragma once

#include <cstdlib>
#include <grp.h>
#include <unistd.h>

namespace sdtest {

// Where the runner asks for it (SD_E2E_STRANGERS), a forked process becomes another user, for good.
inline void become_a_stranger() {
    const char *user = getenv("SD_E2E_STRANGERS");
    if (!user || geteuid() != 0)
        return;
    const auto id = static_cast<uid_t>(atoi(user));
    if (setgroups(0, nullptr) != 0 || setresgid(id, id, id) != 0 || setresuid(id, id, id) != 0)
        _exit(97);
}

} // namespace sdtest
