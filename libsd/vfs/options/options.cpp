// getsockopt and setsockopt.
//
// Three places can hold an option: the record of a socket that is not connected yet (File::fresh), the Ofd of
// a connection, and a kernel socket. The kernel's answers are the standard: whatever we cannot answer exactly
// is asked of a kernel socket, which a placeholder is turned into for that purpose; a connection then keeps
// the unconnected kernel socket under its number.
#include "libsd/vfs/options/options.hpp"
#include "libsd/control/fork_sections.hpp"
#include "libsd/vfs/connections/accept.hpp"
#include "libsd/vfs/connections/endpoint_addresses.hpp"
#include "libsd/vfs/connections/listener.hpp"
#include "libsd/vfs/descriptors/fd.hpp"
#include "libsd/vfs/descriptors/socket.hpp"
#include "libsd/vfs/options/option_table.hpp"
#include "libsd/vfs/options/packet_options.hpp"
#include "libsd/vfs/options/tcp_info.hpp"
#include "libsd/vfs/paths/moves.hpp"
#include "libsd/vfs/readiness/epoll.hpp"
#include "libsd/vfs/readiness/stream_readiness.hpp"
#include "libsd/vfs/streams/capture.hpp"
#include "libsd/vfs/streams/cork.hpp"
#include "libsd/vfs/vfs.hpp"
#include <cstring>
#include <initializer_list>
#include <linux/tcp.h>
#include <sys/time.h>

namespace sd {

namespace {

SD_FORK_STATE constinit Pool<FreshState> pool;
SD_FORK_STATE constinit Lock fresh_lock; ///< all records; setting options before connecting is rare
constexpr auto relaxed = std::memory_order_relaxed;

/// With the lock.
FreshState *state_of(File &f) noexcept {
    if (!f.unconnected.options && (f.unconnected.options = pool.allocate())) {
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

/// Makes sure that a kernel socket answers under this number.
long need_kernel_socket(int fd, File &f) noexcept { return f.real_socket ? 0 : materialise(fd, f); }

/// Hands out an answer as the kernel does: cut to the room there is, the length after the value.
long give(const void *answer, size_t size, void *value, socklen_t *n, int room) noexcept {
    socklen_t m = static_cast<size_t>(room) < size ? static_cast<socklen_t>(room) : static_cast<socklen_t>(size);
    return sd_copy(value, answer, m) || sd_copy(n, &m, sizeof m) ? -EFAULT : 0;
}
long give_int(int32_t v, void *value, socklen_t *n, int room) noexcept {
    return give(&v, sizeof v, value, n, room);
}

/// What a socket of ours answers alike before and after connecting. False: not one of these.
bool common_answer(File &f, int level, int name, void *value, socklen_t *n, int room, long *r) noexcept {
    if (level != SOL_SOCKET)
        return false;
    switch (name) {
    case SO_TYPE:
        *r = give_int(SOCK_STREAM, value, n, room);
        return true;
    case SO_DOMAIN:
        *r = give_int(f.kind == FileKind::stream ? f.ofd->family : f.family, value, n, room);
        return true;
    case SO_PROTOCOL:
        *r = give_int(IPPROTO_TCP, value, n, room);
        return true;
    case SO_ACCEPTCONN:
        *r = give_int(0, value, n, room);
        return true;
    case SO_PEERCRED: {
        const struct { int32_t pid, uid, gid; } nobody{0, -1, -1}; // TCP does not know
        *r = give(&nobody, sizeof nobody, value, n, room);
        return true;
    }
    case SO_PEERNAME:
        *r = peer_name_option(f, value, n, room);
        return true;
    }
    return false;
}

/// For values that are neither recorded nor kept: the dummy socket of the process where it reads the same,
/// else a kernel socket of this one's own.
long ask_kernel(int fd, File &f, int level, int name, void *value, socklen_t *n) noexcept {
    if (!f.real_socket && has_common_default(level, name, f.family)) {
        bool recorded = false, related = false;
        {
            LockGuard g(fresh_lock);
            const uint32_t count = f.unconnected.options ? f.unconnected.options->count : 0;
            for (uint32_t i = 0; i < count; ++i)
                recorded |= f.unconnected.options->option[i].level == level &&
                            f.unconnected.options->option[i].name == name;
            // Some options change the value of others.
            related =
                count &&
                ((level == SOL_SOCKET && (name == SO_PRIORITY || name == SO_RCVBUF || name == SO_RCVLOWAT)) ||
                 (level == IPPROTO_TCP && (name == TCP_WINDOW_CLAMP || name == TCP_INFO)) ||
                 level == IPPROTO_IP);
        }
        long dummy = dummy_socket();
        if (!recorded && !related && dummy >= 0)
            return sys::getsockopt(static_cast<int>(dummy), level, name, value, n);
    }
    long r = need_kernel_socket(fd, f);
    return r < 0 ? r : sys::getsockopt(fd, level, name, value, n);
}

long fresh_get(int fd, File &f, int level, int name, void *value, socklen_t *n, int room) noexcept {
    if (level == SOL_SOCKET && name == SO_ERROR)
        return give_int(f.unconnected.error.exchange(0, std::memory_order_relaxed), value, n, room);
    FreshOption rec;
    const KnownOption *k = known_option(level, name);
    if (k && k->exact) {
        bool recorded = find_record(f, level, name, &rec);
        if (recorded && k->name == TCP_QUICKACK && k->level == IPPROTO_TCP)
            return give_int(rec.value[0] != 0, value, n, room);
        if (recorded)
            return give(rec.value, sizeof(int32_t), value, n, room);
        if (k->rule == Rule::boolean && level != IPPROTO_IPV6)
            return give_int(k->name == TCP_QUICKACK && k->level == IPPROTO_TCP, value, n, room);
    }
    return ask_kernel(fd, f, level, name, value, n);
}

bool is_keepalive(int level, int name) noexcept {
    return level == SOL_SOCKET
               ? name == SO_KEEPALIVE
               : level == IPPROTO_TCP && (name == TCP_KEEPIDLE || name == TCP_KEEPINTVL || name == TCP_KEEPCNT);
}

/// Their words are used otherwise then (Ofd::Options).
bool kept_by_socket(const Ofd &o, const KnownOption &k) noexcept {
    return has_paths(o) && k.level == IPPROTO_TCP &&
           (k.name == TCP_KEEPIDLE || k.name == TCP_KEEPINTVL || k.name == TCP_KEEPCNT ||
            k.name == TCP_QUICKACK || k.name == TCP_USER_TIMEOUT);
}

long stream_get(int fd, File &f, int level, int name, void *value, socklen_t *n, int room) noexcept {
    Ofd &o = *f.ofd;
    const KnownOption *k = known_option(level, name);
    if (k && k->stored && kept_by_socket(o, *k)) [[unlikely]] {
        const bool hidden = has_hidden_keepalive(o) && is_keepalive(level, name);
        return hidden ? give_int(shown_keepalive(name), value, n, room)
                      : ask_kernel(fd, f, level, name, value, n);
    }
    if (k && k->stored) {
        int32_t v = (o.opt.*k->stored).load(relaxed);
        if (level == IPPROTO_TCP && name == TCP_QUICKACK)
            v = v == 0 ? 1 : v - 1;
        if (level == SOL_SOCKET && name == SO_ZEROCOPY)
            return give_int(v != 0, value, n, room);
        // 0 is no value of the others: the system's default.
        if (v != 0 || k->rule == Rule::boolean || name == TCP_USER_TIMEOUT)
            return give_int(v, value, n, room);
        long dummy = dummy_socket();
        return dummy < 0 ? dummy : sys::getsockopt(static_cast<int>(dummy), level, name, value, n);
    }
    if (level == SOL_SOCKET) {
        switch (name) {
        case SO_ERROR: {
            if (has_paths(o)) [[unlikely]]
                return give_int(take_path_error(fd, f), value, n, room);
            absorb_flags(f);
            return give_int(take_error(o), value, n, room);
        }
        case SO_LINGER: {
            linger l{o.opt.linger_on.load(relaxed), o.opt.linger_s.load(relaxed)};
            return give(&l, sizeof l, value, n, room);
        }
        case SO_RCVLOWAT:
            if (has_paths(o)) [[unlikely]]
                return give_int(low_water(o), value, n, room);
            return give_int(without_capture(o.rcvlowat.load(relaxed)), value, n, room);
        }
        if (k && k->rule == Rule::timeout) {
            timeval t =
                timeout_read_back((k->name == SO_RCVTIMEO ? o.rcvtimeo_ns : o.sndtimeo_ns).load(relaxed));
            return give(&t, sizeof t, value, n, room);
        }
    }
    if (has_paths(o)) [[unlikely]]
        return ask_kernel(fd, f, level, name, value, n);
    if (level == IPPROTO_TCP && name == TCP_INFO)
        return get_tcp_info(f, value, n, room);
    constexpr int32_t kLoopbackMtu = 65535;
    if ((level == IPPROTO_IP && name == IP_MTU) ||
        (level == IPPROTO_IPV6 && name == IPV6_MTU && f.family == AF_INET6))
        return give_int(kLoopbackMtu, value, n, room);
    if (asks_for_packets(level, name)) {
        const long r = need_kernel_socket(fd, f);
        return r < 0 ? r : packet_options(fd, f, level, name, value, n, room);
    }
    return ask_kernel(fd, f, level, name, value, n);
}

/// Marks a socket that has been told something only the kernel can honour.
void note_refusal(File &f, int level, int name, const void *value, socklen_t n) noexcept {
    if (!needs_kernel(level, name))
        return;
    int v = 1; // switches that were just turned off do not count
    if (n >= sizeof v && sd_copy(&v, value, sizeof v))
        return;
    const bool named = level == SOL_SOCKET && name == SO_BINDTODEVICE;
    if (v == 0 && !named)
        return;
    Cause why = level == IPPROTO_TCP && name == TCP_FASTOPEN_CONNECT ? Cause::fast_open : Cause::option;
    f.unconnected.refuse_cause = static_cast<uint8_t>(why);
}

/// A socket that is not connected and already the kernel's, or has to become so.
long fresh_set_in_kernel(int fd, File &f, int level, int name, const void *value, socklen_t n,
                         const FreshOption *rec) noexcept {
    long r = need_kernel_socket(fd, f);
    if (r < 0)
        return r;
    r = sys::setsockopt(fd, level, name, value, n);
    if (r < 0)
        return r;
    note_refusal(f, level, name, value, n);
    if (known_option(level, name)) {
        LockGuard g(fresh_lock);
        if (FreshState *s = state_of(f))
            if (!rec || !record(*s, *rec))
                s->incomplete = true;
    }
    return r;
}

long fresh_set(int fd, File &f, int level, int name, const void *value, socklen_t n) noexcept {
    const KnownOption *k = known_option(level, name);
    // Only sockets of the fitting family know these.
    if (!k || (level == IPPROTO_IP && f.family != AF_INET) ||
        (level == IPPROTO_IPV6 && (f.family != AF_INET6 || f.unconnected.bound)))
        return fresh_set_in_kernel(fd, f, level, name, value, n, nullptr);
    ParsedOption p;
    long r = parse_option(*k, value, n, p);
    if (r < 0)
        return r;
    if (r == kAskKernel || f.real_socket)
        return fresh_set_in_kernel(fd, f, level, name, value, n, r == kAskKernel ? nullptr : &p.record);
    {
        LockGuard g(fresh_lock);
        FreshState *s = state_of(f);
        if (s && record(*s, p.record))
            return 0;
    }
    return fresh_set_in_kernel(fd, f, level, name, value, n, &p.record);
}

/// What sends receivers of a moved or captured connection the long way must not be written over. Whoever
/// moves or captures it sets the mark before, so of two at the same time the one sees the other's.
void set_rcvlowat(Ofd &o, int32_t bytes) noexcept {
    if (has_paths(o)) [[unlikely]] {
        bytes = bytes < kPathLowat ? bytes : kPathLowat - 1;
        (o.opt.*kPathRcvlowat).store(bytes, std::memory_order_seq_cst);
        if (without_capture(o.rcvlowat.load(std::memory_order_seq_cst)) == kPathLowat)
            return;
    }
    o.rcvlowat.store(bytes < kCaptureLowat ? bytes : kCaptureLowat - 1, std::memory_order_seq_cst);
    const uint32_t marks = o.tx_block.load(std::memory_order_seq_cst);
    if (marks & kTxMoved)
        o.rcvlowat.store(kMovedLowat, relaxed);
    else if (marks & kTxCapture)
        o.rcvlowat.fetch_or(kCaptureLowat, relaxed);
}

void keep(Ofd &o, const KnownOption &k, const ParsedOption &p) noexcept {
    if (k.stored == &Ofd::Options::zerocopy_next) {
        int32_t off = 0; // the count goes on while it stays on
        if (p.number == 0)
            o.opt.zerocopy_next.store(0, relaxed);
        else if (o.opt.zerocopy_next.compare_exchange_strong(off, 1))
            o.opt.zerocopy_told.store(0, relaxed);
    } else if (k.stored) {
        if (kept_by_socket(o, k)) [[unlikely]]
            return;
        bool quick = k.level == IPPROTO_TCP && k.name == TCP_QUICKACK;
        (o.opt.*k.stored).store(quick ? 1 + (p.number != 0) : p.number, relaxed);
    } else if (k.rule == Rule::linger) {
        if (p.on)
            o.opt.linger_s.store(p.seconds, relaxed);
        o.opt.linger_on.store(p.on, relaxed);
    } else if (k.rule == Rule::timeout) {
        (k.name == SO_RCVTIMEO ? o.rcvtimeo_ns : o.sndtimeo_ns).store(p.ns, relaxed);
    } else {
        set_rcvlowat(o, p.number ? p.number : 1); // the only one left that is ours
    }
}

/// What the kernel does with each read, and we do not: a live connection on which it is switched on goes on
/// there. `*off`: the value that switches it off.
bool reads_in_kernel(int level, int name, int *off) noexcept {
    *off = level == SOL_SOCKET ? -1 : 0;
    return (level == SOL_SOCKET && name == SO_PEEK_OFF) || (level == IPPROTO_TCP && name == TCP_INQ);
}

long read_in_kernel(int fd, File &f, int level, int name, const void *value, socklen_t n, int off) noexcept {
    // A kernel that does not know it, or does not like the value, says so of any socket.
    const long any = sys::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (any < 0)
        return any;
    const long r = sys::setsockopt(static_cast<int>(any), level, name, value, n);
    sys::close(static_cast<int>(any));
    int wanted = off;
    if (r < 0 || sd_copy(&wanted, value, sizeof wanted) || wanted == off)
        return r;
    const bool paths = has_paths(*f.ofd);
    if (const long left = leave_to_kernel(fd, f, Cause::option); left != vfs::kPass)
        return left;
    return file_of(fd) != &f || paths ? vfs::kPass : -ENOPROTOOPT;
}

long stream_set(int fd, File &f, int level, int name, const void *value, socklen_t n) noexcept {
    Ofd &o = *f.ofd;
    const KnownOption *k = known_option(level, name);
    const bool ours = k && (k->stored || k->rule == Rule::linger || k->rule == Rule::timeout ||
                            (level == SOL_SOCKET && name == SO_RCVLOWAT));
    if (ours) {
        ParsedOption p;
        long r = parse_option(*k, value, n, p);
        if (r < 0)
            return r;
        if (r == 0) {
            keep(o, *k, p);
            if (has_hidden_keepalive(o) && is_keepalive(level, name)) [[unlikely]]
                end_hidden_keepalive(fd, o);
            // TCP_NODELAY stays on there as long as a direction may use the ring (moves.cpp)
            const bool nagle = level == IPPROTO_TCP && name == TCP_NODELAY && p.number == 0;
            if (has_paths(o) && (level != SOL_SOCKET || name != SO_RCVLOWAT) && !(nagle && uses_ring(f)))
                [[unlikely]] {
                sys::setsockopt(fd, level, name, value, n);
                if (nagle)
                    (o.opt.*kPathStays).fetch_and(~kNoNagle, relaxed);
            }
            if (level == IPPROTO_TCP && (name == TCP_CORK || name == TCP_NODELAY))
                cork_changed(f, name, p.number);
            if (level == SOL_SOCKET && name == SO_RCVLOWAT) { // what waits may be enough now
                notify_own(f);
                epoll_touch(f);
            }
            return 0;
        }
    }
    if (level == IPPROTO_IPV6 && name == IPV6_ADDRFORM && o.family == AF_INET6)
        return change_address_form(f, value, n);
    if (int off; reads_in_kernel(level, name, &off)) [[unlikely]]
        return read_in_kernel(fd, f, level, name, value, n, off);
    if (long r = refuse_on_stream(level, name, f.family, value, n); r < 0)
        return r;
    long r = need_kernel_socket(fd, f);
    if (r < 0 || (r = sys::setsockopt(fd, level, name, value, n)) < 0)
        return r;
    // What we act on ourselves, as the kernel has understood it.
    if (level == SOL_SOCKET && (name == SO_RCVLOWAT || name == SO_SNDBUF || name == SO_SNDBUFFORCE)) {
        int32_t v = 0;
        socklen_t m = sizeof v;
        if (sys::getsockopt(fd, level, name == SO_RCVLOWAT ? SO_RCVLOWAT : SO_SNDBUF, &v, &m) == 0) {
            if (name == SO_RCVLOWAT) {
                set_rcvlowat(o, v);
                const int one = 1;
                if (has_paths(o)) // looked at here, see offer.cpp
                    sys::setsockopt(fd, level, name, &one, sizeof one);
            }
            if (name != SO_RCVLOWAT)
                o.opt.sndbuf.store(v, relaxed);
        }
        if (name != SO_RCVLOWAT) { // there may be room now
            notify_own(f);
            epoll_touch(f);
        }
    }
    return 0;
}

} // namespace

long replay_options(int fd, const FreshState &s) noexcept {
    long first = 0;
    for (uint32_t i = 0; i < s.count; ++i) {
        const FreshOption &o = s.option[i];
        long r = sys::setsockopt(fd, o.level, o.name, o.value, static_cast<socklen_t>(o.length));
        if (r < 0 && first == 0)
            first = r;
    }
    return first;
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

SD_FORK_CODE void free_fresh(FreshState *s) noexcept { pool.release(s); }

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
    pool.reset_lock();
    fresh_lock.reset();
}

namespace vfs {

long getsockopt(int fd, int level, int name, void *value, socklen_t *n) noexcept {
    const PinnedFile use(fd);
    File *f = use.file();
    if (!f || (f->kind != FileKind::stream && (f->kind != FileKind::fresh || f->real_socket)))
        return kPass;
    int room = 0;
    if (sd_copy(&room, n, sizeof room))
        return -EFAULT;
    if (room < 0) // other levels and options look at it later; the error is the same
        return -EINVAL;
    long r;
    if (common_answer(*f, level, name, value, n, room, &r))
        return r;
    return f->kind == FileKind::fresh ? fresh_get(fd, *f, level, name, value, n, room)
                                      : stream_get(fd, *f, level, name, value, n, room);
}

long setsockopt(int fd, int level, int name, const void *value, socklen_t n) noexcept {
    const PinnedFile use(fd);
    File *f = use.file();
    if (!f || f->kind == FileKind::epoll)
        return kPass;
    if (static_cast<int>(n) < 0)
        return -EINVAL;
    switch (f->kind) {
    case FileKind::listener: {
        long r = sys::setsockopt(fd, level, name, value, n);
        if (r < 0)
            return r;
        f->listener->options.note(level, name, value, n);
        const uint8_t before = f->unconnected.refuse_cause;
        note_refusal(*f, level, name, value, n);
        // A filter or a device, say: the kernel is to judge who comes
        if (f->unconnected.refuse_cause != before) {
            unlist(*f->listener);
            leave_waiting_to_kernel(*f);
            count_fallback(static_cast<Cause>(f->unconnected.refuse_cause), nullptr);
        }
        return 0;
    }
    case FileKind::fresh:
        return fresh_set(fd, *f, level, name, value, n);
    case FileKind::stream:
        return stream_set(fd, *f, level, name, value, n);
    default:
        return kPass;
    }
}

} // namespace vfs

} // namespace sd
