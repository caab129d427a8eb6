// ioctl on sockets that are accelerated or not connected yet.
#include "libsd/control/client.hpp"
#include "libsd/rdma/transport.hpp"
#include "libsd/vfs/descriptors/connection_claim.hpp"
#include "libsd/vfs/descriptors/fd.hpp"
#include "libsd/vfs/descriptors/placeholder_cache.hpp"
#include "libsd/vfs/descriptors/socket.hpp"
#include "libsd/vfs/paths/moves.hpp"
#include "libsd/vfs/readiness/stream_readiness.hpp"
#include "libsd/vfs/streams/arrival.hpp"
#include "libsd/vfs/streams/cork.hpp"
#include "libsd/vfs/streams/urgent.hpp"
#include "libsd/vfs/vfs.hpp"
#include <climits>
#include <linux/sockios.h>
#include <sys/ioctl.h>

namespace sd {

namespace {

long give(int value, void *arg) noexcept { return sd_copy(arg, &value, sizeof value) ? -EFAULT : 0; }

/// FIONBIO and FIOASYNC: the switch of fcntl(F_SETFL) under another name.
long set_status(int fd, File &f, unsigned long request, void *arg) noexcept {
    const uint32_t bit = request == FIONBIO ? O_NONBLOCK : O_ASYNC;
    int asked = 0;
    if (request == FIOASYNC && !sd_copy(&asked, arg, sizeof asked) && asked) {
        if (long r = leave_to_kernel(fd, f, Cause::signals); r != vfs::kPass || file_of(fd) != &f)
            return r;
    }
    if (!is_placeholder(f) && f.kind != FileKind::stream) {
        long r = sys::ioctl(fd, request, arg);
        int on = 0;
        if (r >= 0 && !sd_copy(&on, arg, sizeof on))
            change_status(f, bit, on ? bit : 0);
        return r;
    }
    int on = 0;
    if (sd_copy(&on, arg, sizeof on))
        return -EFAULT;
    change_status(f, bit, on ? bit : 0);
    return 0;
}

long bytes_to_read(File &f) noexcept {
    ReceiveClaim c(ConnectionSnapshot(f), f);
    if (!c)
        return c.error();
    uncork_overdue(f);
    if (has_paths(*f.ofd)) [[unlikely]]
        return pending_in_both(path_socket(f), f, INT_MAX);
    long n = ring::available(f.ofd->rx.s, f.rx_place, INT_MAX, is_inline(f) ? kNoMark : urgent_mark(f));
    return n < 0 ? 0 : n; // rubbish in the ring: the next receive reports it
}

long bytes_corked(File &f) noexcept {
    SendClaim c(ConnectionSnapshot(f), f);
    if (!c)
        return c.error();
    const Corked &back = f.mine->control.back;
    return ring::is_corked(back, f.peer->credit) ? ring::cork_place(back).payload : 0;
}

long contact() noexcept {
    Cause why;
    if (!control::ensure(&why) || !own_segment() ||
        !upward.register_thread(static_cast<unsigned>(own_segment_index.load())))
        return -ECONNREFUSED;
    return 0;
}

} // namespace

namespace vfs {

long ioctl(int fd, unsigned long request, void *arg) noexcept {
    if (is_hidden(fd))
        return -EBADF;
    const PinnedFile use(fd);
    File *f = use.file();
    if (!f)
        return kPass;
    request &= 0xffffffff; // the kernel's argument is an unsigned int
    if (request == FIONBIO || request == FIOASYNC)
        return set_status(fd, *f, request, arg);
    if (f->kind != FileKind::stream && !is_placeholder(*f))
        return kPass;
    switch (request) {
    case kIoctlContact:
        return contact();
    case FIOCLEX:
    case FIONCLEX:
        note_cloexec(fd, request == FIOCLEX);
        return kPass;
    case FIOSETOWN:
    case SIOCSPGRP:
        return leave_to_kernel(fd, *f, Cause::signals);
    case FIOGETOWN:
    case SIOCGPGRP:
    case SIOCGSTAMP_OLD:
    case SIOCGSTAMPNS_OLD:
        // The owner is kept in the kernel's file, and asking for a time stamp switches them on: neither must
        // happen to the file that all placeholders share.
        if (long r = materialise(fd, *f); r < 0)
            return r;
        return kPass;
    }
    if (f->kind != FileKind::stream)
        return kPass; // an unconnected socket's answers are the same for all of them
    long r;
    const uint64_t read = ring::bytes_now(f->ofd->rx.s);
    rdma::progress();
    if (has_paths(*f->ofd)) [[unlikely]]
        if ((request == SIOCATMARK && !receives_in_ring(*f->ofd)) ||
            ((request == SIOCOUTQ || request == SIOCOUTQNSD) && !sends_in_ring(*f->ofd)))
            return kPass;
    switch (request) {
    case FIONREAD: // SIOCINQ
        r = bytes_to_read(*f);
        if (r > 0 && !at_urgent_mark(*f))
            note_told(*f, read + 1);
        break;
    case SIOCOUTQ: // TIOCOUTQ
        r = bytes_not_arrived(*f);
        break;
    case SIOCOUTQNSD:
        r = bytes_corked(*f);
        break;
    case SIOCATMARK:
        r = at_urgent_mark(*f);
        break;
    default: // of the network interfaces, of descriptors, or unknown: nothing that depends on the connection
        return kPass;
    }
    return r < 0 ? r : give(static_cast<int>(r), arg);
}

} // namespace vfs

} // namespace sd
