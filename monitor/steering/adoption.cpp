// A connection that began in shared memory gets kernel sockets, one for each end, for all who hold it
// (libsd/vfs/paths/adopt.hpp). Until all of them have it the monitor keeps a descriptor of each; afterwards
// none, which would hold back the FIN that tells of a death.
#include "libsd/control/kernel_sockets/kernel_pair.hpp"
#include "monitor/service/log.hpp"
#include "monitor/steering/steered_pair.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <sys/socket.h>
#include <unistd.h>

namespace sd::monitor {

namespace {

/// Do all who hold either end know how to go over together?
template <typename Pair> bool goes_by_steps(const Pair &pair) {
    constexpr uint32_t kKnown = kKnowsSteering | kKnowsShared;
    const auto knows = [](const Segment &segment) {
        return (segment.view().header().steering.load(std::memory_order_relaxed) & kKnown) == kKnown;
    };
    return std::all_of(std::begin(pair.end), std::end(pair.end), [&](const auto &end) {
        return knows(*end->segment) &&
               std::all_of(end->ofd.holders.begin(), end->ofd.holders.end(), [&](const Client *holder) {
                   return !holder->own || knows(*holder->own); // else it is as its parent
               });
    });
}

/// A closed socket with the names would keep them for a minute. So what nobody has begun to use ends at once.
void end_at_once(int socket, bool does) {
    const linger how{does ? 1 : 0, 0};
    setsockopt(socket, SOL_SOCKET, SO_LINGER, &how, sizeof how);
}

/// Of those who share it.
uid_t user_of(const Segment &segment) {
    return segment.members.empty() ? geteuid() : segment.members.front().client->who.uid;
}

} // namespace

/// A name of TCP_REPAIR is anybody's name: none is taken from a client's word alone. Of a former monitor's
/// link we do not know the listener; it may be any that a process at the server's side has.
bool Monitor::may_have_names(const SteeredPair &pair, const SlotAddress &client, const SlotAddress &server) {
    if (client.port < kFirstFreePort) {
        return false;
    }
    const Link &link = *pair.link;
    if (link.listener != nullptr) {
        return takes(link.listener->address, server);
    }
    const auto &processes = link.side[1].attached;
    return link.was_adopted && std::any_of(processes.begin(), processes.end(), [&](const Client *process) {
               return std::any_of(process->listeners.begin(), process->listeners.end(), [&](const Listener *each) {
                   return each->ns == process->ns && takes(each->address, server);
               });
           });
}

/// Why a connection that was born in shared memory cannot get kernel sockets; none: it can.
Blocker Monitor::adoption_objects(const SteeredPair &pair) const {
    const Link &link = *pair.link;
    uint32_t flags = 0;
    for (unsigned side = 0; side < 2; ++side) {
        flags |= link.view(side).slot(pair.slot).side[side].control.flags.load(std::memory_order_acquire);
    }
    constexpr uint32_t kEnds = kFlagWriteShut | kFlagReadShut | kFlagClosed | kFlagReset | kFlagDead;
    if (!pair.end[0] || !pair.end[1]) {
        return (flags & kEnds) != 0 ? Blocker::ended : Blocker::alone;
    }
    for (unsigned side = 0; side < 2; ++side) {
        const SteeredEnd &end = *pair.end[side];
        if ((end.segment->view().header().steering.load(std::memory_order_relaxed) & kKnowsSteering) == 0) {
            return Blocker::older;
        }
        if (!goes_by_steps(pair) && end.ofd.holders.size() != 1) {
            return Blocker::shared;
        }
        if (std::any_of(end.ofd.holders.begin(), end.ofd.holders.end(),
                        [](const Client *holder) { return holder->bridge != 0; })) {
            return Blocker::passed;
        }
        if (end.ofd.is_moved || end.segment->parcels.count(end.ofd.index) != 0) {
            return Blocker::passed;
        }
    }
    if ((flags & kEnds) != 0) {
        return Blocker::ended;
    }
    if (pair.has_paths()) {
        return Blocker::one_sided;
    }
    const Slot &slot = link.view(1).slot(pair.slot);
    if (slot.identity.state.load(std::memory_order_acquire) != static_cast<uint32_t>(SlotState::accepted) ||
        link.is_fake()) {
        return Blocker::receiver;
    }
    return Blocker::none;
}

uint16_t Monitor::next_adoption() {
    last_adoption_ = last_adoption_ == UINT16_MAX ? 1 : static_cast<uint16_t>(last_adoption_ + 1);
    return last_adoption_;
}

/// With these names, or with others by an ordinary connection of this host. Where none comes about (a filter
/// on the monitor's own group, say) everybody would wait for it: then it is not tried for some time.
long Monitor::any_pair(const SlotAddress &client, const SlotAddress &server, int family, int made[2]) {
    constexpr int64_t kPairTime = 20'000'000; // ns
    constexpr std::chrono::seconds kPause{10};
    const auto now = EventLoop::Clock::now();
    if (now < next_any_pair_) {
        return named_pair(client, server, static_cast<unsigned>(family), made);
    }
    const long r = kernel_pair(client, server, static_cast<unsigned>(family), made, kPairTime);
    if (r == -ETIMEDOUT) {
        next_any_pair_ = now + kPause;
    }
    return r;
}

/// The sockets, and the record of both ends. `adoption`: null where it is not done by steps. Where somebody
/// has sockets with these names, left by a former monitor, there are none until he has been here.
bool Monitor::make_adoption(const SteeredPair &pair, const SlotAddress &client, const SlotAddress &server,
                            std::shared_ptr<Adoption> &adoption) {
    const bool is_v4 = pair.end[0]->words().family == AF_INET && pair.end[1]->words().family == AF_INET;
    const int family = is_v4 ? AF_INET : AF_INET6;
    Charge paid[2];
    try {
        for (unsigned side = 0; side < 2; ++side) {
            paid[side] = charge(pair.end[side]->ofd.holders.front()->payer, Resource::parcels, 1);
        }
    } catch (const OverShare &) {
        return false;
    }
    int made[2] = {-1, -1};
    const bool by_steps = goes_by_steps(pair);
    long r = by_steps ? named_pair(client, server, family, made) : -EPERM;
    const bool waits = r == -EADDRNOTAVAIL || r == -EADDRINUSE;
    if (r < 0 && !waits) {
        r = any_pair(client, server, family, made);
    }
    if (r < 0 && !waits) {
        log::debug("no kernel sockets for a connection: {}", strerror(static_cast<int>(-r)));
        return false;
    }
    if (by_steps) {
        adoption = std::make_shared<Adoption>();
        adoption->serial = next_adoption();
        adoption->has_sockets = !waits;
        adoption->family = family;
        adoption->client = client;
        adoption->server = server;
        for (unsigned side = 0; side < 2; ++side) {
            adoption->end[side] = {pair.end[side]->segment.get(), pair.end[side]->ofd.index};
            end_at_once(made[side], true);
        }
    }
    for (unsigned side = 0; side < 2; ++side) {
        const SteeredEnd &end = *pair.end[side];
        MovedConnection moved{
            end.segment, end.ofd.index, end.ofd.generation, UniqueFd(made[side]), std::move(paid[side]),
            true,        adoption};
        moved_[{end.segment.get(), end.ofd.index}] = std::move(moved);
    }
    return true;
}

/// Somebody has let go of sockets with these names, or has gone. `all`: nobody who holds either end can have
/// some: then they are somebody else's, and others have to do. Whoever has asked is told by a new mark.
void Monitor::get_sockets(const std::shared_ptr<Adoption> &adoption, bool all) {
    int made[2];
    const long r = all ? any_pair(adoption->client, adoption->server, adoption->family, made)
                       : named_pair(adoption->client, adoption->server, adoption->family, made);
    if (r < 0 && !all) {
        return;
    }
    if (r < 0) {
        log::debug("no kernel sockets for a connection: {}", strerror(static_cast<int>(-r)));
        rest_adoption(adoption);
        return;
    }
    const uint32_t former = adoption->serial;
    adoption->serial = next_adoption();
    adoption->has_sockets = true;
    for (unsigned side = 0; side < 2; ++side) {
        adoption->fetched[side].clear();
        end_at_once(made[side], true);
        MovedConnection &moved = adopted_end(*adoption, side)->second;
        moved.socket = UniqueFd(made[side]);
        (void)change_mark(moved.segment->view().ofd(moved.ofd), former, adoption->serial << kTxSerialShift,
                          ~uint32_t{0} << kTxSerialShift);
        wake_holders(*moved.segment, moved.ofd);
    } // where a holder has taken the mark away, the next look ends it
}

/// One of the same connection that has been ended after somebody had got a socket: it goes on, since the
/// kernel has no two connections with the same names. What is left of another connection is forgotten.
std::shared_ptr<Adoption> Monitor::resting_adoption(const SteeredPair &pair) {
    for (unsigned side = 0; side < 2; ++side) {
        const auto it = moved_.find({pair.end[side]->segment.get(), pair.end[side]->ofd.index});
        std::shared_ptr<Adoption> adoption = it != moved_.end() ? it->second.adoption : nullptr;
        if (!adoption) {
            continue;
        }
        bool is_same = adoption->rests;
        for (unsigned other = 0; other < 2; ++other) {
            const auto end = adopted_end(*adoption, other);
            const SteeredEnd &now = *pair.end[other];
            is_same = is_same && end != moved_.end() && end->second.segment == now.segment &&
                      end->second.ofd == now.ofd.index && end->second.generation == now.ofd.generation;
        }
        if (is_same) {
            return adoption;
        }
        forget_adoption(adoption);
    }
    return nullptr;
}

/// `told`: the ends that are to leave the ring; the peer of one that is not told is called home by it.
Blocker Monitor::begin_adoption(const SteeredPair &pair, const bool (&told)[2]) {
    if (const Blocker blocker = adoption_objects(pair); blocker != Blocker::none) {
        return blocker;
    }
    const Client &owner = *pair.end[0]->ofd.holders.front();
    const UniqueFd own(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (owner.ns == nullptr || netns_cookie(own.get()) != owner.ns->cookie) {
        return Blocker::elsewhere;
    }
    const Slot &slot = pair.link->view(1).slot(pair.slot);
    SlotAddress client, server; // private copies
    memcpy(&client, &slot.identity.client, sizeof client);
    memcpy(&server, &slot.identity.server, sizeof server);
    if (!may_have_names(pair, client, server)) {
        return Blocker::no_names;
    }
    std::shared_ptr<Adoption> adoption = resting_adoption(pair);
    if (adoption) {
        if (!goes_by_steps(pair)) {
            return Blocker::shared;
        }
        adoption->rests = false;
    } else if (!make_adoption(pair, client, server, adoption)) {
        return Blocker::no_sockets;
    }
    const uint32_t serial = adoption ? adoption->serial << kTxSerialShift : 0;
    for (unsigned side = 0; side < 2; ++side) {
        const SteeredEnd &end = *pair.end[side];
        Ofd &words = end.words();
        words.lowat_kept.store(words.rcvlowat.load(std::memory_order_seq_cst), std::memory_order_seq_cst);
        if (told[side]) {
            pair.link->view(side).slot(pair.slot).side[side].control.flags.fetch_or(kFlagHome,
                                                                                    std::memory_order_seq_cst);
        }
        words.tx_block.fetch_or(serial | kTxMoved | kTxAdopt | (told[side] ? uint32_t{kTxPath} : 0),
                                std::memory_order_seq_cst);
        words.rcvlowat.store(kMovedLowat, std::memory_order_seq_cst);
    }
    for (unsigned side = 0; side < 2; ++side) {
        mark_and_ring(*pair.link, pair.slot, side, 0);
    }
    if (adoption) {
        review_adoption(adoption); // all may have had the sockets before
    }
    return Blocker::none;
}

/// Of an adoption that is under way.
Monitor::MovedConnections::iterator Monitor::adopted_end(const Adoption &adoption, unsigned side) {
    const auto it = moved_.find(adoption.end[side]);
    return it != moved_.end() && it->second.adoption.get() == &adoption ? it : moved_.end();
}

/// Is the Ofd still what was marked, and somebody's?
bool Monitor::is_there(const MovedConnection &moved) {
    const Ofd &words = moved.segment->view().ofd(moved.ofd);
    return words.state.load(std::memory_order_acquire) == static_cast<uint32_t>(OfdState::open) &&
           words.generation == moved.generation &&
           moved.segment->holders(moved.ofd, [](const Client &) { return true; }).all != 0;
}

/// The same, and marked?
bool Monitor::is_adopting(const MovedConnection &moved) {
    const Ofd &words = moved.segment->view().ofd(moved.ofd);
    const uint32_t block = words.tx_block.load(std::memory_order_seq_cst);
    return words.state.load(std::memory_order_acquire) == static_cast<uint32_t>(OfdState::open) &&
           words.generation == moved.generation && (block & kTxAdopt) != 0 &&
           adoption_of(block) == moved.adoption->serial;
}

/// Of the adoption `serial`, as long as nobody has been told to begin. False: a holder has taken the marks
/// away. What is not marked is not told, or every send would look why.
bool Monitor::change_mark(Ofd &words, uint32_t serial, uint32_t set, uint32_t clear) {
    uint32_t block = words.tx_block.load(std::memory_order_seq_cst);
    do {
        if ((block & (kTxAdopt | kTxBegin)) != kTxAdopt || adoption_of(block) != serial) {
            return false;
        }
    } while (!words.tx_block.compare_exchange_weak(block, (block & ~clear) | set, std::memory_order_seq_cst));
    return true;
}

/// A former monitor was killed between telling the one end to begin and the other: everybody has the sockets.
bool Monitor::finish_adoption(const SteeredPair &pair, unsigned side) {
    const std::optional<SteeredEnd> &end = pair.end[side], &other = pair.end[1 - side];
    const uint32_t block = end->words().tx_block.load(std::memory_order_seq_cst);
    const uint32_t others = other ? other->words().tx_block.load(std::memory_order_seq_cst) : 0;
    const bool was_told =
        other && (other->ofd.has_paths || ((others & (kTxAdopt | kTxBegin)) == (kTxAdopt | kTxBegin) &&
                                           adoption_of(others) == adoption_of(block)));
    if (!was_told || !change_mark(end->words(), adoption_of(block), kTxBegin, 0)) {
        return false;
    }
    mark_and_ring(*pair.link, pair.slot, side, 0);
    mark_and_ring(*pair.link, pair.slot, 1 - side, 0);
    return true;
}

/// Who sleeps for the end looks at its words again.
void Monitor::wake_holders(const Segment &segment, uint32_t ofd_index) const {
    const Ofd &ofd = segment.view().ofd(ofd_index);
    const volatile uint64_t &link_id = ofd.link_id; // each is read once
    const volatile uint32_t &slot_word = ofd.slot;
    const volatile uint8_t &side_word = ofd.side;
    const uint32_t slot = slot_word;
    const unsigned side = side_word;
    const Link *link = side < 2 ? family_link(segment, link_id, side) : nullptr;
    if (link != nullptr && slot < kLinkSlots) {
        mark_and_ring(*link, slot, 1 - side, 0);
    }
}

/// Takes the marks away before anybody has begun; both ends stay what they are. Who has a socket keeps it,
/// and so do we, for the next time.
void Monitor::rest_adoption(const std::shared_ptr<Adoption> &adoption) {
    log::debug("adoption {} ends before it has begun", adoption->serial);
    for (unsigned side = 0; side < 2; ++side) {
        const auto it = adopted_end(*adoption, side);
        if (it != moved_.end() && is_adopting(it->second)) {
            clear_adoption(it->second.segment->view().ofd(it->second.ofd));
            wake_holders(*it->second.segment, it->second.ofd);
        }
    }
    if (adoption->is_given) {
        adoption->rests = true;
    } else {
        forget_adoption(adoption);
    }
}

/// No descriptor is kept. `adoption` is a reference of the caller's own.
void Monitor::forget_adoption(const std::shared_ptr<Adoption> &adoption) {
    for (unsigned side = 0; side < 2; ++side) {
        if (const auto it = adopted_end(*adoption, side); it != moved_.end()) {
            moved_.erase(it);
        }
    }
}

/// Of an end that nobody is told to begin with.
void Monitor::clear_adoption(Ofd &words) {
    words.rcvlowat.store(words.lowat_kept.load(std::memory_order_seq_cst), std::memory_order_seq_cst);
    words.tx_block.fetch_and(~(kTxAdopting | uint32_t{kTxPath}), std::memory_order_seq_cst);
}

/// Who holds an end has changed, or who has the socket: does everybody have it?
void Monitor::review_adoption(const std::shared_ptr<Adoption> &adoption) {
    bool all = true, is_marked = true;
    for (unsigned side = 0; side < 2; ++side) {
        const auto it = adopted_end(*adoption, side);
        if (it == moved_.end() || !is_there(it->second)) {
            rest_adoption(adoption);
            forget_adoption(adoption);
            return;
        }
        is_marked = is_marked && is_adopting(it->second);
        const Segment::Holders holders = it->second.segment->holders(it->second.ofd, [&](const Client &client) {
            return client.kind != Client::Kind::ended && adoption->fetched[side].count(client.id) != 0;
        });
        all = all && holders.all == holders.counted;
    }
    if (!is_marked && !adoption->rests) {
        rest_adoption(adoption); // a holder has taken the marks away
    }
    if (!is_marked) {
        return;
    }
    if (!adoption->has_sockets) {
        get_sockets(adoption, all);
        return;
    }
    if (!all) {
        return;
    }
    for (unsigned side = 0; side < 2; ++side) { // from now on its end is the connection's
        const MovedConnection &moved = adopted_end(*adoption, side)->second;
        const auto ends_in_order = [](int socket) {
            end_at_once(socket, false);
            return true;
        };
        if (!ask(moved.socket.get(), user_of(*moved.segment), ends_in_order)) { // a holder keeps its lock
            rest_adoption(adoption);
            return;
        }
    }
    for (unsigned side = 0; side < 2; ++side) {
        const MovedConnection &moved = adopted_end(*adoption, side)->second;
        if (!change_mark(moved.segment->view().ofd(moved.ofd), adoption->serial, kTxBegin, 0) && side == 0) {
            rest_adoption(adoption);
            return;
        } // if it is the second one, the first begins alone, and nobody leaves the ring
    }
    for (unsigned side = 0; side < 2; ++side) {
        moved_.erase(adoption->end[side]);
    }
    for (const auto &[segment, ofd] : adoption->end) {
        wake_holders(*segment, ofd);
    }
}

/// `to` has what `from` has: it is its child, or the same process.
void Monitor::copy_fetched(const Client &from, const Client &to) {
    for (const Client::Share &share : from.segments) {
        for (auto it = moved_.lower_bound({share.segment.get(), 0});
             it != moved_.end() && it->first.first == share.segment.get(); ++it) {
            for (auto *fetched = it->second.adoption ? it->second.adoption->fetched : nullptr;
                 fetched != nullptr && fetched != it->second.adoption->fetched + 2; ++fetched) {
                if (fetched->count(from.id) != 0) {
                    fetched->insert(to.id);
                }
            }
        }
    }
}

} // namespace sd::monitor
