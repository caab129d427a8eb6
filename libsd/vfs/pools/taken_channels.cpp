// Channels over which pages come to this process.
#include "kmod-zerocopy/include/linux/socksdirect_zerocopy.h"
#include "libsd/cpu/copy.hpp"
#include "libsd/vfs/connections/connection.hpp"
#include "libsd/vfs/pools/channels.hpp"
#include "libsd/vfs/streams/capture.hpp"

namespace sd {

bool is_channel(int fd) noexcept {
    sdzc_info info{};
    return call_channel(fd, SDZC_INFO, &info) == 0 && info.version >= 1 && info.page_size == 4096;
}

void prepare_to_map(int fd, File &f, const void *to, size_t n) noexcept {
    const uint64_t name = f.peer->credit.pool.load(std::memory_order_acquire);
    if (name == 0 || name == f.stream.channel_seen.load(std::memory_order_relaxed))
        return;
    const PageCalls *calls = page_calls();
    if (!calls || !may_be_of_device(*calls, to, n))
        return;
    const PinnedFile use(fd, &f);
    if (use.file())
        take_announced_channel(f);
}

namespace {

constexpr uint64_t kPage = 4096, kInPage = kPage - 1;

/// How many bytes of a handle lie back to back from where `s` stands, up to `most`: in as many records.
uint64_t length_of_run(const File &f, const RxState &s, const ring::HandleRecord &where, uint64_t at,
                       uint64_t most) noexcept {
    RxState ahead = s;
    std::atomic<uint64_t> scratch{0};
    uint64_t sum = 0;
    while (sum < most) {
        ring::Record rec{};
        // Not beyond a change of ring: the sender is told of it as soon as it is passed.
        if (ring::next_record(ahead, f.rx_place, scratch, &rec) != ring::kHandleNext || ahead.base != s.base)
            break;
        const ring::HandleRecord next = ring::handle_at(ahead, f.rx_place);
        if (next.pool != where.pool || buffer_of(next) != buffer_of(where) ||
            offset_of(next) + rec.read != at + sum)
            break;
        sum += static_cast<uint64_t>(ring::skip(ahead, rec, most - sum));
    }
    return sum;
}

/// Passes over that much.
void skip_run(const File &f, RxState &s, uint64_t n) noexcept {
    std::atomic<uint64_t> scratch{0};
    while (n != 0) {
        ring::Record rec{};
        if (ring::next_record(s, f.rx_place, scratch, &rec) != ring::kHandleNext)
            return; // the peer has changed its mind: it was looked at just now
        n -= static_cast<uint64_t>(ring::skip(s, rec, n));
    }
}

long read_bytes(const TakenPool &pool, uint64_t handle, uint64_t at, void *to, uint64_t n) noexcept {
    sdzc_read read{.handle = handle,
                   .offset = at,
                   .address = reinterpret_cast<uintptr_t>(to),
                   .length = n,
                   .flags = 0,
                   .reserved = 0};
    const long r = call_channel(pool.end_fd, SDZC_READ, &read);
    return r == 0 ? 0 : r == -EFAULT ? -EFAULT : -EPROTO;
}

void add(std::atomic<uint64_t> &count, uint64_t n) noexcept {
    count.store(count.load(std::memory_order_relaxed) + n, std::memory_order_relaxed);
}

/// Whole pages change hands. They are counted as received first, so that who is killed in between has
/// received them: a page that was taken is nowhere else. Where they cannot be taken they are copied, and
/// where that fails they are not received. Handlers of signals wait for the token to be given back.
/// 0: they were taken; 1: copied; or -errno.
long map_pages(const File &f, RxState &s, const TakenPool &pool, uint64_t handle, uint64_t at, void *to,
               uint64_t n) noexcept {
    const RxState before = s;
    skip_run(f, s, n);
    sdzc_take take{.handle = handle,
                   .offset = at,
                   .address = reinterpret_cast<uintptr_t>(to),
                   .length = n,
                   .flags = SDZC_TAKE_POPULATE,
                   .copied = 0};
    if (call_channel(pool.end_fd, SDZC_TAKE, &take) == 0)
        return 0;
    const long r = read_bytes(pool, handle, at, to, n);
    if (r == 0)
        return 1;
    s.part = before.part; // as Undo::back()
    ring::in_order();
    s.head = before.head;
    s.bytes = before.bytes;
    return r;
}

} // namespace

long read_channel(const File &f, RxState &s, const ring::Record &rec, TakenPool &pool, void *to, uint64_t n,
                  bool discard, bool captured) noexcept {
    const ring::HandleRecord where = ring::handle_at(s, f.rx_place);
    auto &ledger = *reinterpret_cast<ChannelLedger *>(pool.ledger);
    auto &entry = ledger.entry[buffer_of(where)];
    uint64_t handle = entry.handle.load(std::memory_order_acquire);
    const uint64_t at = offset_of(where) + rec.read, total = entry.bytes.load(std::memory_order_relaxed);
    const uint64_t left = rec.length - rec.read;
    const bool live = &s == &f.ofd->rx.s; // and not a look at what comes
    bool taken = false;
    uint64_t run = n < left ? n : left;
    if (captured) {
        uint8_t piece[2048]; // the program may change its memory before the capture has it
        run = run < sizeof piece ? run : sizeof piece;
        if (const long r = read_bytes(pool, handle, at, piece, run); r < 0)
            return -EPROTO;
        if (!discard && sd_copy(to, piece, run))
            return -EFAULT;
        skip_run(f, s, run);
        capture_handed(f, piece, static_cast<uint32_t>(run));
    } else {
        const uint64_t first = run;
        if ((run = length_of_run(f, s, where, at, n)) == 0)
            return -EPROTO;
        const PageCalls *calls = page_calls();
        long r = -EFAULT;
        if (live && !discard && calls && ((reinterpret_cast<uintptr_t>(to) | at) & kInPage) == 0 &&
            run >= kLeastMapped && may_be_of_device(*calls, to, run)) {
            r = map_pages(f, s, pool, handle, at, to, run & ~kInPage);
            taken = r == 0;
            if (r >= 0)
                run &= ~kInPage;
        }
        if (r == -EFAULT) {
            r = discard ? 0 : read_bytes(pool, handle, at, to, run);
            if (r == -EFAULT && run > first) // as much as fits of what would have been a few segments
                r = read_bytes(pool, handle, at, to, run = first);
            if (r == 0)
                skip_run(f, s, run);
        }
        if (r < 0)
            return r;
    }
    if (!live)
        return static_cast<long>(run);
    add(taken ? ledger.mapped : ledger.read, run);
    if (at + run >= total) {
        sdzc_drop drop{handle};
        if (!taken || at != 0)
            (void)call_channel(pool.end_fd, SDZC_DROP, &drop); // what was taken as a whole has gone by itself
        entry.handle.compare_exchange_strong(handle, 0, std::memory_order_acq_rel);
    }
    return static_cast<long>(run);
}

} // namespace sd
