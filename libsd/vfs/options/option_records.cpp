#include "libsd/vfs/options/option_records.hpp"
#include "libsd/control/fork_sections.hpp"
#include "libsd/cpu/order.hpp"
#include "libsd/vfs/options/option_table.hpp"
#include "libsd/vfs/streams/capture.hpp"
#include <cstring>
#include <initializer_list>
#include <linux/tcp.h>
#include <sys/time.h>

namespace sd {

namespace {

SD_FORK_STATE constinit Pool<FreshState> fresh_states;
SD_FORK_STATE constinit Lock fresh_lock; ///< all records; setting options before connecting is rare

/// With the lock.
FreshState *state_of(File &f) noexcept {
    if (!f.unconnected.options && (f.unconnected.options = fresh_states.allocate())) {
        f.unconnected.options->count = 0;
        f.unconnected.options->incomplete = false;
    }
    return f.unconnected.options;
}

/// With the lock. The last one set counts and goes last: some options change others.
bool record(FreshState &s, const FreshOption &o) noexcept {
    for (uint32_t i = 0; i < s.count; ++i)
        if (s.option[i].level == o.level && s.option[i].name == o.name) {
            memmove(&s.option[i], &s.option[i + 1], (s.count - i - 1) * sizeof(FreshOption));
            --s.count;
            break;
        }
    if (s.count == FreshState::kMax)
        return false;
    s.option[s.count++] = o;
    return true;
}

} // namespace

bool record_option(File &f, const FreshOption &o) noexcept {
    LockGuard g(fresh_lock);
    FreshState *s = state_of(f);
    return s && record(*s, o);
}

void record_is_incomplete(File &f) noexcept {
    LockGuard g(fresh_lock);
    if (FreshState *s = state_of(f))
        s->incomplete = true;
}

bool has_record(const File &f) noexcept {
    LockGuard g(fresh_lock);
    return f.unconnected.options && f.unconnected.options->count != 0;
}

bool find_record(const File &f, int level, int name, FreshOption *out) noexcept {
    if (!f.unconnected.options)
        return false;
    LockGuard g(fresh_lock);
    for (uint32_t i = 0; f.unconnected.options && i < f.unconnected.options->count; ++i)
        if (f.unconnected.options->option[i].level == level && f.unconnected.options->option[i].name == name) {
            *out = f.unconnected.options->option[i];
            return true;
        }
    return false;
}

void replay_options(int fd, const FreshState &s) noexcept {
    for (uint32_t i = 0; i < s.count; ++i) {
        const FreshOption &o = s.option[i];
        sys::setsockopt(fd, o.level, o.name, o.value, static_cast<socklen_t>(o.length));
    }
}

void replay_stored_options(int fd, const File &f) noexcept {
    const Ofd &o = *f.ofd;
    const auto set = [fd](int level, int name, const auto &value) {
        sys::setsockopt(fd, level, name, &value, sizeof value);
    };
    FreshOption before; // was set otherwise when the connection was made, perhaps
    const auto differs = [&](bool is_set, int level, int name) {
        return is_set || find_record(f, level, name, &before);
    };
    for (unsigned i = 0; i < InheritedSet::kStored; ++i) {
        const KnownOption &k = *known_option_at(i);
        const int32_t v = (o.opt.*k.stored).load(relaxed);
        const bool quick = k.level == IPPROTO_TCP && k.name == TCP_QUICKACK;
        if (v == 0 && (quick || k.rule != Rule::boolean || !find_record(f, k.level, k.name, &before)))
            continue;
        set(k.level, k.name,
            quick                                              ? v - 1
            : k.rule == Rule::boolean || k.name == SO_ZEROCOPY ? int32_t{v != 0}
                                                               : v);
    }
    const linger l{o.opt.linger_on.load(relaxed), o.opt.linger_s.load(relaxed)};
    if (differs(l.l_onoff, SOL_SOCKET, SO_LINGER))
        set(SOL_SOCKET, SO_LINGER, l);
    for (const int name : {SO_RCVTIMEO, SO_SNDTIMEO}) {
        const int64_t ns = (name == SO_RCVTIMEO ? o.rcvtimeo_ns : o.sndtimeo_ns).load(relaxed);
        if (!differs(ns != 0, SOL_SOCKET, name))
            continue;
        timeval t{ns / 1'000'000'000, ns % 1'000'000'000 / 1000};
        if (ns == kNoWait)
            t = {-1, 0};
        set(SOL_SOCKET, name, t);
    }
    if (const int32_t low = without_capture(o.rcvlowat.load(relaxed)); differs(low != 1, SOL_SOCKET, SO_RCVLOWAT))
        set(SOL_SOCKET, SO_RCVLOWAT, low);
}

SD_FORK_CODE void free_fresh(FreshState *s) noexcept { fresh_states.release(s); }

void record_extras(File &f, const InheritedSet &set) noexcept {
    LockGuard g(fresh_lock);
    if (FreshState *s = state_of(f))
        for (uint32_t i = 0; i < set.extras; ++i)
            record(*s, set.extra[i]);
}

uint32_t copy_options(const File &f, FreshOption *out) noexcept {
    LockGuard g(fresh_lock);
    const uint32_t count = f.unconnected.options ? f.unconnected.options->count : 0;
    for (uint32_t i = 0; i < count; ++i)
        out[i] = f.unconnected.options->option[i];
    return count;
}

void restore_options(File &f, const FreshOption *from, uint32_t count) noexcept {
    LockGuard g(fresh_lock);
    FreshState *s = state_of(f);
    for (uint32_t i = 0; s && i < count; ++i) {
        const FreshOption o = from[i]; // a relative may write there still
        if (o.length >= 0 && static_cast<size_t>(o.length) <= sizeof o.value)
            record(*s, o);
    }
}

uint8_t type_of_service(const File &f) noexcept {
    constexpr uint8_t kCongestionBits = 3; // are the kernel's own
    FreshOption o;
    return find_record(f, IPPROTO_IP, IP_TOS, &o) ? static_cast<uint8_t>(o.value[0] & ~kCongestionBits)
                                                  : uint8_t{0};
}

bool is_v6only(const File &f) noexcept {
    FreshOption o;
    return f.family == AF_INET6 && find_record(f, IPPROTO_IPV6, IPV6_V6ONLY, &o) && o.value[0] != 0;
}

bool handshake_waits(const File &f) noexcept {
    FreshOption o;
    return find_record(f, IPPROTO_TCP, TCP_QUICKACK, &o) && o.value[0] == 0;
}

SD_FORK_CODE void options_fork_child() noexcept {
    fresh_states.reset_lock();
    fresh_lock.reset();
}

} // namespace sd
