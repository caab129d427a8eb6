// Connections whose holders go over to a kernel socket, one after the other. The argument is in
// libsd/vfs/sharing/moved.hpp.
#include "monitor/operations/monitor.hpp"
#include "monitor/service/log.hpp"

#include <algorithm>
#include <cerrno>

namespace sd::monitor {

/// Whether the holders of a parcel's connection can go over to a socket now, which is paid for; or an errno.
int Monitor::can_move(const Parcel &parcel, Charge &paid) {
    const HandoffRecord &p = parcel.handoff;
    const Ofd &ofd = parcel.segment->view().ofd(p.ofd_index);
    if (ofd.state.load(std::memory_order_acquire) != static_cast<uint32_t>(OfdState::open) ||
        ofd.generation != p.generation) {
        return EINVAL;
    }
    if ((ofd.tx_block.load(std::memory_order_seq_cst) & kTxMoved) != 0) {
        return EALREADY; // two of them at the same time
    }
    try { // the socket stays for longer than the parcel
        paid = charge(parcel.charge.payer(), Resource::parcels, 1);
    } catch (const OverShare &) {
        return ENOBUFS;
    }
    return 0;
}

/// With a parcel that has just been handed in. `socket`: what was passed. 0, or an errno: nothing has
/// changed, and the parcel has ended.
int Monitor::move_holders(Parcel &parcel, ClientSocket socket) {
    Charge paid;
    if (const int error = can_move(parcel, paid); error != 0) {
        end_parcel(parcel);
        return error;
    }
    return carry_for_all(parcel, std::move(socket), std::move(paid));
}

/// The passed `socket` is in the hands of somebody who has libsd, but may not share the connection. Others
/// who hold it would read what is his, and what they write would have no order: they get that socket, too.
void Monitor::move_with_receiver(Parcel &parcel, ClientSocket socket) {
    const HandoffRecord &p = parcel.handoff;
    const Ofd &ofd = parcel.segment->view().ofd(p.ofd_index);
    const bool alone = parcel.segment->holders(p.ofd_index, [](const Client &) { return false; }).all <= 1;
    Charge paid;
    if (parcel.bridged || alone || (ofd.flags_seen.load(std::memory_order_acquire) & kSeenPath) != 0 ||
        can_move(parcel, paid) != 0) {
        bridge(parcel);
        return;
    }
    // On its way it could not say so: a FIN would have meant that nobody has it. Who holds the socket may
    // have its lock; then it is carried for the receiver alone, and shut when the lock is free.
    const bool reads = ofd.rx_shut.load(std::memory_order_relaxed) == 0;
    const bool writes = (ofd.tx_block.load(std::memory_order_relaxed) & kTxShut) == 0;
    const auto shut = [reads, writes](int passed) {
        const int read_end = reads ? 0 : shutdown(passed, SHUT_RD),
                  write_end = writes ? 0 : shutdown(passed, SHUT_WR);
        return read_end == 0 && write_end == 0;
    };
    if (!(reads && writes) && !ask(socket.get(), parcel.uid, shut)) {
        bridge(parcel);
        return;
    }
    parcel.start = wire::BridgeStart::for_all;
    (void)carry_for_all(parcel, std::move(socket), std::move(paid)); // fails as bridge() does
}

/// The socket that the holders of the parcel's connection share, or have come to share while it was on its
/// way; null: they work on the rings.
const ClientSocket *Monitor::common_socket(const Parcel &parcel) const {
    const auto it = moved_.find({parcel.segment.get(), parcel.handoff.ofd_index});
    const bool is_there = it != moved_.end() && it->second.generation == parcel.handoff.generation &&
                          !it->second.adoption && !it->second.is_adopted;
    return is_there ? &it->second.socket : nullptr;
}

int Monitor::carry_for_all(Parcel &parcel, ClientSocket socket, Charge paid) {
    const HandoffRecord &p = parcel.handoff;
    Ofd &ofd = parcel.segment->view().ofd(p.ofd_index);
    const uint64_t id = parcel.id;
    int error = 0;
    const Link &link = *parcel.link;
    const int32_t low = ofd.rcvlowat.load(std::memory_order_seq_cst);
    ofd.tx_block.fetch_or(kTxMoved, std::memory_order_seq_cst);
    ofd.rcvlowat.store(kMovedLowat, std::memory_order_seq_cst);
    const std::shared_ptr<Segment> segment = parcel.segment;
    const HandoffRecord handoff = p;
    moved_[{segment.get(), p.ofd_index}] = {segment,         p.ofd_index, p.generation, std::move(socket),
                                            std::move(paid), false,       nullptr};
    bridge(parcel); // may end it
    if (parcels_.count(id) == 0) {
        ofd.rcvlowat.store(low, std::memory_order_seq_cst);
        ofd.tx_block.fetch_and(~uint32_t{kTxMoved}, std::memory_order_seq_cst);
        moved_.erase({segment.get(), handoff.ofd_index});
        error = ENOBUFS;
    }
    // Those who wait, to see the mark; or, if they have seen it, that it has gone.
    mark_and_ring(link, handoff.slot, 1 - handoff.side, 0);
    return error;
}

namespace {

void note_fetched(Adoption &adoption, const std::pair<const Segment *, uint32_t> &end, const Client &client) {
    for (unsigned side = 0; side < 2; ++side) {
        if (adoption.end[side] == end) {
            adoption.fetched[side].insert(client.id);
        }
    }
}

} // namespace

/// Somebody comes for the socket. EAGAIN: there are none yet, and he has none of a former adoption; where
/// there are some later, the mark is another one.
Reply Monitor::moved(Client &client, Request &request) {
    const auto body = request.as<wire::Moved>();
    const auto it = find_moved(client, body);
    if (it == moved_.end() || (it->second.adoption ? it->second.adoption->serial : 0) != body.adoption) {
        return Reply::error(ENOENT);
    }
    const std::shared_ptr<Adoption> adoption = it->second.adoption;
    if (adoption && !adoption->has_sockets) {
        note_fetched(*adoption, it->first, client);
        review_adoption(adoption);
        return Reply::error(EAGAIN);
    }
    Reply reply;
    reply.fds.push_back(it->second.socket.get());
    if (adoption) {
        adoption->is_given = true;
    }
    return reply;
}

Reply Monitor::let_go(Client &client, Request &request) {
    const auto body = request.as<wire::Moved>();
    const auto it = find_moved(client, body);
    if (it == moved_.end()) {
        return {};
    }
    if (const std::shared_ptr<Adoption> adoption = it->second.adoption) {
        if (body.adoption == adoption->serial && adoption->has_sockets) {
            note_fetched(*adoption, it->first, client);
        }
        review_adoption(adoption);
    } else if (it->second.is_adopted) { // it has the socket, or will not have it
        moved_.erase(it);
    } else {
        review_moved(*it->second.segment);
    }
    return {};
}

Monitor::MovedConnections::iterator Monitor::find_moved(const Client &client, const wire::Moved &body) {
    const uint64_t name = body.segment == 0 ? client.id : body.segment;
    const auto share = std::find_if(client.segments.begin(), client.segments.end(),
                                    [name](const Client::Share &s) { return s.name == name; });
    if (share == client.segments.end()) {
        return moved_.end();
    }
    const auto it = moved_.find({share->segment.get(), body.ofd_index});
    return it != moved_.end() && it->second.generation == body.generation ? it : moved_.end();
}

/// Who holds connections of this segment has changed: sockets that nobody will come for are closed. An
/// sd-bridge comes for none.
void Monitor::review_moved(const Segment &segment) {
    auto it = moved_.lower_bound({&segment, 0});
    if (it == moved_.end() || it->first.first != &segment) {
        return;
    }
    std::vector<uint64_t> wanted =
        segment.held_by_members([](const Client &member) { return member.bridge == 0; });
    for (const auto &[id, parcel] : parcels_) {
        if (!parcel->bridged && parcel->segment.get() == &segment) {
            wanted[parcel->handoff.ofd_index / 64] |= uint64_t{1} << parcel->handoff.ofd_index % 64;
        }
    }
    std::vector<std::shared_ptr<Adoption>> adoptions;
    while (it != moved_.end() && it->first.first == &segment) {
        const uint32_t ofd = it->second.ofd;
        if (it->second.adoption) {
            adoptions.push_back(it->second.adoption);
            ++it;
        } else if ((wanted[ofd / 64] >> ofd % 64 & 1) != 0) {
            ++it;
        } else {
            it = moved_.erase(it);
        }
    }
    for (const auto &adoption : adoptions) {
        review_adoption(adoption);
    }
}

} // namespace sd::monitor
