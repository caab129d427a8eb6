// Where connections are to go, as their owner or an administrator has said (sdctl path, detach, attach).
//
// Nobody waits here. A request marks what is to move and wakes who sleeps for it, and says how far it is;
// who has asked asks again until that is enough for him.
//
// A connection with paths is told by its words: PathWanted and kTxPath of the end in question, and kFlagHome,
// by which an end calls its peer home, as it could do itself. One born in shared memory first gets two
// kernel sockets with its names, one for each end (libsd/vfs/paths/adopt.hpp).
#include "monitor/steering/path_state.hpp"
#include "monitor/steering/steered_pair.hpp"

#include <algorithm>
#include <cerrno>
#include <set>

namespace sd::monitor {

namespace {

/// An end that is closed or unknown goes with the connection, mostly soon: who waits, waits for that.
bool is_for_good(Blocker blocker) {
    return blocker != Blocker::none && blocker != Blocker::ended && blocker != Blocker::alone;
}

/// Of what a request has taken, so much goes by until its user's next one.
constexpr int kSteeringShare = 4;

} // namespace

/// A request of somebody who is no administrator; `proof` is a segment.
struct Monitor::OwnSteering {
    wire::Header header;
    wire::Steer body;
    FileId proof;
    uid_t asker;
};

/// Those of which one of `meant` may hold an end. Only what is shared with them, or with those at the other
/// ends, is looked through: on a busy host everything takes long, and everybody may ask.
std::vector<Monitor::SteeredPair> Monitor::steered_pairs(const std::vector<Client *> &meant) const {
    std::map<std::pair<const Link *, uint32_t>, SteeredPair> pairs;
    std::set<const Segment *> seen;
    const auto look_through = [&](const std::shared_ptr<Segment> &segment, bool only_known) {
        if (!seen.insert(segment.get()).second) {
            return;
        }
        for (Segment::OpenOfd &ofd : segment->open_ofds()) {
            const Link *link = ofd.slot < kLinkSlots ? ofd.holders.front()->link(ofd.link_id, ofd.side) : nullptr;
            if (link == nullptr || (only_known && pairs.count({link, ofd.slot}) == 0)) {
                continue;
            }
            SteeredPair &pair = pairs[{link, ofd.slot}];
            pair.link = link;
            pair.slot = ofd.slot;
            const unsigned side = ofd.side;
            pair.end[side] = SteeredEnd{segment, std::move(ofd)};
        }
    };
    for (const Client *client : meant) {
        for (const Client::Share &share : client->segments) {
            look_through(share.segment, false);
        }
    }
    std::set<const Link *> links;
    for (const auto &[key, pair] : pairs) {
        links.insert(key.first);
    }
    for (const Link *link : links) {
        for (const auto &side : link->side) {
            for (const Client *client : side.attached) {
                for (const Client::Share &share : client->segments) {
                    look_through(share.segment, true);
                }
            }
        }
    }
    std::vector<SteeredPair> result;
    result.reserve(pairs.size());
    for (auto &[key, pair] : pairs) {
        result.push_back(std::move(pair));
    }
    return result;
}

namespace {

/// Tells one end of a connection with paths, and its peer by what an end may say to it.
template <typename End>
void tell_end(const Link &link, uint32_t slot, unsigned side, const End &end, bool to_kernel) {
    Ofd &words = end.words();
    auto &flags = link.view(side).slot(slot).side[side].control.flags;
    const int32_t wanted = to_kernel ? kWantKernel : kWantRing;
    const bool is_called = (flags.load(std::memory_order_relaxed) & kFlagHome) != 0;
    if ((words.opt.*kPathWanted).load(std::memory_order_relaxed) == wanted && is_called == to_kernel) {
        return;
    }
    (words.opt.*kPathWanted).store(wanted, std::memory_order_seq_cst);
    words.tx_block.fetch_or(kTxPath, std::memory_order_seq_cst);
    if (to_kernel) {
        flags.fetch_or(kFlagHome, std::memory_order_seq_cst);
    } else {
        flags.fetch_and(~uint32_t{kFlagHome}, std::memory_order_seq_cst);
    }
    mark_and_ring(link, slot, side, 0);
    mark_and_ring(link, slot, 1 - side, 0);
}

} // namespace

void Monitor::count_steered(const SteeredPair &pair, bool to_kernel, Blocker refused,
                            wire::SteerReply &reply) const {
    for (unsigned side = 0; side < 2; ++side) {
        const PathState state =
            path_state(*pair.link, pair.slot, side, pair.end[side] ? &pair.end[side]->ofd : nullptr);
        ++reply.directions;
        if (state.path == (to_kernel ? Path::kernel : Path::shm) && state.is_over) {
            ++reply.there;
            continue;
        }
        const Blocker blocker = refused != Blocker::none ? refused : state.blocker;
        reply.never += is_for_good(refused) || blocker == Blocker::pinned ? 1 : 0;
        reply.blocker = reply.blocker == 0 ? static_cast<uint32_t>(blocker) : reply.blocker;
    }
}

/// Are the ends about to get kernel sockets, and are to? What another monitor had begun, and what is not
/// wanted any more, ends. Where the words have changed meanwhile the next request sees what they say now.
bool Monitor::goes_on_adopting(const SteeredPair &pair, bool to_kernel) {
    bool goes_on = false;
    for (const std::optional<SteeredEnd> &end : pair.end) {
        if (!end || !end->ofd.is_adopting) {
            continue;
        }
        const uint32_t block = end->words().tx_block.load(std::memory_order_seq_cst);
        const auto it = moved_.find({end->segment.get(), end->ofd.index});
        const std::shared_ptr<Adoption> adoption = it != moved_.end() ? it->second.adoption : nullptr;
        if ((block & kTxAdopt) == 0) {
            goes_on = true; // it has ended, or both directions have left the ring, since `pair` was made
            continue;
        }
        if (adoption_of(block) == 0 || (block & kTxBegin) != 0) {
            goes_on = true;
        } else if (!adoption) {
            if (finish_adoption(pair, static_cast<unsigned>(&end - pair.end))) {
                goes_on = true;
            } else {
                clear_adoption(end->words());
            }
        } else if (!to_kernel) {
            rest_adoption(adoption);
        } else {
            review_adoption(adoption);
            goes_on = true;
        }
    }
    return goes_on;
}

/// `both`: the caller may speak for both ends of a connection. `may`: for whom else.
Reply Monitor::steer_to(const wire::Steer &body, bool both, const std::function<bool(const Client &)> &may) {
    const auto to = static_cast<wire::SteerTo>(body.to);
    if (body.to > static_cast<uint32_t>(wire::SteerTo::attach)) {
        return Reply::error(EINVAL);
    }
    const bool is_process = to == wire::SteerTo::detach || to == wire::SteerTo::attach;
    const bool to_kernel = to == wire::SteerTo::kernel || to == wire::SteerTo::detach;
    const auto is_meant = [&](const Client &client) {
        return client.kind == Client::Kind::process && static_cast<uint32_t>(client.pid) == body.pid &&
               may(client);
    };
    std::vector<Client *> meant;
    for (const auto &[id, client] : clients_) {
        if (is_meant(*client)) {
            meant.push_back(client.get());
        }
    }
    if (meant.empty()) {
        return Reply::error(ESRCH);
    }
    for (Client *client : meant) {
        if (is_process) {
            set_detached(*client, to_kernel);
        }
    }
    wire::SteerReply counted{};
    for (SteeredPair &pair : steered_pairs(meant)) {
        bool holds[2];
        for (unsigned side = 0; side < 2; ++side) {
            holds[side] = pair.end[side] && std::any_of(meant.begin(), meant.end(), [&](const Client *client) {
                              return pair.end[side]->is_held_by(*client);
                          });
        }
        if ((!holds[0] && !holds[1]) ||
            (!is_process && (static_cast<uint32_t>(pair.link_name()) != body.link || pair.slot != body.slot))) {
            continue;
        }
        const bool all = both && !is_process;
        const bool told[2] = {holds[0] || all, holds[1] || all};
        Blocker refused = Blocker::none;
        const bool is_adopting = goes_on_adopting(pair, to_kernel);
        const bool is_whole =
            pair.end[0] && pair.end[1] && pair.end[0]->ofd.has_paths && pair.end[1]->ofd.has_paths;
        if (to_kernel && !is_adopting && !is_whole) {
            refused = begin_adoption(pair, told);
        }
        for (unsigned side = 0; side < 2; ++side) {
            if (pair.end[side] && pair.end[side]->ofd.has_paths && told[side]) {
                tell_end(*pair.link, pair.slot, side, *pair.end[side], to_kernel);
            }
        }
        count_steered(pair, to_kernel, refused, counted);
    }
    if (counted.directions == 0 && !is_process) {
        return Reply::error(ENOENT);
    }
    Reply reply;
    reply.set(counted);
    return reply;
}

/// Of administrators: who sees everything of this host may say where it goes.
Reply Monitor::steer(Client & /*client*/, Request &request) {
    if (!viewer_of(request.sender).all) {
        return Reply::error(EPERM);
    }
    return steer_to(request.as<wire::Steer>(), true, [](const Client &) { return true; });
}

/// Of everybody else: a segment is had by the processes that share it alone, and is got from one of them with
/// pidfd_getfd(), for which the kernel asks whether the caller may trace it. Everybody may ask on as many
/// channels as he has, and anything may be in his own segment: no more than a fifth of the time is spent on a
/// user. Who comes too soon is answered later.
Reply Monitor::steer_mine(Client &client, Request &request) {
    const OwnSteering asked{request.header, request.as<wire::Steer>(), file_id(request.fds[0].get()),
                            request.sender.uid};
    request.close_descriptors();
    return steer_own(client, asked);
}

Reply Monitor::steer_own(Client &client, const OwnSteering &asked) {
    const std::shared_ptr<Account> account = client.payer.user ? client.payer.user : client.payer.group;
    const auto start = EventLoop::Clock::now();
    if (account && start < account->next_steering) {
        steer_later(client.id, asked, account->next_steering - start);
        return await_turn(client);
    }
    Reply reply = steer_to(asked.body, false, [&](const Client &each) {
        return (asked.asker == 0 || asked.asker == each.who.uid) &&
               std::any_of(each.segments.begin(), each.segments.end(),
                           [&](const Client::Share &share) { return share.segment->file == asked.proof; });
    });
    if (account) {
        const auto end = EventLoop::Clock::now();
        account->next_steering = end + kSteeringShare * (end - start);
    }
    return reply;
}

void Monitor::steer_later(uint64_t client, const OwnSteering &asked, EventLoop::Clock::duration left) {
    loop_.after(std::chrono::ceil<std::chrono::milliseconds>(left), [this, client, asked] {
        Client *asker = end_awaiting(client);
        if (asker == nullptr) {
            return;
        }
        Reply reply;
        try {
            reply = steer_own(*asker, asked);
        } catch (const std::system_error &) {
            reply = Reply::error(ENOMEM, Cause::no_memory);
        }
        if (!reply.later && asked.header.sequence != wire::kNoAnswer) {
            send(asker->channel.get(), asked.header, reply); // who does not take it asks anew
        }
    });
}

} // namespace sd::monitor
