// Links between a process of this host and one of another: made, greeted, and given up when either side ends.
#include "monitor/operations/monitor.hpp"
#include "monitor/peers/helper.hpp"
#include "monitor/service/log.hpp"

#include <algorithm>

namespace sd::monitor {

namespace say = between_hosts;

/// The link of our process to that one there, if there is room for it.
Link *Monitor::link_to_host(Client &connector, RemoteHost &host, uint64_t process) {
    for (const auto &[name, attachment] : connector.links) {
        Link *link = attachment.link;
        if (attachment.side[0] && link->far && link->far->host == &host && link->far->process == process &&
            !link->far->is_crowded && !link->lost() && link->side[1].is_far &&
            link->own_process() == &connector) {
            return link;
        }
    }
    return may_pair(connector) && connector.links_made < config_.limits.links_per_client
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
    own.links.at(link.id).untold[side] = true;
    link.header(side).side[side].process = static_cast<uint32_t>(own.pid);
    far.host->links[link.id] = &link;
    return &link;
}

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
    const bool is_held = !link.side[1 - side].empty();
    refuse_asked(link);
    give_up_slots(link); // those whose end is not known
    link.side[side].is_far = false;
    forget_far(link);
    side_changed(link, side); // which forgets a link that nobody has
    if (Client *own = is_held ? link.own_process() : nullptr) {
        leave_if_untold(*own, link, 1 - side);
    }
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

} // namespace sd::monitor
