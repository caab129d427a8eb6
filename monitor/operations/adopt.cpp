// Links that outlived a former monitor: both sides bring them back, or are found to have died meanwhile.
//
// Which link it is its memory says, so both sides come to the same one. The id that comes along is the
// caller's name for it and for nobody else: its records of connections have it. What others are told of the
// link, an acceptor that has not had it yet for one, goes by a number that this monitor has made. Numbers of
// new links can be guessed, and an acceptor takes a link whose number it has for one that it knows.
#include "monitor/kernel/process_info.hpp"
#include "monitor/operations/monitor.hpp"
#include "monitor/service/log.hpp"

#include <cerrno>
#include <sys/epoll.h>

namespace sd::monitor {

Reply Monitor::adopt_link(Client &client, Request &request) {
    const auto body = request.as<wire::Adopt>();
    if (body.side > 1 || body.link_id == 0 || body.pad[0] != 0) {
        return Reply::error(EINVAL);
    }
    const FileId file = file_id(request.fds[0].get());
    Link *link = nullptr;
    if (const auto it = links_.find(file); it != links_.end()) {
        link = it->second.get(); // the other side, or a relative, was here first
    } else {
        if (client.links.size() >= size_t{config_.limits.links_per_client} * 4) {
            if (may_log()) {
                log::warn("process {}: too many links", client.pid);
            }
            return Reply::error(EMFILE, Cause::limit);
        }
        std::unique_ptr<Link> made;
        if (safe_to_map(request.fds[0].get(), kLinkMapped)) { // nothing else is taken: its close could sleep
            made = Link::adopt(std::move(request.fds[0]), next_id_++);
        }
        if (!made) {
            if (may_log()) {
                log::warn("process {}: what it brings back is not a link", request.sender.pid);
            }
            return Reply::error(EINVAL);
        }
        made->charge = charge(client.payer, Resource::links, 1);
        made->was_adopted = true;
        made->reach = wire::kLoopbackAddresses | wire::kOtherAddresses; // what its client may think of it
        made->adopted = EventLoop::Clock::now();
        link = (links_[file] = std::move(made)).get();
    }
    const bool first = link->side[0].empty() && link->side[1].empty();
    if (body.side == 1) {
        // One of this monitor's own goes to its listener's acceptors first. What they had under a former one
        // they bring back before they have shown their listeners.
        if (!link->was_adopted && link->side[1].empty() && client.listeners.count(link->listener) == 0) {
            return Reply::error(EPERM);
        }
        // Who comes first has the link; others who have its descriptor, the client say, need not be of its
        // domain.
        const Domain now = domain_of(client, request.sender);
        if (!link->side[1].domain) {
            if (!has_ended(client)) {
                link->side[1].domain = now;
            }
        } else if (!may_accept_from(client, *link, now)) {
            return Reply::error(EPERM);
        }
    }
    if (!attach(client, *link, body.link_id, body.side)) {
        if (first) {
            links_.erase(file);
        }
        return Reply::error(EEXIST);
    }
    if (first) {
        await_holders(client, *link, 0);
        await_holders(client, *link, 1);
    }
    stop_awaiting(*link, body.side, client.pid);
    link->resume_requests();   // a former monitor may have paused them
    review_birth(*link, true); // what has changed meanwhile, nobody has told us
    look_at_groups_later();
    const unsigned other = 1 - body.side;
    if (link->side[other].empty()) {
        if (other == 1 && link->listener == nullptr && link->had_no_holder(1) && link->has_pending_syn()) {
            await_listener(*link);
        } else {
            side_changed(*link, other);
        }
    }
    return {};
}

/// Watches the processes that the link says are attached. Those that have ended are no longer counted. The
/// link may name anybody: who brings it pays for the watching, and where that is too much, nobody is waited
/// for.
void Monitor::await_holders(const Client &payer, Link &link, unsigned side) {
    for (const auto &holder : link.header(side).holder[side]) {
        const auto pid = static_cast<pid_t>(holder.pid.load(std::memory_order_acquire));
        const uint64_t start = holder.start_time;
        if (pid <= 0 || find_attached(link, side, pid)) {
            continue;
        }
        UniqueFd pidfd = open_pidfd(pid);
        if (!pidfd || start_time(pid) != start) {
            audit_soon(link, side);
            continue;
        }
        Charge paid;
        try {
            paid = charge(payer.payer, Resource::bells, 1);
        } catch (const OverShare &) {
            audit_soon(link, side);
            return;
        }
        const int fd = pidfd.get();
        auto watch = std::make_shared<EventLoop::Watch>(0);
        *watch = loop_.add(fd, EPOLLIN, [this, watch](uint32_t) { stop_awaiting(*watch); });
        link.side[side].awaited.insert(*watch);
        awaited_.emplace(*watch, Awaited{std::move(pidfd), pid, &link, side, std::move(paid)});
    }
}

bool Monitor::find_attached(const Link &link, unsigned side, pid_t pid) const {
    for (const Client *client : link.side[side].attached) {
        if (client->pid == pid) {
            return true;
        }
    }
    return false;
}

/// A process that was waited for has come back.
void Monitor::stop_awaiting(Link &link, unsigned side, pid_t pid) {
    std::set<uint64_t> &watches = link.side[side].awaited;
    for (auto it = watches.begin(); it != watches.end();) {
        const auto found = awaited_.find(*it);
        if (found->second.pid == pid) {
            loop_.remove(*it, found->second.pidfd.get());
            awaited_.erase(found);
            it = watches.erase(it);
        } else {
            ++it;
        }
    }
    if (link.side[side].awaited.empty() && link.side[side].death_seen) {
        audit_soon(link, side); // put off for as long as somebody was awaited
    }
}

/// A process that was waited for has died.
void Monitor::stop_awaiting(uint64_t watch) {
    const auto it = awaited_.find(watch);
    if (it == awaited_.end()) {
        return;
    }
    const Awaited awaited = std::move(it->second);
    awaited_.erase(it);
    loop_.remove(watch, awaited.pidfd.get());
    Link &link = *awaited.link;
    link.side[awaited.side].awaited.erase(watch);
    if (!link.side[awaited.side].empty()) {
        audit_soon(link, awaited.side);
    }
    wake_everybody(link); // what it sent and closed in order it could ring for nobody: it never reached us
    side_changed(link, awaited.side);
}

} // namespace sd::monitor
