// Which accelerated listener a connection is for.
#include "libsd/vfs/connections/choice.hpp"
#include "libsd/control/client.hpp"
#include "libsd/control/kernel_sockets/kernel_listener.hpp"
#include "libsd/vfs/connections/address.hpp"
#include <cstring>

namespace sd {

namespace {

bool matches(const DirectoryEntry &e, const SlotAddress &to, int *rank) noexcept {
    if (e.port != to.port)
        return false;
    bool to_v4 = is_v4(to.ip);
    if (memcmp(e.ip, to.ip, 16) == 0) {
        *rank = 3; // bound to this very address
        return true;
    }
    if (!is_any(e.ip))
        return false;
    if (e.family == AF_INET6 ? !to_v4 || !e.v6only : to_v4) {
        // A wildcard of the same family goes before a dual-stack one
        *rank = (e.family == AF_INET6) == !to_v4 ? 2 : 1;
        return true;
    }
    return false;
}

/// Calls fn(copy) for each entry that matches the address.
template <class Fn> void for_each_match(const SlotAddress &to, Fn fn) noexcept {
    const Directory *d = control::directory();
    const uint32_t h = directory_hash(to.port);
    for (uint32_t i = 0; i < kDirectoryEntries; ++i) {
        const DirectoryEntry &e = d->entry[(h + i) % kDirectoryEntries];
        if (e.used.load(std::memory_order_acquire) == 0)
            break;
        ListenerEntry copy{e.id.load(std::memory_order_acquire), 0, 0, 0, 0};
        if (copy.id == 0 || !matches(e, to, &copy.rank))
            continue;
        copy.backlog = e.backlog;
        copy.owner = e.owner;
        copy.cookie = e.cookie;
        std::atomic_thread_fence(std::memory_order_acquire);
        if (e.id.load(std::memory_order_relaxed) == copy.id)
            fn(copy);
    }
}

/// Where several listeners share an address (SO_REUSEPORT) the kernel may name another one than we drew. That
/// one was alive when it was registered, and the monitor made sure that so was ours, then or later: they had
/// the address together, which the kernel only grants to sockets of one user.
bool shares_address(const ListenerEntry &ours, uint64_t cookie, const SlotAddress &to) noexcept {
    bool found = false;
    for_each_match(to, [&](const ListenerEntry &e) {
        found = found || (e.cookie == cookie && e.rank == ours.rank && e.owner == ours.owner);
    });
    return found;
}

/// For LinkMap::agreed: when, but for the last bits, which tell the address.
constexpr uint64_t kAddressBits = 0xffff;
uint64_t agreed_word(const SlotAddress &to, uint64_t when) noexcept {
    return (when & ~kAddressBits) | hash_of(to) >> 48;
}

bool ask_kernel(const ListenerEntry &entry, const SlotAddress &to, uint64_t now) noexcept {
    control::DiagAddress at{AF_INET6, htons(to.port), {}};
    if (is_v4(to.ip)) {
        at.family = AF_INET;
        memcpy(at.ip, to.ip + 12, 4);
    } else {
        memcpy(at.ip, to.ip, 16);
    }
    const int64_t cookie = control::kernel_listener(at, static_cast<uint16_t>(now >> 8));
    if (cookie < 0) {
        wire::ListenerRef ref{entry.id, 0};
        return control::request(wire::Op::check, &ref, sizeof ref).status == 0;
    }
    return cookie != 0 && (static_cast<uint64_t>(cookie) == entry.cookie ||
                           shares_address(entry, static_cast<uint64_t>(cookie), to));
}

} // namespace

bool look_up_listener(const SlotAddress &to, ListenerEntry *out) noexcept {
    static std::atomic<uint32_t> turn{0};
    uint32_t draw = 0;
    int best = 0;
    uint32_t same = 0; // listeners of equal rank (SO_REUSEPORT): each gets its share
    for_each_match(to, [&](const ListenerEntry &e) {
        if (e.rank < best)
            return;
        same = e.rank == best ? same + 1 : 1;
        if (same == 2)
            draw = turn.fetch_add(1, std::memory_order_relaxed) * 2654435761u;
        if (same > 1 && (draw >> 8) % same != 0)
            return;
        best = e.rank;
        *out = e;
    });
    return best > 0;
}

// Threads that write a word at the same time each have the kernel's word for what they write.
bool kernel_agrees(LinkMap &link, const ListenerEntry &entry, const SlotAddress &to, uint64_t now) noexcept {
    // Neighbouring addresses (127.0.0.1, 127.0.0.2 ...) have a word each.
    auto &word = link.agreed[to.ip[sizeof to.ip - 1] % LinkMap::kAgreed];
    const uint64_t known = word.load(std::memory_order_relaxed);
    const auto is_within = [now](uint64_t then, uint64_t most) {
        return (now & ~kAddressBits) - (then & ~kAddressBits) < most;
    };
    if (((known ^ agreed_word(to, 0)) & kAddressBits) == 0 && is_within(known, kAddressAgreedFor) &&
        is_within(link.listens.load(std::memory_order_relaxed), kAgreedFor)) [[likely]]
        return true;
    const bool agrees = ask_kernel(entry, to, now);
    word.store(agrees ? agreed_word(to, now) : 0, std::memory_order_relaxed);
    link.listens.store(agrees ? now : 0, std::memory_order_relaxed);
    return agrees;
}

} // namespace sd
