// The blocks of pcapng, in this machine's byte order: type, length, body, length again.
#include "monitor/sddump/pcapng.hpp"

#include <cstring>
#include <utility>

namespace sd::dump {

namespace {

constexpr uint32_t kSection = 0x0a0d0d0a, kInterface = 1, kStatistics = 5, kPacket = 6;
constexpr uint32_t kByteOrder = 0x1a2b3c4d;
constexpr uint16_t kRawIp = 101; // LINKTYPE_RAW: begins with the IP header, of either version
constexpr uint16_t kEndOfOptions = 0, kComment = 1;
constexpr uint16_t kApplication = 4;                                          // of a section
constexpr uint16_t kName = 2, kDescription = 3, kTimeResolution = 9;          // of an interface
constexpr uint16_t kFlags = 2;                                                // of a packet
constexpr uint16_t kStartTime = 2, kEndTime = 3, kReceived = 4, kDropped = 5; // of statistics
constexpr char kNanoseconds = 9;

} // namespace

Pcapng::Pcapng(std::string_view program, std::string_view interface, std::string_view description, uint32_t snap) {
    size_t start = begin(kSection);
    word(kByteOrder);
    word(1); // version 1.0
    word(0xffffffff);
    word(0xffffffff); // length of the section: not known
    option(kApplication, program);
    end(start);
    start = begin(kInterface);
    word(kRawIp);
    word(snap);
    option(kName, interface);
    option(kDescription, description);
    option(kTimeResolution, std::string_view(&kNanoseconds, 1));
    end(start);
}

void Pcapng::packet(uint64_t ns, Way way, std::string_view bytes, size_t length, std::string_view comment) {
    const size_t start = begin(kPacket);
    word(0); // the only interface
    time(ns);
    word(static_cast<uint32_t>(bytes.size()));
    word(static_cast<uint32_t>(length));
    padded(bytes);
    const auto flags = static_cast<uint32_t>(way);
    option(kFlags, std::string_view(reinterpret_cast<const char *>(&flags), sizeof flags));
    if (!comment.empty()) {
        option(kComment, comment);
    }
    end(start);
}

void Pcapng::statistics(uint64_t start_ns, uint64_t end_ns, uint64_t received, uint64_t dropped) {
    const size_t start = begin(kStatistics);
    word(0);
    time(end_ns);
    option_time(kStartTime, start_ns);
    option_time(kEndTime, end_ns);
    option(kReceived, received);
    option(kDropped, dropped);
    end(start);
}

std::string Pcapng::take() { return std::exchange(out_, {}); }

size_t Pcapng::begin(uint32_t type) {
    const size_t start = out_.size();
    word(type);
    word(0); // its length, once it is known
    return start;
}

void Pcapng::end(size_t start) {
    word(kEndOfOptions); // each block here has options
    const auto length = static_cast<uint32_t>(out_.size() - start + sizeof(uint32_t));
    word(length);
    memcpy(&out_[start + sizeof(uint32_t)], &length, sizeof length);
}

void Pcapng::word(uint32_t value) { out_.append(reinterpret_cast<const char *>(&value), sizeof value); }

void Pcapng::time(uint64_t ns) {
    word(static_cast<uint32_t>(ns >> 32));
    word(static_cast<uint32_t>(ns));
}

void Pcapng::padded(std::string_view bytes) {
    out_.append(bytes);
    out_.append(-bytes.size() & 3, '\0');
}

void Pcapng::option(uint16_t code, std::string_view value) {
    word(static_cast<uint32_t>(value.size()) << 16 | code);
    padded(value);
}

void Pcapng::option(uint16_t code, uint64_t value) {
    option(code, std::string_view(reinterpret_cast<const char *>(&value), sizeof value));
}

void Pcapng::option_time(uint16_t code, uint64_t ns) {
    option(code, ns << 32 | ns >> 32); // the upper half first, as in a packet
}

} // namespace sd::dump
