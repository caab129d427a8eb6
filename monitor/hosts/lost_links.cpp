// What a queue pair had not carried when it ended, and what the dead had not posted.
//
// Each side writes into a memory of its own, which the monitor has as well. So once a side has said how far
// the other one's records have come, and that its queue pair is in the error state and brings no more, the
// monitor can carry on from exactly there: the same records, each once, and the words that say what has
// become of them. Both ends then leave the ring for their socket by the ordinary steps, with nothing of it
// left behind; what is carried here is at most what their rings hold.
//
// Nothing of a side is believed but about itself. Its records go to where its own words say, in bounds, and
// its peer looks at each as ever.
#include "monitor/operations/monitor.hpp"
#include "monitor/service/log.hpp"

#include <algorithm>
#include <cerrno>
#include <utility>

namespace sd::monitor {

namespace {

bool holds(const Link &link, unsigned side, uint64_t id) {
    const auto &attached = link.side[side].attached;
    return std::any_of(attached.begin(), attached.end(), [&](const Client *client) { return client->id == id; });
}

/// Who has inherited the side does not know how far its records have come.
bool cannot_tell(const Link &link, unsigned side) {
    return !link.side[side].empty() && !holds(link, side, link.greeted[side].owner);
}

void reset_both(const Link &link, uint32_t slot) {
    for (unsigned side = 0; side < 2; ++side) {
        mark_and_ring(link, slot, side, kFlagReset | kFlagClosed | kFlagLost);
    }
}

/// After a queue pair between two processes was lost there is a pause before the next one, and each is twice
/// as long as the one before. Connections that are made meanwhile stay with the kernel.
bool is_pause_over(Client &connector, const std::pair<const void *, uint64_t> &pair) {
    for (const auto &[name, attachment] : connector.links) {
        if (attachment.side[0]) {
            note_loss(connector, *attachment.link);
        }
    }
    const auto it = connector.lost_pairs.find(pair);
    return it == connector.lost_pairs.end() || it->second.is_over(Backoff::Clock::now());
}

} // namespace

/// What is known of a lost link stays when the link goes.
void note_loss(Client &connector, Link &link) {
    constexpr size_t kMany = 256;
    if (!link.joins || !link.lost() || std::exchange(link.is_loss_noted, true)) {
        return;
    }
    auto &pairs = connector.lost_pairs;
    if (pairs.size() >= kMany) {
        std::erase_if(pairs,
                      [now = Backoff::Clock::now()](const auto &one) { return one.second.is_forgotten(now); });
    }
    if (!link.far) {
        pairs[{nullptr, link.greeted[1].owner}].failed(*link.lost());
    } else if (link.far->host != nullptr) {
        pairs[{link.far->host, link.far->process}].failed(*link.lost());
    }
}

bool Monitor::may_pair_again(Client &connector, const Client &acceptor) {
    return is_pause_over(connector, {nullptr, acceptor.id});
}

bool Monitor::may_pair_again(Client &connector, const RemoteHost &host, uint64_t process) {
    return is_pause_over(connector, {&host, process});
}

/// It could have no queue pair a moment ago: for a process of another host it is not asked to make one. Those
/// that it has carry on.
bool Monitor::may_pair(const Client &client) { return client.pairing.is_over(Backoff::Clock::now()); }

/// The client has let go of the side: what it has not told, nobody else can tell.
void Monitor::owner_gone(Link &link, unsigned side, const Client &client) {
    if (!link.is_remote() || link.greeted[side].owner != client.id || !cannot_tell(link, side)) {
        return;
    }
    if (link.far) { // nobody else has the queue pair
        link.lose(side);
        tell_lost(link);
        give_up_slots(link);
        return;
    }
    if (!link.lost()) {
        return;
    }
    for (uint32_t slot = 0; slot < kLinkSlots; ++slot) {
        const Link::Carried *carried = link.carried(slot);
        if (carried != nullptr && !carried->known[1 - side]) {
            reset_both(link, slot);
        }
    }
}

Reply Monitor::carry(Client &client, Request &request) {
    const auto body = request.as<wire::Carry>();
    Link *link = body.side < 2 && body.slot < kLinkSlots ? client.link(body.link_id, body.side) : nullptr;
    if (link == nullptr || !link->is_remote()) {
        return Reply::error(ENOENT);
    }
    const unsigned far = 1 - body.side;
    if (body.tells != 0) {
        if (link->greeted[body.side].owner != client.id) {
            return Reply::error(EPERM);
        }
        if (!link->arrived(body.slot, far, body.cls, body.position, body.base)) {
            return Reply::error(EINVAL);
        }
        if ((link->header(far).side[body.side].flags.load(std::memory_order_relaxed) & kLinkLost) == 0) {
            log::debug("the queue pair of link {} has ended for process {}", link->id, client.pid);
            link->lose(body.side);
            ring_everybody(*link);
            if (link->far) {
                tell_lost(*link);
            }
        }
    }
    if (link->far) {
        return carry_far(*link, body.slot, body.tells != 0);
    }
    const Link::Carried *carried = link->carried(body.slot);
    if ((carried == nullptr || !carried->known[body.side]) && cannot_tell(*link, far)) {
        reset_both(*link, body.slot);
        return Reply::error(ENXIO);
    }
    mark_and_ring(*link, body.slot, far, 0);
    mark_and_ring(*link, body.slot, body.side, 0);
    return {};
}

} // namespace sd::monitor
