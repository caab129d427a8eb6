// Bytes that are handed over in place.
#include "libsd/base/probes.hpp"
#include "libsd/control/assert.hpp"
#include "libsd/vfs/descriptors/connection_claim.hpp"
#include "libsd/vfs/paths/moves.hpp"
#include "libsd/vfs/pools/pools.hpp"
#include "libsd/vfs/sharing/moved.hpp"
#include "libsd/vfs/streams/fast_path.hpp"
#include "libsd/vfs/streams/stream_recv.hpp"
#include "libsd/vfs/vfs.hpp"

namespace sd {

long is_pool_usable(int fd, void *pool) noexcept {
    const OwnPool &p = *static_cast<const OwnPool *>(pool);
    const PinnedFile use(fd);
    const File *f = use.file();
    return f && f->kind == FileKind::stream && is_pool_of(p, *f->ofd) &&
           !p.ended.load(std::memory_order_relaxed) && p.ledger->ended.load(std::memory_order_acquire) == 0 &&
           !send_refused(*f, *f->ofd);
}

long hand_over(int fd, void *pool, uint64_t offset, uint64_t bytes, uint32_t buffer, int flags) noexcept {
    OwnPool &p = *static_cast<OwnPool *>(pool);
    File *f = file_of(fd);
    if (!f || f->kind != FileKind::stream || p.ledger->taken.load(std::memory_order_acquire) == 0 ||
        offset > p.size || bytes > p.size - offset || buffer >= kPoolBuffers ||
        (flags & ~(MSG_DONTWAIT | MSG_NOSIGNAL)) != 0)
        return 0;
    const ConnectionSnapshot b(*f);
    Ofd &o = *b.ofd;
    const bool nonblocking = is_nonblocking(*f, flags);
    RoomWait room;
    Pin pin;
    uint64_t done = 0;
    for (;;) {
        Recipient reader;
        bool told = false;
        {
            SendClaim c(b, *f);
            if (!c)
                return done ? static_cast<long>(done) : c.error() == -EINTR ? -EINTR : 0;
            // Whatever else is so (held back, captured, ended, moved): an ordinary send knows what to do.
            if (!is_pool_of(p, o) || o.tx_block.load(std::memory_order_acquire) != 0 || send_refused(*f, o) ||
                p.ended.load(std::memory_order_acquire))
                return static_cast<long>(done);
            reader = peers_reader(*f);
            TxState &s = o.tx.s;
            while (done < bytes && make_room(*f, sizeof(ring::HandleRecord), room.grow_far)) {
                const uint64_t left = bytes - done;
                const uint32_t n = left < ring::kMaxHandle ? static_cast<uint32_t>(left) : ring::kMaxHandle;
                ring::put_handle(s, f->tx_place,
                                 {p.name, (offset + done) | uint64_t{buffer} << ring::kHandleOffsetBits}, n);
                done += n;
                told = true;
            }
            if (done == bytes) {
                ++s.messages;
                SD_PROBE2(send, fd, done);
            } else if (nonblocking) {
                s.stalls = 1; // as in stream_send
            }
        }
        if (told)
            reader.tell();
        if (done == bytes)
            return static_cast<long>(done);
        if (const long w = room.wait(fd, *f, pin, nonblocking, flags, done != 0); w < 0)
            return done ? static_cast<long>(done) : w == -EBADF ? 0 : w;
    }
}

namespace {

enum class Next { taken, copy, unknown, nothing };

/// With the receive token: as many bytes as lie back to back in one buffer, up to `most`, which is not 0.
Next take_run(File &f, Ofd &o, uint64_t most, ReceivedBytes *out, uint64_t *got) noexcept {
    RxState &s = o.rx.s;
    auto &consumed = f.mine->credit.consumed;
    TakenPool *pool = nullptr;
    const uint8_t *end = nullptr;
    uint64_t sum = 0;
    while (sum < most) {
        ring::Record rec{};
        const int r = ring::next_record(s, f.rx_place, consumed, &rec);
        if (r != ring::kHandleNext) {
            if (sum == 0)
                return r == 0 ? Next::nothing : Next::copy;
            break;
        }
        const ring::HandleRecord where = ring::handle_at(s, f.rx_place);
        TakenPool *p = pool_of_handle(f, where, rec.length);
        if (p && p->end_fd >= 0 && sum == 0)
            return Next::copy; // of a channel, whose pages are for whoever has memory of the device
        if (sum == 0) {
            if (!p)
                return Next::unknown;
            pool = p;
            out->data = p->bytes + offset_of(where) + rec.read;
            out->pool = p;
            out->buffer = buffer_of(where);
            out->epoch = p->epoch.load(std::memory_order_relaxed);
        } else if (p != pool || p->bytes + offset_of(where) + rec.read != end || buffer_of(where) != out->buffer) {
            break;
        }
        end = p->bytes + offset_of(where) + rec.read;
        const long n = ring::skip(s, rec, most - sum);
        end += n;
        sum += static_cast<uint64_t>(n);
    }
    const uint32_t refs = pool->refs.fetch_add(1, std::memory_order_relaxed);
    SD_ASSERT(refs != 0); // the File's own
    consumed.store(ring::read_up_to(s), std::memory_order_release);
    ++s.messages;
    *got = sum;
    return Next::taken;
}

} // namespace

long receive_in_place(int fd, void *spare, uint64_t spare_bytes, uint64_t most, int flags,
                      ReceivedBytes *out) noexcept {
    *out = {spare, nullptr, 0, 0};
    const uint64_t fits = spare_bytes < most ? spare_bytes : most;
    File *f = entry_of(fd); // of any kind: fast_recv() looks
    if (f && fits != 0)
        if (const long r = fast_recv(fd, *f, spare, fits, flags))
            return r;
    f = still_ours(fd, file_of(fd));
    if (!f || f->kind != FileKind::stream || (flags & ~(MSG_DONTWAIT | MSG_NOSIGNAL)) != 0)
        return kNotAccelerated;
    const PinnedFile use(fd, f);
    if (!use.file())
        return kNotAccelerated;
    for (bool asked = false;; asked = true) {
        take_announced_pool(*f);
        const ConnectionSnapshot b(*f);
        Next next = Next::copy;
        uint64_t got = 0;
        {
            ReceiveClaim c(b, *f);
            if (!c)
                return c.error() == -EBADF ? kNotAccelerated : c.error();
            // As it is but for a low-water mark, captures, and connections that have moved or may.
            if (most != 0 && b.ofd->rcvlowat.load(std::memory_order_relaxed) <= 1) {
                uncork_overdue(*f);
                next = take_run(*f, *b.ofd, most, out, &got);
            }
        }
        if (next == Next::taken) {
            notify_room(*f);
            SD_PROBE2(recv, fd, got);
            return static_cast<long>(got);
        }
        if (next == Next::unknown && !asked && take_pool_of_next(*f) == 0)
            continue;
        if (next == Next::nothing) {
            char none;
            iovec v{&none, 1};
            IoCursor one{&v, 1};
            const long r = stream_recv(fd, *f, one, 1, flags | MSG_PEEK | MSG_TRUNC); // which copies nothing
            if (r <= 0)
                return r == vfs::kPass ? kNotAccelerated : r;
            asked = false;
            continue;
        }
        // What has to be copied; and what is wrong is recv()'s to say.
        if (fits == 0 && most != 0)
            return kWantsSpare;
        const long r = vfs::recv(fd, f, spare, fits, flags);
        return r == vfs::kPass ? kNotAccelerated : r;
    }
}

} // namespace sd
