// Operations on listeners and links.
#include "monitor/kernel/process_info.hpp"
#include "monitor/operations/monitor.hpp"
#include "monitor/service/journal.hpp"
#include "monitor/service/log.hpp"

#include <algorithm>
#include <cerrno>
#include <fcntl.h>

namespace sd::monitor {

Reply Monitor::listen(Client &client, Request &request) {
    const auto body = request.as<wire::Listen>();
    struct Look {
        ListenProof proof;
        Cause cause = Cause::none;
        int result = 0;
    };
    const auto look = ask(request.fds[0].get(), request.sender.uid, [](int socket) {
        Look found;
        found.result = examine_listener(socket, found.proof, found.cause);
        return found;
    });
    if (!look) {
        return Reply::error(EAGAIN, Cause::limit);
    }
    if (look->result < 0) {
        return Reply::error(-look->result, look->cause);
    }
    const ListenProof &proof = look->proof;
    if (proof.netns != client.ns->cookie || has_moved(client)) {
        return Reply::error(EXDEV, Cause::foreign_namespace);
    }
    make_way(*client.ns, proof);
    const uint32_t backlog = std::min<uint32_t>(body.backlog, kSynEntries);
    Listener *listener = nullptr;
    if (const auto known = listener_by_socket_.find({proof.netns, proof.cookie});
        known != listener_by_socket_.end()) {
        listener = known->second;
        if (listener->directory_index >= 0) {
            listener->ns->directory.set_backlog(listener->directory_index, backlog);
        }
        listener->backlog = backlog;
    }
    if (listener == nullptr || client.listeners.count(listener) == 0) {
        if (client.listeners.size() >= config_.limits.listeners_per_client) {
            if (may_log()) {
                log::warn("process {}: limits.listeners_per_client reached", client.pid);
            }
            turn_away(*client.ns, proof.address);
            return Reply::error(EMFILE, Cause::limit);
        }
    }
    if (listener == nullptr) {
        if (!config_.policy.may_listen(client.who, proof.address)) {
            turn_away(*client.ns, proof.address);
            return Reply::error(EACCES, Cause::policy);
        }
        uint32_t id;
        do {
            id = ++next_listener_;
        } while (id == 0 || listeners_.count(id) != 0);
        Charge paid = charge(client.payer, Resource::listeners, 1);
        auto made = std::make_unique<Listener>(id, proof, client.ns);
        made->charge = std::move(paid);
        made->uid = client.who.uid;
        made->gid = client.who.gid;
        made->exe = client.who.exe;
        made->unit = client.who.unit;
        made->backlog = backlog;
        made->directory_index =
            client.ns->directory.insert(id, proof.address, proof.cookie, backlog, proof.owner);
        if (made->directory_index < 0) {
            turn_away(*client.ns, proof.address);
            return Reply::error(ENOSPC, Cause::limit);
        }
        listener = made.get();
        listener_by_socket_[{proof.netns, proof.cookie}] = listener;
        listeners_[id] = std::move(made);
        watch_listener(*listener, request.fds[0].get());
        log::debug("process {} ({}) listens on port {}: listener {}", client.pid, client.comm,
                   proof.address.port, id);
    }
    if (listener->expected != 0) {
        expected_came(*listener, request.fds[0].get());
    }
    listeners_changed();
    request.close_descriptors(); // soon: while we have it, the program could not free the port
    const bool was_orphan = take_up(*listener, backlog);
    client.listeners.insert(listener);
    listener->holders.insert(&client);
    review_listing(*listener);
    take_waiting_links();
    Reply reply;
    reply.set(wire::ListenReply{listener->id, was_orphan});
    reply.fds.push_back(listener->memfd.get());
    return reply;
}

Reply Monitor::unlisten(Client &client, Request &request) {
    Listener *listener = held_listener(client, request.as<wire::ListenerRef>().listener_id);
    if (listener == nullptr) {
        return Reply::error(ENOENT);
    }
    leave_listener(client, *listener);
    return {};
}

Reply Monitor::unlist(Client &client, Request &request) {
    Listener *listener = held_listener(client, request.as<wire::ListenerRef>().listener_id);
    if (listener == nullptr) {
        return Reply::error(ENOENT);
    }
    if (listener->directory_index >= 0) {
        listener->ns->directory.remove(listener->directory_index);
        listener->directory_index = -1;
        listeners_changed(); // nor does the next monitor list it
    }
    return {};
}

Reply Monitor::links(Client &client, Request &request) {
    const auto body = request.as<wire::Links>();
    Listener *listener = held_listener(client, body.listener_id);
    if (listener == nullptr) {
        return Reply::error(ENOENT);
    }
    wire::LinksReply result{};
    Reply reply;
    const Domain domain = domain_of(client, request.sender);
    // Of those that nobody has at the other side only some are looked into, which costs most; others are
    // handed out, and let go of again.
    constexpr unsigned kMostLookedInto = 64;
    unsigned looked = 0;
    uint32_t place = body.from;
    for (; place < listener->place.size() && result.count < wire::kMaxFds; ++place) {
        Link *link = listener->place[place];
        if (link != nullptr && link->side[0].empty() && ++looked <= kMostLookedInto && !link->has_pending_syn()) {
            continue; // nothing will come from it any more; those who have connections on it have it
        }
        const uint64_t name = link != nullptr ? name_of(client, *link) : 0;
        if (link != nullptr && may_accept_from(client, *link, domain) && attach(client, *link, name, 1)) {
            result.link[result.count].link_id = name;
            result.link[result.count].place = place;
            result.link[result.count].is_own = is_among_own(client, *link, 1) ? 1 : 0;
            ++result.count;
            reply.fds.push_back(link->memfd.get());
        }
    }
    result.next = place < listener->place.size() ? place : UINT32_MAX;
    reply.set(result);
    return reply;
}

/// Whether the process is in another network namespace than when it proved that it may be in this one: a
/// forked child in particular, which did not even have to. What it may do there it says with a hello.
bool Monitor::has_moved(const Client &client) {
    const ino_t now = client.netns_inode != 0 ? netns_inode(client.pid) : 0;
    return now != 0 && now != client.netns_inode;
}

Reply Monitor::connect(Client &client, Request &request) {
    take_ended_listeners();
    if (has_moved(client)) {
        return Reply::error(EXDEV, Cause::foreign_namespace);
    }
    const auto body = request.as<wire::Connect>();
    const uint32_t id = body.listener_id;
    if (body.wanted != wire::kLoopbackAddresses && body.wanted != wire::kOtherAddresses) {
        return Reply::error(EINVAL);
    }
    auto it = listeners_.find(id);
    // A client that is started after the end of a server
    if (it != listeners_.end() && !any_alive(*it->second)) {
        take_ended();
        it = listeners_.find(id);
    }
    if (it == listeners_.end() || it->second->ns != client.ns || it->second->orphan) {
        return Reply::error(ENOENT, Cause::listener_gone);
    }
    Listener &listener = *it->second;
    if (client.detached || listener.is_detached) {
        return Reply::error(EACCES, Cause::detached);
    }
    if (!config_.policy.allows(client.who, listener.identity(), listener.address)) {
        return Reply::error(EACCES, Cause::policy);
    }
    if (client.ns->filter != nullptr) {
        rules_changed(*client.ns); // those that have, and of which the loop has not heard yet
    }
    if (const Cause cause = birth_objects(client, listener, body.wanted, true); cause != Cause::none) {
        return Reply::error(EACCES, cause);
    }
    if (client.links_made >= config_.limits.links_per_client) {
        if (may_log()) {
            log::warn("process {}: limits.links_per_client reached", client.pid);
        }
        return Reply::error(EMFILE, Cause::limit);
    }
    if (!has_memory(client, client.links.size())) {
        return Reply::error(ENOMEM, Cause::no_memory);
    }
    if (!has_room(client, listener)) {
        if (may_log()) {
            log::warn("process {}: the server on port {} has as many links as it may have or can map",
                      client.pid, listener.address.port);
        }
        return Reply::error(EMFILE, Cause::server_full);
    }
    Charge paid = charge(client.payer, Resource::links, 1);
    std::unique_ptr<Link> made = Link::create(next_id_++, listener.id, 0, fake_);
    Link &link = *made;
    link.maker = client.payer.user ? client.payer.user : client.payer.group;
    link.charge = std::move(paid);
    links_[link.file] = std::move(made);
    if (!attach(client, link, link.id, 0)) {
        links_.erase(link.file);
        return Reply::error(EEXIST);
    }
    if (!listener.add(link, 0)) {
        detach(client, link.id, 0);
        return Reply::error(ENOSPC, Cause::no_slot);
    }
    link.for_each_view([&](LinkView view) {
        view.header().port_base = port_base(link.place, listener.id);
        view.header().side[0].process = static_cast<uint32_t>(client.pid);
        view.header().side[1].process = static_cast<uint32_t>(
            listener.holders.empty() ? listener.expected : (*listener.holders.begin())->pid);
    });
    // Most rules treat both kinds alike, and then one link does for both.
    const uint32_t other = body.wanted ^ (wire::kLoopbackAddresses | wire::kOtherAddresses);
    link.reach = body.wanted | (birth_objects(client, listener, other, false) == Cause::none ? other : 0);
    look_at_groups_later();
    carry_late_soon();
    ++client.links_made;
    listener.ring_accept_bells();
    Reply reply;
    reply.set(wire::ConnectReply{link.id, link.reach, is_among_own(client, link, 0) ? 1u : 0u});
    reply.fds.push_back(link.memfd.get());
    return reply;
}

Reply Monitor::drop_link(Client &client, Request &request) {
    const auto body = request.as<wire::LinkRef>();
    const Link *link = client.link(body.link_id, body.side);
    if (link == nullptr) {
        return Reply::error(ENOENT);
    }
    if (body.side == 1 && link->side[1].attached.size() > 1 && client.listeners.count(link->listener) != 0) {
        stop_requests(*link); // it goes on accepting, as somebody else: over links that it may have
    }
    if (body.side == 0 && client.links_made > 0) {
        --client.links_made;
    }
    Listener *const listener = body.side == 1 ? link->listener : nullptr;
    detach(client, body.link_id, body.side);
    if (listener != nullptr) { // those of another domain could not have the link until now
        listener->bump();
        listener->ring_accept_bells();
    }
    return {};
}

/// Pages are charged to whoever touches them first, which is never the monitor.
Reply Monitor::memory(Client &, Request &request) {
    const uint64_t bytes = request.as<wire::Memory>().bytes;
    if (bytes == 0 || bytes > wire::kMostMemory) {
        return Reply::error(EINVAL);
    }
    UniqueFd made = make_memfd("sd-memory", bytes);
    seal(made.get(), F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
    Reply reply;
    reply.fds.push_back(made.get());
    reply.owned.push_back(std::move(made));
    return reply;
}

Reply Monitor::log(Client &client, Request &request) {
    const auto body = request.as<wire::Log>();
    std::string text(body.text, strnlen(body.text, sizeof body.text));
    std::replace_if(
        text.begin(), text.end(), [](unsigned char c) { return c < 0x20 || c == 0x7f; }, '?');
    const log::Level level = body.level == 0   ? log::Level::info
                             : body.level == 1 ? log::Level::warn
                                               : log::Level::error;
    if (!may_log()) {
        return {};
    }
    std::string line = fmt::format("process {} ({}) says: {}", request.sender.pid, client.comm, text);
    if (body.cause != 0) {
        line += fmt::format(" [{} {}]", body.cause, cause_name(body.cause));
    }
    log_about({request.sender.pid, request.sender.uid, client.comm, body.cause}, level, line);
    return {};
}

void Monitor::carry_late_soon() {
    if ((fake_.late == 0 && fake_.cuts == 0) || carry_timer_ != 0) {
        return;
    }
    carry_timer_ = loop_.after(std::chrono::milliseconds(1), [this] {
        carry_timer_ = 0;
        for (const auto &[file, link] : links_) {
            carry_late(*link);
        }
        if (!links_.empty()) {
            carry_late_soon();
        }
    });
}

} // namespace sd::monitor
