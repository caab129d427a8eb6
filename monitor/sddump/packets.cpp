// Headers of IP and TCP around what a program sent.
#include "monitor/sddump/packets.hpp"

#include <algorithm>
#include <array>
#include <cstring>

namespace sd::dump {

namespace {

constexpr uint8_t kFin = 1, kSyn = 2, kReset = 4, kPush = 8, kAck = 16, kUrgent = 32;
constexpr size_t kMostPayload = 60U << 10; ///< with its headers a packet has at most 65535 bytes
constexpr size_t kTcpBytes = 20;
constexpr uint8_t kProtocolTcp = 6, kTimeToLive = 64;

bool is_v4(const SlotAddress &address) {
    static constexpr std::array<uint8_t, 12> mapped = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
    return std::equal(mapped.begin(), mapped.end(), address.ip);
}

/// 0: the client sent it; 1: the server.
unsigned sender_of(const Captured &record) { return (record.side == 0) != record.received ? 0 : 1; }

bool same(const SlotAddress &a, const SlotAddress &b) {
    return memcmp(a.ip, b.ip, sizeof a.ip) == 0 && a.port == b.port;
}

/// The sum of RFC 1071, not yet folded; words in network order.
uint64_t sum(std::string_view bytes, uint64_t start = 0) {
    size_t i = 0;
    for (; i + 1 < bytes.size(); i += 2) {
        start += static_cast<uint64_t>(static_cast<uint8_t>(bytes[i])) << 8 | static_cast<uint8_t>(bytes[i + 1]);
    }
    return i < bytes.size() ? start + (static_cast<uint64_t>(static_cast<uint8_t>(bytes[i])) << 8) : start;
}

uint16_t folded(uint64_t value) {
    while (value >> 16 != 0) {
        value = (value & 0xffff) + (value >> 16);
    }
    return static_cast<uint16_t>(~value);
}

void put16(std::string &to, uint64_t value) {
    to += static_cast<char>(value >> 8);
    to += static_cast<char>(value);
}
void put32(std::string &to, uint64_t value) {
    put16(to, value >> 16);
    put16(to, value);
}
void set16(std::string &to, size_t at, uint16_t value) {
    to[at] = static_cast<char>(value >> 8);
    to[at + 1] = static_cast<char>(value);
}

std::string_view ip_of(const SlotAddress &address, bool v4) {
    const auto *all = reinterpret_cast<const char *>(address.ip);
    return v4 ? std::string_view(all + 12, 4) : std::string_view(all, sizeof address.ip);
}

} // namespace

void Packets::add(const Captured &record) {
    const unsigned from = sender_of(record);
    Flow &flow = flows_[{record.link, record.slot}];
    // The slot is used again once a connection is over.
    if (record.kind == CaptureKind::born
            ? (flow.sides >> record.side & 1) != 0
            : flow.is_begun && (!same(flow.client, record.client) || !same(flow.server, record.server))) {
        flow = Flow{};
    }
    flow.sides |= 1U << record.side;
    if (!flow.is_begun) {
        begin(flow, record);
    }
    // Both ends are in the process: what one sends, the other receives.
    if (flow.sides == 3 && record.received && record.kind != CaptureKind::reset) {
        return;
    }
    Direction &way = flow.way[from];
    switch (record.kind) {
    case CaptureKind::born:
        break;
    case CaptureKind::data:
    case CaptureKind::urgent:
        data(flow, record, from);
        break;
    case CaptureKind::fin:
        if (!way.is_ended && !flow.is_reset) {
            way.next = std::max(way.next, record.position);
            put(flow, {record.ns, from, way.next + 1, kFin | kAck}, {});
            way.is_ended = true;
        }
        break;
    case CaptureKind::reset:
        if (!flow.is_reset) {
            put(flow, {record.ns, from, way.next + 1 + (way.is_ended ? 1 : 0), kReset | kAck}, {});
            flow.is_reset = true;
        }
        break;
    }
}

void Packets::process_ended(uint64_t ns) {
    for (auto &[id, flow] : flows_) {
        for (unsigned side = 0; side < 2; ++side) {
            Direction &way = flow.way[side];
            if ((flow.sides >> side & 1) != 0 && flow.is_begun && !flow.is_reset && !way.is_ended) {
                put(flow, {ns, side, way.next + 1, kFin | kAck}, "the process has ended");
                way.is_ended = true;
            }
        }
    }
}

void Packets::begin(Flow &flow, const Captured &record) {
    flow.client = record.client;
    flow.server = record.server;
    flow.is_begun = true;
    const unsigned from = sender_of(record);
    flow.way[from].next = record.position;
    flow.way[1 - from].next = record.other;
    if (record.kind != CaptureKind::born && (record.position != 0 || record.other != 0)) {
        return;
    }
    flow.way[0].next = flow.way[1].next = 0;
    constexpr std::string_view kMade = "made by sddump: there is no handshake in shared memory";
    put(flow, {record.ns, 0, 0, kSyn}, kMade);
    put(flow, {record.ns, 1, 0, kSyn | kAck}, kMade);
    put(flow, {record.ns, 0, 1, kAck}, kMade);
}

void Packets::data(Flow &flow, const Captured &record, unsigned from) {
    const size_t kept = record.payload.size();
    bytes_ += kept;
    for (size_t at = 0; at < record.length;) {
        const size_t n = std::min<size_t>(record.length - at, kMostPayload);
        const bool is_last = at + n == record.length, is_urgent = is_last && record.kind == CaptureKind::urgent;
        Segment segment{record.ns, from, record.position + at + 1, kAck};
        segment.flags |= is_last ? kPush : 0;
        segment.flags |= is_urgent ? kUrgent : 0;
        segment.urgent = is_urgent ? static_cast<uint16_t>(n) : 0;
        segment.payload = record.payload.substr(std::min(at, kept), std::min(n, kept - std::min(at, kept)));
        segment.length = n;
        put(flow, segment, {});
        at += n;
    }
    flow.way[from].next = std::max(flow.way[from].next, record.position + record.length);
}

void Packets::put(const Flow &flow, const Segment &segment, std::string_view comment) {
    const SlotAddress &source = segment.from == 0 ? flow.client : flow.server;
    const SlotAddress &destination = segment.from == 0 ? flow.server : flow.client;
    const bool v4 = is_v4(source) && is_v4(destination);
    const size_t tcp_length = kTcpBytes + segment.length;
    std::string packet;
    packet.reserve(40 + kTcpBytes + segment.payload.size());
    if (v4) {
        put16(packet, 0x4500);
        put16(packet, 20 + tcp_length);
        put16(packet, ++id_);
        put16(packet, 0x4000); // not to be fragmented
        put16(packet, kTimeToLive << 8 | kProtocolTcp);
        put16(packet, 0);
    } else {
        put32(packet, 0x60000000);
        put16(packet, tcp_length);
        put16(packet, kProtocolTcp << 8 | kTimeToLive);
    }
    packet += ip_of(source, v4);
    packet += ip_of(destination, v4);
    if (v4) {
        set16(packet, 10, folded(sum(packet)));
    }
    const size_t tcp = packet.size();
    const Direction &back = flow.way[1 - segment.from];
    const bool acknowledges = (segment.flags & kAck) != 0;
    put16(packet, source.port);
    put16(packet, destination.port);
    put32(packet, segment.sequence);
    put32(packet, acknowledges ? back.next + 1 + (back.is_ended ? 1 : 0) : 0);
    put16(packet, kTcpBytes / 4 << 12 | segment.flags);
    put16(packet, 0xffff);
    put16(packet, 0);
    put16(packet, segment.urgent);
    packet += segment.payload;
    if (segment.payload.size() == segment.length) { // else nobody can tell
        const uint64_t start = sum(ip_of(source, v4), sum(ip_of(destination, v4))) + kProtocolTcp + tcp_length;
        set16(packet, tcp + 16, folded(sum(std::string_view(packet).substr(tcp), start)));
    }
    // Seen from the process that is captured; where it has both ends, from the client's.
    const unsigned own = (flow.sides & 1) != 0 ? 0 : 1;
    out_.packet(segment.ns, segment.from == own ? Way::outbound : Way::inbound, packet, tcp + tcp_length,
                comment);
    ++count_;
}

} // namespace sd::dump
