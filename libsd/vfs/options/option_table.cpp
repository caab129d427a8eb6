// What we know about single socket options; checked against Linux 6.1 and 6.18.
#include "libsd/vfs/options/option_table.hpp"
#include <climits>
#include <linux/tcp.h>
#include <sys/socket.h>
#include <sys/time.h>

namespace sd {

namespace {

constexpr KnownOption kKnown[] = {
    // The first entries are those of kStoredOptions, in its order.
    {SOL_SOCKET, SO_REUSEADDR, Rule::boolean, true, 0, 0, kStoredOptions[0]},
    {SOL_SOCKET, SO_REUSEPORT, Rule::boolean, true, 0, 0, kStoredOptions[1]},
    {SOL_SOCKET, SO_KEEPALIVE, Rule::boolean, true, 0, 0, kStoredOptions[2]},
    {SOL_SOCKET, SO_OOBINLINE, Rule::boolean, true, 0, 0, kStoredOptions[3]},
    {IPPROTO_TCP, TCP_NODELAY, Rule::boolean, true, 0, 0, kStoredOptions[4]},
    {IPPROTO_TCP, TCP_CORK, Rule::boolean, true, 0, 0, kStoredOptions[5]},
    {IPPROTO_TCP, TCP_KEEPIDLE, Rule::range, true, 1, 32767, kStoredOptions[6]},
    {IPPROTO_TCP, TCP_KEEPINTVL, Rule::range, true, 1, 32767, kStoredOptions[7]},
    {IPPROTO_TCP, TCP_KEEPCNT, Rule::range, true, 1, 127, kStoredOptions[8]},
    {IPPROTO_TCP, TCP_USER_TIMEOUT, Rule::range, true, 0, INT_MAX, kStoredOptions[9]},
    {IPPROTO_TCP, TCP_QUICKACK, Rule::boolean, true, 0, 0, kStoredOptions[10]},
    {SOL_SOCKET, SO_ZEROCOPY, Rule::range, true, 0, 1, kStoredOptions[11]},
    {SOL_SOCKET, SO_LINGER, Rule::linger, false, 0, 0, nullptr},
    {SOL_SOCKET, SO_RCVTIMEO, Rule::timeout, false, 0, 0, nullptr},
    {SOL_SOCKET, SO_SNDTIMEO, Rule::timeout, false, 0, 0, nullptr},
    // The bound of what can be taken without asking is half of the smallest receive buffer there can be.
    {SOL_SOCKET, SO_RCVLOWAT, Rule::plain, false, 0, 1024, nullptr},
    {SOL_SOCKET, SO_SNDBUF, Rule::plain, false, INT_MIN, INT_MAX, nullptr},
    {SOL_SOCKET, SO_RCVBUF, Rule::plain, false, INT_MIN, INT_MAX, nullptr},
    {SOL_SOCKET, SO_BROADCAST, Rule::boolean, true, 0, 0, nullptr},
    {SOL_SOCKET, SO_PRIORITY, Rule::plain, false, 0, 6, nullptr}, // above 6 needs a privilege
    {IPPROTO_TCP, TCP_SYNCNT, Rule::range, true, 1, 127, nullptr},
    {IPPROTO_IP, IP_TOS, Rule::plain, false, 0, 255, nullptr},
    {IPPROTO_IPV6, IPV6_V6ONLY, Rule::boolean, true, 0, 0, nullptr},
};

// Readable names for numbers that older headers lack.
constexpr int kSoRcvtimeoNew = 66, kSoSndtimeoNew = 67, kSoTimestampNew = 63, kSoTimestampNsNew = 64,
              kSoTimestampingNew = 65, kSoBusyPollBudget = 70, kSoPreferBusyPoll = 69, kSoReserveMem = 73,
              kSoTxRehash = 74;

/// Microseconds of a kernel tick, found by asking for the shortest timeout.
int64_t tick_us() noexcept {
    static std::atomic<int64_t> known{0};
    if (int64_t t = known.load(std::memory_order_relaxed))
        return t;
    int64_t t = 1;
    long fd = sys::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd >= 0) {
        timeval v{0, 1};
        socklen_t n = sizeof v;
        if (sys::setsockopt(static_cast<int>(fd), SOL_SOCKET, SO_RCVTIMEO, &v, n) == 0 &&
            sys::getsockopt(static_cast<int>(fd), SOL_SOCKET, SO_RCVTIMEO, &v, &n) == 0 && v.tv_usec > 0)
            t = v.tv_usec;
        sys::close(static_cast<int>(fd));
        known.store(t, std::memory_order_relaxed);
    }
    return t;
}

} // namespace

const KnownOption *known_option_at(unsigned i) noexcept {
    return i < sizeof kKnown / sizeof *kKnown ? &kKnown[i] : nullptr;
}

const KnownOption *known_option(int level, int name) noexcept {
    if (level == SOL_SOCKET && (name == kSoRcvtimeoNew || name == kSoSndtimeoNew))
        name = name == kSoRcvtimeoNew ? SO_RCVTIMEO : SO_SNDTIMEO; // the same structure on 64-bit machines
    for (const auto &k : kKnown)
        if (k.level == level && k.name == name)
            return &k;
    return nullptr;
}

long parse_option(const KnownOption &k, const void *value, socklen_t n, ParsedOption &out) noexcept {
    if (static_cast<int>(n) < 0)
        return -EINVAL;
    if (k.level == IPPROTO_IP && n < sizeof(int))
        return kAskKernel; // a single byte will do there
    if (n < sizeof(int))
        return -EINVAL;
    out.record.level = k.level;
    out.record.name = k.name;
    // The kernel reads an int first whatever the option is, and the rest when it knows the length is right.
    int v = 0;
    if (sd_copy(&v, value, sizeof v))
        return -EFAULT;
    switch (k.rule) {
    case Rule::linger: {
        linger l{};
        if (n < sizeof l)
            return -EINVAL;
        if (sd_copy(&l, value, sizeof l))
            return -EFAULT;
        out.on = l.l_onoff != 0;
        out.seconds = l.l_linger;
        out.record.length = sizeof l;
        __builtin_memcpy(out.record.value, &l, sizeof l);
        return 0;
    }
    case Rule::timeout: {
        timeval t{};
        if (n < sizeof t)
            return -EINVAL;
        if (sd_copy(&t, value, sizeof t))
            return -EFAULT;
        if (t.tv_usec < 0 || t.tv_usec >= 1'000'000)
            return -EDOM;
        constexpr int64_t kMost = 9'000'000'000; // seconds that fit as nanoseconds
        if (t.tv_sec < 0)
            out.ns = kNoWait;
        else
            out.ns = (t.tv_sec < kMost ? t.tv_sec : kMost) * 1'000'000'000 + t.tv_usec * 1000;
        out.record.length = sizeof t;
        static_assert(sizeof t <= sizeof out.record.value);
        __builtin_memcpy(out.record.value, &t, sizeof t);
        return 0;
    }
    case Rule::boolean:
        out.number = k.name == TCP_QUICKACK && k.level == IPPROTO_TCP ? v : v != 0;
        break;
    case Rule::range:
        if (v < k.lo || v > k.hi)
            return -EINVAL;
        out.number = v;
        break;
    case Rule::plain:
        if (v < k.lo || v > k.hi)
            return kAskKernel;
        out.number = v;
        break;
    }
    out.record.length = sizeof out.number;
    __builtin_memcpy(out.record.value, &out.number, sizeof out.number);
    return 0;
}

bool needs_kernel(int level, int name) noexcept {
    if (known_option(level, name))
        return false;
    // What is named here has no effect on a connection within a host, or none that a program could miss. All
    // else is left to the kernel.
    switch (level) {
    case SOL_SOCKET:
        switch (name) {
        case SO_DEBUG:
        case SO_DONTROUTE:
        case SO_SNDBUFFORCE:
        case SO_RCVBUFFORCE:
        case SO_NO_CHECK:
        case SO_BUSY_POLL:
        case SO_INCOMING_CPU:
        case kSoPreferBusyPoll:
        case kSoBusyPollBudget:
        case kSoReserveMem:
        case kSoTxRehash:
        case kSoBufLock:
            return false;
        }
        return true;
    case IPPROTO_TCP:
        switch (name) {
        case TCP_MAXSEG:
        case TCP_LINGER2:
        case TCP_DEFER_ACCEPT:
        case TCP_WINDOW_CLAMP:
        case TCP_CONGESTION:
        case TCP_THIN_LINEAR_TIMEOUTS:
        case TCP_THIN_DUPACK:
        case TCP_TIMESTAMP:
        case TCP_NOTSENT_LOWAT:
        case TCP_FASTOPEN: // a listener takes accelerated clients as well
        case TCP_FASTOPEN_KEY:
        case TCP_FASTOPEN_NO_COOKIE:
            return false;
        }
        return true;
    case IPPROTO_IP:
        switch (name) {
        case IP_TTL:
        case IP_MTU_DISCOVER:
        case IP_MINTTL:
        case IP_FREEBIND:
        case IP_BIND_ADDRESS_NO_PORT:
        case IP_RECVTOS:
        case IP_RECVTTL:
        case IP_PKTINFO:
            return false;
        }
        return true;
    case IPPROTO_IPV6:
        switch (name) {
        case IPV6_UNICAST_HOPS:
        case IPV6_TCLASS:
        case IPV6_MTU_DISCOVER:
        case IPV6_RECVTCLASS:
        case IPV6_RECVPKTINFO:
        case IPV6_RECVHOPLIMIT:
        case IPV6_AUTOFLOWLABEL:
            return false;
        }
        return true;
    default:
        return true;
    }
}

bool has_common_default(int level, int name, unsigned family) noexcept {
    const bool v4 = family == AF_INET;
    switch (level) {
    case SOL_SOCKET:
        switch (name) {
        case SO_DEBUG:
        case SO_DONTROUTE:
        case SO_SNDLOWAT:
        case SO_TIMESTAMP:
        case SO_TIMESTAMPNS:
        case SO_TIMESTAMPING:
        case kSoTimestampNew:
        case kSoTimestampNsNew:
        case kSoTimestampingNew:
        case SO_MARK:
        case SO_BUSY_POLL:
        case SO_ZEROCOPY:
        case SO_MAX_PACING_RATE:
        case SO_NO_CHECK:
            return true;
        }
        return known_option(level, name) != nullptr;
    case IPPROTO_TCP:
        switch (name) {
        case TCP_MAXSEG:
        case TCP_LINGER2:
        case TCP_DEFER_ACCEPT:
        case TCP_WINDOW_CLAMP:
        case TCP_CONGESTION:
        case TCP_NOTSENT_LOWAT:
        case TCP_FASTOPEN:
        case TCP_FASTOPEN_CONNECT:
        case TCP_THIN_LINEAR_TIMEOUTS:
        case TCP_THIN_DUPACK:
        case TCP_TIMESTAMP:
        case TCP_INFO:
        case TCP_ULP:
            return true;
        }
        return known_option(level, name) != nullptr;
    case IPPROTO_IP:
        return v4 && (name == IP_TOS || name == IP_TTL || name == IP_MTU_DISCOVER);
    default:
        return false;
    }
}

long refuse_on_stream(int level, int name, unsigned family, const void *value, socklen_t n) noexcept {
    int v = 0;
    if (n >= sizeof v && static_cast<int>(n) > 0 && sd_copy(&v, value, sizeof v))
        return -EFAULT;
    if (level == SOL_SOCKET) {
        switch (name) {
        // What these ask for happens to packets, of which there are none. A kernel without the feature says
        // the same.
        case SO_ATTACH_FILTER:
        case SO_ATTACH_BPF:
        case SO_ATTACH_REUSEPORT_CBPF:
        case SO_ATTACH_REUSEPORT_EBPF:
        case SO_TIMESTAMPING:
        case kSoTimestampingNew:
            return -ENOPROTOOPT;
        }
        return 0;
    }
    if (level == IPPROTO_TCP) {
        switch (name) {
        case TCP_ULP: // "tls" and the like: as if the module was not there
            return n < 1 || static_cast<int>(n) < 0 ? -EINVAL : -ENOENT;
        case TCP_REPAIR:
        case TCP_REPAIR_QUEUE:
        case TCP_REPAIR_OPTIONS:
        case TCP_REPAIR_WINDOW:
        case TCP_QUEUE_SEQ:
            return -EPERM; // checkpointing from outside: as without the privilege
        case TCP_MD5SIG:
        case TCP_MD5SIG_EXT:
            return -ENOPROTOOPT;
        case TCP_FASTOPEN: // wrong in every state but CLOSE and LISTEN
        case TCP_FASTOPEN_CONNECT:
            return -EINVAL;
        }
        return 0;
    }
    if (level == IPPROTO_IPV6 && name == IPV6_V6ONLY && family == AF_INET6)
        return -EINVAL; // the local port is taken
    return 0;
}

timeval timeout_read_back(int64_t ns) noexcept {
    if (ns == kNoWait)
        return {0, 0};
    int64_t us = ns / 1000 % 1'000'000, tick = tick_us();
    us = (us + tick - 1) / tick * tick;
    int64_t s = ns / 1'000'000'000;
    return us >= 1'000'000 ? timeval{s + 1, us - 1'000'000} : timeval{s, us};
}

} // namespace sd
