// The table as it is before vfs::init().
#include "libsd/base/upward.hpp"
#include <cerrno>

namespace sd {

constinit Upward upward = {
    .run_deferred = []() noexcept {},
    .expect_faults = []() noexcept {},
    .expect_faults_here = []() noexcept {},
    .presence_moved = [](int, int) noexcept {},
    .reset_in_child = []() noexcept {},
    .open_plugin = [](uint32_t) noexcept -> const void * { return nullptr; },
    .take_events = []() noexcept {},
    .register_thread = [](unsigned) noexcept { return false; },
    .watch_thread = []() noexcept {},
    .repair = [](unsigned, uint64_t) noexcept {},
    .fetch_peer_bell = [](LinkMap &, unsigned) noexcept -> long { return -ENOSYS; },
    .ring_through_monitor = [](LinkMap &, unsigned) noexcept {},
    .hidden_moved = [](int, int) noexcept {},
    .identity = [](control::Identity *, int) noexcept { return false; },
    .network = []() noexcept -> long { return -ENOTSOCK; },
    .restore = []() noexcept {},
};

} // namespace sd
