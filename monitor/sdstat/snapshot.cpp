// Asking the monitor.
#include "monitor/sdstat/snapshot.hpp"
#include "libsd/layout/protocol.hpp"
#include "monitor/kernel/unique_fd.hpp"
#include "monitor/tools/paths.hpp"

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <fmt/core.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

namespace sd::stat {

using monitor::ConnectionRow;
using monitor::UniqueFd;
using nlohmann::json;

namespace {

constexpr const char *kOtherVersion = "the running sd-monitor is of another version; restart it";

} // namespace

UniqueFd find_monitor(const std::string &socket) {
    std::vector<std::string> tried;
    char own[monitor::kMaxPath];
    bool named_one = true;
    if (!socket.empty()) {
        tried = {socket};
    } else if (const char *named = secure_getenv("SD_MONITOR"); named != nullptr && *named != '\0') {
        tried = {named};
    } else {
        named_one = false;
        tried = {monitor::kSystemSocket};
        if (monitor::private_socket(own)) {
            tried.emplace_back(own);
        }
    }
    std::string reasons;
    for (const std::string &path : tried) {
        const int fd = named_one ? monitor::connect_monitor(path.c_str())
                                 : monitor::connect_default_monitor(path.c_str());
        if (fd >= 0) {
            return UniqueFd(fd);
        }
        reasons += fmt::format("\n  {}: {}", path, strerror(-fd));
    }
    throw Failure(Exit::failed, "no sd-monitor is running; looked at" + reasons);
}

namespace {

std::string request_snapshot(const std::string &socket) {
    const UniqueFd channel = find_monitor(socket);
    wire::Header header{};
    header.magic = wire::kMagic;
    header.version = wire::kVersion;
    header.op = static_cast<uint16_t>(wire::Op::snapshot);
    header.sequence = 1;
    iovec io{&header, sizeof header};
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))];
    msghdr message{};
    message.msg_iov = &io;
    message.msg_iovlen = 1;
    pollfd p{channel.get(), POLLIN, 0};
    if (send(channel.get(), &header, sizeof header, MSG_NOSIGNAL) < 0 || poll(&p, 1, 5000) != 1) {
        throw Failure(Exit::failed, "the monitor does not answer");
    }
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    const ssize_t n = recvmsg(channel.get(), &message, MSG_CMSG_CLOEXEC);
    const cmsghdr *c = CMSG_FIRSTHDR(&message);
    if (n < static_cast<ssize_t>(sizeof header) || header.magic != wire::kMagic ||
        header.version != wire::kVersion || header.status == -ENOSYS) {
        throw Failure(Exit::failed, kOtherVersion);
    }
    if (header.status != 0 || c == nullptr || c->cmsg_type != SCM_RIGHTS) {
        throw Failure(Exit::failed, fmt::format("the monitor answers: {}", strerror(-header.status)));
    }
    int fd;
    memcpy(&fd, CMSG_DATA(c), sizeof fd);
    const UniqueFd memfd(fd);
    std::string bytes(static_cast<size_t>(std::max<off_t>(lseek(fd, 0, SEEK_END), 0)), '\0');
    size_t have = 0;
    for (ssize_t got; have < bytes.size() && (got = pread(fd, bytes.data() + have, bytes.size() - have,
                                                          static_cast<off_t>(have))) > 0;) {
        have += static_cast<size_t>(got);
    }
    bytes.resize(have);
    return bytes;
}

} // namespace

std::string unit_of_group(const std::string &group) {
    const std::string last = group.substr(group.rfind('/') + 1);
    return last.empty() ? group : last;
}

std::string comm_of(const monitor::RowEnd &end) { return {end.comm, strnlen(end.comm, sizeof end.comm)}; }

Snapshot read_snapshot(const std::string &bytes) {
    monitor::SnapshotHeader header{};
    if (bytes.size() < sizeof header) {
        throw Failure(Exit::failed, kOtherVersion);
    }
    memcpy(&header, bytes.data(), sizeof header);
    const size_t left = bytes.size() - sizeof header;
    if (header.magic != monitor::kSnapshotMagic || header.version != monitor::kSnapshotVersion ||
        header.row_bytes < monitor::kFirstRowBytes || header.rows > left / header.row_bytes ||
        header.pids > left / sizeof(uint32_t) ||
        header.rows * header.row_bytes + header.pids * sizeof(uint32_t) + header.text_bytes != left) {
        throw Failure(Exit::failed, kOtherVersion);
    }
    Snapshot result;
    const char *at = bytes.data() + sizeof header;
    result.rows.resize(header.rows); // all 0, as what an earlier monitor does not say
    for (ConnectionRow &row : result.rows) {
        memcpy(&row, at, std::min<size_t>(sizeof row, header.row_bytes));
        at += header.row_bytes;
    }
    result.pids.resize(header.pids);
    std::copy_n(at, header.pids * sizeof(uint32_t), reinterpret_cast<char *>(result.pids.data()));
    at += header.pids * sizeof(uint32_t);
    for (const ConnectionRow &row : result.rows) {
        for (const monitor::RowEnd &end : row.end) {
            if (end.first_pid > header.pids || end.pids > header.pids - end.first_pid) {
                throw Failure(Exit::failed, kOtherVersion);
            }
        }
    }
    result.rest = json::parse(at, at + header.text_bytes, nullptr, false);
    if (result.rest.is_discarded() || !result.rest.is_object()) {
        throw Failure(Exit::failed, kOtherVersion);
    }
    for (const json &entry : result.rest.value("processes", json::array())) {
        Process process;
        process.comm = entry.value("comm", "");
        if (const auto group = entry.find("group"); group != entry.end() && group->is_string()) {
            process.unit = unit_of_group(group->get<std::string>());
        }
        process.sleeps = entry.value("sleeps", 0.0);
        process.takeovers = entry.value("takeovers", 0.0);
        process.ring_changes = entry.value("ring_changes", 0.0);
        result.processes[entry.value("pid", 0U)] = process;
    }
    return result;
}

Snapshot take_snapshot(const std::string &socket) {
    Snapshot result = read_snapshot(request_snapshot(socket));
    timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    result.when = static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) / 1e9;
    return result;
}

} // namespace sd::stat
