// exec: a new program image in the same process, which takes over what the former one left for it.
#include "libsd/layout/exec_table.hpp"
#include "monitor/operations/monitor.hpp"
#include "monitor/service/log.hpp"

#include <algorithm>
#include <cerrno>
#include <sys/stat.h>

namespace sd::monitor {

namespace {

/// Bounds of a table: what a process can have, or a segment. Connections of one process beyond that end.
constexpr uint32_t kMostLinks = 4096, kMostFiles = kOfds;

/// What a table says is kept, as far as the client has it.
struct Retained {
    std::map<uint64_t, std::vector<uint64_t>> ofds; ///< by the client's name of the segment; bits
    std::set<std::pair<uint64_t, unsigned>> links;  ///< id and side
    std::set<uint32_t> listeners;
};

bool read_at(int fd, void *to, size_t bytes, size_t offset) {
    return pread(fd, to, bytes, static_cast<off_t>(offset)) == static_cast<ssize_t>(bytes);
}

/// Calls fn(record) for each of `count` records from `offset` on. Not all at a time: the table is a client's,
/// and may be as large as it likes. False: it is shorter than that.
template <typename T, typename Fn> bool for_each_record(int fd, size_t offset, size_t count, Fn fn) {
    std::vector<T> piece(std::min<size_t>(count, 512));
    for (size_t done = 0; done < count;) {
        const size_t n = std::min(piece.size(), count - done);
        if (!read_at(fd, piece.data(), n * sizeof(T), offset + done * sizeof(T))) {
            return false;
        }
        std::for_each(piece.begin(), piece.begin() + static_cast<ptrdiff_t>(n), fn);
        done += n;
    }
    return true;
}

/// The client may be writing to the table: each word is read once. Counts are checked, names are looked up.
std::optional<Retained> read_table(int fd, const Client &client) {
    struct stat st;
    ExecTable head;
    if (!safe_to_map(fd, sizeof head) || fstat(fd, &st) != 0 || !read_at(fd, &head, sizeof head, 0) ||
        !head.sound(static_cast<uint64_t>(st.st_size)) || head.segments > kMaxSegments ||
        head.links > kMostLinks || head.files > kMostFiles) {
        return std::nullopt;
    }
    const size_t links_at = sizeof head + head.segments * sizeof(ExecSegment),
                 files_at = links_at + head.links * sizeof(ExecLink);
    Retained retained;
    std::vector<uint64_t> names;
    std::set<uint32_t> listeners;
    for (const Listener *listener : client.listeners) {
        listeners.insert(listener->id);
    }
    const bool all =
        for_each_record<ExecSegment>(fd, sizeof head, head.segments,
                                     [&](const ExecSegment &segment) {
                                         names.push_back(segment.name == 0 ? client.id : segment.name);
                                     }) &&
        for_each_record<ExecLink>(fd, links_at, head.links,
                                  [&](const ExecLink &link) {
                                      if (client.link(link.id, link.side) != nullptr) {
                                          retained.links.insert({link.id, link.side});
                                      }
                                  }) &&
        for_each_record<ExecFile>(fd, files_at, head.files, [&](const ExecFile &file) {
            if (file.kind == static_cast<uint8_t>(FileKind::stream) && file.segment < names.size() &&
                file.handoff.ofd_index < kOfds) {
                auto &bits = retained.ofds[names[file.segment]];
                bits.resize(kOfds / 64);
                bits[file.handoff.ofd_index / 64] |= uint64_t{1} << file.handoff.ofd_index % 64;
            } else if (file.kind == static_cast<uint8_t>(FileKind::listener) &&
                       listeners.count(file.listener_id) != 0) {
                retained.listeners.insert(file.listener_id);
            }
        });
    return all ? std::optional(std::move(retained)) : std::nullopt;
}

} // namespace

Reply Monitor::image(Client &client, Request &request) {
    const auto body = request.as<wire::Image>();
    if (body.layout_version != kLayoutVersion) {
        return Reply::error(EPROTONOSUPPORT, Cause::monitor_version);
    }
    const uint64_t cookie = proven_netns(request.fds[1].get());
    const std::optional<Retained> retained = read_table(request.fds[0].get(), client);
    if (cookie == 0 || !retained || request.sender.pid != client.pid) {
        return Reply::error(EINVAL);
    }
    if (!identify(client, request.sender)) {
        return Reply::error(ESRCH);
    }
    client.leaving = false;
    const uint64_t former = std::exchange(client.ns, &find_namespace(cookie, client.payer))->cookie;
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
        const auto it = retained->ofds.find(share.name);
        const Segment::Member member{&client, share.proc_index};
        end_by_pieces(
            client, share.segment,
            share.segment->retain(member, it == retained->ofds.end() ? std::vector<uint64_t>{} : it->second));
    }
    const std::set<Listener *> listeners = client.listeners;
    for (Listener *listener : listeners) {
        if (retained->listeners.count(listener->id) == 0) {
            leave_listener(client, *listener);
        }
    }
    std::vector<std::pair<uint64_t, unsigned>> dropped;
    for (const auto &[name, attachment] : client.links) {
        for (unsigned side = 0; side < 2; ++side) {
            // The server side of a listener's links: what waits there to be accepted is asked for again.
            const bool of_listener = side == 1 && attachment.link->listener != nullptr &&
                                     client.listeners.count(attachment.link->listener) != 0;
            if (attachment.side[side] && !of_listener && retained->links.count({name, side}) == 0) {
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
    forget_namespace(former);
    log::debug("process {} is {} now", client.pid, client.comm);
    Reply reply;
    reply.set(hello_reply(client));
    reply.fds.push_back(client.ns->directory.fd());
    return reply;
}

Reply Monitor::leave(Client &client, Request &request) {
    client.leaving = request.as<wire::Leave>().leaving != 0;
    return {};
}

} // namespace sd::monitor
