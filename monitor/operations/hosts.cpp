// Connections with programs of another host: the monitors of both look for the two ends, and join them.
//
// Of the two the host that has connected joins, since it is the one that knows both ends: its own, and the
// one that the other host has offered. Each host asks its own policy about its own end. Whatever a peer says,
// it can end its channel, refuse, or spoil connections with itself. docs/design/rdma.md has the messages.
#include "monitor/operations/monitor.hpp"
#include "monitor/peers/helper.hpp"
#include "monitor/service/log.hpp"

#include <algorithm>
#include <cerrno>
#include <nlohmann/json.hpp>

namespace sd::monitor {

namespace {

namespace say = between_hosts;

constexpr uint32_t kLetGo = kFlagDead | kFlagClosed | kFlagReleased;

/// The process of the side that is here.
Client *own_process(const Link &link) {
    const auto &attached = link.side[1 - link.far->side].attached;
    return attached.size() == 1 ? *attached.begin() : nullptr;
}

} // namespace

RemoteHost &Monitor::remote_host(const std::string &name) {
    RemoteHost &host = remote_hosts_[name];
    host.name = name;
    return host;
}

void Monitor::tell(const RemoteHost &host, const say::LinkMessage &message) {
    peers_->send(host.name, message);
}

// The channel.

void Monitor::host_is_there(const std::string &name) {
    RemoteHost &host = remote_host(name);
    host.step = RemoteHost::Step::silent;
    host.carries = peers_->carries(name);
    host.is_given_up = false;
    host.foreign.clear();
    host.listed.clear();
    tell(host, say::Epoch{epoch_});
    for (const auto &[number, link] : host.links) {
        tell(host, say::Links{number, link->far->number});
    }
    tell(host, say::Links{});
}

/// What runs, runs on: the processes carry it.
void Monitor::host_is_away(const std::string &name) {
    RemoteHost &host = remote_host(name);
    host.step = RemoteHost::Step::away;
    host.foreign.clear();
    stop_carrying(host);
}

void Monitor::host_says(const std::string &name, const say::LinkMessage &message) {
    RemoteHost &host = remote_host(name);
    using Step = RemoteHost::Step;
    const bool is_epoch = std::holds_alternative<say::Epoch>(message);
    const bool is_list = std::holds_alternative<say::Links>(message);
    if (host.step == Step::away || is_epoch != (host.step == Step::silent) ||
        is_list != (host.step == Step::listing)) {
        peers_->refuse(name, "a message about links out of turn");
        return;
    }
    const char *wrong = std::visit([&](const auto &m) { return heard(host, m); }, message);
    if (wrong != nullptr) {
        peers_->refuse(name, wrong);
    }
}

const char *Monitor::heard(RemoteHost &host, const say::Epoch &m) {
    if (host.epoch != m.epoch) {
        lose_links(host);
        host.epoch = m.epoch;
    }
    host.step = RemoteHost::Step::listing;
    return nullptr;
}

const char *Monitor::heard(RemoteHost &host, const say::Links &m) {
    if (m.link != 0) {
        host.listed.insert(m.link);
        return host.listed.size() > kMostFarLinks ? "more links than it can have"
               : m.their_link != 0                ? learn_number(host, m.their_link, m.link)
                                                  : nullptr;
    }
    std::vector<Link *> gone;
    for (const auto &[number, link] : host.named) {
        if (host.listed.count(number) == 0) {
            gone.push_back(link);
        }
    }
    for (Link *link : gone) {
        far_side_gone(*link);
    }
    host.listed.clear();
    host.step = RemoteHost::Step::running;
    if (host.patience != 0) {
        loop_.cancel(std::exchange(host.patience, 0));
    }
    // What is open, in the order in which it was said before.
    std::vector<say::Joined> asked;
    for (const auto &[number, key] : host.offers) {
        const Offer &offer = offers_.at(key);
        if (offer.asked) {
            asked.push_back(*offer.asked);
        } else if (offer.side == 1) {
            tell(host, say::Offer{number, offer.client->id, offer.pair});
        }
    }
    for (const say::Joined &again : asked) {
        tell(host, again);
    }
    for (const auto &[number, link] : host.links) {
        const unsigned own = 1 - link->far->side;
        for (const uint32_t step : {uint32_t{wire::kGreets}, uint32_t{wire::kCanReceive}}) {
            if (link->greeted[own].step >= step) {
                greet_host(*link, step);
            }
        }
    }
    begin_carrying(host);
    return nullptr;
}

/// Of a link that this host has made, as soon as it is told. What has ended here meanwhile is no fault.
const char *Monitor::learn_number(RemoteHost &host, uint64_t here, uint64_t there) {
    const auto it = host.links.find(here);
    if (it == host.links.end()) {
        return nullptr;
    }
    Link::Far &far = *it->second->far;
    if (far.number == 0 && host.named.count(there) == 0) {
        far.number = there;
        host.named[there] = it->second;
    }
    return far.number == there ? nullptr : "another number of a link than before";
}

/// The monitor there is another one than before, and knows nothing of these links. The processes at both ends
/// may live, so nobody is told that one has ended.
void Monitor::lose_links(RemoteHost &host) {
    for (const auto &[number, link] : std::exchange(host.links, {})) {
        for (const OfferKey &key : std::set<OfferKey>(link->offers)) {
            const auto it = offers_.find(key);
            if (it->second.asked) {
                leave_link(it->second);
            } else {
                forget_offer(it); // its process has not heard, and does not
            }
        }
        link->far->host = nullptr;
        link->side[link->far->side].is_far = false;
        if (link->lost()) {
            give_up_slots(*link);
        }
        if (link->side[1 - link->far->side].empty()) {
            forget(*link); // what it still had is for nobody
        }
    }
    host.named.clear();
}

// Offers.

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
    if (offer.side == 1 &&
        std::none_of(client.listeners.begin(), client.listeners.end(),
                     [&](const Listener *listener) { return listener->address.port == at.port; })) {
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

/// The link of our process to that one there, if there is room for it.
Link *Monitor::link_to_host(Client &connector, RemoteHost &host, uint64_t process) {
    for (const auto &[name, attachment] : connector.links) {
        Link *link = attachment.link;
        if (attachment.side[0] && link->far && link->far->host == &host && link->far->process == process &&
            !link->far->is_crowded && !link->lost() && link->side[1].is_far && own_process(*link) == &connector) {
            return link;
        }
    }
    return connector.links_made < config_.limits.links_per_client
               ? make_far_link(connector, {&host, 1, process, 0})
               : nullptr;
}

/// Null: the process, its user or the peer has as many as it may.
Link *Monitor::make_far_link(Client &own, const Link::Far &far) {
    if (far.host->links.size() >= kMostFarLinks) {
        return nullptr;
    }
    const unsigned side = 1 - far.side;
    std::unique_ptr<Link> made;
    try {
        Charge paid = charge(own.payer, Resource::links, 1);
        made = Link::create_far(next_id_++, far);
        made->charge = std::move(paid);
    } catch (const std::runtime_error &error) { // OverShare, or no memory or descriptor
        log::debug("no link from process {} to {}: {}", own.pid, far.host->name, error.what());
        return nullptr;
    }
    made->maker = own.payer.user ? own.payer.user : own.payer.group;
    Link &link = *(links_[made->file] = std::move(made));
    if (!attach(own, link, link.id, side)) {
        forget(link);
        return nullptr;
    }
    own.links_made += side == 0 ? 1 : 0;
    link.header(side).side[side].process = static_cast<uint32_t>(own.pid);
    far.host->links[link.id] = &link;
    return &link;
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
        cause = cause == Cause::none ? Cause::no_slot : cause;
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
    if (cause == Cause::none && link == nullptr) {
        link = make_far_link(*offer.client, {&host, 0, 0, m.link});
        if (link != nullptr) {
            host.named[m.link] = link;
        }
    }
    if (cause == Cause::none && link != nullptr && own_process(*link) != offer.client) {
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
    if (open == host.offers.end()) {
        return nullptr; // closed meanwhile
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
        return nullptr;
    }
    Offer &offer = offers_.at(open->second);
    if (offer.side == 0 && !offer.asked) {
        return "an answer to what was not asked";
    }
    if (offer.asked) {
        offer.link->far->is_crowded = static_cast<Cause>(m.cause) == Cause::crossed;
        leave_link(offer);
    }
    // A later version may have causes that this one does not know.
    stay_with_kernel(offer, *cause_text(m.cause) == '\0' ? Cause::remote_host : static_cast<Cause>(m.cause));
    return nullptr;
}

// Links.

const char *Monitor::heard(RemoteHost &host, const say::Greeting &m) {
    const auto named = host.named.find(m.link);
    if (named == host.named.end()) {
        return nullptr; // its process here has just ended
    }
    const Link &link = *named->second;
    const unsigned side = link.far->side;
    Link::Greeted &theirs = named->second->greeted[side];
    if (m.step == wire::kGreets) {
        uint8_t address[16];
        memcpy(address, m.hello.data() + wire::kHelloAddress, sizeof address);
        if (!peers_->is_address_of(host.name, address)) {
            ++host.strange;
            log::warn("peer {}: its process names a device's address that is not one of that host's; "
                      "\"addresses\" of [[peer]] says which are",
                      host.name);
            return nullptr; // the link carries nothing; its connections stay with the kernel
        }
        if (theirs.step != wire::kNotGreeted) { // said again, after the channel was away
            return theirs.hello == m.hello ? nullptr : "another greeting than before";
        }
        std::copy(m.hello.begin(), m.hello.end(), theirs.hello.begin());
        theirs.step = wire::kGreets;
        link.mark(side, kLinkGreeted);
    } else {
        if (theirs.step != wire::kGreets) {
            return nullptr; // said again, or its greeting was refused
        }
        theirs.step = wire::kCanReceive;
        link.mark(side, kLinkJoined);
    }
    ring_everybody(link);
    return nullptr;
}

/// What the process of the side that is here has said, if the other monitor is there; else it hears later.
void Monitor::greet_host(const Link &link, uint32_t step) {
    if (const RemoteHost *host = link.far->host; host != nullptr && host->is_running()) {
        tell(*host, say::Greeting{link.id, step, 0,
                                  step == wire::kGreets ? link.greeted[1 - link.far->side].hello
                                                        : std::array<uint8_t, 48>{}});
    }
}

const char *Monitor::heard(RemoteHost &host, const say::Gone &m) {
    if (const auto named = host.named.find(m.link); named != host.named.end()) {
        far_side_gone(*named->second);
    }
    return nullptr;
}

/// As when the last process of a side ends.
void Monitor::far_side_gone(Link &link) {
    const unsigned side = link.far->side;
    refuse_asked(link);
    give_up_slots(link); // those whose end is not known
    link.side[side].is_far = false;
    forget_far(link);
    side_changed(link, side);
}

/// What its other side has not answered, and does not.
void Monitor::refuse_asked(Link &link) {
    for (const OfferKey &key : std::set<OfferKey>(link.offers)) {
        if (Offer &offer = offers_.at(key); offer.asked) {
            leave_link(offer);
            stay_with_kernel(offer, Cause::remote_host);
        }
    }
}

/// From now on its two ends have nothing to do with each other, for the monitor.
void Monitor::forget_far(Link &link) {
    RemoteHost *host = std::exchange(link.far->host, nullptr);
    if (host == nullptr) {
        return;
    }
    host->links.erase(link.id);
    if (link.far->number != 0) {
        host->named.erase(link.far->number);
    }
    if (host->pulling && host->pulling->what.first == link.id) {
        host->pulling.reset();
        carry_on_soon(*host);
    }
}

/// The last process of the side that is here has ended, or let go.
void Monitor::own_side_gone(Link &link) {
    // Of those who live: they have let go of the link since they could not have a queue pair.
    for (const OfferKey &key : std::set<OfferKey>(link.offers)) {
        Offer &offer = offers_.at(key);
        leave_link(offer);
        stay_with_kernel(offer, Cause::no_rdma);
    }
    if (is_kept_for_peer(link)) {
        link.lose(1 - link.far->side);
        tell_lost(link);
        return;
    }
    const RemoteHost *host = link.far->host;
    if (host != nullptr && host->is_running()) {
        tell(*host, say::Gone{link.id});
    }
    forget(link);
}

void Monitor::add_host(const std::string &name, nlohmann::json &row) const {
    const auto it = remote_hosts_.find(name);
    const RemoteHost none, &host = it == remote_hosts_.end() ? none : it->second;
    row["joined"] = host.joined;
    row["refused"] = host.refused;
    row["strange"] = host.strange;
    row["crowded"] = host.crowded;
    row["lost"] = host.lost;
    row["pulled"] = host.pulled;
    row["links"] = host.links.size();
    row["offers"] = host.offers.size();
    row["foreign"] = host.foreign.size();
}

} // namespace sd::monitor
