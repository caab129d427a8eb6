// Connections with programs of another host: the channel to its monitor. The monitors of both hosts look for
// the two ends, and join them.
//
// Of the two the host that has connected joins (far_offers.cpp), since it knows both ends: its own, and the
// one that the other host has offered. Each host asks its own policy about its own end. Whatever a peer says,
// it can end its channel, refuse, or spoil connections with itself. docs/design/rdma-hosts.md has the
// messages.
#include "monitor/operations/monitor.hpp"
#include "monitor/peers/helper.hpp"
#include "monitor/service/log.hpp"

#include <nlohmann/json.hpp>

namespace sd::monitor {

namespace say = between_hosts;

RemoteHost &Monitor::remote_host(const std::string &name) {
    RemoteHost &host = remote_hosts_[name];
    host.name = name;
    return host;
}

void Monitor::tell(const RemoteHost &host, const say::LinkMessage &message) {
    peers_->send(host.name, message);
}

// The channel.

void Monitor::host_is_there(const std::string &name) {
    RemoteHost &host = remote_host(name);
    host.step = RemoteHost::Step::silent;
    host.carries = peers_->carries(name);
    host.is_given_up = false;
    host.foreign.clear();
    host.listed.clear();
    tell(host, say::Epoch{epoch_});
    for (const auto &[number, link] : host.links) {
        tell(host, say::Links{number, link->far->number});
    }
    tell(host, say::Links{});
}

/// What runs, runs on: the processes carry it.
void Monitor::host_is_away(const std::string &name) {
    RemoteHost &host = remote_host(name);
    host.step = RemoteHost::Step::away;
    host.foreign.clear();
    stop_carrying(host);
}

void Monitor::host_says(const std::string &name, const say::LinkMessage &message) {
    RemoteHost &host = remote_host(name);
    using Step = RemoteHost::Step;
    const bool is_epoch = std::holds_alternative<say::Epoch>(message);
    const bool is_list = std::holds_alternative<say::Links>(message);
    if (host.step == Step::away || is_epoch != (host.step == Step::silent) ||
        is_list != (host.step == Step::listing)) {
        peers_->refuse(name, "a message about links out of turn");
        return;
    }
    const char *wrong = std::visit([&](const auto &m) { return heard(host, m); }, message);
    if (wrong != nullptr) {
        peers_->refuse(name, wrong);
    }
}

const char *Monitor::heard(RemoteHost &host, const say::Epoch &m) {
    if (host.epoch != m.epoch) {
        lose_links(host);
        host.epoch = m.epoch;
    }
    host.step = RemoteHost::Step::listing;
    return nullptr;
}

const char *Monitor::heard(RemoteHost &host, const say::Links &m) {
    if (m.link != 0) {
        host.listed.insert(m.link);
        return host.listed.size() > kMostFarLinks ? "more links than it can have"
               : m.their_link != 0                ? learn_number(host, m.their_link, m.link)
                                                  : nullptr;
    }
    std::vector<Link *> gone;
    for (const auto &[number, link] : host.named) {
        if (host.listed.count(number) == 0) {
            gone.push_back(link);
        }
    }
    for (Link *link : gone) {
        far_side_gone(*link);
    }
    host.listed.clear();
    forget_closed(host);
    host.step = RemoteHost::Step::running;
    if (host.patience != 0) {
        loop_.cancel(std::exchange(host.patience, 0));
    }
    // What is open, in the order in which it was said before.
    std::vector<say::Joined> asked;
    for (const auto &[number, key] : host.offers) {
        const Offer &offer = offers_.at(key);
        if (offer.asked) {
            asked.push_back(*offer.asked);
        } else if (offer.side == 1) {
            tell(host, say::Offer{number, offer.client->id, offer.pair});
        }
    }
    for (const say::Joined &again : asked) {
        tell(host, again);
    }
    for (const auto &[number, link] : host.links) {
        const unsigned own = 1 - link->far->side;
        for (const uint32_t step : {uint32_t{wire::kGreets}, uint32_t{wire::kCanReceive}}) {
            if (link->greeted[own].step >= step) {
                greet_host(*link, step);
            }
        }
    }
    begin_carrying(host);
    return nullptr;
}

/// Of a link that this host has made, as soon as it is told. What has ended here meanwhile is no fault.
const char *Monitor::learn_number(RemoteHost &host, uint64_t here, uint64_t there) {
    const auto it = host.links.find(here);
    if (it == host.links.end()) {
        return nullptr;
    }
    Link::Far &far = *it->second->far;
    if (far.number == 0 && host.named.count(there) == 0) {
        far.number = there;
        host.named[there] = it->second;
    }
    return far.number == there ? nullptr : "another number of a link than before";
}

/// The monitor there is another one than before, and knows nothing of these links. The processes at both ends
/// may live, so nobody is told that one has ended.
void Monitor::lose_links(RemoteHost &host) {
    host.closed.clear();
    for (const auto &[number, link] : std::exchange(host.links, {})) {
        for (const OfferKey &key : std::set<OfferKey>(link->offers)) {
            const auto it = offers_.find(key);
            if (it->second.asked) {
                leave_link(it->second);
            } else {
                forget_offer(it); // its process has not heard, and does not
            }
        }
        link->far->host = nullptr;
        link->side[link->far->side].is_far = false;
        if (link->lost()) {
            give_up_slots(*link);
        }
        if (link->side[1 - link->far->side].empty()) {
            forget(*link); // what it still had is for nobody
        }
    }
    host.named.clear();
}

void Monitor::add_host(const std::string &name, nlohmann::json &row) const {
    const auto it = remote_hosts_.find(name);
    const RemoteHost none, &host = it == remote_hosts_.end() ? none : it->second;
    row["joined"] = host.joined;
    row["refused"] = host.refused;
    row["strange"] = host.strange;
    row["crowded"] = host.crowded;
    row["lost"] = host.lost;
    row["pulled"] = host.pulled;
    row["links"] = host.links.size();
    row["offers"] = host.offers.size();
    row["foreign"] = host.foreign.size();
}

} // namespace sd::monitor
