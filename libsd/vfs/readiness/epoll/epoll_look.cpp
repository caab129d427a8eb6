// What one member of an epoll instance has to report.
#include "libsd/cpu/order.hpp"
#include "libsd/vfs/connections/accept.hpp"
#include "libsd/vfs/connections/connection.hpp"
#include "libsd/vfs/connections/listener.hpp"
#include "libsd/vfs/paths/moves.hpp"
#include "libsd/vfs/readiness/epoll/epoll_set.hpp"
#include "libsd/vfs/readiness/stream_readiness.hpp"
#include "libsd/vfs/sharing/moved.hpp"
#include "libsd/vfs/vfs.hpp"

namespace sd {

namespace {

constexpr uint32_t kAlways = EPOLLERR | EPOLLHUP;
constexpr unsigned kWalkLimit = 4096; ///< records looked at in one go; the rest counts as new data next time

/// Flags of both directions that wake a waiter when they change, in one word.
uint32_t state_of(const File &f) noexcept {
    const Ofd &o = *f.ofd;
    return o.flags_seen.load(std::memory_order_relaxed) |
           (o.tx_block.load(std::memory_order_relaxed) & (kTxEnded | kTxMoved)) << 16 |
           o.rx_shut.load(std::memory_order_relaxed) << 24 |
           (o.so_error.load(std::memory_order_relaxed) ? 1u << 25 : 0);
}

/// Is another thread inside a receive call on the connection, so that its positions may be half changed?
bool receiving_elsewhere(const File &f) noexcept {
    return used_elsewhere(f.seg, f.ofd->rx.token, f.rx_token_id());
}

/// Has data been published since the last look? Moves `rx_at` to the end of what is there.
///
/// The kernel wakes edge-triggered waiters for each arrival, whether or not earlier data was read. So the end
/// of the data is remembered: a header there means an arrival; so does a reader that got beyond it. Positions
/// are read without the token; where that may have gone wrong, the answer is yes, because an event too many
/// does no harm.
bool data_arrived(EpollItem &i, const File &f) noexcept {
    const RxState &s = f.ofd->rx.s;
    bool arrived = false;
    const volatile uint64_t &head_now = s.head;
    if (uint64_t head = head_now; head > i.rx_at || i.rx_at == 0) {
        cpu::in_order();
        RxState copy = s;
        cpu::in_order();
        if (receiving_elsewhere(f) || head_now != head)
            return true; // `rx_at` stays behind, so the next look gets here again
        arrived = i.rx_at != 0 || head != 0;
        const bool inside = ring::inside(copy);
        i.rx_at = copy.head + (inside ? ring::part_of(copy).footprint() : 0);
        i.rx_base = copy.base;
        i.rx_class = copy.cls;
        if (inside)
            arrived = true;
    }
    for (unsigned n = 0; n < kWalkLimit; ++n) {
        if (i.rx_class >= kRingClasses)
            return true;
        const uint32_t mask = kRingSize[i.rx_class] - 1;
        uint64_t h = ring::word_at(f.rx_place, i.rx_class, (i.rx_at - i.rx_base) & mask & ~uint64_t{7})
                         .load(std::memory_order_acquire);
        if (h == 0)
            return arrived;
        if (!ring::header_valid(h, i.rx_at)) { // overwritten since, or rubbish that the reader will find
            i.rx_at = 0;
            return true;
        }
        uint32_t length = ring::header_length(h);
        i.rx_at += 8;
        if (ring::header_kind(h) == ring::RecordKind::handle) {
            i.rx_at += sizeof(ring::HandleRecord);
            arrived = true;
        } else if (ring::header_kind(h) != ring::RecordKind::change) {
            i.rx_at += ring::pad8(length);
            arrived = true;
        } else {
            i.rx_base = i.rx_at;
            i.rx_class = length;
        }
    }
    return true;
}

/// Has a full ring been drained since it was last reported writable? `stalls` counts sends that found no room
/// since the peer last consumed.
bool room_came(EpollItem &i, const File &f) noexcept {
    const TxState &s = f.ofd->tx.s;
    if (s.stalls == 0)
        return false;
    uint64_t key = s.tail * 2 + 1;
    if (has_paths(*f.ofd)) [[unlikely]] // the socket has no position there; and each path has room of its own
        key = (s.tail + s.bytes) * 2 + 1 + (uint64_t{static_cast<uint32_t>((f.ofd->opt.*kPathTx).load())} << 32);
    if (key == i.tx_key)
        return false;
    i.tx_key = key;
    return true;
}

uint32_t peer_flags(const File &f) noexcept { return f.peer->control.flags.load(std::memory_order_relaxed); }

/// Nearly every look at a connection finds what the last one found. This is the cheap way to see that; it
/// touches no line that the peer writes in normal traffic but the next header. May say no when nothing is
/// new.
bool unchanged(const EpollItem &i, const File &f) noexcept {
    if (i.due || peer_flags(f) != i.peer_flags || state_of(f) != i.state ||
        ((i.state & kSeenPath) && !is_settled_in_ring(f)))
        return false;
    // Urgent data, what is held back and zero-copy completions are rare enough for the long way.
    if ((f.peer->control.oob.load(std::memory_order_relaxed) |
         f.peer->control.back.header.load(std::memory_order_relaxed)) != 0 ||
        f.ofd->opt.zerocopy_next.load(std::memory_order_relaxed) > 1)
        return false;
    const RxState &s = f.ofd->rx.s;
    if (!(i.events & kEdge))
        return i.level == 0 && !(i.events & kWrites) && s.part == 0 && ring::peek_header(s, f.rx_place) == 0;
    if ((i.events & kWrites) && (!(i.level & kWrites) || f.ofd->tx.s.stalls != 0))
        return false;
    if (i.rx_at == 0 || s.head > i.rx_at)
        return false;
    const uint32_t offset = static_cast<uint32_t>(i.rx_at - i.rx_base) & (kRingSize[i.rx_class] - 1);
    return ring::word_at(f.rx_place, i.rx_class, offset).load(std::memory_order_acquire) == 0;
}

uint64_t set_arrivals(Epoll &x) noexcept {
    SetGuard g(x);
    return x.arrivals;
}

/// Bits of state_of() that the kernel wakes nobody for: a close says nothing that the end of the data before
/// it has not said, and one end of reading says nothing at all, since TCP sends nothing.
constexpr uint32_t kSilent = kFlagClosed | kFlagReleased | kFlagReadShut | kSeenPath;

/// After a look at a `watched` item. The kernel wakes the set above for each arrival, also where the member
/// was ready before.
[[gnu::noinline]] void count_arrivals(EpollItem &i) noexcept {
    File &f = *i.file;
    if (!(i.events & kEdge)) { // of those, nothing else uses the position
        if (f.kind == FileKind::stream)
            data_arrived(i, f);
        else if (f.kind == FileKind::listener)
            i.rx_at = listener_arrivals(*f.listener);
        else if (f.kind == FileKind::epoll)
            i.rx_at = set_arrivals(*f.epoll);
    }
    const uint32_t state = f.kind == FileKind::stream ? state_of(f) & ~kSilent : 0;
    if (i.level && ((i.level & ~i.counted_level) || (state & ~i.counted_state) || i.rx_at != i.counted_rx))
        ++i.set->arrivals;
    i.counted_level = i.level;
    i.counted_state = state;
    i.counted_rx = i.rx_at;
}

/// Edge triggering: of what is there, is anything new since the last look? What came after `events` was taken
/// is added to it: it counts as seen from here on, so nobody would look again.
bool is_news(EpollItem &i, uint32_t &events) noexcept {
    File &f = *i.file;
    bool news = i.due;
    if (f.kind == FileKind::stream) {
        const uint32_t state = state_of(f);
        const bool changed = (state & ~i.state & ~kSilent) != 0;
        i.state = state;
        bool arrived = data_arrived(i, f);
        if ((state & kSeenPath) && !is_settled_in_ring(f)) [[unlikely]] {
            const uint64_t at = socket_arrivals(f);
            arrived |= at != i.socket_at;
            i.socket_at = at;
        }
        if (changed || arrived)
            events = file_events(f) & (i.events | kAlways);
        // The kernel tells of what is ready when data woke the set, even if the data has been read meanwhile.
        news |= changed || (arrived && events && (i.events & (EPOLLIN | EPOLLRDNORM | EPOLLPRI)));
        if (events & (EPOLLOUT | EPOLLWRNORM))
            news |= room_came(i, f);
    } else if (f.kind == FileKind::listener) {
        uint64_t arrivals = listener_arrivals(*f.listener);
        news |= arrivals != i.rx_at;
        i.rx_at = arrivals;
    } else if (f.kind == FileKind::epoll) { // after file_events(), which looked at all its members
        const uint64_t arrivals = set_arrivals(*f.epoll);
        news |= arrivals != i.rx_at;
        i.rx_at = arrivals;
    }
    news |= (events & ~i.level) != 0;
    i.level = events;
    return news;
}

} // namespace

uint64_t listener_arrivals(Listener &l) noexcept {
    QuietGuard g(l.lock);
    uint64_t sum = 0;
    for (auto &ref : l.links) {
        uint32_t at = ref.place->syn_head.load(std::memory_order_acquire);
        for (unsigned n = 0; n < kSynEntries && syn_at(ref, at); ++n)
            ++at;
        sum += at;
    }
    return sum;
}

uint32_t file_events(File &f) noexcept {
    switch (f.kind) {
    case FileKind::stream: {
        const uint64_t read = ring::bytes_now(f.ofd->rx.s);
        const uint32_t events = stream_events(f);
        if (events & EPOLLIN)
            note_told(f, read + 1);
        return events;
    }
    case FileKind::fresh:
        return EPOLLOUT | EPOLLWRNORM | EPOLLHUP |
               (f.unconnected.error.load(std::memory_order_relaxed) ? EPOLLERR : 0u);
    case FileKind::listener:
        return listener_events(f);
    case FileKind::epoll:
        if (Epoll *inner = f.epoll; inner->has_bell.load(std::memory_order_acquire)) {
            SetGuard g(*inner);
            return any_ready(*inner) ? EPOLLIN | EPOLLRDNORM : 0;
        }
        return 0;
    default:
        return 0;
    }
}

uint32_t look(EpollItem &i, bool thorough) noexcept {
    if (i.off)
        return 0;
    // A listener is dear to look at; a busy program looks now and then only.
    if (!thorough && i.always_hot && i.file->kind == FileKind::listener &&
        (++i.slot & (i.file->listener->links.size() > 16 ? 15 : 3)))
        return 0;
    File &f = *i.file;
    const bool stream = f.kind == FileKind::stream;
    if (stream && unchanged(i, f))
        return 0;
    if (stream && moved(f)) [[unlikely]] {
        i.set->has_moved = true;
        return 0;
    }
    if (stream) { // before the look: what comes after it is a change
        i.peer_flags = peer_flags(f);
        if (!(i.events & kEdge))
            i.state = state_of(f);
    }
    uint32_t events = file_events(f) & (i.events | kAlways);
    if (f.kind == FileKind::epoll && f.epoll->has_moved) [[unlikely]]
        i.set->has_moved = true;
    if (!(i.events & kEdge)) {
        i.level = events;
        i.due = false;
    } else if (!is_news(i, events)) {
        events = 0;
    } else if (events) {
        i.due = false;
    }
    if (i.watched) [[unlikely]]
        count_arrivals(i);
    return events;
}

void watch_set(Epoll &x) noexcept {
    if (x.watched)
        return;
    x.watched = true;
    for (EpollItem *i : x.items) {
        i->watched = true;
        i->counted_level = 0;
        if (i->kernel_too && i->file->kind == FileKind::epoll) {
            SetGuard g(*i->file->epoll);
            watch_set(*i->file->epoll);
        }
    }
}

} // namespace sd
