// Processes coming and going: hello, presence, fork, exec, death.
#include "monitor/kernel/descriptor_kind.hpp"
#include "monitor/kernel/process_info.hpp"
#include "monitor/operations/monitor.hpp"
#include "monitor/records/group_memory.hpp"
#include "monitor/service/log.hpp"

#include <algorithm>
#include <cerrno>
#include <poll.h>
#include <sys/epoll.h>
#include <system_error>

namespace sd::monitor {

namespace {

/// Whether what the former owner of the record held is still being ended.
bool is_ending(const Segment &segment, unsigned proc_index) {
    return std::any_of(segment.members.begin(), segment.members.end(), [&](const Segment::Member &m) {
        return m.proc_index == proc_index && m.client->kind == Client::Kind::ended;
    });
}

bool hung_up(int channel) {
    pollfd p{channel, 0, 0};
    return poll(&p, 1, 0) == 1 && (p.revents & (POLLHUP | POLLERR)) != 0;
}

} // namespace

/// Fills in who the sender of a packet is, and watches it for its end. False: it has ended already. `forked`:
/// its program is its parent's, which is filled in.
bool Monitor::identify(Client &client, const ucred &sender, bool forked) {
    client.pid = sender.pid;
    client.who.uid = sender.uid;
    client.who.gid = sender.gid;
    if (sender.pid <= 0) {
        // A process of a pid namespace that is not ours or below it: its channel is all there is to watch.
        return true;
    }
    UniqueFd pidfd = open_pidfd(sender.pid);
    if (!pidfd) {
        return errno != ESRCH;
    }
    client.start = start_time(sender.pid);
    if (!forked) {
        client.bell_domain.reset();
        client.who.exe = process_exe(sender.pid);
        const std::string whole = whole_group_of(sender.pid, pidfd.get());
        client.who.cgroup = whole == "?" ? "" : whole;
        client.who.unit = unit_of(group_of(sender.pid, pidfd.get()));
        client.comm = process_comm(sender.pid);
    }
    loop_.remove(client.pidfd_watch, client.pidfd.get());
    client.pidfd = std::move(pidfd);
    client.pidfd_watch = loop_.add(client.pidfd.get(), EPOLLIN, [this, id = client.id](uint32_t) {
        if (const auto it = clients_.find(id); it != clients_.end()) {
            gone(*it->second, "ended");
        }
    });
    return true;
}

Client *Monitor::find_process(pid_t pid, uint64_t start, const Client *other_than) {
    for (auto &[id, client] : clients_) {
        if (pid > 0 && client.get() != other_than && client->kind == Client::Kind::process &&
            client->pid == pid && client->start == start) {
            return client.get();
        }
    }
    return nullptr;
}

bool Monitor::has_presence(pid_t pid, uint64_t start) const {
    return pid > 0 && std::any_of(clients_.begin(), clients_.end(), [&](const auto &entry) {
               const Client &c = *entry.second;
               return c.kind == Client::Kind::presence && c.pid == pid && c.start == start;
           });
}

std::shared_ptr<Segment> Monitor::find_segment(const Client &payer, Request &request) {
    const FileId id = file_id(request.fds[0].get());
    if (const auto it = segments_.find(id); it != segments_.end()) {
        if (auto known = it->second.lock()) {
            return known;
        }
    }
    Charge paid = charge(payer.payer, Resource::segments, 1);
    std::shared_ptr<Segment> segment;
    if (safe_to_map(request.fds[0].get(), kSegmentBytes)) { // nothing else is taken: its close could sleep
        segment = Segment::open(std::move(request.fds[0]));
    }
    if (segment) {
        segment->name = next_id_++;
        segment->charge = std::move(paid);
        segments_[id] = segment;
    } else if (may_log()) {
        log::warn("process {}: its segment is not sealed shared memory of this version", request.sender.pid);
    }
    return segment;
}

void Monitor::share_segment(Client &client, const std::shared_ptr<Segment> &segment, unsigned proc_index,
                            uint64_t name) {
    segment->members.push_back({&client, proc_index});
    client.segments.push_back({segment, proc_index, name});
    if (segment->members.size() == 1) {
        meet_strangers(segment);
    }
}

Reply Monitor::hello(Client &client, Request &request) {
    const auto body = request.as<wire::Hello>();
    if (body.layout_version != kLayoutVersion) {
        return Reply::error(EPROTONOSUPPORT, Cause::monitor_version);
    }
    const uint64_t cookie = proven_netns(request.fds[1].get());
    if (body.proc_index >= kSegProcs || cookie == 0) {
        return Reply::error(EINVAL);
    }
    if (!config_.all_users && request.sender.uid != geteuid() && request.sender.uid != 0) {
        return Reply::error(EACCES, Cause::policy);
    }
    pay_as(client, request.sender);
    std::shared_ptr<Segment> segment = find_segment(client, request);
    if (!segment) {
        return Reply::error(EINVAL);
    }
    // What a former program in this process registered ends here, unless its segment was handed on.
    const bool again = client.kind == Client::Kind::process;
    if (again && client.own != segment) {
        release_holdings(client);
    }
    if (!identify(client, request.sender)) {
        return Reply::error(ESRCH);
    }
    client.bridge = 0;
    meet_bridge_programs();
    for (const auto &[id, program] : bridge_programs_) {
        if (client.pid > 0 && program.pid == client.pid && is_alive(program.pidfd)) {
            client.bridge = id; // numbers are used again
        }
    }
    if (client.own != segment && !(segment->members.empty() && segment->parcels.empty()) &&
        !may_share(client, *segment, domain_of(client, request.sender))) {
        return Reply::error(EPERM, Cause::policy); // somebody else's
    }
    if (client.own != segment && is_ending(*segment, body.proc_index)) {
        return Reply::error(EBUSY); // its former connections are being closed
    }
    if (client.own != segment && segment->is_full()) {
        return Reply::error(EMFILE, Cause::limit);
    }
    while (Client *old = find_process(client.pid, client.start, &client)) {
        if (old->channel && !hung_up(old->channel.get())) {
            break; // two live channels of one process: each counts for itself
        }
        // A forked child may have had no segment of its own before.
        const bool same_program =
            old->own == segment || (body.former != 0 && body.former == wire::folded(old->id));
        if (same_program && client.segments.empty()) {
            move_holdings(*old, client);
        }
        client.lineage = old->lineage;
        client.filters = old->filters;
        client.detached = client.detached || old->detached;
        gone(*old, same_program ? "has a new channel" : "was replaced by a new program image");
    }
    Namespace &ns = find_namespace(cookie, client.payer);
    const uint64_t former = client.ns == nullptr ? 0 : client.ns->cookie;
    client.ns = &ns;
    forget_namespace(former);
    client.kind = Client::Kind::process;
    if (client.lineage == 0) {
        client.lineage = next_id_++;
        client.filters = read_domain(client.pid).filters; // its service manager may have installed some
    }
    client.netns_inode = netns_inode(client.pid);
    if (client.own != segment) {
        client.own = segment;
        share_segment(client, segment, body.proc_index, client.id);
    }
    apply_detached(client);
    log::debug("process {} ({}) is client {}", client.pid, client.comm, client.id);
    Reply reply;
    reply.set(hello_reply(client));
    reply.fds.push_back(client.ns->directory.fd());
    return reply;
}

wire::HelloReply Monitor::hello_reply(Client &client) const {
    auto most_ring = config_.policy.most_ring(client.who);
    client.arenas = 0;
    if (const auto memory = memory_limit_of(client.pid, client.pidfd.get())) {
        most_ring = std::min(most_ring.value_or(kRingClasses - 1), most_ring_within(*memory));
        client.arenas = most_arenas_within(*memory);
    }
    return {client.id, client.arenas, config_.policy.spin(client.who),
            static_cast<uint16_t>(most_ring ? *most_ring + 1 : 0)};
}

Reply Monitor::presence(Client &client, Request &request) {
    client.kind = Client::Kind::presence;
    client.pid = request.sender.pid;
    client.start = start_time(client.pid);
    client.filters = read_domain(client.pid).filters;
    client.who.uid = request.sender.uid;
    client.who.gid = request.sender.gid;
    return {};
}

/// Nothing may follow here for long, and the channel is to be kept all the same.
Reply Monitor::stay(Client &client, Request &request) {
    client.stays = true;
    client.filters = read_domain(request.sender.pid).filters;
    return {};
}

std::pair<Client &, UniqueFd> Monitor::make_channel(const Client &asking, const Payer &payer) {
    Charge paid = charge_client(payer, &asking);
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) {
        throw std::system_error(errno, std::generic_category(), "socketpair");
    }
    UniqueFd ours(ends[0]), theirs(ends[1]);
    Client &made = add_client(std::move(ours), payer, std::move(paid));
    made.contained = asking.contained;
    return {made, std::move(theirs)};
}

/// A channel for somebody who cannot connect, sent to where he alone receives. What may be done with it is
/// decided as with all others, by who sends on it. It is a socket of our own making: another one's
/// SO_PASSCRED would be in the client's hands.
Reply Monitor::enter(Client &client, Request &request) {
    const int to = request.fds[0].get();
    int domain = 0, type = 0;
    ucred maker{};
    socklen_t number = sizeof(int), length = sizeof maker;
    // The other end of anything else may be ours, or a service's: it would take this for a request that we
    // make.
    if (getsockopt(to, SOL_SOCKET, SO_DOMAIN, &domain, &number) != 0 || domain != AF_UNIX ||
        getsockopt(to, SOL_SOCKET, SO_TYPE, &type, &number) != 0 || type != SOCK_SEQPACKET ||
        getsockopt(to, SOL_SOCKET, SO_PEERCRED, &maker, &length) != 0 || maker.pid != request.sender.pid) {
        return Reply::error(EINVAL);
    }
    Reply reply;
    try {
        auto [made, theirs] = make_channel(client, payer_of(request.sender, client.contained));
        made.entered = true;
        made.payer_pid = request.sender.pid;
        made.who.uid = request.sender.uid;
        reply.set(wire::ForkReply{made.id});
        reply.fds.push_back(theirs.get());
        reply.owned.push_back(std::move(theirs));
    } catch (const OverShare &) {
        reply = Reply::error(EMFILE, Cause::limit);
    }
    send(to, request.header, reply); // who is not there to take it has no channel either: it hangs up
    return {};
}

Reply Monitor::fork(Client &client, Request &request) {
    const auto body = request.as<wire::Fork>();
    if (body.segments > std::size(body.child_in)) {
        return Reply::error(EINVAL);
    }
    if (std::any_of(client.segments.begin(), client.segments.end(),
                    [](const Client::Share &share) { return share.segment->is_full(); })) {
        return Reply::error(EMFILE, Cause::limit);
    }
    const size_t holdings = client.links.size() + client.listeners.size();
    if (!Copies::has_room(client.payer, holdings)) {
        if (may_log()) {
            log::warn("process {}: its children have as many of its links as they may have", client.pid);
        }
        return Reply::error(EMFILE, Cause::limit);
    }
    auto [made, theirs] = make_channel(client, client.payer);
    made.copies = Copies(client.payer, holdings);
    made.kind = Client::Kind::expected;
    made.who = client.who;
    made.comm = client.comm;
    made.ns = client.ns;
    made.netns_inode = client.netns_inode;
    made.sandboxed = client.sandboxed;
    made.detached = client.detached;
    made.lineage = client.lineage;
    made.filters = client.filters;
    // What it is cannot be seen before it has come, and may be asked.
    made.bell_domain = bell_domain(client);
    made.bell_domain_of = client.bell_domain_of;
    copy_holdings(client, made);
    // In each segment it inherits the child has a record of its own, which the parent has taken for it.
    for (uint32_t i = 0; i < body.segments; ++i) {
        const auto &entry = body.child_in[i];
        for (const Client::Share &share : client.segments) {
            if (share.name == entry.owner_client && entry.proc_index < kSegProcs) {
                share_segment(made, share.segment, entry.proc_index, share.name);
                break;
            }
        }
    }
    copy_fetched(client, made);
    for (const Client::Share &share : made.segments) {
        review_moved(*share.segment); // its record was there before, and nobody's
    }
    Reply reply;
    reply.set(wire::ForkReply{made.id});
    reply.fds.push_back(theirs.get());
    reply.owned.push_back(std::move(theirs));
    return reply;
}

/// Listeners and attachments to links, not segments: who holds what in those is the processes' own affair.
void Monitor::copy_holdings(const Client &from, Client &to) {
    for (Listener *listener : from.listeners) {
        listener->holders.insert(&to);
        to.listeners.insert(listener);
    }
    for (const auto &[name, attachment] : from.links) {
        for (unsigned side = 0; side < 2; ++side) {
            if (attachment.side[side] && !attachment.untold[side]) {
                (void)attach(to, *attachment.link, name, side); // else it has it by another name
            }
        }
    }
}

/// For a program that handed its segment on to the next one in the same process.
void Monitor::move_holdings(Client &from, Client &to) {
    copy_holdings(from, to);
    copy_fetched(from, to);
    for (Client::Share &share : from.segments) {
        for (Segment::Member &member : share.segment->members) {
            if (member.client == &from && member.proc_index == share.proc_index) {
                member.client = &to;
            }
        }
        if (share.name == from.id) {
            share.name = to.id;
        }
    }
    to.segments = std::exchange(from.segments, {});
    to.own = from.own;
}

Reply Monitor::child(Client &client, Request &request) {
    if (!identify(client, request.sender, true)) {
        return Reply::error(ESRCH);
    }
    client.kind = Client::Kind::process;
    for (const auto &[name, attachment] : client.links) {
        for (unsigned side = 0; side < 2; ++side) {
            if (attachment.side[side]) {
                attachment.link->note_holder(side, client.pid, client.start);
            }
        }
    }
    return {};
}

Reply Monitor::segment(Client &client, Request &request) {
    const auto body = request.as<wire::Segment>();
    if (body.proc_index >= kSegProcs && body.proc_index != wire::kAnyProc) {
        return Reply::error(EINVAL);
    }
    if (client.segments.size() >= config_.limits.segments_per_client) {
        return Reply::error(EMFILE, Cause::limit);
    }
    std::shared_ptr<Segment> segment = find_segment(client, request);
    if (!segment) {
        return Reply::error(EINVAL);
    }
    for (const Client::Share &share : client.segments) {
        if (share.segment == segment || (body.owner_client != 0 && share.name == body.owner_client)) {
            return Reply::error(EEXIST);
        }
    }
    if (!(segment->members.empty() && segment->parcels.empty()) &&
        !may_share(client, *segment, domain_of(client, request.sender))) {
        return Reply::error(EPERM, Cause::policy);
    }
    if (segment->is_full()) {
        return Reply::error(EMFILE, Cause::limit);
    }
    Reply reply;
    uint32_t index = body.proc_index;
    if (index == wire::kAnyProc) {
        index = segment->claim_record();
        if (index == kSegProcs) {
            return Reply::error(ENOSPC, Cause::limit);
        }
        reply.set(wire::SegmentReply{index, 0});
    }
    if (body.owner_client == 0) {
        client.own = segment;
    }
    share_segment(client, segment, index, body.owner_client == 0 ? client.id : body.owner_client);
    apply_detached(client);
    return reply;
}

/// Does a process live that holds the listener?
bool Monitor::any_alive(const Listener &listener) {
    return std::any_of(listener.holders.begin(), listener.holders.end(), [](const Client *holder) {
        pollfd p{holder->pidfd.get(), POLLIN, 0};
        return !holder->pidfd || poll(&p, 1, 0) != 1;
    });
}

/// The channel has closed or is to be closed.
void Monitor::channel_closed(Client &client) {
    loop_.remove(client.channel_watch, client.channel.get());
    client.channel_watch = 0;
    client.channel.reset();
    client.impatient |= waiting_.erase(client.id) != 0;
    if (client.kind == Client::Kind::process && !client.leaving && client.pidfd &&
        (client.impatient || has_presence(client.pid, client.start))) {
        // An exec that is under way, a program that closed everything, or one that did not wait for us any
        // longer: as long as the process and its presence last, what it held may come back with a hello.
        return;
    }
    gone(client, "closed its channel");
}

Reply Monitor::part(Client &client, Request &request) {
    const uint64_t name = request.as<wire::SegmentRef>().segment;
    const auto it = std::find_if(client.segments.begin(), client.segments.end(),
                                 [name](const Client::Share &s) { return s.name == name; });
    if (it == client.segments.end()) {
        return Reply::error(ENOENT);
    }
    const Client::Share share = *it;
    client.segments.erase(it);
    client.bell_domain.reset();
    if (client.own == share.segment) {
        client.own.reset(); // the next one is of its new domain
    }
    release_share(client, share);
    // It will not be given links that those who stay have accepted from. Their clients make new ones from now
    // on, which are whose who comes first.
    for (const Listener *listener : client.listeners) {
        for (Link *link : listener->place) {
            if (link != nullptr && link->side[1].attached.size() > link->side[1].attached.count(&client)) {
                stop_requests(*link);
            }
        }
    }
    return {};
}

/// Whom a process rang before it ended, without waiting for us to do so.
void Monitor::hear_out(Client &client) {
    for (bool more = static_cast<bool>(client.channel); more;) {
        Request request;
        const Received got = receive(client.channel.get(), request);
        more = (got == Received::packet || got == Received::truncated) && !is_holding_us_up(request.sender.uid);
        if (more && got == Received::packet && request.header.op == static_cast<uint16_t>(wire::Op::ring) &&
            request.header.length == sizeof(wire::BellRef)) {
            ring_peer(client, request);
        }
    }
}

void Monitor::gone(Client &client, const char *why) {
    const RingTogether each_once;
    hear_out(client);
    if (client.kind == Client::Kind::process) {
        log::debug("process {} ({}), client {}, {}", client.pid, client.comm, client.id, why);
    }
    loop_.remove(client.channel_watch, client.channel.get());
    loop_.remove(client.pidfd_watch, client.pidfd.get());
    client.channel_watch = client.pidfd_watch = 0;
    client.channel.reset();
    client.pidfd.reset();
    const bool was_presence = client.kind == Client::Kind::presence;
    const pid_t pid = client.pid;
    const uint64_t start = client.start, id = client.id;
    client.kind = Client::Kind::ended;
    for (const auto &[name, attachment] : client.links) {
        break_locks(*attachment.link, pid);
    }
    release_holdings(client);
    sender_gone(id, client.payer);
    if (client.ending == 0) {
        forget_client(client);
    }
    if (was_presence && !has_presence(pid, start)) {
        if (Client *waiting = find_process(pid, start, nullptr); waiting != nullptr && !waiting->channel) {
            gone(*waiting, "closed its channel and its presence");
        }
    }
}

} // namespace sd::monitor
