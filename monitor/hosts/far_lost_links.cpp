// What a queue pair between two hosts had not carried when it ended, and what the dead had not posted.
//
// As in lost_links.cpp, but each of the two memories is with another monitor. So a monitor whose process has
// said how far the other side's records have come asks the other monitor for what follows them: pull. The
// answer is the words of that side, the records, and pulled. It asks again for as long as there are more, and
// whenever the other one says that something has changed. What is asked for is where this side stands, so
// nothing is lost with a channel: once it is back, all is asked again from there.
//
// One question at a time for each host, and one answer of a few hundred messages at most: a peer can keep
// nobody busy but itself. It is believed about what its processes have written, and no more than they are:
// what it says goes into the memory of the one process that talks with them, in bounds.
//
// The memory of a process that has ended is kept until its peer has read it, or has ended, too.
#include "monitor/operations/monitor.hpp"
#include "monitor/peers/helper.hpp"
#include "monitor/service/log.hpp"

#include <algorithm>
#include <cerrno>

namespace sd::monitor {

namespace {

namespace say = between_hosts;

constexpr size_t kWindow = 32u << 10; ///< bytes of records in one answer; the last one may be longer
constexpr size_t kBusy = 4096;        ///< messages that sd-peers has not taken
constexpr std::chrono::milliseconds kSoon{0}, kLater{2};
/// About as long as TCP tries to reach a host. A connection that needs the other monitor ends then.
constexpr std::chrono::minutes kMostAway{15};
constexpr std::chrono::milliseconds kFirstReview{250}, kLongestReview{64'000};

Link *find(const std::map<uint64_t, Link *> &links, uint64_t number) {
    const auto it = links.find(number);
    return it == links.end() ? nullptr : it->second;
}

std::vector<Link *> lost_ones(const RemoteHost &host) {
    std::vector<Link *> found;
    for (const auto &[number, link] : host.links) {
        if (link->lost()) {
            found.push_back(link);
        }
    }
    return found;
}

bool is_pulled(const RemoteHost &host, const Link *link, uint32_t slot) {
    return link != nullptr && host.pulling && host.pulling->what == RemoteHost::LinkSlot(link->id, slot);
}

} // namespace

// Ends that are not told otherwise.

/// Nobody can say what the far side has sent. True: the connection is reset for it, and has not ended before.
bool Monitor::give_up_slot(const Link &link, uint32_t slot) {
    constexpr uint32_t kHasEnded = kFlagClosed | kFlagReset | kFlagDead | kFlagReleased;
    const unsigned far = link.far->side;
    if ((link.view(far).slot(slot).side[far].control.flags.load(std::memory_order_acquire) & kHasEnded) != 0) {
        return false;
    }
    mark_and_ring(link, slot, far, kFlagReset | kFlagClosed | kFlagLost);
    return true;
}

void Monitor::give_up_slots(const Link &link) {
    link.for_each_open(1 - link.far->side, [&](uint32_t slot) { give_up_slot(link, slot); });
}

void Monitor::give_up_host(RemoteHost &host) {
    log::warn("peer {} has been away for too long: connections that need its monitor are reset", host.name);
    host.is_given_up = true;
    for (Link *link : lost_ones(host)) {
        give_up_slots(*link);
        if (link->side[1 - link->far->side].empty()) {
            forget(*link);
        }
    }
}

// The channel.

void Monitor::begin_carrying(RemoteHost &host) {
    for (Link *link : lost_ones(host)) {
        const unsigned own = 1 - link->far->side;
        const bool has_ended = link->side[own].empty();
        if (!host.carries) {
            give_up_slots(*link);
            if (has_ended) {
                tell(host, say::Gone{link->id});
                forget(*link);
            }
            continue;
        }
        tell(host, say::Lost{link->id, has_ended, 0});
        link->for_each_open(own, [&](uint32_t slot) { host.to_pull.insert({link->id, slot}); });
    }
    carry_on_soon(host);
}

void Monitor::stop_carrying(RemoteHost &host) {
    host.pulling.reset();
    host.asks.reset();
    host.to_pull.clear();
    host.changed.clear();
    for (EventLoop::Timer *timer : {&host.work, &host.review}) {
        if (*timer != 0) {
            loop_.cancel(std::exchange(*timer, 0));
        }
    }
    if (host.patience == 0 && !host.links.empty()) {
        host.patience = loop_.after(kMostAway, [this, &host] {
            host.patience = 0;
            give_up_host(host);
        });
    }
}

void Monitor::carry_on_soon(RemoteHost &host) {
    if (host.work == 0) {
        host.work = loop_.after(kSoon, [this, &host] { carry_on(host); });
    }
}

/// What there is to say to the host, as far as sd-peers takes it.
void Monitor::carry_on(RemoteHost &host) {
    host.work = 0;
    if (!host.is_running() || !host.carries) {
        return;
    }
    const auto is_busy = [&] {
        if (peers_->waiting() < kBusy) {
            return false;
        }
        host.work = loop_.after(kLater, [this, &host] { carry_on(host); });
        return true;
    };
    while (!host.changed.empty()) {
        if (is_busy()) {
            return;
        }
        const auto [link, slot] = *host.changed.begin();
        host.changed.erase(host.changed.begin());
        if (host.links.count(link) != 0) {
            tell(host, say::Changed{link, slot, 0});
        }
    }
    if (host.asks && !is_busy()) {
        answer_pull(host, *std::exchange(host.asks, std::nullopt));
    }
    if (!host.pulling) {
        ask_next(host);
    }
}

// The side that asks.

/// Of a process of this host: its queue pair of the link has ended, and so it is with the slot.
Reply Monitor::carry_far(Link &link, uint32_t slot, bool tells) {
    RemoteHost *host = link.far->host;
    if (!link.joins->test(slot)) {
        return Reply::error(EINVAL);
    }
    if (host == nullptr || host->is_given_up || (host->is_running() && !host->carries)) {
        give_up_slot(link, slot);
        return Reply::error(ENXIO, Cause::queue_pair_lost);
    }
    if (tells) {
        host->to_pull.insert({link.id, slot});
    }
    host->changed.insert({link.id, slot});
    carry_on_soon(*host);
    end_if_read(link);
    return {};
}

void Monitor::tell_lost(Link &link) {
    RemoteHost *host = link.far->host;
    if (host != nullptr) {
        const bool has_ended = link.side[1 - link.far->side].empty();
        host->lost += has_ended ? 0 : 1;
        if (host->is_running() && host->carries) {
            tell(*host, say::Lost{link.id, has_ended, 0});
        }
    }
}

void Monitor::ask_next(RemoteHost &host) {
    while (!host.to_pull.empty()) {
        const RemoteHost::LinkSlot what = *host.to_pull.begin();
        const auto [number, slot] = what;
        host.to_pull.erase(host.to_pull.begin());
        const Link *link = find(host.links, number);
        const unsigned far = link == nullptr ? 0 : link->far->side;
        const Link::Carried *carried = link == nullptr ? nullptr : link->carried(slot);
        if (carried == nullptr || !carried->known[far]) {
            continue; // its process has not said yet, and then it is asked
        }
        const FakeDirection &at = carried->direction[far];
        host.pulling.emplace(RemoteHost::Pulling{what, {slot, far, {at.cls, at.position, at.base}}});
        tell(host, say::Pull{number, slot, link->use(slot), at.cls, 0, at.position, at.base});
        return;
    }
}

const char *Monitor::heard(RemoteHost &host, const say::Words &m) {
    if (const Link *link = find(host.named, m.link); is_pulled(host, link, m.slot)) {
        host.pulling->words = m;
        put_first_words(link->view(0), m.slot, link->far->side, m);
    }
    return nullptr;
}

const char *Monitor::heard(RemoteHost &host, const say::Records &m) {
    if (const Link *link = find(host.named, m.link); is_pulled(host, link, m.slot)) {
        RemoteHost::Pulling &pulling = *host.pulling;
        const std::string_view bytes(reinterpret_cast<const char *>(m.bytes.data()), m.size);
        pulling.is_spoilt = pulling.is_spoilt || !pulling.words || !pulling.records.add(link->view(0), bytes);
        host.pulled += m.size;
    }
    return nullptr;
}

const char *Monitor::heard(RemoteHost &host, const say::Pulled &m) {
    Link *link = find(host.named, m.link);
    if (!is_pulled(host, link, m.slot)) {
        return nullptr; // of a link that has ended meanwhile
    }
    const RemoteHost::Pulling pulled = std::move(*host.pulling);
    host.pulling.reset();
    const unsigned far = link->far->side;
    if (!pulled.words || pulled.is_spoilt || pulled.records.is_inside()) {
        give_up_slot(*link, m.slot);
    } else {
        link->has_arrived(m.slot, far, pulled.records.place());
        if (m.more != 0) {
            host.to_pull.insert(pulled.what);
        } else {
            put_last_words(link->view(0), m.slot, far, *pulled.words);
        }
        mark_and_ring(*link, m.slot, far, 0);
    }
    carry_on_soon(host);
    end_if_read(*link);
    return nullptr;
}

const char *Monitor::heard(RemoteHost &host, const say::Changed &m) {
    if (const Link *link = find(host.named, m.link); link != nullptr && link->joins->test(m.slot)) {
        host.to_pull.insert({link->id, m.slot});
        carry_on_soon(host);
    }
    return nullptr;
}

// The side that is asked.

const char *Monitor::heard(RemoteHost &host, const say::Pull &m) {
    host.asks = m; // in place of a question whose link has ended over there
    carry_on_soon(host);
    return nullptr;
}

void Monitor::answer_pull(RemoteHost &host, const say::Pull &m) {
    const Link *link = find(host.named, m.link);
    if (link == nullptr) {
        return; // it has ended, which the other side has been told, or is
    }
    if (link->joins->test(m.slot) && link->use(m.slot) == m.use) {
        const unsigned own = 1 - link->far->side;
        // First: what they say is of records before.
        say::Words words = read_words(link->view(0), m.slot, own);
        const RecordsRead read = read_records(link->view(0), m.slot, own, {m.cls, m.position, m.base}, kWindow);
        words.link = link->id;
        words.flags |= read.sound ? 0 : kFlagReset | kFlagClosed;
        tell(host, words);
        say::Records piece{link->id, m.slot, 0, {}};
        for (size_t at = 0; at < read.bytes.size(); at += piece.size) {
            piece.size = static_cast<uint32_t>(std::min(read.bytes.size() - at, piece.bytes.size()));
            std::copy_n(read.bytes.begin() + static_cast<ptrdiff_t>(at), piece.size, piece.bytes.begin());
            tell(host, piece);
        }
        tell(host, say::Pulled{link->id, m.slot, read.sound && !read.all});
    } else {
        tell(host, say::Pulled{link->id, m.slot, 0});
    }
}

const char *Monitor::heard(RemoteHost &host, const say::Lost &m) {
    Link *link = find(host.named, m.link);
    if (link == nullptr) {
        return nullptr;
    }
    Link::Far &far = *link->far;
    if (m.ended != 0 && link->side[1 - far.side].empty()) { // nobody is left who would read
        tell(host, say::Gone{link->id});
        forget(*link);
        return nullptr;
    }
    if ((link->header(far.side).side[far.side].flags.load(std::memory_order_relaxed) & kLinkLost) == 0) {
        link->lose(far.side);
        ring_everybody(*link);
    }
    if (m.ended != 0 && !std::exchange(far.has_ended, true)) {
        refuse_asked(*link);
        host.pause = kFirstReview;
        review_soon(host);
    }
    end_if_read(*link);
    return nullptr;
}

// The dead.

/// Is there something of the process here, which has ended, that its peer may not have?
bool Monitor::is_kept_for_peer(const Link &link) {
    const RemoteHost *host = link.far->host;
    bool is_open = false;
    if (host != nullptr && host->carries && !host->is_given_up) {
        link.for_each_open(link.far->side, [&](uint32_t) { is_open = true; });
    }
    return is_open;
}

/// Of a link whose far process has ended: true when our process has all that there was.
bool Monitor::end_if_read(Link &link) {
    const Link::Far &far = *link.far;
    bool is_open = far.host == nullptr || !far.has_ended;
    link.for_each_open(1 - far.side,
                       [&](uint32_t slot) { is_open = is_open || !link.is_let_go(slot, far.side); });
    if (is_open) {
        return false;
    }
    if (far.host->is_running()) {
        tell(*far.host, say::Gone{link.id});
    }
    far_side_gone(link);
    return true;
}

/// What processes let go of without a word to the monitor is seen here.
void Monitor::review_soon(RemoteHost &host) {
    if (host.review != 0) {
        return;
    }
    host.review = loop_.after(host.pause, [this, &host] {
        host.review = 0;
        host.pause = std::min<std::chrono::milliseconds>(2 * host.pause, kLongestReview);
        bool is_left = false;
        for (Link *link : lost_ones(host)) {
            is_left = (!end_if_read(*link) && link->far->has_ended) || is_left;
        }
        if (is_left) {
            review_soon(host);
        }
    });
}

} // namespace sd::monitor
