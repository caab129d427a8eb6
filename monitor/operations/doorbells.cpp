// Operations on doorbells.
#include "monitor/operations/monitor.hpp"
#include "monitor/service/log.hpp"

#include <algorithm>
#include <cerrno>

namespace sd::monitor {

namespace {

/// All of a listener's are rung for each new link. Who gets none looks again every few milliseconds.
constexpr size_t kMostAcceptBells = 4096, kMostAcceptBellsOfOne = 1024;

} // namespace

/// Takes `fd` if it is one.
std::shared_ptr<BellFd> Monitor::keep_eventfd(Client &client, UniqueFd &fd) {
    const auto id = eventfd_id(fd.get());
    if (!id) {
        return nullptr;
    }
    auto &slot = client.eventfds[*id];
    std::shared_ptr<BellFd> kept = slot.lock();
    if (!kept) {
        Charge paid = charge(client.payer, Resource::bells, 1);
        kept = std::make_shared<BellFd>(BellFd{std::move(fd), *id, {}, {}});
        kept->charges.push_back(std::move(paid));
        slot = kept;
        // Numbers of eventfds that are registered nowhere any more add up slowly; sweep them when they are
        // many.
        if (client.eventfds.size() > 256) {
            std::erase_if(client.eventfds, [](const auto &entry) { return entry.second.expired(); });
        }
    }
    return kept;
}

Reply Monitor::bell_reply(const Link &link, unsigned side, unsigned id, const Client &waiter) {
    Reply reply;
    const auto generation = link.header(side).bell_generation[side][id].load(std::memory_order_relaxed);
    const bool foreign = foreign_domain(link, side, *link.side[side].bells[id].eventfd, waiter).has_value();
    reply.set(wire::BellReply{id, generation, foreign, 0});
    return reply;
}

Reply Monitor::bell(Client &client, Request &request) {
    const auto body = request.as<wire::Bell>();
    Link *link = client.link(body.link_id, body.side);
    if (link == nullptr) {
        return Reply::error(ENOENT);
    }
    if (client.bells_given >= config_.limits.bells_per_client) {
        if (may_log()) {
            log::warn("process {}: limits.bells_per_client reached", client.pid);
        }
        return Reply::error(EMFILE, Cause::limit);
    }
    std::shared_ptr<BellFd> eventfd = keep_eventfd(client, request.fds[0]);
    if (!eventfd) {
        return Reply::error(EINVAL);
    }
    const int id = link->give_bell(body.side, body.id, std::move(eventfd), &client);
    if (id < 0) {
        return Reply::error(-id, Cause::limit);
    }
    ++client.bells_given;
    return bell_reply(*link, body.side, static_cast<unsigned>(id), client);
}

Reply Monitor::unbell(Client &client, Request &request) {
    const auto body = request.as<wire::BellRef>();
    Link *link = client.link(body.link_id, body.side);
    if (link == nullptr || !link->take_bell(body.side, body.id, &client)) {
        return Reply::error(ENOENT);
    }
    if (client.bells_given > 0) {
        --client.bells_given;
    }
    return {};
}

/// Whose bell of a link it is that a client may ring: one of the other side, or of its own side, where
/// another process may share the connection.
const Bell *Monitor::bell_to_ring(const Client &client, const wire::BellRef &which) const {
    const Link *link = which.side < 2 ? client.link(which.link_id, 1 - which.side) : nullptr;
    if (link == nullptr && which.side < 2) {
        link = client.link(which.link_id, which.side);
    }
    if (link == nullptr || which.id >= kDoorbells || !link->side[which.side].bells[which.id].eventfd) {
        return nullptr;
    }
    return &link->side[which.side].bells[which.id];
}

Reply Monitor::peer_bell(Client &client, Request &request) {
    const Bell *bell = bell_to_ring(client, request.as<wire::BellRef>());
    if (bell == nullptr) {
        return Reply::error(ENOENT);
    }
    Reply reply;
    if (std::all_of(bell->owners.begin(), bell->owners.end(),
                    [&](const Client *owner) { return may_share_bell(client, *owner); })) {
        reply.fds.push_back(bell->eventfd->fd.get());
        return reply;
    }
    const auto socket = bell->eventfd->foreign.find(bell_domain(client));
    if (socket == bell->eventfd->foreign.end()) {
        return Reply::error(EXDEV);
    }
    reply.fds.push_back(socket->second.get());
    return reply;
}

Reply Monitor::ring_peer(Client &client, Request &request) {
    const Bell *bell = bell_to_ring(client, request.as<wire::BellRef>());
    if (bell == nullptr) {
        return Reply::error(ENOENT);
    }
    ring(*bell->eventfd);
    return {};
}

/// The domain of somebody on the other side who has nothing to ring `bell` with.
std::optional<BellDomain> Monitor::foreign_domain(const Link &link, unsigned side, const BellFd &bell,
                                                  const Client &waiter) {
    if (bell.foreign.size() >= kMostForeignDomains) {
        return std::nullopt;
    }
    const auto &attached = link.side[1 - side].attached;
    const bool none_yet = side == 0 && attached.empty() && link.listener != nullptr;
    for (const Client *other : none_yet ? link.listener->holders : attached) {
        if (!may_share_bell(waiter, *other) && bell.foreign.count(bell_domain(*other)) == 0) {
            return bell_domain(*other);
        }
    }
    return std::nullopt;
}

Reply Monitor::foreign_bell(Client &client, Request &request) {
    const auto body = request.as<wire::BellRef>();
    const Link *link = client.link(body.link_id, body.side);
    if (link == nullptr || body.id >= kDoorbells ||
        link->side[body.side].bells[body.id].owners.count(&client) == 0) {
        return Reply::error(ENOENT);
    }
    BellFd &bell = *link->side[body.side].bells[body.id].eventfd;
    const auto domain = foreign_domain(*link, body.side, bell, client);
    if (!domain) {
        return Reply::error(EALREADY);
    }
    if (!is_bell_socket(request.fds[0].get(), client.who.uid)) {
        return Reply::error(EINVAL);
    }
    bell.charges.push_back(charge(client.payer, Resource::bells, 1));
    bell.foreign.emplace(*domain, std::move(request.fds[0]));
    return bell_reply(*link, body.side, body.id, client);
}

Reply Monitor::accept_bell(Client &client, Request &request) {
    Listener *listener = held_listener(client, request.as<wire::ListenerRef>().listener_id);
    if (listener == nullptr) {
        return Reply::error(ENOENT);
    }
    std::shared_ptr<BellFd> eventfd = keep_eventfd(client, request.fds[0]);
    if (!eventfd) {
        return Reply::error(EINVAL);
    }
    size_t own = 0;
    for (const AcceptBell &bell : listener->accept_bells) {
        if (bell.owner == &client) {
            if (bell.eventfd->id == eventfd->id) {
                return {};
            }
            ++own;
        }
    }
    if (own >= std::min<size_t>(config_.limits.bells_per_client, kMostAcceptBellsOfOne) ||
        listener->accept_bells.size() >= kMostAcceptBells) {
        if (may_log()) {
            log::warn("process {}: its listener has as many doorbells as are rung", client.pid);
        }
        return Reply::error(EMFILE, Cause::limit);
    }
    // Of a link that was made while nobody had a bell (kept_listeners.cpp) it has not been told.
    const bool unknown = std::any_of(listener->place.begin(), listener->place.end(),
                                     [](const Link *link) { return link != nullptr && link->side[1].empty(); });
    if (unknown) {
        ring(*eventfd);
    }
    listener->accept_bells.push_back({&client, std::move(eventfd), domain_of(client, request.sender)});
    note_acceptors(*listener);
    return {};
}

Reply Monitor::mute_bell(Client &client, Request &request) {
    const auto id = eventfd_id(request.fds[0].get());
    if (!id) {
        return Reply::error(EINVAL);
    }
    for (Listener *listener : client.listeners) {
        std::erase_if(listener->accept_bells,
                      [&](const AcceptBell &bell) { return bell.owner == &client && bell.eventfd->id == *id; });
    }
    return {};
}

} // namespace sd::monitor
