// sendfile and splice between an accelerated connection and a file or pipe.
//
// Towards the connection the kernel reads straight into the ring, with RWF_NOWAIT because nothing may block
// while the send token is held; what is not in the page cache goes through a buffer. Nothing is taken from a
// pipe or a connection before the other side has room for it.
#include "libsd/vfs/streams/sendfile.hpp"
#include "libsd/control/fork_sections.hpp"
#include "libsd/vfs/descriptors/connection_claim.hpp"
#include "libsd/vfs/paths/kernel_calls.hpp"
#include "libsd/vfs/paths/moves.hpp"
#include "libsd/vfs/sharing/moved.hpp"
#include "libsd/vfs/streams/cancel.hpp"
#include "libsd/vfs/streams/stream_recv.hpp"
#include "libsd/vfs/streams/stream_send.hpp"
#include "libsd/vfs/vfs.hpp"
#include <linux/fs.h>
#include <sys/ioctl.h>

namespace sd {

namespace {

constexpr size_t kBounce = 64u << 10;
struct Bounce {
    Bounce() noexcept {} // the memory comes zeroed; touching it would only cost
    char data[kBounce];
    Bounce *pool_next;
};
SD_FORK_STATE constinit Pool<Bounce> bounces;

/// A buffer for the length of one call.
class Buffer {
  public:
    ~Buffer() {
        if (b_)
            bounces.release(b_);
    }
    char *get() noexcept {
        if (!b_)
            b_ = bounces.allocate();
        return b_ ? b_->data : nullptr;
    }

  private:
    Bounce *b_ = nullptr;
};

long read_at(int fd, const iovec *v, int n, int64_t pos, int flags) noexcept {
    // Position in one register on 64-bit machines
    return sys::call(SYS_preadv2, fd, sys::arg(v), n, pos, 0, flags);
}
long write_at(int fd, const iovec *v, int n, int64_t pos, int flags) noexcept {
    return sys::call(SYS_pwritev2, fd, sys::arg(v), n, pos, 0, flags);
}

/// poll() of one descriptor, restarted after signal handlers that ask for it. 0: not ready; -EINTR.
long poll_one(int fd, short events, bool wait, short *revents) noexcept {
    pollfd p{fd, events, 0};
    timespec zero{0, 0};
    const uint64_t interrupts = self.interrupts;
    long r;
    do
        r = sys::ppoll(&p, 1, wait ? nullptr : &zero, nullptr);
    while (r == -EINTR && self.interrupts == interrupts);
    *revents = p.revents;
    return r;
}

enum class Fill { ok, full, blocked, not_ready, failed };

/// With the send token: one page from a pipe that is readable into the socket that carries the direction.
/// What is taken from a pipe cannot be put back, so it is the kernel that takes it.
Fill splice_to_socket(int out, File &f, int in, size_t want, bool more, long *r) noexcept {
    constexpr size_t kPage = 4096; // a socket that polls writable takes so much without waiting
    short seen = 0;
    if (poll_one(out, POLLOUT, false, &seen) <= 0)
        return Fill::full;
    *r = sys::call(SYS_splice, in, 0, out, 0, static_cast<long>(want < kPage ? want : kPage),
                   SPLICE_F_NONBLOCK | (more ? SPLICE_F_MORE : 0));
    if (*r > 0) {
        f.ofd->tx.s.bytes += static_cast<uint64_t>(*r);
        note_more(*f.ofd, more);
    }
    return *r == -EAGAIN ? Fill::not_ready : *r < 0 ? Fill::failed : Fill::ok;
}

/// One record's worth from `in` into the ring, and tells the receiver; `pos` -1 for a pipe. `*r` gets the
/// bytes (0: end of file) or the error. `more`: as MSG_MORE.
Fill fill_ring(int out, File &f, int in, int64_t pos, size_t want, bool grow_far, bool more, long *r) noexcept {
    const ConnectionSnapshot b(f);
    Ofd &o = *b.ofd;
    SendClaim c(b, f);
    if (!c) {
        *r = c.error();
        return Fill::failed;
    }
    if (moved(f, o)) [[unlikely]] {
        c.release();
        if (!follow(f))
            return fill_ring(out, f, in, pos, want, grow_far, more, r);
        *r = vfs::kPass;
        return Fill::failed;
    }
    if (has_other_path(f, o)) [[unlikely]] {
        if (pos >= 0) {
            *r = -EOPNOTSUPP; // an ordinary send knows where it goes
            return Fill::not_ready;
        }
        const Recipient reader = peers_reader(f);
        bool to_tell = false;
        const bool in_socket = !prepare_send(out, f, &to_tell);
        const Fill done = in_socket ? splice_to_socket(out, f, in, want, more, r) : Fill::ok;
        if (to_tell)
            reader.tell();
        if (in_socket)
            return done;
    }
    if (send_refused(f, o))
        return Fill::blocked;
    TxState &s = o.tx.s;
    if (want > kBounce)
        want = kBounce;
    if (!make_room(f, want, grow_far)) {
        if (uncork(f)) // nothing waits for more that there is no room for
            notify(*f.link, f.slot, f.peer->control.rx_arm);
        if (is_nonblocking(f, 0))
            s.stalls = 1; // as in stream_send
        return Fill::full;
    }
    const Cork cork = cork_of(o, more);
    const bool plain = is_plain(o, cork);
    const uint64_t n = record_length(f, want, plain, cork);
    ring::Space space = ring::reserve(s, f.tx_place, static_cast<uint32_t>(n));
    long got = read_at(in, space.piece, space.count, pos, RWF_NOWAIT);
    if (got == -EOPNOTSUPP && pos < 0) { // a pipe of an older kernel: does not block while something is in it
        int queued = 0;
        got = sys::ioctl(in, FIONREAD, &queued);
        if (got >= 0)
            got = queued > 0 ? sys::call(SYS_readv, in, sys::arg(space.piece), space.count) : -EAGAIN;
    }
    *r = got;
    if (got == -EAGAIN || got == -EOPNOTSUPP)
        return Fill::not_ready;
    if (got < 0)
        return Fill::failed;
    if (got == 0)
        return Fill::ok;
    bool tell = true;
    if (plain)
        ring::commit(s, f.tx_place, static_cast<uint32_t>(got));
    else
        tell = publish_corked(f, static_cast<uint32_t>(got), cork);
    c.release();
    if (tell)
        notify(*f.link, f.slot, f.peer->control.rx_arm);
    return Fill::ok;
}

/// Through the buffer, with everything a send can meet. Bytes sent, and in `*got` how many were read.
long send_buffered(int out, File &f, int in, int64_t pos, size_t want, Buffer &buffer, long *got) noexcept {
    char *p = buffer.get();
    if (!p)
        return -ENOMEM;
    *got = pos < 0 ? sys::read(in, p, want < kBounce ? want : kBounce)
                   : sys::call(SYS_pread64, in, sys::arg(p),
                               static_cast<long>(want < kBounce ? want : kBounce), pos);
    if (*got <= 0)
        return *got;
    iovec v{p, static_cast<size_t>(*got)};
    IoCursor from{&v, 1};
    const long sent = stream_send(out, f, from, v.iov_len, 0);
    return sent == vfs::kPass ? sys::call(SYS_sendto, out, sys::arg(p), *got, 0, 0, 0) : sent;
}

/// Reads nothing, but says what is wrong with the descriptor: 0 or -errno.
long check_source(int in, int64_t pos) noexcept {
    const long r = sys::call(SYS_pread64, in, 0, 0, pos);
    return r == -EISDIR ? 0 : r;
}

/// The loop of sendfile: bytes sent, or the first error. `in` has not been checked: what was read from it
/// needs no check.
long send_from_file(int out, File &f, int in, int64_t pos, size_t n) noexcept {
    Buffer buffer;
    bool direct = true, checked = false;
    RoomWait room;
    Pin pin;
    if (!pin.acquire_among_threads(f, out))
        return -EBADF;
    size_t done = 0;
    const auto result = [&](long error) { return done ? static_cast<long>(done) : error; };
    while (done < n) {
        long r = 0;
        Fill how = direct ? fill_ring(out, f, in, pos, n - done, room.grow_far, false, &r) : Fill::not_ready;
        if (how == Fill::ok && r > 0) {
            done += static_cast<size_t>(r);
            pos += r;
            room.grow_far = false;
            continue;
        }
        if (!checked && done == 0) {
            if (const long wrong = check_source(in, pos); wrong < 0)
                return wrong; // comes before anything that the connection says
            checked = true;
        }
        if (how == Fill::ok)
            return result(0);
        if (how == Fill::failed)
            return result(r == -EISDIR ? -EINVAL : r);
        if (how == Fill::full) {
            if (const long w = room.wait(out, f, pin, is_nonblocking(f, 0), 0, done != 0); w < 0)
                return result(w);
            continue;
        }
        if (how == Fill::blocked && done)
            return result(0); // the next call gets the error, as with a partial write
        if (r == -EOPNOTSUPP)
            direct = false;
        long got = 0, sent = send_buffered(out, f, in, pos, n - done, buffer, &got);
        if (sent <= 0)
            return result(sent == -EISDIR ? -EINVAL : sent);
        done += static_cast<size_t>(sent);
        pos += sent;
        if (sent < got)
            return result(0);
    }
    return result(0);
}

/// pipe -> connection
long splice_to_stream(int in, int out, File &f, size_t n, unsigned flags) noexcept {
    long fl = sys::fcntl(in, F_GETFL);
    if (fl < 0 || (fl & O_ACCMODE) == O_WRONLY)
        return -EBADF;
    const bool wait = !(flags & SPLICE_F_NONBLOCK) && !(fl & O_NONBLOCK);
    RoomWait room;
    Pin pin;
    if (!(wait ? pin.acquire(f, out) : pin.acquire_among_threads(f, out))) // for the pipe, too
        return -EBADF;
    size_t done = 0;
    const auto result = [&](long error) { return done ? static_cast<long>(done) : error; };
    while (done < n) {
        short seen = 0;
        long r = poll_one(in, POLLIN, wait && done == 0, &seen);
        if (r <= 0)
            return result(r < 0 ? r : -EAGAIN);
        if (!(seen & POLLIN))
            return result(seen & POLLNVAL ? -EBADF : 0); // no writer is left
        switch (fill_ring(out, f, in, -1, n - done, room.grow_far, flags & SPLICE_F_MORE, &r)) {
        case Fill::ok:
            if (r == 0)
                return result(0);
            done += static_cast<size_t>(r);
            room.grow_far = false;
            break;
        case Fill::full:
            if (const long w = room.wait(out, f, pin, is_nonblocking(f, 0), 0, done != 0); w < 0)
                return result(w);
            break;
        case Fill::not_ready: // another reader was faster
            if (!wait || done)
                return result(-EAGAIN);
            break;
        case Fill::blocked: {
            if (done)
                return result(0);
            if (long e = send_blocked(f, 0); e < 0)
                return e;
            // The peer has closed: what is sent is lost, as with a kernel that has not heard of it yet
            Buffer buffer;
            long got = 0;
            return send_buffered(out, f, in, -1, n, buffer, &got);
        }
        case Fill::failed:
            return result(r);
        }
    }
    return result(0);
}

/// Writes to a pipe without waiting.
long write_now(int pipe, const char *p, size_t n) noexcept {
    iovec v{const_cast<char *>(p), n};
    long r = write_at(pipe, &v, 1, -1, RWF_NOWAIT);
    if (r != -EOPNOTSUPP)
        return r;
    // An older kernel: a pipe that polls writable has room for PIPE_BUF bytes.
    short seen = 0;
    if (poll_one(pipe, POLLOUT, false, &seen) == 0)
        return -EAGAIN;
    return sys::write(pipe, p, n < 4096 ? n : 4096);
}

/// connection -> pipe
long splice_from_stream(int in, File &f, int out, size_t n, unsigned flags) noexcept {
    long fl = sys::fcntl(out, F_GETFL);
    if (fl < 0 || (fl & O_ACCMODE) == O_RDONLY)
        return -EBADF;
    const bool wait = !(flags & SPLICE_F_NONBLOCK) && !(fl & O_NONBLOCK);
    Buffer buffer;
    char *p = buffer.get();
    if (!p)
        return -ENOMEM;
    Pin pin;
    if (!pin.acquire(f, in)) // from the first look at the data to the last byte taken
        return -EBADF;
    size_t done = 0;
    const auto result = [&](long error) { return done ? static_cast<long>(done) : error; };
    while (done < n) {
        short seen = 0;
        long r = poll_one(out, POLLOUT, wait && done == 0, &seen);
        if (r <= 0)
            return result(r < 0 ? r : -EAGAIN);
        if (seen & POLLERR) { // no reader is left
            if (done == 0)
                raise_sigpipe();
            return result(-EPIPE);
        }
        // What ends the connection is for the next call to find: a reset is told only once.
        if (done && (has_paths(*f.ofd) ? pending_in_both(path_socket(f), f, 1) == 0
                                       : ring::peek_header(f.ofd->rx.s, f.rx_place) == 0))
            return result(0);
        const size_t want = n - done < kBounce ? n - done : kBounce;
        // Only a file mode keeps this from waiting for data, not SPLICE_F_NONBLOCK: that one is about the
        // pipe.
        iovec v{p, want};
        IoCursor to{&v, 1};
        r = stream_recv(in, f, to, want, MSG_PEEK | kUpToMark | (done ? MSG_DONTWAIT : 0));
        if (r <= 0)
            return result(r);
        long w = write_now(out, p, static_cast<size_t>(r));
        if (w == -EAGAIN && wait && done == 0)
            continue;
        if (w < 0)
            return result(w);
        r = vfs::recv(in, &f, p, static_cast<size_t>(w), MSG_TRUNC | MSG_DONTWAIT); // discards
        if (r < 0)
            return result(r);
        done += static_cast<size_t>(w);
    }
    return result(0);
}

bool is_pipe(int fd) noexcept { return sys::fcntl(fd, F_GETPIPE_SZ) >= 0; }

/// Neither call writes to a file opened for appending, and a socket can be told to be one.
bool appends(const File &f) noexcept {
    return (f.kind == FileKind::stream ? f.ofd->status : f.status).load(std::memory_order_relaxed) & O_APPEND;
}

} // namespace

SD_FORK_CODE void sendfile_fork_child() noexcept { bounces.reset_lock(); }

namespace vfs {

long sendfile(int out, int in, off64_t *offset, size_t n) noexcept {
    File *f = still_ours(out, file_of(out));
    if (f)
        leave_unjoined(out, *f);
    if (!f || f->kind != FileKind::stream)
        return kPass; // from a socket to a file: the placeholder cannot be read by position either
    int64_t pos = 0;
    if (offset) {
        if (sd_copy(&pos, offset, sizeof pos))
            return -EFAULT;
    } else {
        pos = sys::call(SYS_lseek, in, 0, SEEK_CUR);
        if (pos < 0)
            return pos == -ESPIPE ? -EINVAL : pos;
    }
    const bool refused = appends(*f);
    if (refused || n == 0 || pos < 0) { // a negative position is another one to preadv2
        const long r = check_source(in, pos);
        return r < 0 ? r : refused || n != 0 ? -EINVAL : 0;
    }
    n = clamp_transfer(n);
    // The C library's sendfile, unlike the other calls in here, is no cancellation point. The two locked
    // instructions are for calls that may sleep.
    const NoCancellation whole_call(!is_nonblocking(*f, 0));
    const long r = send_from_file(out, *f, in, pos, n);
    if (r > 0)
        pos += r;
    if (offset) {
        if (r > 0 && sd_copy(offset, &pos, sizeof pos))
            return -EFAULT;
    } else if (r > 0) {
        sys::call(SYS_lseek, in, pos, SEEK_SET);
    }
    return r;
}

long splice(int in, off64_t *in_off, int out, off64_t *out_off, size_t n, unsigned flags) noexcept {
    File *from = still_ours(in, file_of(in)), *to = still_ours(out, file_of(out));
    if (from)
        leave_unjoined(in, *from);
    if (to)
        leave_unjoined(out, *to);
    if (to && to->kind == FileKind::fresh && !to->real_socket && appends(*to) && n != 0 && is_pipe(in))
        return -EINVAL;
    if (from && from->kind != FileKind::stream)
        from = nullptr;
    if (to && to->kind != FileKind::stream)
        to = nullptr;
    if ((!from && !to) || n == 0)
        return n == 0 && (from || to) ? 0 : kPass;
    if (flags & ~(SPLICE_F_MOVE | SPLICE_F_NONBLOCK | SPLICE_F_MORE | SPLICE_F_GIFT))
        return -EINVAL;
    const int other = to ? in : out;
    if (long r = sys::fcntl(other, F_GETFD); r < 0)
        return r;
    if ((from && to) || !is_pipe(other))
        return -EINVAL;
    if (to ? in_off != nullptr : out_off != nullptr)
        return -ESPIPE;
    if (in_off || out_off || (to && appends(*to)))
        return -EINVAL;
    n = clamp_transfer(n);
    return to ? splice_to_stream(in, out, *to, n, flags) : splice_from_stream(in, *from, out, n, flags);
}

} // namespace vfs

} // namespace sd
