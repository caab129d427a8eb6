// How many links lead to one server process. It has room for some thousands (kMaxLinks), and its address
// space may be limited: without a limit one client's processes would fill it, and nobody else's could be
// accepted from.
#include "monitor/kernel/process_info.hpp"
#include "monitor/operations/monitor.hpp"
#include "monitor/service/log.hpp"

#include <algorithm>
#include <cerrno>

namespace sd::monitor {

namespace {

/// Acceptors of a listener that are looked at; beyond that they are taken to be like these.
constexpr unsigned kLookedAt = 16;
/// Links of one user, other than the server's, that its acceptors have not come for.
constexpr unsigned kMostWaitingLinks = 64;

/// Whether the process can map one link more, and those that it has not come for yet. A server says so itself
/// when it cannot (Op::no_room), but then a connection waits on that link already. `links`: to its listeners.
bool can_map_one_more(const Client &acceptor, unsigned links) {
    unsigned mapped = 0;
    for (const auto &[name, attachment] : acceptor.links) {
        mapped += attachment.side[1] ? 1 : 0;
    }
    return address_space_left(acceptor.pid) / kLinkMapped > (links > mapped ? links - mapped : 0);
}

} // namespace

/// Whether the client's control group has memory for one link more, of `links` that it has or is to get.
/// Each may cost it one wire::kArenasUnit as soon as its peer likes (kLeastOpened in libsd/transport); half
/// of what arenas may take is left for links that need more.
bool Monitor::has_memory(const Client &client, size_t links) {
    return client.arenas == 0 || links + 1 <= std::max<size_t>(client.arenas / 2, 1);
}

/// Whether the acceptor may get one more link that is made in the name of `maker`. Those between it and one
/// client, for connections that began in the kernel, count as well.
bool Monitor::has_room_at(const Client &acceptor, const Account *maker, bool at_home) const {
    const unsigned most = config_.limits.links_per_server;
    unsigned all = 0, own = 0;
    for (const Listener *each : acceptor.listeners) {
        all += each->links;
        const auto it = each->links_by.find(maker);
        own += it == each->links_by.end() ? 0 : it->second;
    }
    for (const auto &[name, attachment] : acceptor.links) {
        if (attachment.side[1] && attachment.link->joins) {
            ++all;
            own += attachment.link->maker.get() == maker ? 1 : 0;
        }
    }
    return (most == 0 || (all < most && (at_home || own < most - all))) && has_memory(acceptor, all) &&
           can_map_one_more(acceptor, all);
}

/// Whether the acceptors have not come yet for as many of this user's links as may wait for them. Each costs
/// them a request and a mapping before they look at what else waits, so nobody may have many there; his next
/// connections begin on the kernel. Who has a link's server side and is no acceptor has brought it back.
bool Monitor::has_many_waiting(const Account *maker, const Listener &listener) const {
    unsigned waiting = 0;
    const auto accepts = [&](const Client *client) {
        return client->listeners.count(const_cast<Listener *>(&listener)) != 0;
    };
    for (const Link *link : listener.place) {
        if (link != nullptr && link->maker.get() == maker &&
            std::none_of(link->side[1].attached.begin(), link->side[1].attached.end(), accepts) &&
            ++waiting >= kMostWaitingLinks) {
            return true;
        }
    }
    return false;
}

/// Whether some acceptor may get one more link, from this client. No user, and no control group, has more of
/// a server's links than are still free for everybody; but the server's own user may fill it.
bool Monitor::has_room(const Client &client, const Listener &listener) const {
    const unsigned most = config_.limits.links_per_server;
    const Account *maker = (client.payer.user ? client.payer.user : client.payer.group).get();
    const bool at_home = maker == nullptr || client.who.uid == listener.uid;
    unsigned looked = 0;
    if (listener.expected != 0) { // nobody has any of its links yet
        return at_home || most == 0 || listener.links < most / 2;
    }
    if (!at_home && most != 0 && has_many_waiting(maker, listener)) {
        return false;
    }
    for (const Client *acceptor : listener.holders) {
        if (++looked > kLookedAt) {
            break;
        }
        if (!acceptor->no_room && has_room_at(*acceptor, maker, at_home)) {
            return true;
        }
    }
    return false;
}

/// An acceptor has got a link and could not map it. Where no other one may come for it either, its requests
/// are refused now: nobody would ever accept them.
Reply Monitor::no_room(Client &client, Request &request) {
    const auto body = request.as<wire::LinkRef>();
    Link *link = client.link(body.link_id, 1);
    if (link == nullptr || body.side != 1) {
        return Reply::error(ENOENT);
    }
    Listener *listener = link->listener;
    if (may_log()) {
        log::warn("process {} has no address space for a link more", client.pid);
    }
    if (listener != nullptr && link->side[1].attached.size() == 1 &&
        std::all_of(listener->holders.begin(), listener->holders.end(),
                    [&](const Client *other) { return other == &client || other->no_room; })) {
        listener->remove(*link);
        close_to_requests(*link);
    }
    detach(client, body.link_id, 1); // ends its server side, if it was the last one
    client.no_room = true;
    return {};
}

} // namespace sd::monitor
