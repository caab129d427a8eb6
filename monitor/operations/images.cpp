// exec: a new program image in the same process, which takes over what the former one left for it.
#include "libsd/layout/exec_table.hpp"
#include "monitor/operations/image_table.hpp"
#include "monitor/operations/monitor.hpp"
#include "monitor/service/log.hpp"

#include <cerrno>
#include <utility>

namespace sd::monitor {

Reply Monitor::image(Client &client, Request &request) {
    const auto body = request.as<wire::Image>();
    if (body.layout_version != kLayoutVersion) {
        return Reply::error(EPROTONOSUPPORT, Cause::monitor_version);
    }
    const uint64_t cookie = proven_netns(request.fds[1].get());
    const std::optional<Retained> retained = read_table(request.fds[0].get(), client);
    if (cookie == 0 || !retained || request.sender.pid != client.pid) {
        return Reply::error(EINVAL);
    }
    if (!identify(client, request.sender)) {
        return Reply::error(ESRCH);
    }
    client.leaving = false;
    const uint64_t former = std::exchange(client.ns, &find_namespace(cookie, client.payer))->cookie;
    // The former image's waiters have gone with its descriptors and threads.
    for (const auto &[name, attachment] : client.links) {
        for (unsigned side = 0; side < 2; ++side) {
            attachment.link->take_bells(side, &client);
        }
    }
    for (Listener *listener : client.listeners) {
        listener->forget_acceptors(wire::folded(client.id));
        std::erase_if(listener->accept_bells, [&](const AcceptBell &bell) { return bell.owner == &client; });
    }
    client.eventfds.clear();
    client.bells_given = 0;

    for (const Client::Share &share : client.segments) {
        const auto it = retained->ofds.find(share.name);
        const Segment::Member member{&client, share.proc_index};
        end_by_pieces(
            client, share.segment,
            share.segment->retain(member, it == retained->ofds.end() ? std::vector<uint64_t>{} : it->second));
    }
    const std::set<Listener *> listeners = client.listeners;
    for (Listener *listener : listeners) {
        if (retained->listeners.count(listener->id) == 0) {
            leave_listener(client, *listener);
        }
    }
    std::vector<std::pair<uint64_t, unsigned>> dropped;
    for (const auto &[name, attachment] : client.links) {
        for (unsigned side = 0; side < 2; ++side) {
            // The server side of a listener's links: what waits there to be accepted is asked for again.
            const bool of_listener = side == 1 && attachment.link->listener != nullptr &&
                                     client.listeners.count(attachment.link->listener) != 0;
            if (attachment.side[side] && !of_listener && retained->links.count({name, side}) == 0) {
                dropped.emplace_back(name, side);
            }
        }
    }
    for (const auto &[name, side] : dropped) {
        if (side == 0 && client.links_made > 0) {
            --client.links_made;
        }
        client.to_drop.emplace_back(name, side);
    }
    drop_links(client);
    forget_namespace(former);
    log::debug("process {} is {} now", client.pid, client.comm);
    Reply reply;
    reply.set(hello_reply(client));
    reply.fds.push_back(client.ns->directory.fd());
    return reply;
}

Reply Monitor::leave(Client &client, Request &request) {
    client.leaving = request.as<wire::Leave>().leaving != 0;
    return {};
}

} // namespace sd::monitor
