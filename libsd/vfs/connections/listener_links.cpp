// The links that lead to a listener, and taking connections from their SYN queues.
#include "libsd/vfs/connections/listener_links.hpp"
#include "libsd/control/client.hpp"
#include "libsd/vfs/connections/connection.hpp"
#include "libsd/vfs/family/crossing.hpp"
#include <algorithm>

namespace sd {

namespace {

/// With the listener's lock.
bool known(Listener &l, uint64_t id) noexcept {
    for (auto &ref : l.links)
        if (ref.link->id == id)
            return true;
    return false;
}

/// With the listener's lock: the first place from `from` on with a link that is not known; UINT32_MAX: there
/// is none.
uint32_t next_unknown(Listener &l, uint32_t from) noexcept {
    const uint32_t high = std::min(l.seg->link_high.load(std::memory_order_acquire), uint32_t{kListenerLinks});
    for (uint32_t i = from; i < high; ++i)
        if (uint64_t id = l.seg->link[i].link_id.load(std::memory_order_acquire); id && !known(l, id))
            return i;
    return UINT32_MAX;
}

/// Client side gone for good and everything in the queue taken: nothing will come from this link.
bool finished(const ListenerLinkRef &ref) noexcept {
    return (ref.link->view.header().side[0].flags.load(std::memory_order_acquire) & kLinkClientDead) &&
           syn_at(ref, ref.place->syn_head.load(std::memory_order_acquire)) == 0;
}

/// Server side of a link, with a reference for the listener's list. Connections that came over an exec, or
/// were passed, may have it mapped already. The descriptor's ownership passes.
LinkMap *map_or_find(uint64_t id, int memfd, LinkPeer peer) noexcept {
    if (LinkMap *l = link_in_use(id, 1)) {
        sys::close(memfd);
        return l;
    }
    const long fd = hide_fd(memfd);
    return fd < 0 ? nullptr : map_hidden_link(static_cast<int>(fd), id, 1, 0, peer);
}

/// Lets go of the links from which nothing will come any more, of all of them: where their clients have used
/// up what they may have, no link comes that would bring the next look.
void drop_finished(Listener &l) noexcept {
    constexpr unsigned kAtOnce = 16;
    LinkMap *dropped[kAtOnce];
    for (unsigned n = kAtOnce; n == kAtOnce;) {
        n = 0;
        {
            QuietGuard g(l.lock);
            for (size_t i = l.links.size(); i-- > 0 && n < kAtOnce;)
                if (finished(l.links[i])) {
                    dropped[n++] = l.links[i].link;
                    l.links.remove_unordered(i);
                }
        }
        for (unsigned i = 0; i < n; ++i)
            link_unuse(*dropped[i]); // tells the monitor, so not with the lock
    }
}

} // namespace

bool listener_refresh(Listener &l) noexcept {
    if (l.retired.load(std::memory_order_relaxed))
        return false;
    uint64_t now = l.seg->link_sequence.load(std::memory_order_acquire);
    if (now == l.seen_sequence) [[likely]]
        return false;
    if (crossing_under_way()) // whoever waits is woken when it is over
        return false;
    // Only what is not known yet is asked for: with many clients, each new one would otherwise bring all
    // links again. And nothing is asked for on account of those that are dropped here.
    wire::Links ask{l.id, UINT32_MAX};
    {
        QuietGuard g(l.lock);
        ask.from = next_unknown(l, 0);
    }
    drop_finished(l);
    bool added = false;
    {
        QuietGuard g(l.lock);
        while (ask.from != UINT32_MAX) {
            auto r = control::request(wire::Op::links, &ask, sizeof ask);
            if (r.status < 0 || r.length != sizeof(wire::LinksReply)) {
                control::close_received(r);
                break;
            }
            const auto &reply = r.as<wire::LinksReply>();
            for (unsigned i = 0; i < r.fds; ++i) {
                uint32_t place = i < reply.count ? reply.link[i].place : kListenerLinks;
                if (place >= kListenerLinks || known(l, reply.link[i].link_id)) {
                    sys::close(r.fd[i]);
                    continue;
                }
                LinkMap *m = nullptr;
                if (l.links.make_room())
                    m = map_or_find(reply.link[i].link_id, r.fd[i], peer_of(reply.link[i].is_own));
                else
                    sys::close(r.fd[i]);
                if (!m) { // nobody waits in vain then, and no more of them are made
                    wire::LinkRef ref{reply.link[i].link_id, 1, 0};
                    control::request(wire::Op::no_room, &ref, sizeof ref);
                    continue;
                }
                m->place = place;
                m->listener_id = l.id;
                (void)l.links.push({m, &l.seg->link[place]}); // there is room
                added = true;
            }
            ask.from = reply.count && reply.next > ask.from ? next_unknown(l, reply.next) : UINT32_MAX;
        }
        l.seen_sequence = now;
    }
    return added;
}

unsigned listener_links(Listener &l, LinkMap **out, unsigned max) noexcept {
    QuietGuard g(l.lock);
    unsigned n = 0;
    for (auto &ref : l.links) {
        if (n < max)
            out[n] = ref.link;
        ++n;
    }
    return n;
}

unsigned hold_listener_links(Listener &l, LinkMap **out, unsigned max) noexcept {
    QuietGuard g(l.lock);
    unsigned n = 0;
    for (auto &ref : l.links) {
        if (n < max) {
            ref.link->users.fetch_add(1, std::memory_order_acq_rel);
            out[n] = ref.link;
        }
        ++n;
    }
    return n;
}

namespace {

/// How Listener::told says which request: 0 is none. Links that are older than the monitor have their places
/// in another segment: such a request is not found again.
uint64_t name_of(const Listener &l, const ListenerLink *place, uint32_t head) noexcept {
    const uint64_t bytes = reinterpret_cast<uintptr_t>(place) - reinterpret_cast<uintptr_t>(l.seg->link);
    const uint64_t index = bytes / sizeof *place;
    return index < kListenerLinks ? (index + 1) << 32 | head : UINT64_MAX;
}

/// The name of the first request that is there, 0: there is none.
uint64_t first_pending(Listener &l) noexcept {
    listener_refresh(l);
    // The list only changes under the lock; a scan that sees a removed entry reads a link that is still
    // mapped until its users are gone, so the lock is taken here too. It is uncontended except while several
    // threads accept.
    QuietGuard g(l.lock);
    for (auto &ref : l.links)
        if (const uint32_t head = ref.place->syn_head.load(std::memory_order_acquire); syn_at(ref, head))
            return name_of(l, ref.place, head);
    return 0;
}

} // namespace

bool listener_pending(Listener &l) noexcept { return first_pending(l) != 0; }

bool tell_pending(Listener &l) noexcept {
    const uint64_t name = first_pending(l);
    if (name != 0)
        l.told.store(name, std::memory_order_relaxed);
    return name != 0;
}

bool is_told_untaken(const Listener &l) noexcept {
    const uint64_t told = l.told.load(std::memory_order_relaxed);
    const uint64_t place = (told >> 32) - 1;
    return told != 0 && place < kListenerLinks && l.seg &&
           l.seg->link[place].syn_head.load(std::memory_order_acquire) == static_cast<uint32_t>(told);
}

namespace {

/// The link to take from first: that of the client who has waited longest, where looking at all of them costs
/// little; else they take turns. The times are the clients' own words: who says he came first over and over
/// gets no more than a fair share.
size_t first_link(Listener &l) noexcept {
    constexpr size_t kFew = 16;
    constexpr uint32_t kMostInARow = 64;
    const size_t n = l.links.size();
    size_t best = l.next;
    if (n < 2 || n > kFew || l.in_a_row >= kMostInARow) {
        l.in_a_row = 0;
        return best;
    }
    uint64_t earliest = UINT64_MAX;
    unsigned waiting = 0;
    for (size_t k = 0; k < n; ++k) {
        const size_t i = (l.next + k) % n;
        const LinkView v = l.links[i].link->view;
        const uint32_t entry = syn_at(l.links[i], l.links[i].place->syn_head.load(std::memory_order_acquire));
        if (entry == 0 || entry > kLinkSlots)
            continue;
        ++waiting;
        if (const uint64_t since = v.slot(entry - 1).identity.arrival; since < earliest) {
            earliest = since;
            best = i;
        }
    }
    l.in_a_row = waiting > 1 && best == l.last ? l.in_a_row + 1 : 0;
    l.last = static_cast<uint32_t>(best);
    return best;
}

} // namespace

long take_pending(Listener &l, uint32_t generation, LinkMap **link, uint32_t *slot, bool *dropped) noexcept {
    listener_refresh(l);
    QuietGuard g(l.lock);
    if (l.generation.load(std::memory_order_relaxed) != generation) [[unlikely]]
        return -EBADF;
    const size_t n = l.links.size();
    const size_t first = n ? first_link(l) : 0;
    for (size_t k = 0; k < n; ++k) {
        ListenerLinkRef &ref = l.links[(first + k) % n];
        // Rubbish is passed over, but no more of it than the queue holds: a client may write more as fast as
        // that, and then others' turn would never come.
        for (uint32_t looks = 0; looks < kSynEntries; ++looks) {
            uint32_t head = ref.place->syn_head.load(std::memory_order_acquire);
            uint32_t entry = syn_at(ref, head);
            if (entry == 0)
                break;
            const int64_t i = ref.link->transport->take(*ref.link, ref.place->syn_head, head, entry);
            if (i < 0) {
                if (i == kNoRequest && dropped)
                    *dropped = true;
                continue;
            }
            l.next = static_cast<uint32_t>((first + k + 1) % n);
            *link = ref.link;
            *slot = static_cast<uint32_t>(i);
            ref.link->users.fetch_add(1, std::memory_order_relaxed); // until bind_stream has counted it
            return 0;
        }
    }
    return -EAGAIN;
}

} // namespace sd
