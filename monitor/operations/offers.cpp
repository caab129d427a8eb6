// Connections that began in the kernel, and whose two ends are both held by processes with libsd.
//
// Each of the two offers its end, by its descriptor. Who comes second is given the link and a slot at once.
// Who came first finds SegmentHeader::joined changed, and asks again, with the descriptor: so both sockets
// are open when the second of them hears, and the kernel has one connection with these names in a namespace.
#include "monitor/operations/monitor.hpp"
#include "monitor/peers/helper.hpp"
#include "monitor/service/log.hpp"

#include <algorithm>
#include <cerrno>
#include <chrono>

namespace sd::monitor {

namespace {

bool is_v4(const ConnectionNames::Name &name) {
    static constexpr uint8_t kMapped[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
    return std::equal(std::begin(kMapped), std::end(kMapped), name.ip.begin());
}

/// The reach of a connection with these names.
uint32_t reach_of(const ConnectionNames &names) {
    const auto is_loopback = [](const ConnectionNames::Name &name) {
        std::array<uint8_t, 16> one{};
        one[15] = 1;
        return is_v4(name) ? name.ip[12] == 127 : name.ip == one;
    };
    return is_loopback(names.local) && is_loopback(names.peer) ? wire::kLoopbackAddresses : wire::kOtherAddresses;
}

SlotAddress slot_address(const ConnectionNames::Name &name) {
    SlotAddress address{};
    std::copy(name.ip.begin(), name.ip.end(), address.ip);
    address.port = name.port;
    address.family = is_v4(name) ? AF_INET : AF_INET6;
    return address;
}

} // namespace

/// Who else has offered the other end of this connection; null: nobody yet. The one place that knows how ends
/// find each other.
Offer *Monitor::find_other_end(const Offer &offer) {
    const auto find = [](const auto &offers, const auto &by) {
        const auto it = offers.find(by);
        return it == offers.end() ? nullptr : &it->second;
    };
    const auto *key = offer.discovered ? find(offers_by_pair_, offer.discovered->pair)
                                       : find(offers_by_names_, offer.socket.names.swapped());
    if (key == nullptr) {
        return nullptr;
    }
    Offer &other = offers_.at(*key);
    return other.side != offer.side && other.link == nullptr ? &other : nullptr;
}

/// Where an accepted end has come from: a listener of its process, or of others where that has none there, as
/// one that was forked for the connection and has closed what its parent listens with. Null: nobody listens.
const Listener *Monitor::listener_of(const Offer &acceptor) const {
    const ConnectionNames::Name &name = acceptor.socket.names.local;
    for (const Listener *own : acceptor.client->listeners) {
        if (own->address.port == name.port) {
            return own;
        }
    }
    const SlotAddress at = slot_address(name);
    const Listener *found = nullptr;
    for (const auto &[id, listener] : listeners_) {
        if (listener->ns == acceptor.client->ns && !listener->holders.empty() && takes(listener->address, at) &&
            (found == nullptr || std::equal(name.ip.begin(), name.ip.end(), listener->address.ip))) {
            found = listener.get(); // that of the address itself before one of all addresses
        }
    }
    return found;
}

/// Whether the kernel could have objected to the two being joined, as at the birth of a connection in memory.
Cause Monitor::join_objects(const Offer &connector, const Offer &acceptor) {
    if (connector.client->detached || acceptor.client->detached) {
        return Cause::detached;
    }
    const Listener *listener = listener_of(acceptor);
    if (listener == nullptr) {
        return Cause::listener_gone;
    }
    const Identity &from = connector.client->who, &to = acceptor.client->who;
    if (!config_.policy.allows(from, to, listener->address)) {
        return Cause::policy;
    }
    if (connector.socket.names.netns == acceptor.socket.names.netns) {
        const Cause cause = birth_objects(*connector.client, *listener, reach_of(connector.socket.names), true);
        const bool is_asked = listener->holders.count(acceptor.client) == 0 &&
                              config_.policy.birth_of(from, to, listener->address) == Birth::automatic;
        return cause == Cause::none && is_asked
                   ? end_objects(acceptor.client->pid, is_one_user(*connector.client, *acceptor.client))
                   : cause;
    }
    // Between two namespaces: the kernel has made the connection itself, rules and all.
    const auto party = [](const Offer &end) {
        Party party = Discovery::party_of(*end.discovered, end.client->pid, end.client->pidfd.get());
        party.is_contained = party.is_contained || end.client->contained;
        return party;
    };
    return connector.discovered && acceptor.discovered
               ? discovery_.objection(*connector.discovered, party(connector), *acceptor.discovered,
                                      party(acceptor))
               : Cause::undiscovered;
}

/// One that leads from the one process to the other, for connections that began in the kernel.
Link *Monitor::link_between(Client &connector, Client &acceptor) {
    for (const auto &[name, attachment] : connector.links) {
        Link *link = attachment.link;
        if (attachment.side[0] && link->joins && !link->lost() && link->side[0].attached.size() == 1 &&
            link->side[1].attached == std::set<Client *>{&acceptor}) {
            return link;
        }
    }
    if (!may_pair_again(connector, acceptor) || !may_pair(connector) || !may_pair(acceptor)) {
        return nullptr;
    }
    const Account *maker = (connector.payer.user ? connector.payer.user : connector.payer.group).get();
    if (fake_.used || !has_memory(connector, connector.links.size()) ||
        connector.links_made >= config_.limits.links_per_client ||
        !has_room_at(acceptor, maker, maker == nullptr || connector.who.uid == acceptor.who.uid)) {
        return nullptr;
    }
    Charge paid = charge(connector.payer, Resource::links, 1);
    std::unique_ptr<Link> made = Link::create(next_id_++, 0, 0, fake_, fake_.rdma);
    made->joins.emplace();
    made->maker = connector.payer.user ? connector.payer.user : connector.payer.group;
    made->charge = std::move(paid);
    const FileId file = made->file;
    Link &link = *(links_[file] = std::move(made));
    if (!attach(connector, link, link.id, 0)) {
        forget(link);
        return nullptr;
    }
    if (!attach(acceptor, link, link.id, 1)) {
        detach(connector, link.id, 0);
        return nullptr;
    }
    ++connector.links_made;
    connector.links.at(link.id).untold[0] = acceptor.links.at(link.id).untold[1] = true;
    link.for_each_view([&](LinkView view) {
        view.header().side[0].process = static_cast<uint32_t>(connector.pid);
        view.header().side[1].process = static_cast<uint32_t>(acceptor.pid);
    });
    carry_late_soon();
    return &link;
}

/// Gives the two ends a slot. `first` was there before, and is told. 0, or why not.
Cause Monitor::join(Offer &first, Offer &second) {
    Offer &connector = first.side == 0 ? first : second, &acceptor = first.side == 0 ? second : first;
    if (const Cause cause = join_objects(connector, acceptor); cause != Cause::none) {
        return cause;
    }
    Link *link = link_between(*connector.client, *acceptor.client);
    const auto slot = link == nullptr ? std::nullopt : link->take_joined_slot();
    if (!slot) {
        const bool may = may_pair_again(*connector.client, *acceptor.client) && may_pair(*connector.client) &&
                         may_pair(*acceptor.client);
        return may ? Cause::no_slot : Cause::no_rdma;
    }
    name_slot(*link, *slot, connector.socket.names.local, connector.socket.names.peer);
    for (Offer *end : {&first, &second}) {
        end->link = link;
        end->slot = *slot;
    }
    link->offers.insert({first.socket.names.netns, first.socket.cookie}); // the second hears of it now
    wake_offerer(*first.client);
    return Cause::none;
}

void Monitor::name_slot(Link &link, uint32_t slot, const ConnectionNames::Name &client,
                        const ConnectionNames::Name &server) {
    const auto now = std::chrono::steady_clock::now().time_since_epoch();
    link.for_each_view([&](LinkView view) {
        Slot &s = view.slot(slot);
        s.identity.client = slot_address(client);
        s.identity.server = slot_address(server);
        s.identity.connected_ns = static_cast<uint64_t>(std::chrono::nanoseconds(now).count());
        s.identity.state.store(static_cast<uint32_t>(SlotState::accepted), std::memory_order_release);
    });
}

Monitor::Offers::iterator Monitor::forget_offer(Offers::iterator it) {
    Offer &offer = it->second;
    if (offer.host != nullptr) {
        withdraw_from_host(offer);
    }
    if (const auto named = offers_by_names_.find(offer.socket.names);
        named != offers_by_names_.end() && named->second == it->first) {
        offers_by_names_.erase(named);
    }
    if (offer.discovered) {
        if (const auto paired = offers_by_pair_.find(offer.discovered->pair);
            paired != offers_by_pair_.end() && paired->second == it->first) {
            offers_by_pair_.erase(paired);
        }
    }
    offer.client->offers.erase(it->first);
    if (offer.link != nullptr) {
        offer.link->offers.erase(it->first);
    }
    return offers_.erase(it);
}

/// Nobody will come for this end.
void Monitor::give_up_offer(Offers::iterator it) {
    const Offer offer = it->second;
    if (offer.link != nullptr) {
        mark_and_ring(*offer.link, offer.slot, offer.side, kFlagDead | kFlagClosed | kFlagReleased);
    }
    forget_offer(it);
    if (offer.link != nullptr) {
        leave_if_untold(*offer.client, *offer.link, offer.side);
    }
}

/// A client that has given up all its ends on a link that it never heard of does not let go of it itself.
void Monitor::leave_if_untold(Client &client, Link &link, unsigned side) {
    const auto it = client.links.find(link.id);
    if (it == client.links.end() || it->second.link != &link || !it->second.untold[side] ||
        std::any_of(link.offers.begin(), link.offers.end(),
                    [&](const OfferKey &key) { return offers_.at(key).client == &client; })) {
        return;
    }
    client.links_made -= side == 0 && client.links_made > 0 ? 1 : 0;
    detach(client, link.id, side);
}

/// Before the client, or a link, goes.
void Monitor::give_up_offers(const Client &client) {
    while (!client.offers.empty()) {
        give_up_offer(offers_.find(*client.offers.begin()));
    }
}

void Monitor::forget_offers(const Link &link) {
    while (!link.offers.empty()) {
        forget_offer(offers_.find(*link.offers.begin()));
    }
}

Reply Monitor::answer(const Offer &offer) {
    Reply reply;
    const bool is_own = offer.link != nullptr && is_among_own(*offer.client, *offer.link, offer.side);
    reply.set(wire::OfferReply{offer.link == nullptr ? 0 : offer.link->id, offer.slot, is_own ? 1u : 0u});
    if (offer.link != nullptr) {
        reply.fds.push_back(offer.link->memfd.get());
        if (const auto it = offer.client->links.find(offer.link->id); it != offer.client->links.end()) {
            it->second.untold[offer.side] = false;
        }
    }
    return reply;
}

std::optional<ConnectedSocket> Monitor::examine(const Request &request) const {
    return ask(request.fds[0].get(), request.sender.uid, examine_connected).value_or(std::nullopt);
}

Reply Monitor::offer(Client &client, Request &request) {
    const auto [side, no_rdma] = request.as<wire::Offer>();
    const auto socket = examine(request);
    const uint64_t ns = client.ns == nullptr ? 0 : client.ns->cookie;
    DiscoveredEnd end;
    const Cause unknown = socket ? discovery_.examine_in(request.fds[0].get(), socket->names.netns, ns, end)
                                 : Cause::undiscovered;
    const bool found = unknown == Cause::none && end.has_connected == (side == 0);
    const auto foreign = socket && unknown == Cause::undiscovered
                             ? discovery_.foreign(request.fds[0].get(), socket->names.netns, ns)
                             : std::nullopt;
    request.close_descriptors(); // while we have it, nobody hears of the process's death
    if (!socket || side > 1 || !client.own) {
        return Reply::error(EINVAL);
    }
    if (ns == 0 || socket->names.netns != ns) {
        return Reply::error(EXDEV, Cause::foreign_namespace);
    }
    if (foreign) {
        uint8_t ip[16];
        std::copy(socket->names.peer.ip.begin(), socket->names.peer.ip.end(), std::begin(ip));
        if (const std::string *host = peers_->host_of(*foreign, ip)) {
            return offer_to_host(client, side, no_rdma, *socket, *foreign, *host);
        }
    }
    if (!found && !joins_all_) {
        return Reply::error(EACCES, unknown == Cause::none ? Cause::undiscovered : unknown);
    }
    const std::pair key(socket->names.netns, socket->cookie);
    if (const auto known = offers_.find(key); known != offers_.end()) {
        return known->second.client == &client ? answer(known->second) : Reply::error(EEXIST);
    }
    Offer made{&client, side, *socket};
    made.discovered = found ? std::optional(end) : std::nullopt;
    if (Offer *other = find_other_end(made)) {
        if (const Cause cause = join(*other, made); cause != Cause::none) {
            return Reply::error(EACCES, cause);
        }
        return answer(made); // and nothing of it is kept
    }
    if (client.offers.size() >= kMostOffers) {
        return Reply::error(EMFILE, Cause::limit);
    }
    made.charge = std::make_shared<Charge>(charge(client.payer, Resource::offers, 0));
    log::debug("process {} offers the {} end of a kernel connection", client.pid,
               side == 0 ? "connecting" : "accepting");
    client.offers.insert(key);
    offers_[key] = made;
    if (found) {
        offers_by_pair_[end.pair] = key;
    }
    offers_by_names_[socket->names] = key; // of sockets that had the names before, nobody is told any more
    return answer(made);
}

Reply Monitor::other_end(Client &client, Request &request) {
    const auto socket = examine(request);
    request.close_descriptors();
    const auto it = socket ? offers_.find({socket->names.netns, socket->cookie}) : offers_.end();
    if (it == offers_.end() || it->second.client != &client || it->second.asked ||
        (it->second.link == nullptr && it->second.refused == Cause::none)) {
        return Reply::error(ENOENT);
    }
    if (const Cause cause = it->second.refused; cause != Cause::none) {
        forget_offer(it);
        return Reply::error(EACCES, cause);
    }
    Reply reply = answer(it->second);
    forget_offer(it);
    return reply;
}

Reply Monitor::take_back(Client &client, Request &request) {
    if (client.ns == nullptr) {
        return Reply::error(ENOENT);
    }
    const auto it = offers_.find({client.ns->cookie, request.as<wire::Offered>().cookie});
    if (it == offers_.end() || it->second.client != &client) {
        return Reply::error(ENOENT);
    }
    give_up_offer(it);
    return {};
}

/// Of a device of this host.
bool Monitor::may_use_address(const unsigned char (&hello)[48]) const {
    uint8_t address[16];
    memcpy(address, hello + wire::kHelloAddress, sizeof address);
    const auto &networks = config_.peers.addresses;
    return networks.empty() || std::any_of(networks.begin(), networks.end(), [&](const std::string &text) {
               const auto network = AddressMatch::parse(text);
               return network && network->matches(address);
           });
}

/// The two ends of a link over RDMA hear of each other's queue pairs.
Reply Monitor::greet(Client &client, Request &request) {
    const auto body = request.as<wire::Greeting>();
    Link *link = body.side < 2 ? client.link(body.link_id, body.side) : nullptr;
    if (link == nullptr || !link->is_remote()) {
        return Reply::error(ENOENT);
    }
    if ((body.step == wire::kGreets || body.step == wire::kMayUse) && !may_use_address(body.hello)) {
        return Reply::error(EACCES);
    }
    Link::Greeted &ours = link->greeted[body.side];
    const Link::Greeted &theirs = link->greeted[1 - body.side];
    if (body.step == wire::kGreets && ours.step == wire::kNotGreeted) {
        std::copy(std::begin(body.hello), std::end(body.hello), ours.hello.begin());
        ours.step = wire::kGreets;
        ours.owner = client.id;
        link->mark(body.side, kLinkGreeted);
        ring_everybody(*link);
        if (link->far) {
            greet_host(*link, wire::kGreets);
        }
    } else if (body.step == wire::kHasNoPair) {
        log::debug("process {} could have no queue pair for link {}", client.pid, link->id);
        client.pairing.failed(Backoff::Clock::now());
    } else if (body.step == wire::kCanReceive && ours.step == wire::kGreets) {
        ours.step = wire::kCanReceive;
        client.pairing.worked();
        link->mark(body.side, kLinkJoined);
        ring_everybody(*link);
        if (link->far) {
            greet_host(*link, wire::kCanReceive);
        }
    }
    wire::GreetingReply answer{theirs.step, 0, {}};
    std::copy(theirs.hello.begin(), theirs.hello.end(), std::begin(answer.hello));
    Reply reply;
    reply.set(answer);
    return reply;
}

} // namespace sd::monitor
