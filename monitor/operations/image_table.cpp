#include "monitor/operations/image_table.hpp"
#include "libsd/layout/exec_table.hpp"
#include "monitor/kernel/shared_memory.hpp"
#include "monitor/records/listener.hpp"

#include <algorithm>
#include <sys/stat.h>
#include <unistd.h>

namespace sd::monitor {

namespace {

/// Bounds of a table: what a process can have, or a segment. Connections of one process beyond that end.
constexpr uint32_t kMostLinks = 4096, kMostFiles = kOfds;

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

} // namespace

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

} // namespace sd::monitor
