// Channels that this process sends over.
#include "kmod-zerocopy/include/linux/socksdirect_zerocopy.h"
#include "libsd/control/client.hpp"
#include "libsd/control/fork_sections.hpp"
#include "libsd/control/memory.hpp"
#include "libsd/control/pool.hpp"
#include "libsd/control/sandbox_state.hpp"
#include "libsd/vfs/connections/connection.hpp"
#include "libsd/vfs/descriptors/connection_claim.hpp"
#include "libsd/vfs/pools/channels.hpp"
#include "libsd/vfs/streams/stream_send.hpp"

namespace sd {

namespace {

SD_FORK_STATE constinit Pool<OwnChannel> channels;

/// In File::Stream::channel: there is none, and it is not tried again.
OwnChannel *const kNoChannel = reinterpret_cast<OwnChannel *>(1);

long name_channel(OwnChannel &c) noexcept {
    return name_to_monitor({c.link_id, c.side, c.slot, c.name}, {c.far_end, c.ledger_fd}, &c.name);
}

long hide(long fd, int *hidden) noexcept {
    *hidden = fd < 0 ? -1 : static_cast<int>(hide_fd(static_cast<int>(fd)));
    return fd < 0 ? fd : *hidden;
}

void give_back(OwnChannel &c) noexcept {
    if (c.ledger)
        sys::munmap(c.ledger, sizeof(ChannelLedger));
    for (int *fd : {&c.far_end, &c.ledger_fd, &c.end}) {
        if (*fd >= 0)
            close_hidden(*fd);
        *fd = -1;
    }
    c.ledger = nullptr;
}

long make(OwnChannel &c, const PageCalls &calls) noexcept {
    const SpareNumbers spare;
    int ends[2];
    long r = calls.make_channel(ends);
    if (r < 0)
        return r;
    r = hide(ends[0], &c.end);
    const long far = hide(ends[1], &c.far_end);
    if (r < 0 || far < 0)
        return r < 0 ? r : far;
    if (r = hide(control::make_memory("socksdirect-channel", sizeof(ChannelLedger)), &c.ledger_fd); r < 0)
        return r;
    c.ledger = static_cast<ChannelLedger *>(
        sys::mmap(nullptr, sizeof(ChannelLedger), PROT_READ | PROT_WRITE, MAP_SHARED, c.ledger_fd, 0));
    if (!c.ledger)
        return -ENOMEM;
    c.ledger->magic = kChannelMagic;
    return name_channel(c);
}

} // namespace

OwnChannel *channel_of(const File &f) noexcept {
    OwnChannel *c = f.stream.channel.load(std::memory_order_acquire);
    return c == kNoChannel ? nullptr : c;
}

const PageCalls *page_calls() noexcept {
    if (!may_use_channels())
        return nullptr;
    const PageCalls *calls = ::socksdirect_page_calls();
    return calls && calls->version == kPageCallsVersion && calls->size >= kFirstPageCalls ? calls : nullptr;
}

long call_channel(int end, unsigned long request, void *argument) noexcept {
    const PageCalls *calls = page_calls();
    return calls ? calls->call(end, request, argument) : sys::ioctl(end, request, argument);
}

void prepare_channel(int fd, File &f) noexcept {
    if (f.stream.channel.load(std::memory_order_relaxed) || f.link->transport != &shm_transport ||
        sandboxed() || mappings_are_locked.load(std::memory_order_relaxed))
        return;
    const PageCalls *calls = page_calls();
    if (!calls)
        return;
    const PinnedFile use(fd, &f);
    if (!use.file())
        return;
    const ConnectionSnapshot b(f);
    OwnChannel *made = channels.allocate();
    if (!made)
        return;
    made->name = made->judged = made->mapped = made->read = made->pause = made->pauses = 0;
    made->proven = false;
    made->watched = made->rewrote = made->once = made->onces = made->well = 0;
    made->next = 0;
    made->stopped.store(false, std::memory_order_relaxed);
    made->link_id = f.link->id;
    made->slot = f.slot;
    made->side = f.side;
    OwnChannel *use_it = make(*made, *calls) < 0 ? kNoChannel : made;
    {
        SendClaim c(b, f);
        OwnChannel *none = nullptr;
        if (c && f.stream.channel.compare_exchange_strong(none, use_it, std::memory_order_acq_rel)) {
            // Pools are for programs that ask for them: what they have announced stays.
            if (use_it == made && !announces_pool(*b.ofd))
                f.mine->credit.pool.store(made->name, std::memory_order_release);
            if (use_it == made)
                return;
        }
    }
    let_go_of_channel(made, true); // another thread was faster, or there is none
}

namespace {

constexpr uint64_t kTried = 1u << 20, kJudgedEvery = 8u << 20, kFirstOff = 16u << 20;
constexpr unsigned kMostOffDoublings = 6; ///< doublings

/// How much may be given and not read yet: about what the ring itself would hold.
uint64_t most_given(const Ofd &o) noexcept { return uint64_t{2} * kRingSize[most_class(o)]; }
/// One call of the module. Receivers begin with the first while the next is given.
constexpr uint64_t kMostAtOnce = 1u << 20;
/// What one record stands for: so many that a small ring is full when that much is given.
constexpr uint32_t kRecordBytes = 32u << 10;
static_assert(kRecordBytes <= ring::kMaxHandle && kLeastGiven >= kRecordBytes);
constexpr unsigned kNumbersUsed = 128;
static_assert(kNumbersUsed <= kChannelNumbers);

uint64_t given_and_not_read(const ChannelLedger &l) noexcept {
    uint64_t sum = 0;
    for (unsigned i = 0; i < kNumbersUsed; ++i)
        if (l.entry[i].handle.load(std::memory_order_acquire) != 0)
            sum += l.entry[i].bytes.load(std::memory_order_relaxed);
    return sum;
}

/// With the send token, when the receiver has taken all: what is left over was of the dead.
void take_back(const OwnChannel &c) noexcept {
    for (auto &entry : c.ledger->entry) {
        uint64_t handle = entry.handle.load(std::memory_order_acquire);
        if (handle == 0)
            continue;
        sdzc_drop drop{handle};
        (void)call_channel(c.far_end, SDZC_DROP, &drop);
        entry.handle.compare_exchange_strong(handle, 0, std::memory_order_acq_rel);
    }
}

void pause_giving(OwnChannel &c) noexcept {
    c.pause = kFirstOff << (c.pauses < kMostOffDoublings ? c.pauses++ : kMostOffDoublings);
    c.proven = false;
}

/// Does the receiver copy what it is given? Then so does the sender, which costs less, for a while. Tried
/// with a little: until some of that was mapped the rest is copied, and when none was it is enough.
bool is_paused(OwnChannel &c) noexcept {
    if (c.pause != 0)
        return true;
    const uint64_t given = c.ledger->given.load(std::memory_order_relaxed);
    if (given - c.judged < (c.proven ? kJudgedEvery : kTried))
        return false;
    const uint64_t mapped = c.ledger->mapped.load(std::memory_order_relaxed),
                   read = c.ledger->read.load(std::memory_order_relaxed);
    if (!c.proven && mapped != c.mapped) {
        c.proven = true;
        return false;
    }
    // Has it got to them?
    if (mapped + read - c.mapped - c.read < (c.proven ? kJudgedEvery / 4 : kTried / 2))
        return !c.proven;
    if (mapped - c.mapped < read - c.read)
        pause_giving(c);
    else
        c.pauses = 0;
    c.judged = given;
    c.mapped = mapped;
    c.read = read;
    return c.pause != 0;
}

/// What the sender writes anew costs a fault for each page, and mostly a copy: more than one copy in the
/// call, which leaves its pages mapped. Then that is done, for a while. A buffer shows it only when it is
/// given for the second time, so one good stretch proves nothing.
void watch_rewriting(OwnChannel &c, uint64_t given, uint64_t rewritten) noexcept {
    constexpr uint64_t kFirstOnce = 64u << 20, kManyWell = 8;
    c.watched += given;
    c.rewrote += rewritten;
    if (c.rewrote >= kJudgedEvery / 4 && c.rewrote * 2 > c.watched) {
        c.once = kFirstOnce << (c.onces < kMostOffDoublings ? c.onces++ : kMostOffDoublings);
        c.well = 0;
    } else if (c.watched < kJudgedEvery) {
        return;
    } else if (++c.well >= kManyWell) {
        c.onces = 0;
    }
    c.watched = c.rewrote = 0;
}

/// From which size on pages are given as they are, or copied once: measured on this machine, or not. All
/// ones: never.
uint64_t least_given(const PageCalls &calls, bool once) noexcept {
    const bool known = calls.size >= kMeasuredPageCalls;
    const uint32_t version = known ? __atomic_load_n(&calls.module_version, __ATOMIC_RELAXED) : 1;
    if (version < 2)
        return once ? ~uint64_t{0} : kLeastGiven;
    const uint64_t measured = __atomic_load_n(once ? &calls.least_copy : &calls.least_give, __ATOMIC_RELAXED),
                   otherwise = once ? kLeastCopied : kLeastGiven;
    return measured == 0 ? otherwise : measured < kLeastGiven ? kLeastGiven : measured;
}

/// An unused number; kNumbersUsed: there is none.
unsigned free_number(OwnChannel &c) noexcept {
    for (unsigned i = 0; i < kNumbersUsed; ++i) {
        const unsigned n = (c.next + i) % kNumbersUsed;
        if (c.ledger->entry[n].handle.load(std::memory_order_acquire) == 0) {
            c.next = n + 1;
            return n;
        }
    }
    return kNumbersUsed;
}

} // namespace

bool channel_is_full(const File &f) noexcept {
    const OwnChannel *c = channel_of(f);
    if (!c) [[likely]]
        return false;
    return given_and_not_read(*c->ledger) + kLeastGiven > most_given(*f.ofd) &&
           !ring::all_taken(f.ofd->tx.s, f.peer->credit.consumed.load(std::memory_order_acquire));
}

Handed hand_pages(File &f, const iovec &piece, bool plain, bool grow_far) noexcept {
    constexpr uintptr_t kPage = 4096;
    OwnChannel *const c = channel_of(f);
    const PageCalls *calls = page_calls();
    Handed r{.copy = piece.iov_len};
    if (!c || !calls)
        return r;
    ChannelLedger &l = *c->ledger;
    Ofd &o = *f.ofd;
    TxState &s = o.tx.s;
    const auto at = reinterpret_cast<uintptr_t>(piece.iov_base);
    const auto copy = [&](Copied why) {
        r.why = why;
        return r;
    };
    if (l.taken.load(std::memory_order_acquire) == 0 || c->stopped.load(std::memory_order_relaxed))
        return copy(Copied::untaken);
    const bool own = may_be_of_device(*calls, piece.iov_base, piece.iov_len), once = !own || c->once != 0;
    const uint64_t least = least_given(*calls, once);
    if (once && least == ~uint64_t{0})
        return copy(own ? Copied::rewritten : Copied::foreign);
    // A receiver has such memory at a page, and mostly as far from it as the sender's is.
    const uint64_t head = own ? (kPage - at % kPage) % kPage : 0;
    uint64_t whole = piece.iov_len < head ? 0 : (piece.iov_len - head) & ~uint64_t{kPage - 1};
    if (!plain || o.tx_block.load(std::memory_order_acquire) != 0)
        return copy(Copied::held);
    if (is_paused(*c))
        return copy(Copied::unmapped);
    if (head != 0 || whole < least) {
        r.copy = head != 0 && whole >= least ? head : piece.iov_len;
        return r;
    }
    if (ring::refresh_credit(s, f.peer->credit.consumed) && ring::all_taken(s, s.credit) &&
        given_and_not_read(l) != 0)
        take_back(*c);
    const uint64_t most = most_given(o), waits = given_and_not_read(l);
    const uint64_t may = waits < most ? (most - waits) & ~uint64_t{kPage - 1} : 0;
    whole = whole < may ? whole : may;
    whole = whole < kMostAtOnce ? whole : kMostAtOnce;
    const unsigned number = free_number(*c);
    r.full = true;
    if (whole < kLeastGiven || number == kNumbersUsed)
        return r;
    const uint64_t wanted = (whole + kRecordBytes - 1) / kRecordBytes * ring::kHandleFootprint;
    if (!make_room(f, wanted, grow_far))
        return r;
    const uint64_t fits = ring::room(s) / ring::kHandleFootprint * kRecordBytes;
    whole = whole < fits ? whole : fits;
    if (whole < kLeastGiven)
        return r;
    r.full = false;
    const bool counts = calls->size >= kMeasuredPageCalls && calls->module_version >= 2;
    const uint32_t flags = once ? SDZC_GIVE_COPY : counts ? SDZC_GIVE_COUNT : 0;
    sdzc_give give{.address = at, .length = whole, .flags = flags, .copied = 0, .handle = 0};
    const long error = call_channel(c->end, SDZC_GIVE, &give);
    if (error < 0 || give.handle == 0) {
        r.copy = whole;
        return copy(error == -EFAULT ? Copied::foreign : Copied::refused);
    }
    auto &entry = l.entry[number];
    entry.bytes.store(whole, std::memory_order_relaxed);
    entry.handle.store(give.handle, std::memory_order_release);
    const auto add = [whole](std::atomic<uint64_t> &count) {
        count.store(count.load(std::memory_order_relaxed) + whole, std::memory_order_relaxed);
    };
    add(l.given);
    if (once) {
        add(l.once);
        c->once = c->once > whole ? c->once - whole : 0;
    } else {
        watch_rewriting(*c, whole, uint64_t{give.copied} * kPage);
    }
    for (uint64_t done = 0; done < whole;) {
        const uint64_t left = whole - done;
        const auto n = static_cast<uint32_t>(left < kRecordBytes ? left : kRecordBytes);
        ring::put_handle(s, f.tx_place, {c->name, done | uint64_t{number} << ring::kHandleOffsetBits}, n);
        done += n;
    }
    r.given = whole;
    return r;
}

void count_copied(const File &f, Copied why, uint64_t n) noexcept {
    OwnChannel *const c = channel_of(f);
    if (!c)
        return;
    auto &count =
        why == Copied::rewritten ? c->ledger->rewritten : c->ledger->copied[static_cast<unsigned>(why)];
    count.store(count.load(std::memory_order_relaxed) + n, std::memory_order_relaxed);
    if (why == Copied::unmapped)
        c->pause = c->pause > n ? c->pause - n : 0;
    if (why == Copied::rewritten)
        c->once = c->once > n ? c->once - n : 0;
}

void let_go_of_channel(OwnChannel *channel, bool over) noexcept {
    if (!channel || channel == kNoChannel)
        return;
    if (over && channel->ledger && channel->name != 0 &&
        channel->ledger->taken.load(std::memory_order_acquire) == 0) {
        // Nothing was handed over, and nobody will come for it.
        const wire::PoolRef ref{channel->link_id, channel->side, 0, channel->name};
        control::tell(wire::Op::end_pool, &ref, sizeof ref);
    }
    give_back(*channel);
    channels.release(channel);
}

void stop_own_channels() noexcept {
    channels.for_each([](OwnChannel &c) { c.stopped.store(true, std::memory_order_relaxed); });
}

void restore_channels() noexcept {
    channels.for_each([](OwnChannel &c) {
        if (c.end >= 0 && c.name != 0 && !c.stopped.load(std::memory_order_relaxed))
            (void)name_channel(c);
    });
}

void channels_moved(int from, int to) noexcept {
    channels.for_each([=](OwnChannel &c) {
        for (int *fd : {&c.end, &c.far_end, &c.ledger_fd})
            if (*fd == from)
                *fd = to;
    });
}

SD_FORK_CODE void channels_fork_child() noexcept { channels.reset_lock(); }

} // namespace sd
