// What there is to make queue pairs on, and the devices that are open.
#include "libsd/rdma/devices.hpp"
#include "libsd/base/upward.hpp"
#include "libsd/control/client.hpp"
#include "libsd/control/fork_sections.hpp"
#include "libsd/control/hidden_fd.hpp"
#include "libsd/layout/discovery_word.hpp"
#include "libsd/queue/token.hpp"
#include "libsd/rdma/root.hpp"
#include "libsd/rdma/transport.hpp"
#include <cerrno>
#include <cstring>

namespace sd::rdma {

const Plugin *plugin = nullptr;
std::atomic<Host *> devices[kMostDevices]{};

namespace {

constexpr uint32_t kSoftToo = kDiscoveryRdma | kDiscoverySoft;
constexpr int64_t kFirstPause = 1'000'000'000, kLongestPause = 64'000'000'000;
/// What was found is looked at again, where no address is the connection's, or no queue pair could be made.
constexpr int64_t kStale = 5'000'000'000;

std::atomic<bool> wanted_by_test{false};
/// Are there devices, of either kind, whose port is up? As far as is known.
std::atomic<bool> has_real{false}, has_soft{false};
/// Before that nobody looks again whether there is a device now; 0: nobody has looked.
std::atomic<int64_t> next_look{0};
std::atomic<uint64_t> registered{0}; ///< by all devices

SD_FORK_STATE constinit Lock opening;
// With `opening`.
bool tried_plugin = false;
int64_t pause = 0, last_look = 0;
Place places[kMostPlaces];
unsigned places_found = 0;
char name[kMostDevices][sizeof(Place::device)];
bool is_gone[kMostDevices]; ///< of no use any more

constexpr unsigned kMostDescriptors = 8; ///< of a device

/// Calls fn(int &) for each descriptor of the device's.
template <class Fn> void for_each_descriptor(Host *h, Fn fn) noexcept {
    int *number[kMostDescriptors];
    for (unsigned i = 0, n = plugin->descriptors(h, number, kMostDescriptors); i < n; ++i)
        fn(*number[i]);
}

bool has_usable() noexcept {
    return has_real.load(std::memory_order_relaxed) ||
           (has_soft.load(std::memory_order_relaxed) && is_wanted(kSoftToo));
}

/// With `opening`.
void look() noexcept {
    Host *open[kMostDevices];
    unsigned hosts = 0;
    for (unsigned i = 0; i < kMostDevices; ++i)
        if (Host *h = devices[i].load(std::memory_order_relaxed); h && !is_gone[i])
            open[hosts++] = h;
    const SpareNumbers spare;
    const int found = plugin ? plugin->places(open, hosts, places, kMostPlaces) : 0;
    places_found = found > 0 ? static_cast<unsigned>(found) : 0;
    bool real = false, soft = false;
    for (unsigned i = 0; i < places_found; ++i)
        (places[i].is_soft ? soft : real) = true;
    has_real.store(real, std::memory_order_relaxed);
    has_soft.store(soft, std::memory_order_relaxed);
    last_look = sys::now_ns();
    pause = has_usable()                ? 0
            : pause == 0                ? kFirstPause
            : pause * 2 < kLongestPause ? pause * 2
                                        : kLongestPause;
    next_look.store(last_look + pause, std::memory_order_release);
}

bool is_look_due() noexcept {
    const int64_t next = next_look.load(std::memory_order_acquire);
    return next == 0 || (!has_usable() && sys::now_ns() >= next);
}

/// With `opening`: the device of the place, which is opened if it has to be. Null: it cannot be.
Host *device_of(const Place &p, unsigned *index) noexcept {
    unsigned i = 0;
    for (; i < kMostDevices && devices[i].load(std::memory_order_relaxed); ++i)
        if (!is_gone[i] && strcmp(name[i], p.device) == 0) {
            *index = i;
            return devices[i].load(std::memory_order_relaxed);
        }
    Limits limits = kUsualLimits;
    limits.registered = &registered;
    const Directory *d = control::directory();
    if (const uint32_t mib = d ? d->discovery.load(std::memory_order_relaxed) >> kDiscoveryRegistered : 0)
        limits.registered_bytes = uint64_t{mib} << 20;
    Host *h = nullptr;
    if (i == kMostDevices || plugin->open(limits, p, &h) != 0)
        return nullptr;
    for_each_descriptor(h, [](int &number) {
        if (const long hidden = hide_fd(number); hidden >= 0)
            number = static_cast<int>(hidden);
    });
    memcpy(name[i], p.device, sizeof name[i]);
    is_gone[i] = false;
    devices[i].store(h, std::memory_order_release);
    *index = i;
    return h;
}

/// `*wrong`: why there is none.
Peer *make_peer_at(const Place &p, Hello *ours, Host **host, int *wrong) noexcept {
    Peer *peer = nullptr;
    unsigned i = 0;
    *wrong = -ENODEV;
    while ((*host = device_of(p, &i))) {
        *wrong = plugin->peer(*host, p, ours, &peer);
        if (*wrong == 0)
            return peer;
        if (*wrong != -ENODEV || is_gone[i])
            break;
        is_gone[i] = true; // there may be another one by that name now
    }
    return nullptr;
}

struct Asks {
    bool (*may_use)(const void *, const Place &);
    const void *user;
};

/// `*has_changed`: there was something else, or less, than what is known.
Peer *make_peer_anywhere(const Ends &ends, Hello *ours, Host **host, const Asks &asks, bool *has_changed) noexcept {
    order_by_route(places, places_found, ends);
    const bool soft_too = is_wanted(kSoftToo);
    const char *full = "";
    for (unsigned i = 0; i < places_found; ++i) {
        const Place &p = places[i];
        int wrong;
        if ((p.is_soft && !soft_too) || strcmp(p.device, full) == 0 || !asks.may_use(asks.user, p))
            continue;
        if (Peer *peer = make_peer_at(p, ours, host, &wrong))
            return peer;
        if (wrong == -ENOMEM)
            full = p.device;
        else
            *has_changed = true;
    }
    return nullptr;
}

/// With `opening`: the same for the same places, in whichever order.
uint64_t sum_of_places() noexcept {
    uint64_t sum = 0;
    for (unsigned i = 0; i < places_found; ++i) {
        const Place &p = places[i];
        uint64_t one = 14695981039346656037u; // FNV-1a
        const auto add = [&one](uint8_t byte) { one = (one ^ byte) * 1099511628211u; };
        for (const char *c = p.device; *c; ++c)
            add(static_cast<uint8_t>(*c));
        for (const uint8_t byte : p.address)
            add(byte);
        add(p.port);
        add(p.index);
        sum += one;
    }
    return sum;
}

bool is_on_route(const Ends &ends) noexcept {
    for (unsigned i = 0; i < places_found; ++i)
        if (memcmp(places[i].address, ends.local, sizeof places[i].address) == 0)
            return true;
    return false;
}

} // namespace

void read_test_transport(const char *text) noexcept {
    wanted_by_test.store(text && strcmp(text, "rdma") == 0, std::memory_order_relaxed);
}

bool is_wanted(uint32_t what) noexcept {
    const Directory *d = control::directory();
    return wanted_by_test.load(std::memory_order_relaxed) ||
           (d && (d->discovery.load(std::memory_order_relaxed) & what) == what);
}

void open_device() noexcept {
    if (!is_wanted(kDiscoveryRdma) || !is_look_due())
        return;
    const PutOff quiet; // a handler that connects would wait for its own thread
    const LockGuard g(opening);
    if (!is_look_due())
        return;
    MaySleep::count_all();
    if (!tried_plugin && is_root_as_ever())
        plugin = static_cast<const Plugin *>(upward.open_plugin(kPluginVersion));
    tried_plugin = true;
    look();
}

Cause why_not() noexcept {
    return has_usable()                               ? Cause::none
           : has_soft.load(std::memory_order_relaxed) ? Cause::soft_rdma
                                                      : Cause::no_rdma;
}

bool has_choice() noexcept {
    const LockGuard g(opening);
    return places_found > 1;
}

Peer *make_peer(const Ends &ends, Hello *ours, Host **host, bool (*may_use)(const void *, const Place &),
                const void *user) noexcept {
    const Asks asks{may_use, user};
    const LockGuard g(opening);
    if (!plugin)
        return nullptr;
    const SpareNumbers spare;
    const bool is_stale = sys::now_ns() - last_look > kStale;
    if (is_stale && !is_on_route(ends))
        look();
    bool has_changed = places_found == 0;
    Peer *peer = make_peer_anywhere(ends, ours, host, asks, &has_changed);
    if (!peer && (has_changed || is_stale)) {
        const uint64_t before = sum_of_places();
        look();
        // What takes no queue pair is not asked for another one at once.
        if (has_changed || sum_of_places() != before)
            peer = make_peer_anywhere(ends, ours, host, asks, &has_changed);
    }
    return peer;
}

void descriptors_moved(int from, int to) noexcept {
    for_each_device([&](Host *h) {
        for_each_descriptor(h, [&](int &number) {
            if (number == from)
                number = to;
        });
    });
}

void use_device_for_test(const Plugin *with, Host *h) noexcept {
    plugin = with;
    devices[0].store(h);
}

SD_FORK_CODE void close_devices_in_child() noexcept {
    opening.reset();
    for (auto &one : devices)
        if (Host *h = one.load(std::memory_order_relaxed)) {
            int *number[kMostDescriptors]; // not for_each_descriptor, whose code lies elsewhere
            for (unsigned i = 0, n = plugin->descriptors(h, number, kMostDescriptors); i < n; ++i)
                close_hidden(*number[i]);
            one.store(nullptr, std::memory_order_relaxed);
        }
    registered.store(0, std::memory_order_relaxed);
    next_look.store(0, std::memory_order_relaxed);
    has_real.store(false, std::memory_order_relaxed);
    has_soft.store(false, std::memory_order_relaxed);
    places_found = 0;
    pause = last_look = 0;
}

} // namespace sd::rdma
