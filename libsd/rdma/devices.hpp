// The plugin and the devices of this process. A device is opened with the first queue pair that is made on
// it, and stays open: threads may be looking at it at any time.
#pragma once
#include "libsd/layout/causes.hpp"
#include "libsd/rdma/choice.hpp"

namespace sd::rdma {

/// So many are opened by a process, at most. One that was taken out and put in again counts anew.
constexpr unsigned kMostDevices = 16;

/// Null before a device was found; then it stays.
extern const Plugin *plugin;
extern std::atomic<Host *> devices[kMostDevices];

template <class Fn> void for_each_device(Fn fn) noexcept {
    for (auto &one : devices)
        if (Host *h = one.load(std::memory_order_acquire))
            fn(h);
        else
            break; // they are opened in order
}
inline bool has_device() noexcept { return devices[0].load(std::memory_order_acquire) != nullptr; }

/// Do connections with other hosts move? `what`: of the discovery word.
bool is_wanted(uint32_t what) noexcept;

/// Makes a queue pair on the first device that can. Null: none can now. In an ordinary call, with handlers
/// put off. `may_use`: does policy allow the address?
Peer *make_peer(const Ends &, Hello *ours, Host **, bool (*may_use)(const void *, const Place &),
                const void *user) noexcept;
/// Is there more than one place to choose from?
bool has_choice() noexcept;

void use_device_for_test(const Plugin *, Host *) noexcept;

} // namespace sd::rdma
