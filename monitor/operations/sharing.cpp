// Who may be shown what: family segments and the server side of links stay within a trust domain.
//
// A process that forks has given all it has to its child; the kernel did that, and nothing is asked here.
// What is asked is whether a process that has no part in something yet may be handed it. Its domain is read
// then, not remembered.
#include "monitor/kernel/process_info.hpp"
#include "monitor/operations/monitor.hpp"

#include <algorithm>

namespace sd::monitor {

bool Monitor::has_ended(const Client &client) { return client.pidfd && !is_alive(client.pidfd); }

/// Of the sender of a packet. Not known where the sender is somebody else than the client, or has ended: its
/// number could be another's by now. A thread may have other ids than its process, which cannot be seen: then
/// it is not known, either.
Domain Monitor::domain_of(Client &client, const ucred &sender) {
    Domain unknown;
    unknown.uid.fill(sender.uid);
    unknown.gid.fill(sender.gid);
    if (client.pid <= 0 || sender.pid != client.pid || !client.pidfd) {
        return unknown;
    }
    Domain now = read_domain(client.pid);
    if (!is_alive(client.pidfd) || now.uid[0] != sender.uid || now.gid[0] != sender.gid) {
        return unknown;
    }
    if (now.filters != client.filters) {
        client.filters = now.filters; // from here on only its own children have the same ones
        client.lineage = next_id_++;
    }
    now.lineage = client.lineage;
    return now;
}

bool Monitor::alone_in(const Client &client, const Segment &segment) {
    const auto is_same = [&](const Segment::Member &m) { return same_process(*m.client, client); };
    return std::any_of(segment.members.begin(), segment.members.end(), is_same) &&
           std::all_of(segment.members.begin(), segment.members.end(), [&](const Segment::Member &m) {
               return m.client->kind == Client::Kind::ended || is_same(m);
           });
}

const BridgeProgram *Monitor::bridge_of(const Client &client) const {
    const auto it = bridge_programs_.find(client.bridge);
    return it == bridge_programs_.end() ? nullptr : &it->second;
}

/// Of a segment that nobody was shown by this monitor, but that several have: a family that comes back after
/// a restart, in any order. Whether all that are there already are of this domain. A child that has been
/// announced and has not come yet has what its parent has, which is asked. Who has ended, also if we have not
/// been told of it yet, counts for nobody.
bool Monitor::members_share_with(const Segment &segment, const Domain &now) {
    bool one_lives = false, one_comes = false;
    for (const Segment::Member &member : segment.members) {
        const Client &client = *member.client;
        if (client.kind == Client::Kind::ended || client.kind == Client::Kind::expected) {
            one_comes |= client.kind == Client::Kind::expected;
            continue;
        }
        const Domain domain = domain_now(client);
        if (has_ended(client)) {
            continue;
        }
        if (!client.pidfd || !domain.shares_with(now)) {
            return false;
        }
        one_lives = true;
    }
    return one_lives || !one_comes;
}

/// Whether a client whose domain is `now` may come to share the segment. A bridge was started for that.
bool Monitor::may_share(const Client &client, Segment &segment, const Domain &now) const {
    if (client.bridge != 0) {
        const BridgeProgram *program = bridge_of(client);
        return program != nullptr && program->segments.count(segment.name) != 0;
    }
    if (alone_in(client, segment)) {
        if (!has_ended(client)) {
            segment.domain = now; // it may have become somebody else since
        }
        return true;
    }
    if (!segment.domain && segment.parcels.empty() && members_share_with(segment, now)) {
        segment.domain = now;
    }
    return segment.domain && segment.domain->shares_with(now);
}

/// The passer, a member, is about to have others shown its segment: from now on it is known whose it is.
/// Where its founder is somebody else by now, it is nobody's.
void Monitor::stamp(Client &passer, Segment &segment, const Domain &now) {
    if (segment.domain && !alone_in(passer, segment)) {
        return;
    }
    segment.domain = now;
    for (const Segment::Member &member : segment.members) {
        if (member.proc_index == 0 && member.client->kind != Client::Kind::ended &&
            !same_process(*member.client, passer)) {
            const Domain founder = domain_now(*member.client);
            segment.domain->known = founder.shares_with(now) && is_alive(member.client->pidfd);
        }
    }
}

/// Whether an acceptor may be given a link. Connections of another domain's acceptors would be in its hands
/// otherwise; who comes first has it.
bool Monitor::may_accept_from(const Client &client, Link &link, const Domain &now) {
    LinkSide &side = link.side[1];
    if (std::all_of(side.attached.begin(), side.attached.end(),
                    [&](const Client *other) { return same_process(*other, client); }) &&
        side.parcels == 0 && side.awaited.empty()) {
        if (!has_ended(client)) {
            side.domain = now;
        }
        return true;
    }
    return side.domain && side.domain->shares_with(now);
}

/// Are all who have the other side, or come to have it since they have the listener, of the client's domain?
/// Then none of them gains by what the link's memory lets it do to the client (transport/link.hpp, LinkPeer).
bool Monitor::is_among_own(const Client &client, const Link &link, unsigned side) {
    const auto is_own = [&](const Client *other) { return may_share_bell(client, *other); };
    const auto &others = link.side[1 - side].attached;
    const bool is_asked_for = side == 0 && link.listener != nullptr;
    if (others.empty() && !(is_asked_for && !link.listener->holders.empty())) {
        return false;
    }
    return std::all_of(others.begin(), others.end(), is_own) &&
           (!is_asked_for || std::all_of(link.listener->holders.begin(), link.listener->holders.end(), is_own));
}

} // namespace sd::monitor
