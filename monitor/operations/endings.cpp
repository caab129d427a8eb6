// What ended processes held, and what a new program image does not take over: closed in pieces, so that
// nobody else waits for a process with many connections.
//
// A process that has ended is a client of kind `ended` until its last piece: it stays a member of its
// segments, a holder of its Ofds and attached to its links, as if it died only then. Its listeners end at
// once, because others may come to listen there. One with little to close has none of this: the first piece
// is made at once, and then it is gone.
//
// A listener's links, parcels that somebody has left behind and those of a bridge that has ended are closed
// in the same way; of these no process is a holder. What they may take at once is a share of the turn,
// whatever ends in it.
//
// How an early reap is called (Monitor::part): release_share(), after the share was taken out of the client's
// list. Where the process holds nothing in the segment that is over when it returns, unless the process was
// the last one and the whole table has to be looked at.
#include "monitor/operations/monitor.hpp"

#include <algorithm>
#include <poll.h>
#include <utility>

namespace sd::monitor {

namespace {

/// Records in a piece.
constexpr unsigned kRecordsAtOnce = 64;
/// What one turn of the loop spends on it before it looks at the clients again.
constexpr std::chrono::microseconds kTurn{500};

/// Whether somebody may have to do with the end of a process: of the same user, as processes that wait for
/// each other are. Roots are not one user (accounts.hpp), but for those of one group. Nobody waits for what a
/// stranger has left to close, also not for one in the same group, or where there are no groups.
bool concerns(const Payer &asker, const Payer &ended) {
    return asker.user == ended.user && (asker.user != nullptr || asker.group == ended.group);
}

} // namespace

/// One piece. True: nothing is left of it.
bool Monitor::one_piece(Client *client, const std::shared_ptr<Segment> &segment, Segment::Reaping &reaping) {
    const auto find_link = [&](uint64_t link_id, unsigned side) -> const Link * {
        return client != nullptr ? client->link(link_id, side) : family_link(*segment, link_id, side);
    };
    if (!segment->advance(reaping, find_link, kRecordsAtOnce)) {
        return false;
    }
    if (client == nullptr) {
        return true;
    }
    const size_t members = segment->members.size();
    if (!reaping.executes()) {
        std::erase(segment->members, reaping.who());
    }
    review_moved(*segment);
    if (members != 0 && segment->members.empty() && segment->parcels.empty()) {
        if (client->own == segment) {
            client->own.reset();
        }
        finish_segment(*segment);
    }
    return true;
}

void Monitor::end_by_pieces(Client &client, const std::shared_ptr<Segment> &segment, Segment::Reaping reaping) {
    if (client.ending == 0 && one_piece(&client, segment, reaping)) {
        return;
    }
    ending_of(client).jobs.push_back({segment, std::move(reaping)});
}

/// For a record without a client.
void Monitor::end_by_pieces(const std::shared_ptr<Segment> &segment, Segment::Reaping reaping) {
    if (one_piece(nullptr, segment, reaping)) {
        return;
    }
    endings_[next_id_++].jobs.push_back({segment, std::move(reaping)});
    go_on_ending_soon();
}

/// Until when whatever ends in this turn of the loop may be ended at once.
EventLoop::Clock::time_point Monitor::ends_until() {
    if (ends_turn_ != loop_.turn()) {
        ends_turn_ = loop_.turn();
        ends_until_ = EventLoop::Clock::now() + kTurn;
    }
    return ends_until_;
}

/// For what is no process's. With little to end, nothing is left when it returns.
void Monitor::end_by_pieces(Ending ending) {
    const RingTogether each_once;
    while (!ending.is_over() && EventLoop::Clock::now() < ends_until()) {
        one_step(ending);
    }
    if (!ending.is_over()) {
        endings_[next_id_++] = std::move(ending);
        go_on_ending_soon();
    }
}

Monitor::Ending &Monitor::ending_of(Client &client) {
    if (client.ending == 0) {
        client.ending = next_id_++;
        Ending &made = endings_[client.ending];
        made.client = &client;
        made.payer = client.payer;
        go_on_ending_soon();
    }
    return endings_[client.ending];
}

/// `share` is not in the client's list any more.
void Monitor::release_share(Client &client, const Client::Share &share) {
    const Segment::Member member{&client, share.proc_index};
    const auto &members = share.segment->members;
    if (std::find(members.begin(), members.end(), member) != members.end()) {
        end_by_pieces(client, share.segment, share.segment->reap(member));
    }
}

void Monitor::release_holdings(Client &client) {
    give_up_offers(client);
    while (!client.listeners.empty()) {
        leave_listener(client, **client.listeners.begin());
    }
    for (const Client::Share &share : std::exchange(client.segments, {})) {
        release_share(client, share);
    }
    client.to_drop.clear();
    for (const auto &[name, attachment] : client.links) {
        for (unsigned side = 0; side < 2; ++side) {
            if (!attachment.side[side]) {
                continue;
            }
            client.to_drop.emplace_back(name, side);
            if (client.kind != Client::Kind::ended) {
                attachment.link->take_bells(side, &client); // before its next program has its own counted
            }
        }
    }
    if (client.kind != Client::Kind::ended) {
        client.own.reset();
    }
    client.eventfds.clear();
    client.bells_given = client.links_made = 0;
    drop_links(client);
}

/// Those in Client::to_drop: after what is held on them.
void Monitor::drop_links(Client &client) {
    if (client.ending == 0 && !let_go_of_links(client, EventLoop::Clock::now() + kTurn)) {
        ending_of(client);
    }
}

/// True: that was all. A link can have as many connections as a piece has records, and more.
bool Monitor::let_go_of_links(Client &client, EventLoop::Clock::time_point until) {
    while (!client.to_drop.empty()) {
        const auto [name, side] = client.to_drop.back();
        client.to_drop.pop_back();
        if (const Link *link = client.link(name, side)) {
            const FileId file = link->file;
            detach(client, name, side);
            if (const auto it = links_.find(file);
                it != links_.end() && !it->second->side[side].attached.empty()) {
                audit_soon(*it->second, side);
            }
        }
        if (EventLoop::Clock::now() >= until) {
            break;
        }
    }
    return client.to_drop.empty();
}

void Monitor::go_on_ending_soon() {
    if (!is_ending_) {
        is_ending_ = true;
        loop_.soon([this] { go_on_ending(); });
    }
}

/// A turn's share. They take turns, so that one with little left is not kept by others.
void Monitor::go_on_ending() {
    is_ending_ = false;
    const auto until = EventLoop::Clock::now() + kTurn;
    const size_t before = endings_.size();
    {
        const RingTogether each_once; // before whoever waits for it is told
        while (!endings_.empty() && EventLoop::Clock::now() < until) {
            auto it = endings_.upper_bound(last_worked_);
            it = it == endings_.end() ? endings_.begin() : it;
            last_worked_ = it->first;
            work_on(it);
        }
    }
    if (endings_.size() < before) {
        answer_waiting();
    }
    if (!endings_.empty()) {
        go_on_ending_soon();
    }
}

/// A piece, a link or a parcel, of which there is one.
void Monitor::one_step(Ending &ending) {
    const auto take = [](auto &all) {
        const auto next = all.front();
        all.pop_front();
        return next;
    };
    if (!ending.jobs.empty()) {
        Ending::Job &job = ending.jobs.front();
        if (one_piece(ending.client, job.segment, job.reaping)) {
            ending.jobs.pop_front();
        }
    } else if (!ending.links.empty()) {
        close_link(take(ending.links));
    } else if (!ending.left.empty()) {
        if (const auto it = parcels_.find(take(ending.left)); it != parcels_.end()) {
            bridge(*it->second);
        }
    } else if (!ending.lost.empty()) {
        if (const auto it = parcels_.find(take(ending.lost)); it != parcels_.end()) {
            end_parcel(*it->second);
        }
    } else if (ending.client != nullptr) {
        let_go_of_links(*ending.client, EventLoop::Clock::now());
    }
}

void Monitor::work_on(Endings::iterator it) {
    Client *client = it->second.client;
    one_step(it->second);
    if (!it->second.is_over()) {
        return;
    }
    endings_.erase(it);
    if (client != nullptr) {
        client->ending = 0;
        if (client->kind == Client::Kind::ended) {
            forget_client(*client);
        }
    }
}

/// Nothing is left of an ended one.
void Monitor::forget_client(Client &client) {
    const uint64_t ns = client.ns == nullptr ? 0 : client.ns->cookie;
    clients_.erase(client.id);
    forget_namespace(ns);
    arm_exit(std::chrono::milliseconds(900));
}

/// We are told of ends of processes, but perhaps after somebody else has heard of them.
void Monitor::take_ended() {
    std::vector<pollfd> watched;
    std::vector<uint64_t> ids;
    for (const auto &[id, client] : clients_) {
        if (client->pidfd) {
            watched.push_back({client->pidfd.get(), POLLIN, 0});
            ids.push_back(id);
        }
    }
    poll(watched.data(), watched.size(), 0);
    for (size_t i = 0; i < ids.size(); ++i) {
        if (const auto it = clients_.find(ids[i]); watched[i].revents != 0 && it != clients_.end()) {
            gone(*it->second, "ended");
        }
    }
}

bool Monitor::is_awaited(const Client &asker, uint64_t until) const {
    const auto is_relative = [&asker](const Ending::Job &job) {
        return std::any_of(asker.segments.begin(), asker.segments.end(),
                           [&job](const Client::Share &share) { return share.segment == job.segment; });
    };
    return std::any_of(endings_.begin(), endings_.upper_bound(until), [&](const auto &entry) {
        const Ending &ending = entry.second;
        return (ending.client == nullptr || ending.client->kind == Client::Kind::ended) &&
               (concerns(asker.payer, ending.payer) ||
                std::any_of(ending.jobs.begin(), ending.jobs.end(), is_relative));
    });
}

/// Who asks knows that some process has ended.
Reply Monitor::ends(Client &client, Request &request) {
    take_ended();
    Reply reply;
    if (is_awaited(client, next_id_)) {
        waiting_[client.id] = {request.header, next_id_}; // it asks one thing at a time
        reply.later = true;
    }
    return reply;
}

void Monitor::answer_waiting() {
    for (auto it = waiting_.begin(); it != waiting_.end();) {
        const auto found = clients_.find(it->first);
        Client *client = found == clients_.end() || !found->second->channel ? nullptr : found->second.get();
        if (client != nullptr && is_awaited(*client, it->second.until)) {
            ++it;
            continue;
        }
        const wire::Header header = it->second.header;
        it = waiting_.erase(it);
        if (client != nullptr && header.sequence != wire::kNoAnswer &&
            !send(client->channel.get(), header, Reply{})) {
            client->impatient = true;
            channel_closed(*client);
        }
    }
}

} // namespace sd::monitor
