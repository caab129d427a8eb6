// The program that cannot bear round trips as short as ours.
#include "libsd/vfs/pace.hpp"
#include "libsd/control/sys.hpp"
#include <cstring>

namespace sd {

constinit bool paced = false;

namespace {

constexpr int64_t kApart = 1'700; ///< nanoseconds
constinit thread_local int64_t last_sent = 0;

} // namespace

bool needs_pace(int argc, const char *const *argv) noexcept {
    if (argc < 2 || !argv[0] || !argv[1])
        return false;
    const char *slash = strrchr(argv[0], '/');
    if (strcmp(slash ? slash + 1 : argv[0], "sockperf") != 0 ||
        (strcmp(argv[1], "ping-pong") != 0 && strcmp(argv[1], "pp") != 0))
        return false;
    for (int i = 2; i < argc && argv[i]; ++i)
        if ((strncmp(argv[i], "--mps", 5) == 0 || strncmp(argv[i], "--pps", 5) == 0) &&
            strcmp(argv[i] + 5, "=max") != 0)
            return false; // its own number; without one, and with "max", there is room for 600,000
    return true;
}

void wait_for_pace() noexcept {
    int64_t now;
    while ((now = sys::now_ns()) - last_sent < kApart)
        __builtin_ia32_pause();
    last_sent = now;
}

} // namespace sd
