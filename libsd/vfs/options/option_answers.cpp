#include "libsd/vfs/options/option_answers.hpp"
#include "libsd/cpu/order.hpp"
#include "libsd/vfs/connections/endpoint_addresses.hpp"
#include "libsd/vfs/descriptors/socket.hpp"
#include "libsd/vfs/options/option_records.hpp"
#include "libsd/vfs/options/packet_options.hpp"
#include "libsd/vfs/options/tcp_info.hpp"
#include "libsd/vfs/paths/keepalive.hpp"
#include "libsd/vfs/paths/moves.hpp"
#include "libsd/vfs/paths/socket_io.hpp"
#include "libsd/vfs/readiness/stream_readiness.hpp"
#include "libsd/vfs/streams/capture.hpp"
#include <linux/tcp.h>
#include <sys/time.h>

namespace sd {

long need_kernel_socket(int fd, File &f) noexcept { return f.real_socket ? 0 : materialise(fd, f); }

bool is_keepalive(int level, int name) noexcept {
    return level == SOL_SOCKET
               ? name == SO_KEEPALIVE
               : level == IPPROTO_TCP && (name == TCP_KEEPIDLE || name == TCP_KEEPINTVL || name == TCP_KEEPCNT);
}

bool kept_by_socket(const Ofd &o, const KnownOption &k) noexcept {
    return has_paths(o) && k.level == IPPROTO_TCP &&
           (k.name == TCP_KEEPIDLE || k.name == TCP_KEEPINTVL || k.name == TCP_KEEPCNT ||
            k.name == TCP_QUICKACK || k.name == TCP_USER_TIMEOUT);
}

namespace {

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
        FreshOption before;
        const bool recorded = find_record(f, level, name, &before);
        // Some options change the value of others.
        const bool related =
            has_record(f) &&
            ((level == SOL_SOCKET && (name == SO_PRIORITY || name == SO_RCVBUF || name == SO_RCVLOWAT)) ||
             (level == IPPROTO_TCP && (name == TCP_WINDOW_CLAMP || name == TCP_INFO)) || level == IPPROTO_IP);
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
    if (has_paths(o)) [[unlikely]] {
        if (level == IPPROTO_TCP && name == TCP_INQ) { // not while a peek has it on (pending_behind_mark)
            const Claim rx(f.seg, o.rx.token, f.rx_token_id(), Claim::patient);
            return ask_kernel(fd, f, level, name, value, n);
        }
        return ask_kernel(fd, f, level, name, value, n);
    }
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

} // namespace

long answer_option(int fd, File &f, int level, int name, void *value, socklen_t *n, int room) noexcept {
    long r;
    if (common_answer(f, level, name, value, n, room, &r))
        return r;
    return f.kind == FileKind::fresh ? fresh_get(fd, f, level, name, value, n, room)
                                     : stream_get(fd, f, level, name, value, n, room);
}

} // namespace sd
