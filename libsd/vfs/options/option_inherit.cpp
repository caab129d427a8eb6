// Options at the moment a connection is made: from the fresh socket that connects, or from the listener that
// accepts.
#include "libsd/vfs/options/option_inherit.hpp"
#include "libsd/cpu/order.hpp"
#include "libsd/vfs/connections/listener.hpp"
#include "libsd/vfs/options/option_records.hpp"
#include "libsd/vfs/options/option_table.hpp"
#include "libsd/vfs/streams/capture.hpp"
#include <cstring>
#include <linux/tcp.h>
#include <sys/time.h>
#include <utility>

namespace sd {

namespace {

/// Another process that shares the listener may change it at any time
constexpr int64_t kCacheNs = 1'000'000'000;

int32_t ask(int fd, int level, int name, int32_t otherwise) noexcept {
    int32_t v = 0;
    socklen_t n = sizeof v;
    return sys::getsockopt(fd, level, name, &v, &n) == 0 ? v : otherwise;
}

int64_t ask_timeout(int fd, int name) noexcept {
    timeval v{};
    socklen_t n = sizeof v;
    if (sys::getsockopt(fd, SOL_SOCKET, name, &v, &n) != 0)
        return 0;
    return int64_t{v.tv_sec} * 1'000'000'000 + v.tv_usec * 1000;
}

int32_t encode(const KnownOption &k, int32_t v) noexcept {
    // 0 stands for "never set", where a new socket reads 1.
    return k.level == IPPROTO_TCP && k.name == TCP_QUICKACK ? 1 + (v != 0) : v;
}

/// What Linux copies to an accepted socket and only the kernel uses.
struct Extra {
    int level, name;
    bool halve; ///< a buffer's size: reads back twice what was set
};
/// What SO_BUF_LOCK says of a buffer that the program has set, whose size the kernel does not choose
/// any more. Before Linux 5.14 nobody tells: then each that differs counts as set.
constexpr int kSendBufferSet = 1, kReceiveBufferSet = 2;
constexpr Extra kExtra[] = {
    {SOL_SOCKET, SO_SNDBUF, true},
    {SOL_SOCKET, SO_RCVBUF, true},
    {SOL_SOCKET, SO_BROADCAST, false},
    {SOL_SOCKET, SO_DONTROUTE, false},
    {SOL_SOCKET, SO_MARK, false},
    {SOL_SOCKET, SO_TIMESTAMP, false},
    {SOL_SOCKET, SO_TIMESTAMPNS, false},
    {SOL_SOCKET, SO_BUSY_POLL, false},
    {IPPROTO_TCP, TCP_SYNCNT, false},
    {IPPROTO_TCP, TCP_LINGER2, false},
    {IPPROTO_TCP, TCP_NOTSENT_LOWAT, false},
    {IPPROTO_TCP, TCP_WINDOW_CLAMP, false},
    {IPPROTO_TCP, TCP_MAXSEG, false},
    {IPPROTO_IP, IP_TOS, false},
    {IPPROTO_IP, IP_TTL, false},
    {IPPROTO_IP, IP_MTU_DISCOVER, false},
    {IPPROTO_IP, IP_RECVTOS, false},
    {IPPROTO_IP, IP_RECVTTL, false},
    {IPPROTO_IP, IP_PKTINFO, false},
    {IPPROTO_IPV6, IPV6_V6ONLY, false},
    {IPPROTO_IPV6, IPV6_RECVTCLASS, false},
    {IPPROTO_IPV6, IPV6_RECVHOPLIMIT, false},
    {IPPROTO_IPV6, IPV6_RECVPKTINFO, false},
    {IPPROTO_IPV6, IPV6_TCLASS, false},
    {IPPROTO_IPV6, IPV6_UNICAST_HOPS, false},
};

void add_extra(InheritedSet &s, int level, int name, const void *value, int length) noexcept {
    if (s.extras == InheritedSet::kExtras)
        return;
    FreshOption &o = s.extra[s.extras++];
    o.level = level;
    o.name = name;
    o.length = length;
    memcpy(o.value, value, static_cast<size_t>(length));
}

void read_from_kernel(int fd, InheritedSet &s) noexcept {
    memset(&s, 0, sizeof s);
    for (unsigned i = 0; i < InheritedSet::kStored; ++i) {
        const KnownOption *k = known_option_at(i);
        s.stored[i] = encode(*k, ask(fd, k->level, k->name, 0));
    }
    linger l{};
    socklen_t n = sizeof l;
    (void)sys::getsockopt(fd, SOL_SOCKET, SO_LINGER, &l, &n); // else it does not linger
    s.linger_on = l.l_onoff;
    s.linger_s = l.l_linger;
    s.rcvlowat = ask(fd, SOL_SOCKET, SO_RCVLOWAT, 1);
    s.rcvtimeo_ns = ask_timeout(fd, SO_RCVTIMEO);
    s.sndtimeo_ns = ask_timeout(fd, SO_SNDTIMEO);
    long plain = dummy_socket();
    if (plain < 0)
        return;
    const int dummy = static_cast<int>(plain);
    const int buffers = ask(fd, SOL_SOCKET, kSoBufLock, kSendBufferSet | kReceiveBufferSet);
    for (const Extra &e : kExtra) {
        if (e.halve && !(buffers & (e.name == SO_SNDBUF ? kSendBufferSet : kReceiveBufferSet)))
            continue;
        // Options the dummy does not have (another family) are zero on a new socket, but for the two that say
        // "default" with -1 or 64.
        int32_t v = ask(fd, e.level, e.name, -1),
                usual = ask(dummy, e.level, e.name, e.name == IPV6_UNICAST_HOPS ? 64 : 0);
        if (v == usual || v < 0)
            continue;
        if (e.name == SO_SNDBUF && e.level == SOL_SOCKET)
            s.sndbuf = v;
        if (e.halve)
            v /= 2;
        add_extra(s, e.level, e.name, &v, sizeof v);
        if (e.level == IPPROTO_IP && e.name == IP_TOS) {
            // Setting it changes the priority too, which an accepted socket does not take over
            int32_t zero = 0;
            add_extra(s, SOL_SOCKET, SO_PRIORITY, &zero, sizeof zero);
        }
    }
    char name[16] = {}, usual[16] = {};
    socklen_t a = sizeof name, b = sizeof usual;
    if (sys::getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name, &a) == 0 &&
        sys::getsockopt(dummy, IPPROTO_TCP, TCP_CONGESTION, usual, &b) == 0 &&
        memcmp(name, usual, sizeof name) != 0)
        add_extra(s, IPPROTO_TCP, TCP_CONGESTION, name, sizeof name);
}

static_assert(sizeof kStoredOptions / sizeof *kStoredOptions == InheritedSet::kStored);

void apply(Ofd &o, const InheritedSet &s) noexcept {
    [&]<size_t... i>(std::index_sequence<i...>) {
        ((o.opt.*kStoredOptions[i]).store(s.stored[i], relaxed), ...);
    }
    (std::make_index_sequence<InheritedSet::kStored>{});
    if (o.opt.cork.load(relaxed))
        o.tx_block.fetch_or(kTxCork, relaxed);
    o.opt.linger_on.store(s.linger_on, relaxed);
    o.opt.linger_s.store(s.linger_s, relaxed);
    o.opt.sndbuf.store(s.sndbuf, relaxed);
    o.opt.zerocopy_told.store(0, relaxed);
    const int32_t low = s.rcvlowat < kCaptureLowat ? s.rcvlowat : kCaptureLowat - 1;
    o.rcvlowat.store(is_captured(o) ? low | kCaptureLowat : low, relaxed);
    o.rcvtimeo_ns.store(s.rcvtimeo_ns, relaxed);
    o.sndtimeo_ns.store(s.sndtimeo_ns, relaxed);
}

} // namespace

void ListenerOptions::note(int level, int name, const void *value, socklen_t n) noexcept {
    ParsedOption p;
    if (const KnownOption *k = known_option(level, name);
        k && k->rule == Rule::timeout && parse_option(*k, value, n, p) == 0)
        no_wait_[k->name == SO_SNDTIMEO ? to_send : to_receive].store(p.ns == kNoWait, std::memory_order_relaxed);
    forget();
}

void ListenerOptions::begin(const File &f) noexcept {
    for (auto &w : no_wait_)
        w.store(false, std::memory_order_relaxed);
    for (uint32_t i = 0, n = f.unconnected.options ? f.unconnected.options->count : 0; i < n; ++i) {
        const FreshOption &o = f.unconnected.options->option[i];
        note(o.level, o.name, o.value, static_cast<socklen_t>(o.length));
    }
    forget();
}

void ListenerOptions::read(int fd, InheritedSet &out) noexcept {
    read_kernels(fd, out);
    out.rcvtimeo_ns = as_set(to_receive, out.rcvtimeo_ns);
    out.sndtimeo_ns = as_set(to_send, out.sndtimeo_ns);
}

int64_t ListenerOptions::receive_timeout(int fd) const noexcept {
    return as_set(to_receive, ask_timeout(fd, SO_RCVTIMEO));
}

int64_t ListenerOptions::as_set(Direction d, int64_t read_back) const noexcept {
    return read_back == 0 && no_wait_[d].load(std::memory_order_relaxed) ? kNoWait : read_back;
}

void ListenerOptions::read_kernels(int fd, InheritedSet &out) noexcept {
    static_assert(sizeof(InheritedSet) % sizeof(uint32_t) == 0);
    uint32_t copy[kWords];
    if (sys::coarse_now_ns() < valid_until_.load(std::memory_order_acquire)) {
        const uint32_t before = sequence_.load(std::memory_order_acquire);
        // The extras are most of it and rarely there.
        constexpr unsigned kExtraWords = sizeof(FreshOption) / sizeof(uint32_t);
        auto take = [&](unsigned from, unsigned to) {
            for (unsigned i = from; i < to; ++i)
                copy[i] = word_[i].load(std::memory_order_relaxed);
        };
        take(0, kHeadWords);
        uint32_t extras = copy[offsetof(InheritedSet, extras) / sizeof(uint32_t)];
        extras = extras < InheritedSet::kExtras ? extras : InheritedSet::kExtras;
        const unsigned words = kHeadWords + extras * kExtraWords;
        take(kHeadWords, words);
        std::atomic_thread_fence(std::memory_order_acquire);
        if (!(before & 1) && sequence_.load(std::memory_order_relaxed) == before) {
            memcpy(&out, copy, words * sizeof(uint32_t));
            return;
        }
    }
    // The moment counts from before the look: a change made meanwhile sets it back to 0, and that must win.
    int64_t until = sys::now_ns() + kCacheNs, old = valid_until_.load(std::memory_order_acquire);
    read_from_kernel(fd, out);
    uint32_t even = sequence_.load(std::memory_order_relaxed);
    if ((even & 1) || !sequence_.compare_exchange_strong(even, even + 1, std::memory_order_acq_rel))
        return; // another thread is writing the same
    std::atomic_thread_fence(std::memory_order_release);
    memcpy(copy, &out, sizeof copy);
    for (unsigned i = 0; i < kWords; ++i)
        word_[i].store(copy[i], std::memory_order_relaxed);
    sequence_.store(even + 2, std::memory_order_release);
    valid_until_.compare_exchange_strong(old, until, std::memory_order_acq_rel);
}

void inherit_options(Ofd &o, const File &f, int fd) noexcept {
    if (!f.unconnected.options) [[likely]] // allocate_ofd() has given it what a new socket has
        return;
    InheritedSet s{};
    s.rcvlowat = 1;
    if (f.unconnected.options->incomplete) {
        read_from_kernel(fd, s);
        apply(o, s);
        return;
    }
    for (uint32_t i = 0, n = f.unconnected.options->count; i < n; ++i) {
        const FreshOption &r = f.unconnected.options->option[i];
        ParsedOption p;
        const KnownOption *k = known_option(r.level, r.name);
        if (!k || parse_option(*k, r.value, static_cast<socklen_t>(r.length), p) != 0)
            continue;
        if (k->stored) {
            for (unsigned j = 0; j < InheritedSet::kStored; ++j)
                if (known_option_at(j) == k)
                    s.stored[j] = encode(*k, p.number);
        } else if (k->rule == Rule::linger) {
            s.linger_on = p.on;
            s.linger_s = p.on ? p.seconds : 0;
        } else if (k->rule == Rule::timeout) {
            (k->name == SO_RCVTIMEO ? s.rcvtimeo_ns : s.sndtimeo_ns) = p.ns;
        } else if (k->level == SOL_SOCKET && k->name == SO_RCVLOWAT) {
            s.rcvlowat = p.number ? p.number : 1;
        } else if (k->level == SOL_SOCKET && k->name == SO_SNDBUF) {
            s.sndbuf = p.number < 2304 ? 4608 : p.number < (1 << 29) ? p.number * 2 : 1 << 30;
        }
    }
    apply(o, s);
}

void options_from_kernel(Ofd &o, int fd) noexcept {
    InheritedSet s;
    read_from_kernel(fd, s);
    apply(o, s);
}

void inherit_from_listener(int listener_fd, File &listener, File &accepted) noexcept {
    InheritedSet s;
    listener.listener->options.read(listener_fd, s);
    apply(*accepted.ofd, s);
    if (s.extras)
        record_extras(accepted, s);
}

} // namespace sd
