// Listeners and links: who is attached, and how they end when nobody is.
#include "monitor/operations/monitor.hpp"
#include "monitor/service/log.hpp"

#include <algorithm>

namespace sd::monitor {

/// `payer`: of one that nobody has come from before.
Namespace &Monitor::find_namespace(uint64_t cookie, const Payer &payer) {
    if (const auto it = namespaces_.find(cookie); it != namespaces_.end()) {
        return *it->second;
    }
    Charge paid = charge(payer, Resource::segments, kDescriptorsOfNamespace);
    auto made = std::make_unique<Namespace>(cookie, epoch_);
    made->charge = std::move(paid);
    made->directory.set_discovery(discovery_word());
    return *(namespaces_[cookie] = std::move(made));
}

/// If there is one, nobody is in it, and nobody holds a listener of it: a process can have listeners in
/// namespaces that it has left.
void Monitor::forget_namespace(uint64_t cookie) {
    const auto it = namespaces_.find(cookie);
    if (it == namespaces_.end()) {
        return;
    }
    Namespace &ns = *it->second;
    const auto is_in = [&](const auto &entry) { return entry.second->ns == &ns; };
    if (std::any_of(clients_.begin(), clients_.end(), is_in) ||
        std::any_of(listeners_.begin(), listeners_.end(), [&](const auto &entry) {
            return is_in(entry) && (!entry.second->holders.empty() || entry.second->expected != 0);
        })) {
        return;
    }
    close_orphans(ns);
    if (ns.filter_watch != 0) {
        loop_.remove(ns.filter_watch, ns.filter->fd());
    }
    if (ns.rules_timer != 0) {
        loop_.cancel(ns.rules_timer);
    }
    namespaces_.erase(it);
}

/// What the client calls the link, or is to call it. One that it has brought back has its own name.
uint64_t Monitor::name_of(const Client &client, const Link &link) {
    const auto is_here = [&](const LinkSide &side) {
        return side.attached.count(const_cast<Client *>(&client)) != 0;
    };
    const auto same = client.links.find(link.id);
    if ((same != client.links.end() && same->second.link == &link) ||
        std::none_of(std::begin(link.side), std::end(link.side), is_here)) {
        return link.id;
    }
    return std::find_if(client.links.begin(), client.links.end(),
                        [&](const auto &entry) { return entry.second.link == &link; })
        ->first;
}

/// False if the client uses that name for another link already, or knows this link by another name. (Names
/// come from clients after a restart, and one link under two names would be let go of twice.)
bool Monitor::attach(Client &client, Link &link, uint64_t name, unsigned side) {
    const auto it = client.links.find(name);
    if (it != client.links.end()
            ? it->second.link != &link
            : link.side[0].attached.count(&client) + link.side[1].attached.count(&client) != 0) {
        return false;
    }
    auto &attachment = client.links.try_emplace(name, Client::Attachment{&link, {false, false}}).first->second;
    attachment.side[side] = true;
    link.side[side].attached.insert(&client);
    link.note_holder(side, client.kind == Client::Kind::expected ? 0 : client.pid, client.start);
    return true;
}

/// The client lets go of one side of a link, or has died.
void Monitor::detach(Client &client, uint64_t name, unsigned side) {
    const auto it = client.links.find(name);
    Link &link = *it->second.link;
    client.no_room = false;
    if (side == 0) {
        note_loss(client, link);
    }
    it->second.side[side] = it->second.untold[side] = false;
    if (!it->second.side[1 - side]) {
        client.links.erase(it);
    }
    client.bells_given -= std::min(client.bells_given, link.take_bells(side, &client));
    link.side[side].attached.erase(&client);
    link.forget_holder(side, client.pid, client.start);
    owner_gone(link, side, client);
    if (side == 0) {
        ring_acceptors(link);
    }
    side_changed(link, side);
}

/// After somebody left a side: if that was the last one, says so to the other side; ends the link if it has
/// nobody, either.
void Monitor::side_changed(Link &link, unsigned side) {
    if (!link.pools.empty()) {
        drop_ended_pools(link);
    }
    if (!link.side[side].empty()) {
        return;
    }
    // Who closed in order has said so in the slot. The rest was held by the dead, recorded or not: one may
    // have been killed between taking a connection and noting it.
    mark_all(link, side);
    if (side == 0) {
        // What lies in the queue now is all. A hostile client could otherwise leave slots that look like
        // requests for ever, and each acceptor would come for them, find none, and be told to look again.
        if (link.listener != nullptr) {
            link.withdraw_requests();
        }
        link.mark(0, kLinkClientDead);
        if (link.listener != nullptr) {
            link.listener->bump();
        }
    } else if (link.listener == nullptr) {
        link.mark(1, kLinkServerDead);
        close_to_requests(link);
    }
    if (link.far && side != link.far->side) {
        own_side_gone(link);
        return;
    }
    if (!link.side[0].empty() || !link.side[1].empty()) {
        return;
    }
    // The listener may still come for what a client that has gone sent with its connection request.
    if (link.listener == nullptr || !link.has_pending_syn()) {
        forget(link);
    }
}

void Monitor::forget(Link &link) {
    if (link.joins) {
        forget_offers(link);
    }
    if (link.far) {
        forget_far(link);
    }
    if (link.listener != nullptr) {
        link.listener->remove(link);
    }
    links_.erase(link.file);
}

Listener *Monitor::held_listener(const Client &client, uint32_t id) const {
    const auto it = listeners_.find(id);
    return it != listeners_.end() && client.listeners.count(it->second.get()) != 0 ? it->second.get() : nullptr;
}

void Monitor::leave_listener(Client &client, Listener &listener) {
    client.listeners.erase(&listener);
    listener.holders.erase(&client);
    listener.forget_acceptors(wire::folded(client.id));
    std::erase_if(listener.accept_bells, [&](const AcceptBell &bell) { return bell.owner == &client; });
    listeners_changed(); // another of its holders is named, or none
    if (!listener.holders.empty()) {
        review_listing(listener);
        return;
    }
    const uint64_t ns = listener.ns->cookie;
    abandon(listener);
    if (client.ns == nullptr || client.ns->cookie != ns) {
        forget_namespace(ns);
    }
}

/// At once no further request is made. Those that wait are refused in pieces (endings.cpp): a listener can
/// have thousands of links, and each of them thousands of requests.
void Monitor::close_listener(Listener &listener) {
    log::debug("listener {} on port {} has closed", listener.id, listener.address.port);
    if (listener.directory_index >= 0) {
        listener.ns->directory.remove(listener.directory_index);
    }
    if (listener.timer != 0) {
        loop_.cancel(listener.timer);
    }
    forget_watch(listener);
    listener.segment().closed.store(1, std::memory_order_seq_cst);
    Ending ending;
    ending.payer = listener.charge.payer();
    for (Link *link : std::exchange(listener.place, {})) {
        if (link != nullptr) {
            link->listener = nullptr;
            stop_requests(*link);
            ending.links.push_back({link->file, link->id});
        }
    }
    listener_by_socket_.erase({listener.ns->cookie, listener.cookie});
    listeners_.erase(listener.id);
    listeners_changed();
    end_by_pieces(std::move(ending));
}

/// One of a listener that has closed.
void Monitor::close_link(const ClosedLink &closed) {
    const auto it = links_.find(closed.file);
    if (it != links_.end() && it->second->id == closed.id) { // else it has ended meanwhile
        close_to_requests(*it->second);
        side_changed(*it->second, 1);
    }
}

} // namespace sd::monitor
