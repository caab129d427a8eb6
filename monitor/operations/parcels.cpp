// Connections on their way from one process to another.
#include "libsd/control/assert.hpp"
#include "monitor/kernel/connected_socket.hpp"
#include "monitor/kernel/descriptor_kind.hpp"
#include "monitor/kernel/process_info.hpp"
#include "monitor/operations/monitor.hpp"
#include "monitor/service/log.hpp"

#include <algorithm>
#include <cerrno>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>

namespace sd::monitor {

namespace {

/// A parcel that is not claimed may still be in the queue of the Unix socket it was sent over, or be in the
/// hands of somebody without libsd, who waits for data. Which of the two shows in the descriptor tables of
/// all processes; those are looked at after this time, and then twice as long each time, up to a limit.
constexpr std::chrono::milliseconds kFirstLook{50};
constexpr unsigned kMostDoublings = 7;
/// A look at all tables takes as long as there are processes and descriptors: it is made in pieces, and no
/// more than a fifth of the time is spent on it, however many parcels there are, since everybody else waits
/// for us meanwhile.
constexpr std::chrono::milliseconds kPieceOfLook{3};
constexpr int kLookShare = 4;
/// After so many looks, what we are not allowed to see is taken to have arrived.
constexpr unsigned kBlindLooks = 6;
/// Who has libsd claims what has arrived at once, if it can run; a bridge that came first would take data
/// that others who share the connection wait for. Seen there so often, it is not going to be claimed: the
/// library is switched off.
constexpr unsigned kLibraryLooks = 4;

uint64_t socket_cookie(int fd) {
    uint64_t cookie = 0;
    return read_option(fd, SOL_SOCKET, SO_COOKIE, cookie) ? cookie : 0;
}

} // namespace

/// Not at once, if it has been there already: another search is under way.
std::chrono::milliseconds soon_after(std::chrono::steady_clock::time_point when) {
    const auto left = when - std::chrono::steady_clock::now();
    return std::max(std::chrono::ceil<std::chrono::milliseconds>(left), std::chrono::milliseconds(5));
}

Reply Monitor::pass(Client &client, Request &request) {
    const auto body = request.as<wire::Pass>();
    const HandoffRecord &p = body.handoff;
    Link *link = p.side < 2 ? client.link(p.link_id, p.side) : nullptr;
    const uint64_t name = body.segment == 0 ? client.id : body.segment;
    const auto share = std::find_if(client.segments.begin(), client.segments.end(),
                                    [name](const Client::Share &s) { return s.name == name; });
    const uint64_t cookie = socket_cookie(request.fds[0].get());
    if (link == nullptr || share == client.segments.end() || p.ofd_index == 0 || p.ofd_index >= kOfds ||
        p.slot >= kLinkSlots || body.start > static_cast<uint32_t>(wire::BridgeStart::for_all) ||
        p.options > kMaxFreshOptions || cookie == 0 || parcel_by_cookie_.count(cookie) != 0) {
        return Reply::error(EINVAL);
    }
    if (parcels_.size() >= config_.limits.clients) {
        return Reply::error(ENOBUFS, Cause::limit);
    }
    if (const auto it = moved_.find({share->segment.get(), p.ofd_index});
        it != moved_.end() && it->second.adoption) {
        const std::shared_ptr<Adoption> adoption = it->second.adoption;
        rest_adoption(adoption);
        forget_adoption(adoption);
    }
    const Ofd &ofd = share->segment->view().ofd(p.ofd_index);
    if ((ofd.tx_block.load(std::memory_order_seq_cst) & kTxBegin) != 0 ||
        (ofd.flags_seen.load(std::memory_order_acquire) & kSeenPath) != 0) {
        return Reply::error(EBUSY); // it has a kernel socket of its own, or is about to: that one is passed
    }
    auto made = std::make_unique<Parcel>();
    Parcel &parcel = *made;
    parcel.charge = charge(client.payer, Resource::parcels, 1);
    parcel.id = next_id_++;
    parcel.cookie = cookie;
    parcel.inode = file_id(request.fds[0].get()).ino;
    parcel.far = std::move(request.fds[1]);
    parcel.handoff = p;
    parcel.segment = share->segment;
    parcel.link = link;
    stamp(client, *parcel.segment, domain_of(client, request.sender));
    parcel.sender = client.id;
    parcel.uid = request.sender.uid;
    parcel.start = static_cast<wire::BridgeStart>(body.start);
    parcel.watch = loop_.add(parcel.far.get(), EPOLLIN | EPOLLRDHUP,
                             [this, id = parcel.id](uint32_t events) { parcel_ready(id, events); });
    if (parcel.start == wire::BridgeStart::unclaimed) {
        look_for_parcel_later(parcel);
    }
    ++link->side[p.side].parcels;
    ++parcel.segment->parcels[p.ofd_index];
    // The sender, who holds it until we answer, has said so. But another parcel may have ended since.
    parcel.segment->hold_parcel(p.ofd_index);
    parcel_by_cookie_[cookie] = &parcel;
    Reply reply;
    reply.set(wire::PassReply{parcel.id});
    parcels_[parcel.id] = std::move(made);
    if (parcel.start == wire::BridgeStart::at_once) {
        bridge(parcel); // may end it
    } else if (parcel.start == wire::BridgeStart::for_all) {
        if (const int error = move_holders(parcel, std::move(request.fds[0])); error != 0) {
            return Reply::error(error, Cause::passed);
        }
    }
    return reply;
}

/// In whose descriptor table the socket is. Nothing: that is not known yet; next_look_ says when to ask
/// again. What is asked while a look is under way is looked for with the next one.
std::optional<InHands> Monitor::look_at_descriptors(ino_t inode) {
    using std::chrono::steady_clock;
    const auto start = steady_clock::now();
    if (const auto seen = seen_.find(inode); seen != seen_.end()) {
        const InHands hands = seen->second;
        seen_.erase(seen);
        return hands;
    }
    if (!search_ || !search_->looks_for(inode)) {
        looked_for_[inode] = InHands::unknown;
    }
    if (start < next_look_) {
        return std::nullopt;
    }
    if (!search_) {
        search_.emplace(std::exchange(looked_for_, {}));
    }
    auto found = search_->go_on(start + kPieceOfLook);
    const auto end = steady_clock::now();
    next_look_ = end + kLookShare * (end - start);
    if (!found) {
        return std::nullopt;
    }
    search_.reset();
    seen_ = std::move(*found); // who has not come for the last answers asks again
    const auto own = seen_.find(inode);
    if (own == seen_.end()) {
        return std::nullopt;
    }
    const InHands hands = own->second;
    seen_.erase(own);
    return hands;
}

void Monitor::look_for_parcel_later(Parcel &parcel) {
    look_for_parcel_after(parcel, kFirstLook * (1 << std::min(parcel.looks, kMostDoublings)));
}

void Monitor::look_for_parcel_after(Parcel &parcel, std::chrono::milliseconds pause) {
    parcel.timer = loop_.after(pause, [this, id = parcel.id] {
        const auto it = parcels_.find(id);
        if (it == parcels_.end()) {
            return;
        }
        Parcel &found = *it->second;
        found.timer = 0;
        const auto hands = look_at_descriptors(found.inode);
        if (!hands) {
            look_for_parcel_after(found, soon_after(next_look_));
            return;
        }
        ++found.looks;
        found.seen_at_library += hands == InHands::library ? 1 : 0;
        if (hands == InHands::stranger || found.seen_at_library >= kLibraryLooks ||
            (hands == InHands::unknown && found.looks >= kBlindLooks)) {
            bridge(found);
        } else {
            look_for_parcel_later(found);
        }
    });
}

/// It has arrived, or ended.
void Monitor::stop_looking_for(Parcel &parcel) {
    if (parcel.timer != 0) {
        loop_.cancel(std::exchange(parcel.timer, 0));
    }
    looked_for_.erase(parcel.inode);
    seen_.erase(parcel.inode);
    if (parcels_.size() <= 1) {
        search_.reset(); // it has descriptors
    }
}

/// The passed socket has hung up (nobody has it any more), or somebody has written to it as it is.
void Monitor::parcel_ready(uint64_t id, uint32_t events) {
    const auto it = parcels_.find(id);
    if (it == parcels_.end()) {
        return;
    }
    Parcel &parcel = *it->second;
    const int waiting = ask(parcel.far.get(), parcel.uid, [](int socket) {
                            int bytes = 0;
                            ioctl(socket, FIONREAD, &bytes);
                            return bytes;
                        }).value_or(1);
    if ((events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0 && waiting == 0) {
        end_parcel(parcel);
    } else {
        bridge(parcel);
    }
}

Reply Monitor::claim(Client &client, Request &request) {
    const uint64_t cookie = socket_cookie(request.fds[0].get());
    const auto it = parcel_by_cookie_.find(cookie);
    if (cookie == 0 || it == parcel_by_cookie_.end()) {
        return Reply::error(ENOENT, Cause::passed);
    }
    Parcel &parcel = *it->second;
    const bool by_bridge = parcel.bridged && cookie == parcel.token_cookie;
    if (parcel.bridged && !by_bridge) {
        return Reply::error(EALREADY, Cause::passed);
    }
    // Segment and link show, and let change, everything the family has: to a process that could do that
    // anyway.
    const Domain now = by_bridge ? Domain{} : domain_of(client, request.sender);
    const bool shared = by_bridge ? client.bridge == parcel.bridge : may_share(client, *parcel.segment, now);
    if (!shared && !by_bridge && !now.known) {
        // Whoever cannot be looked at may just be dying, and a bridge would take data that others of the
        // family wait for: the next look at the descriptors of all processes tells whether somebody has it.
        parcel.seen_at_library = std::max(parcel.seen_at_library, kLibraryLooks - 1);
        if (parcel.timer == 0) {
            look_for_parcel_later(parcel);
        }
        return Reply::error(EPERM, Cause::passed);
    }
    if (!shared) {
        Reply refused = Reply::error(EPERM, Cause::passed);
        const HandoffRecord &p = parcel.handoff;
        refused.set(wire::Refused{connection_inode(p.link_id, p.slot, p.side)});
        if (const ClientSocket *common = common_socket(parcel)) {
            refused.fds.push_back(common->get()); // the parcel ends when the passed one is closed
        } else {
            move_with_receiver(parcel, std::move(request.fds[0]));
        }
        return refused;
    }
    if (!attach(client, *parcel.link, parcel.handoff.link_id, parcel.handoff.side)) {
        return Reply::error(EEXIST, Cause::passed);
    }
    wire::ClaimReply body{};
    body.handoff = parcel.handoff;
    body.segment = parcel.segment->name;
    for (const Client::Share &share : client.segments) {
        if (share.segment == parcel.segment) {
            body.segment = share.name; // names come from clients: what this one calls it, if it has it
        }
    }
    body.parcel = parcel.id;
    body.tell = by_bridge;
    Reply reply;
    reply.set(body);
    reply.fds = {parcel.segment->fd(), parcel.link->memfd.get()};
    return reply;
}

/// sd-bridge holds the connection itself now, or could not take it. From anybody else: it could not, so it
/// keeps the kernel socket.
Reply Monitor::claimed(Client &client, Request &request) {
    const auto it = parcels_.find(request.as<wire::ParcelRef>().parcel);
    if (it == parcels_.end()) {
        return Reply::error(ENOENT);
    }
    if (!it->second->bridged) {
        if (!may_share(client, *it->second->segment, domain_of(client, request.sender))) {
            return Reply::error(EPERM);
        }
        bridge(*it->second);
        return {};
    }
    if (client.bridge == 0 || client.bridge != it->second->bridge) {
        return Reply::error(EPERM);
    }
    end_parcel(*it->second);
    return {};
}

/// Before an exec of a program without libsd the connections that stay open are passed to it; now it runs.
void Monitor::sender_gone(uint64_t client_id, const Payer &payer) {
    Ending ending;
    ending.payer = payer;
    for (const auto &[id, parcel] : parcels_) {
        if (parcel->sender == client_id && parcel->start == wire::BridgeStart::left && !parcel->bridged) {
            ending.left.push_back(id);
        }
    }
    end_by_pieces(std::move(ending));
}

void Monitor::end_parcel(Parcel &parcel) {
    loop_.remove(parcel.watch, parcel.far.get());
    parcel.far.reset();
    stop_looking_for(parcel);
    parcel_by_cookie_.erase(parcel.cookie);
    parcel_by_cookie_.erase(parcel.token_cookie);
    const std::unique_ptr<Parcel> ended = std::move(parcels_.extract(parcel.id).mapped());
    Segment &segment = *ended->segment;
    Link &link = *ended->link;
    const uint32_t ofd = ended->handoff.ofd_index;
    SD_ASSERT(segment.parcels.count(ofd) != 0 && link.side[ended->handoff.side].parcels != 0);
    if (--segment.parcels[ofd] == 0) {
        segment.parcels.erase(ofd);
        segment.release_parcel(ofd, [&](uint64_t link_id, unsigned side) {
            return link_id == ended->handoff.link_id && side == ended->handoff.side ? &link : nullptr;
        });
    }
    review_moved(segment);
    if (segment.members.empty() && segment.parcels.empty()) {
        finish_segment(segment);
    }
    --link.side[ended->handoff.side].parcels;
    side_changed(link, ended->handoff.side);
}

/// Nobody shares it any more: only its counters are kept.
void Monitor::finish_segment(Segment &segment) {
    past_ += segment.counters();
    for (const RecentFallback &fallback : segment.recent_fallbacks()) {
        past_fallbacks_.push_back(fallback);
    }
    if (past_fallbacks_.size() > 2 * kFallbackRing) {
        std::sort(past_fallbacks_.begin(), past_fallbacks_.end(),
                  [](const auto &a, const auto &b) { return a.when_ns > b.when_ns; });
        past_fallbacks_.resize(kFallbackRing);
    }
    for (const uint64_t watch : std::exchange(segment.watches, {})) {
        if (const auto it = strangers_.find(watch); it != strangers_.end()) {
            loop_.remove(watch, it->second.pidfd.get());
            strangers_.erase(it);
        }
    }
    segments_.erase(segment.file);
}

} // namespace sd::monitor
