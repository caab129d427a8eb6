// exec: a new program image in the same process, which takes over what the former one left for it.
#include "libsd/layout/exec_table.hpp"
#include "monitor/kernel/process_info.hpp"
#include "monitor/operations/monitor.hpp"

#include <cerrno>
#include <cstring>
#include <spdlog/spdlog.h>
#include <sys/stat.h>

namespace sd::monitor {

namespace {

/// What a table says is kept, in the monitor's terms. The table is a client's: counts are checked, names are
/// looked up.
struct Kept {
    std::map<uint64_t, std::set<uint32_t>> ofds;   ///< by the client's name of the segment
    std::set<std::pair<uint64_t, unsigned>> links; ///< id and side
    std::set<uint32_t> listeners;
};

std::optional<Kept> read_table(int fd, uint64_t own_name) {
    struct stat st;
    if (!safe_to_map(fd, sizeof(ExecTable)) || fstat(fd, &st) != 0 || st.st_size > off_t{1} << 30) {
        return std::nullopt;
    }
    // A copy: the client may be writing to it.
    std::vector<uint64_t> words((static_cast<size_t>(st.st_size) + 7) / 8);
    if (pread(fd, words.data(), static_cast<size_t>(st.st_size), 0) != st.st_size) {
        return std::nullopt;
    }
    const auto &table = *reinterpret_cast<const ExecTable *>(words.data());
    if (!table.sound(static_cast<uint64_t>(st.st_size))) {
        return std::nullopt;
    }
    Kept kept;
    for (uint32_t i = 0; i < table.links; ++i) {
        kept.links.insert({table.link()[i].id, table.link()[i].side});
    }
    for (uint32_t i = 0; i < table.files; ++i) {
        const ExecFile &file = table.file()[i];
        if (file.kind == static_cast<uint8_t>(FileKind::stream) && file.segment < table.segments) {
            const uint64_t name = table.segment()[file.segment].name;
            kept.ofds[name == 0 ? own_name : name].insert(file.passport.ofd_index);
        } else if (file.kind == static_cast<uint8_t>(FileKind::listener)) {
            kept.listeners.insert(file.listener_id);
        }
    }
    return kept;
}

} // namespace

Reply Monitor::image(Client &client, Request &request) {
    const auto body = request.as<wire::Image>();
    if (body.layout_version != kLayoutVersion) {
        return Reply::error(EPROTONOSUPPORT, Cause::monitor_version);
    }
    const uint64_t cookie = proven_netns(request.fds[1].get());
    const std::optional<Kept> kept = read_table(request.fds[0].get(), client.id);
    if (cookie == 0 || !kept || request.sender.pid != client.pid) {
        return Reply::error(EINVAL);
    }
    if (!identify(client, request.sender)) {
        return Reply::error(ESRCH);
    }
    client.leaving = false;
    client.ns = find_namespace(cookie);
    // The former image's waiters have gone with its descriptors and threads.
    for (const auto &[name, attachment] : client.links) {
        for (unsigned side = 0; side < 2; ++side) {
            attachment.link->take_bells(side, &client);
        }
    }
    for (Listener *listener : client.listeners) {
        listener->forget_acceptors(wire::folded(client.id));
        std::erase_if(listener->accept_bells, [&](const AcceptBell &bell) { return bell.owner == &client; });
    }
    client.eventfds.clear();
    client.bells_given = 0;

    for (const Client::Share &share : client.segments) {
        const auto it = kept->ofds.find(share.name);
        const Segment::Member member{&client, share.proc_index};
        end_by_pieces(client, share.segment,
                      share.segment->retain(member, it == kept->ofds.end() ? std::set<uint32_t>{} : it->second));
    }
    const std::set<Listener *> listeners = client.listeners;
    for (Listener *listener : listeners) {
        if (kept->listeners.count(listener->id) == 0) {
            leave_listener(client, *listener);
        }
    }
    std::vector<std::pair<uint64_t, unsigned>> dropped;
    for (const auto &[name, attachment] : client.links) {
        for (unsigned side = 0; side < 2; ++side) {
            // The server side of a listener's links: what waits there to be accepted is asked for again.
            const bool of_listener = side == 1 && attachment.link->listener != nullptr &&
                                     client.listeners.count(attachment.link->listener) != 0;
            if (attachment.side[side] && !of_listener && kept->links.count({name, side}) == 0) {
                dropped.emplace_back(name, side);
            }
        }
    }
    for (const auto &[name, side] : dropped) {
        if (side == 0 && client.links_made > 0) {
            --client.links_made;
        }
        client.to_drop.emplace_back(name, side);
    }
    drop_links(client);
    spdlog::debug("process {} is {} now", client.pid, client.comm);
    Reply reply;
    reply.set(wire::HelloReply{client.id, sizeof(Directory)});
    reply.fds.push_back(client.ns->directory.fd());
    return reply;
}

Reply Monitor::leave(Client &client, Request &request) {
    client.leaving = request.as<wire::Leave>().leaving != 0;
    return {};
}

} // namespace sd::monitor
