// getsockopt and setsockopt.
//
// Three places can hold an option: the record of a socket that is not connected yet (File::fresh), the Ofd of
// a connection, and a kernel socket. The kernel's answers are the standard: whatever we cannot answer exactly
// is asked of a kernel socket, which a placeholder is turned into for that purpose; a connection then keeps
// the unconnected kernel socket under its number.
#include "libsd/vfs/options/options.hpp"
#include "libsd/cpu/order.hpp"
#include "libsd/vfs/connections/accept.hpp"
#include "libsd/vfs/connections/endpoint_addresses.hpp"
#include "libsd/vfs/connections/listener.hpp"
#include "libsd/vfs/descriptors/fd.hpp"
#include "libsd/vfs/descriptors/socket.hpp"
#include "libsd/vfs/options/option_answers.hpp"
#include "libsd/vfs/options/option_records.hpp"
#include "libsd/vfs/options/option_table.hpp"
#include "libsd/vfs/paths/keepalive.hpp"
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
    if (known_option(level, name) && (!rec || !record_option(f, *rec)))
        record_is_incomplete(f);
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
    return record_option(f, p.record) ? 0 : fresh_set_in_kernel(fd, f, level, name, value, n, &p.record);
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
    if (marks & kTxAdopt) // it is put back from there
        o.lowat_kept.store(o.rcvlowat.load(relaxed), std::memory_order_seq_cst);
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
    return answer_option(fd, *f, level, name, value, n, room);
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
