// Ends of connections whose other end is on another host: offered, joined by the host that has connected, or
// left with the kernel.
#include "monitor/operations/monitor.hpp"
#include "monitor/peers/helper.hpp"
#include "monitor/service/log.hpp"

#include <algorithm>
#include <cerrno>

namespace sd::monitor {

namespace {

namespace say = between_hosts;

constexpr uint32_t kLetGo = kFlagDead | kFlagClosed | kFlagReleased;

} // namespace

/// Why the end that is here must not be joined; none: it may, as far as this host knows.
Cause Monitor::far_objects(const Offer &offer) const {
    const Client &client = *offer.client;
    if (client.detached) {
        return Cause::detached;
    }
    // A container has no device of its own, and is not given one.
    if (client.contained || read_party(client.pid, client.pidfd.get()).is_contained) {
        return Cause::other_tenant;
    }
    ListenAddress at;
    at.port = offer.side == 0 ? offer.socket.names.peer.port : offer.socket.names.local.port;
    const auto &ip = offer.side == 0 ? offer.socket.names.peer.ip : offer.socket.names.local.ip;
    std::copy(ip.begin(), ip.end(), std::begin(at.ip));
    if (offer.side == 1 && listener_of(offer) == nullptr) {
        return Cause::listener_gone;
    }
    return config_.policy.allows_far(client.who, offer.side == 1, at) ? Cause::none : Cause::policy;
}

/// An end whose other end is on that host. Its process hears later, by SegmentHeader::joined.
Reply Monitor::offer_to_host(Client &client, uint32_t side, uint32_t no_rdma, const ConnectedSocket &socket,
                             const ForeignEnd &end, const std::string &name) {
    RemoteHost &host = remote_host(name);
    if (!is_rdma_on() || !host.is_running() || end.has_connected != (side == 0)) {
        return Reply::error(EACCES, Cause::remote_host);
    }
    if (no_rdma != 0) { // the process knows better than to have it joined
        const bool is_soft = no_rdma == static_cast<uint32_t>(Cause::soft_rdma);
        return Reply::error(EACCES, is_soft ? Cause::soft_rdma : Cause::no_rdma);
    }
    const OfferKey key(socket.names.netns, socket.cookie);
    if (const auto known = offers_.find(key); known != offers_.end()) {
        Reply reply;
        reply.set(wire::OfferReply{});
        return known->second.client == &client ? std::move(reply) : Reply::error(EEXIST);
    }
    Offer made{&client, side, socket};
    made.host = &host;
    made.pair = end.pair;
    if (const Cause cause = far_objects(made); cause != Cause::none) {
        return Reply::error(EACCES, cause);
    }
    if (client.offers.size() >= kMostOffers) {
        return Reply::error(EMFILE, Cause::limit);
    }
    made.charge = std::make_shared<Charge>(charge(client.payer, Resource::offers, 0));
    made.number = ++host.last_offer;
    log::debug("process {} offers the {} end of a connection with {}", client.pid,
               side == 0 ? "connecting" : "accepting", name);
    client.offers.insert(key);
    host.offers[made.number] = key;
    Offer &kept = offers_[key] = made;
    if (side == 1) {
        tell(host, say::Offer{made.number, client.id, made.pair});
    } else {
        host.connected[made.pair] = made.number;
        if (const say::Offer *foreign = host.foreign.find(made.pair)) {
            join_far(kept, *foreign);
        }
    }
    Reply reply;
    reply.set(wire::OfferReply{});
    return reply;
}

const char *Monitor::heard(RemoteHost &host, const say::Offer &m) {
    if (const auto it = host.connected.find(m.pair); it != host.connected.end()) {
        join_far(offers_.at(host.offers.at(it->second)), m);
    } else {
        host.crowded += host.foreign.add(m) ? 1 : 0;
    }
    return nullptr;
}

const char *Monitor::heard(RemoteHost &host, const say::Withdrawn &m) {
    host.foreign.remove(m.number);
    return nullptr;
}

/// Both ends are known, and this host has connected.
void Monitor::join_far(Offer &offer, const say::Offer &foreign) {
    if (offer.asked || offer.link != nullptr || offer.refused != Cause::none) {
        return; // it has been said before
    }
    RemoteHost &host = *offer.host;
    const uint64_t theirs = foreign.number, process = foreign.process;
    host.foreign.remove(theirs); // `foreign` may be in there
    Cause cause = far_objects(offer);
    if (cause == Cause::none && !may_pair_again(*offer.client, host, process)) {
        cause = Cause::no_rdma;
    }
    Link *link = cause == Cause::none ? link_to_host(*offer.client, host, process) : nullptr;
    const auto slot = link == nullptr ? std::nullopt : link->take_joined_slot();
    if (!slot) {
        const Cause none_left = link == nullptr && !may_pair(*offer.client) ? Cause::no_rdma : Cause::no_slot;
        cause = cause == Cause::none ? none_left : cause;
        tell(host, say::Refused{theirs, static_cast<uint32_t>(cause), 0});
        stay_with_kernel(offer, cause);
        return;
    }
    begin_far_slot(offer, *link, *slot);
    offer.asked = say::Joined{theirs, offer.number, link->id, *slot, link->joined_so_far};
    tell(host, *offer.asked);
}

/// The offer has the slot, which is at rest.
void Monitor::begin_far_slot(Offer &offer, Link &link, uint32_t slot) {
    const ConnectionNames &names = offer.socket.names;
    name_slot(link, slot, offer.side == 0 ? names.local : names.peer, offer.side == 0 ? names.peer : names.local);
    offer.link = &link;
    offer.slot = slot;
    link.offers.insert({names.netns, offer.socket.cookie});
}

/// The offer has no slot any more, and its process has not heard of one.
void Monitor::leave_link(Offer &offer) {
    Link &link = *std::exchange(offer.link, nullptr);
    link.offers.erase({offer.socket.names.netns, offer.socket.cookie});
    offer.asked.reset();
    for (unsigned side = 0; side < 2; ++side) {
        link.view(side).slot(offer.slot).side[side].control.flags.fetch_or(kLetGo, std::memory_order_seq_cst);
    }
}

/// Its process is told why when it asks.
void Monitor::stay_with_kernel(Offer &offer, Cause cause) {
    ++offer.host->refused;
    offer.refused = cause;
    close_offer(offer);
    wake_offerer(*offer.client);
}

void Monitor::wake_offerer(Client &client) {
    if (client.own) {
        client.own->view().header().joined.fetch_add(1, std::memory_order_seq_cst);
    }
}

/// The host's monitor is done with it, or is not to hear of it any more.
void Monitor::close_offer(const Offer &offer) {
    RemoteHost &host = *offer.host;
    host.offers.erase(offer.number);
    if (const auto it = host.connected.find(offer.pair);
        it != host.connected.end() && it->second == offer.number) {
        host.connected.erase(it);
    }
}

/// Before its process, its connection or its link goes, or when its process has heard.
void Monitor::withdraw_from_host(Offer &offer) {
    const bool is_open = offer.host->offers.count(offer.number) != 0;
    close_offer(offer);
    if (offer.asked) {
        offer.host->closed[offer.number] = *offer.asked;
    }
    if (is_open && offer.side == 1 && offer.host->is_running()) {
        tell(*offer.host, say::Withdrawn{offer.number});
    }
}

const char *Monitor::heard(RemoteHost &host, const say::Joined &m) {
    const auto refuse = [&](Cause cause) {
        tell(host, say::Refused{m.ours, static_cast<uint32_t>(cause), 0});
    };
    const auto named = host.named.find(m.link);
    Link *link = named == host.named.end() ? nullptr : named->second;
    if (link != nullptr && link->far->side != 0) {
        return "a link whose other end it has";
    }
    const auto open = host.offers.find(m.theirs);
    if (open == host.offers.end()) {
        // Said again after the channel was away: the answer may have been lost.
        if (link != nullptr && link->joins->test(m.slot) && link->arrival(m.slot) == m.use) {
            tell(host, say::Taken{m.ours, link->id, m.link});
        } else {
            refuse(Cause::undiscovered); // it has been closed meanwhile
        }
        return nullptr;
    }
    Offer &offer = offers_.at(open->second);
    if (offer.side != 1) {
        return "an offer that was not made to it";
    }
    Cause cause = far_objects(offer);
    if (cause == Cause::none && link == nullptr && !may_pair(*offer.client)) {
        cause = Cause::no_rdma;
    }
    if (cause == Cause::none && link == nullptr) {
        link = make_far_link(*offer.client, {&host, 0, 0, m.link});
        if (link != nullptr) {
            host.named[m.link] = link;
        }
    }
    if (cause == Cause::none && link != nullptr && link->own_process() != offer.client) {
        if (link->side[1].attached.count(offer.client) == 0) {
            return "a link of another process";
        }
        cause = Cause::crossed; // it has forked: the next connection gets another link
    }
    if (cause == Cause::none && link != nullptr && link->lost()) {
        cause = Cause::no_rdma;
    }
    if (cause == Cause::none && (link == nullptr || !link->take_slot(m.slot, m.use))) {
        cause = Cause::no_slot;
    }
    if (cause != Cause::none) {
        refuse(cause);
        stay_with_kernel(offer, cause);
        return nullptr;
    }
    begin_far_slot(offer, *link, m.slot);
    close_offer(offer);
    ++host.joined;
    tell(host, say::Taken{m.ours, link->id, m.link});
    wake_offerer(*offer.client);
    return nullptr;
}

const char *Monitor::heard(RemoteHost &host, const say::Taken &m) {
    if (const char *wrong = learn_number(host, m.their_link, m.link)) {
        return wrong;
    }
    const auto open = host.offers.find(m.theirs);
    if (open == host.offers.end()) { // closed meanwhile
        host.closed.erase(m.theirs);
        return nullptr;
    }
    Offer &offer = offers_.at(open->second);
    if (!offer.asked || offer.link->id != m.their_link) {
        return "an answer to what was not asked";
    }
    offer.asked.reset();
    close_offer(offer);
    ++host.joined;
    wake_offerer(*offer.client);
    return nullptr;
}

const char *Monitor::heard(RemoteHost &host, const say::Refused &m) {
    const auto open = host.offers.find(m.theirs);
    if (open == host.offers.end()) {
        if (const auto closed = host.closed.extract(m.theirs)) {
            not_taken(host, closed.mapped());
        }
        return nullptr;
    }
    Offer &offer = offers_.at(open->second);
    if (offer.side == 0 && !offer.asked) {
        return "an answer to what was not asked";
    }
    Link *asked = offer.asked ? offer.link : nullptr;
    if (asked != nullptr) {
        asked->far->is_crowded = static_cast<Cause>(m.cause) == Cause::crossed;
        leave_link(offer);
    }
    // A later version may have causes that this one does not know.
    stay_with_kernel(offer, *cause_text(m.cause) == '\0' ? Cause::remote_host : static_cast<Cause>(m.cause));
    if (asked != nullptr) {
        leave_if_untold(*offer.client, *asked, offer.side);
    }
    return nullptr;
}

/// The host has not taken the slot of an offer that was closed meanwhile. A link of which it has taken none
/// it does not know, and says nothing about; nobody else waits for one whose process here has ended.
void Monitor::not_taken(RemoteHost &host, const say::Joined &asked) {
    const auto it = host.links.find(asked.link);
    if (it == host.links.end()) {
        return;
    }
    Link &link = *it->second;
    const unsigned far = link.far->side;
    if (link.joins->test(asked.slot) && link.arrival(asked.slot) == asked.use) {
        link.view(far).slot(asked.slot).side[far].control.flags.fetch_or(kLetGo, std::memory_order_seq_cst);
    }
    if (link.far->number == 0 && link.side[1 - far].empty() && !is_kept_for_peer(link)) {
        forget(link);
    }
}

/// Who lists its links does not say what it was asked before: what it does not list it has not taken.
void Monitor::forget_closed(RemoteHost &host) {
    for (const auto &[number, asked] : std::exchange(host.closed, {})) {
        const auto it = host.links.find(asked.link);
        if (it != host.links.end() && it->second->far->number == 0) {
            not_taken(host, asked);
        }
    }
}

} // namespace sd::monitor
