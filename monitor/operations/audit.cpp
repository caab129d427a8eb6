// Looking for what a dead process left behind that no record names.
//
// A process can be killed between taking a connection request off the queue and noting that it holds the
// connection, or between giving up a connection and saying so to the peer; and while no monitor runs,
// nobody sees a process die at all. As long as somebody else is attached on the same side of the link, the
// death alone does not show which slots are affected. So after such a death each slot in use is compared
// with what the living hold.
//
// An acceptor of the living is for a moment where the dead was: it has taken the request and not noted it
// yet. And what is held is read before the slots are. So a slot counts as left behind only if one and the
// same connection is found there unheld again and again, for kCertain.
#include "monitor/kernel/process_info.hpp"
#include "monitor/operations/monitor.hpp"
#include "monitor/service/log.hpp"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <sys/epoll.h>

namespace sd::monitor {

namespace {

constexpr std::chrono::milliseconds kBetweenLooks{50}, kCertain{200};
/// All that the families hold is looked at, in pieces: no more than a fifth of the time is spent on it.
constexpr int kAuditShare = 4;
constexpr std::chrono::milliseconds kPieceOfAudit{3};
/// Where a look takes long, what is held may have moved meanwhile: so often at least, in a row.
constexpr unsigned kLooks = 4;
/// How long a link must have been back after a restart: a child made while no monitor ran is not named in
/// the link, so that nobody waits for it by name, but it comes back within this time.
constexpr std::chrono::seconds kSettling{3};

} // namespace

void Monitor::audit_soon(Link &link, unsigned side) {
    link.side[side].death_seen = true;
    audits_.try_emplace(link.file).first->second[side].wanted = true;
    audit_later();
}

void Monitor::audit_later() {
    if (audit_timer_ == 0 && !audit_round_) {
        const auto pause = std::chrono::ceil<std::chrono::milliseconds>(next_audit_ - EventLoop::Clock::now());
        audit_timer_ = loop_.after(std::max(kBetweenLooks, pause), [this] {
            begin_audit();
            go_on_auditing();
        });
    }
}

void Monitor::go_on_auditing() {
    audit_timer_ = 0;
    const auto start = EventLoop::Clock::now();
    while (audit_round_ && EventLoop::Clock::now() - start < kPieceOfAudit) {
        audit_step();
    }
    const auto pause = kAuditShare * (EventLoop::Clock::now() - start);
    if (audit_round_) {
        audit_timer_ =
            loop_.after(std::chrono::ceil<std::chrono::milliseconds>(pause), [this] { go_on_auditing(); });
        return;
    }
    next_audit_ = EventLoop::Clock::now() + pause;
    if (!audits_.empty()) {
        audit_later();
    }
}

void Monitor::begin_audit() {
    AuditRound round;
    round.audits = std::exchange(audits_, {});
    std::erase_if(round.audits, [this](const auto &entry) { return links_.count(entry.first) == 0; });
    if (round.audits.empty()) {
        return;
    }
    // Only those attached can hold an end, so only their segments matter.
    std::set<const Segment *> known;
    const auto add = [&](const std::shared_ptr<Segment> &segment) {
        if (known.insert(segment.get()).second) {
            round.segments.push_back(segment);
        }
    };
    for (const auto &[file, sides] : round.audits) {
        for (const LinkSide &side : links_[file]->side) {
            for (const Client *client : side.attached) {
                for (const Client::Share &share : client->segments) {
                    add(share.segment);
                }
            }
        }
    }
    for (const auto &[id, parcel] : parcels_) {
        add(parcel->segment);
    }
    audit_round_ = std::move(round);
}

/// One family's, or one link's piece of the round; ends it after the last.
void Monitor::audit_step() {
    const RingTogether each_once;
    AuditRound &round = *audit_round_;
    if (!round.segments.empty()) {
        const std::shared_ptr<Segment> segment = round.segments.back().lock();
        round.segments.pop_back();
        if (segment) {
            note_held(*segment, round);
        }
        return;
    }
    if (!round.audits.empty()) {
        const auto next = round.audits.extract(round.audits.begin());
        if (const auto it = links_.find(next.key()); it != links_.end()) {
            for (unsigned side = 0; side < 2; ++side) {
                audit_side(*it->second, side, next.mapped()[side], round.held[next.key()][side]);
            }
        }
        return;
    }
    audit_round_.reset();
}

/// What the family holds of the links that are looked at. Its members know one link by one name. What its
/// records say may be anything, so links are not looked up for each of them.
void Monitor::note_held(const Segment &segment, AuditRound &round) const {
    std::unordered_map<uint64_t, std::array<const Link *, 2>> names;
    const auto note = [&](uint64_t name, unsigned side, const Link *link) {
        if (round.audits.count(link->file) != 0) {
            const Link *&known = names[name][side];
            known = known == nullptr ? link : known;
        }
    };
    for (const Segment::Member &member : segment.members) {
        for (const auto &[name, attachment] : member.client->links) {
            for (unsigned side = 0; side < 2; ++side) {
                if (attachment.side[side]) {
                    note(name, side, attachment.link);
                }
            }
        }
    }
    for (const auto &[id, parcel] : parcels_) { // its members may all have passed on what they had
        if (parcel->segment.get() == &segment) {
            note(parcel->handoff.link_id, parcel->handoff.side, parcel->link);
        }
    }
    if (names.empty()) {
        return;
    }
    for (const Segment::HeldEnd &end : segment.held_ends()) {
        const auto it = end.side < 2 && end.slot < kLinkSlots ? names.find(end.link_id) : names.end();
        if (it != names.end() && it->second[end.side] != nullptr) {
            round.held[it->second[end.side]->file][end.side].set(end.slot);
        }
    }
}

void Monitor::audit_side(Link &link, unsigned side, const Audit &audit, const std::bitset<kLinkSlots> &held) {
    // While somebody has not come back to a restarted monitor we do not know what is held; see
    // stop_awaiting().
    if (!audit.wanted || !link.side[side].awaited.empty() || link.side[side].attached.empty()) {
        return;
    }
    if (const auto age = EventLoop::Clock::now() - link.adopted; link.was_adopted && age < kSettling) {
        loop_.after(std::chrono::ceil<std::chrono::milliseconds>(kSettling - age), [this, file = link.file, side] {
            if (const auto it = links_.find(file); it != links_.end()) {
                audit_soon(*it->second, side);
            }
        });
        return;
    }
    link.side[side].death_seen = false;
    std::optional<uint32_t> head;
    if (link.listener != nullptr) {
        head = link.listener->segment().link[link.place].syn_head.load(std::memory_order_acquire);
    }
    std::map<uint32_t, Suspect> again;
    const auto now = EventLoop::Clock::now();
    for (const uint32_t slot : left_behind(link, side, held, head)) {
        Suspect suspect{link.arrival(slot), now, 0};
        if (const auto known = audit.suspects.find(slot);
            known != audit.suspects.end() && known->second.arrival == suspect.arrival) {
            suspect = known->second;
        }
        if (++suspect.looks >= kLooks && now - suspect.since >= kCertain) {
            log::debug("slot {} of link {} was left behind by a dead process", slot, link.id);
            bury(link, side, slot);
        } else {
            again.emplace(slot, suspect);
        }
    }
    if (!again.empty()) {
        audit_soon(link, side);
        audits_[link.file][side].suspects = std::move(again);
    }
}

/// The link that an Ofd of this family means: its members know it by the same id.
const Link *Monitor::family_link(const Segment &segment, uint64_t link_id, unsigned side) const {
    for (const Segment::Member &member : segment.members) {
        if (const Link *link = member.client->link(link_id, side)) {
            return link;
        }
    }
    // Its members may all have passed on what they had.
    for (const auto &[id, parcel] : parcels_) {
        if (parcel->segment.get() == &segment && parcel->handoff.link_id == link_id &&
            parcel->handoff.side == side) {
            return parcel->link;
        }
    }
    return nullptr;
}

/// A segment that this monitor sees for the first time may be shared by processes that it does not know
/// (yet): children made, or processes that died, while no monitor ran. Its records may name anybody: who
/// shows it pays for the watching.
void Monitor::meet_strangers(const std::shared_ptr<Segment> &segment) {
    const Segment::Member &first = segment->members.front();
    if (segment->view().proc(first.proc_index).pid.load(std::memory_order_relaxed) !=
        static_cast<uint32_t>(first.client->pid)) {
        return; // its family counts processes in another pid namespace
    }
    for (const auto &[index, pid] : segment->strangers()) {
        UniqueFd pidfd = open_pidfd(pid);
        if (!pidfd) {
            if (errno == ESRCH) {
                reap_stranger(segment, index, pid);
            }
            continue;
        }
        Charge paid;
        try {
            paid = charge(first.client->payer, Resource::bells, 1);
        } catch (const OverShare &) {
            return;
        }
        const int fd = pidfd.get();
        auto watch = std::make_shared<EventLoop::Watch>(0);
        *watch = loop_.add(fd, EPOLLIN, [this, watch, index = index, pid = pid](uint32_t) {
            const auto it = strangers_.find(*watch);
            const Stranger stranger = std::move(it->second);
            strangers_.erase(it);
            loop_.remove(*watch, stranger.pidfd.get());
            if (const std::shared_ptr<Segment> there = stranger.segment.lock()) {
                there->watches.erase(*watch);
                reap_stranger(there, index, pid);
            }
        });
        segment->watches.insert(*watch);
        strangers_.emplace(*watch, Stranger{std::move(pidfd), segment, std::move(paid)});
    }
}

void Monitor::reap_stranger(const std::shared_ptr<Segment> &segment, unsigned index, pid_t pid) {
    if (segment->view().proc(index).pid.load(std::memory_order_relaxed) != static_cast<uint32_t>(pid)) {
        return; // the record is somebody else's by now
    }
    for (const Segment::Member &member : segment->members) {
        if (member.proc_index == index) {
            return; // it has registered after all, and is looked after as a client
        }
    }
    end_by_pieces(segment, segment->reap({nullptr, index}));
}

} // namespace sd::monitor
