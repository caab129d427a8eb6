// Connections as sdstat is told of them.
#include "monitor/records/connection_row.hpp"

#include <algorithm>
#include <arpa/inet.h>
#include <cstring>
#include <fmt/compile.h>
#include <fmt/core.h>
#include <iterator>
#include <nlohmann/json.hpp>

namespace sd::monitor {

namespace {

constexpr const char *kStates[] = {"established", "waiting for accept",    "half closed", "closing",
                                   "reset",       "one end not registered"};
constexpr const char *kPaths[] = {"shm", "kernel", "rdma"};
constexpr const char *kBlockerTexts[][2] = {
    {"", ""},
    {"put", "it was put there, and stays"},
    {"called", "the receiving end asks for it"},
    {"pinned", "a program without the library may have the socket"},
    {"sender", "the sending process has made no call on it since"},
    {"receiver", "the receiving process has made no call on it since"},
    {"unread", "the receiver has not read what is in the ring"},
    {"shared", "several processes have the connection"},
    {"older", "a process has an older library; restart it"},
    {"ended", "one direction has ended"},
    {"passed", "it is on its way to another process, or bridged"},
    {"elsewhere", "the monitor may not enter its network namespace"},
    {"no_names", "its listener has closed, and its names cannot be checked"},
    {"no_sockets", "the kernel gave no sockets for it"},
    {"alone", "the process at the other end is not known"},
    {"one_sided", "the other end could not take its kernel socket"},
};
static_assert(std::size(kBlockerTexts) == kBlockers);
constexpr const char *kCopiedTexts[][2] = {
    {"unaligned", "no whole page"},
    {"not_ours", "memory that is not the device's"},
    {"refused", "a limit of the module"},
    {"peer_without", "the receiver takes no pages"},
    {"receiver_copies", "the receiver's buffers take no pages"},
    {"other_way", "held back, captured, or on another path"},
};
static_assert(std::size(kCopiedTexts) == kCopiedReasons);

/// A program's name may be any bytes.
std::string quoted(const char (&comm)[16]) {
    return nlohmann::json(std::string(comm, strnlen(comm, sizeof comm)))
        .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

const char *asleep_text(uint8_t asleep) {
    static constexpr const char *names[] = {"null", "\"data\"", "\"room\"", "\"data or room\""};
    return names[asleep & 3];
}

void append_end(std::string &out, const RowEnd &end, const uint32_t *pids) {
    auto to = std::back_inserter(out);
    if (end.pid != 0) {
        fmt::format_to(to, FMT_COMPILE(R"({{"pid":{},"comm":{},"uid":{})"), end.pid, quoted(end.comm), end.uid);
    } else {
        out += R"({"pid":null,"comm":null,"uid":null)";
    }
    fmt::format_to(to, FMT_COMPILE(R"(,"address":"{}","asleep":{},"pids":[)"), address_text(end.address),
                   asleep_text(end.asleep));
    for (uint32_t i = 0; i < end.pids; ++i) {
        fmt::format_to(to, FMT_COMPILE("{}{}"), i == 0 ? "" : ",", pids[end.first_pid + i]);
    }
    out += "]}";
}

void append_handed(std::string &out, const ConnectionRow &row, unsigned side) {
    const RowHanded &handed = row.handed[side];
    if (handed.channels == 0) {
        out += R"(,"handed":null)";
        return;
    }
    auto to = std::back_inserter(out);
    fmt::format_to(to,
                   FMT_COMPILE(R"(,"handed":{{"given":{},"mapped":{},"read":{},"once":{},)"
                               R"("copied":{{"too_small":{},"rewritten":{})"),
                   handed.given, handed.mapped, handed.read, row.rewritten[side].once, too_small(row, side),
                   row.rewritten[side].copied);
    for (unsigned why = 0; why < kCopiedReasons; ++why) {
        fmt::format_to(to, FMT_COMPILE(R"(,"{}":{})"), copied_name(why), handed.copied[why]);
    }
    out += "}}";
}

void append_direction(std::string &out, const ConnectionRow &row, unsigned side) {
    const RowEnd &end = row.end[side];
    const int64_t waiting = queued(row, side);
    fmt::format_to(std::back_inserter(out),
                   FMT_COMPILE(R"({{"bytes":{},"messages":{},"queued":{},"path":"{}","ring":{},"stalled":{},)"
                               R"("shared_send":{},"shared_receive":{},"moves":{},"offset":{},"why":)"),
                   bytes_from(row, side), messages_from(row, side),
                   waiting < 0 ? "null" : std::to_string(waiting), path_name(static_cast<Path>(end.path)),
                   kRingSize[std::min<unsigned>(end.ring, kRingClasses - 1)], end.stalled != 0,
                   (end.shared & kSharedSend) != 0, (row.end[1 - side].shared & kSharedReceive) != 0,
                   row.path[side].moves, row.path[side].offset);
    const auto blocker = static_cast<Blocker>(end.blocker);
    out += blocker == Blocker::none ? "null" : fmt::format(FMT_COMPILE(R"("{}")"), blocker_name(blocker));
    append_handed(out, row, side);
    out += "}";
}

} // namespace

const char *state_name(ConnectionState state) {
    const auto at = static_cast<size_t>(state);
    return at < std::size(kStates) ? kStates[at] : "unknown";
}

const char *path_name(Path path) {
    const auto at = static_cast<size_t>(path);
    return at < std::size(kPaths) ? kPaths[at] : "unknown";
}

const char *blocker_name(Blocker blocker) {
    return kBlockerTexts[static_cast<size_t>(blocker) % kBlockers][0];
}
const char *blocker_text(Blocker blocker) {
    return kBlockerTexts[static_cast<size_t>(blocker) % kBlockers][1];
}

const char *copied_name(unsigned why) { return kCopiedTexts[why % kCopiedReasons][0]; }
const char *copied_text(unsigned why) { return kCopiedTexts[why % kCopiedReasons][1]; }

uint64_t too_small(const ConnectionRow &row, unsigned side) {
    const RowHanded &handed = row.handed[side];
    uint64_t other = handed.given + row.rewritten[side].copied;
    for (const uint64_t n : handed.copied) {
        other += n;
    }
    const uint64_t all = bytes_from(row, side); // read at another moment
    return all > other ? all - other : 0;
}

std::string connection_id(const ConnectionRow &row) {
    return fmt::format("{}.{}", static_cast<uint32_t>(row.link), row.slot);
}

std::string address_text(const SlotAddress &address) {
    static constexpr uint8_t mapped[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
    const uint8_t(&ip)[16] = address.ip;
    if (memcmp(ip, mapped, sizeof mapped) == 0) {
        return fmt::format(FMT_COMPILE("{}.{}.{}.{}:{}"), ip[12], ip[13], ip[14], ip[15], address.port);
    }
    char text[INET6_ADDRSTRLEN];
    inet_ntop(AF_INET6, ip, text, sizeof text);
    return fmt::format(FMT_COMPILE("[{}]:{}"), text, address.port);
}

int64_t queued(const ConnectionRow &row, unsigned side) {
    const RowEnd &from = row.end[side], &to = row.end[1 - side];
    if (from.is_known == 0 || to.is_known == 0) {
        return -1;
    }
    // Read one after the other while both go on: less than nothing is nothing.
    return from.sent_bytes > to.received_bytes ? static_cast<int64_t>(from.sent_bytes - to.received_bytes) : 0;
}

uint64_t bytes_from(const ConnectionRow &row, unsigned side) {
    return row.end[side].is_known != 0 ? row.end[side].sent_bytes : row.end[1 - side].received_bytes;
}

uint64_t messages_from(const ConnectionRow &row, unsigned side) {
    return row.end[side].is_known != 0 ? row.end[side].sent_messages : row.end[1 - side].received_messages;
}

void append_json(std::string &out, const ConnectionRow &row, const uint32_t *pids) {
    fmt::format_to(std::back_inserter(out), FMT_COMPILE(R"({{"id":"{}","client":)"), connection_id(row));
    append_end(out, row.end[0], pids);
    out += R"(,"server":)";
    append_end(out, row.end[1], pids);
    out += R"(,"transport":"shm","to_server":)";
    append_direction(out, row, 0);
    out += R"(,"to_client":)";
    append_direction(out, row, 1);
    fmt::format_to(std::back_inserter(out), FMT_COMPILE(R"(,"state":"{}","since":{:.3f}}})"),
                   state_name(static_cast<ConnectionState>(row.state)), row.since);
}

} // namespace sd::monitor
