// What two monitors say to each other: to bytes, and from bytes that anybody may have made up.
#include "monitor/peers/message.hpp"
#include "monitor/peers/peer_settings.hpp"

#include <algorithm>

namespace sd::monitor {

namespace {

constexpr size_t kHelloFixed = 2 + 2 + 16 + 2;
constexpr size_t kMostWaiting = kMessageHeader + kMostMessageBody;

void put(std::string &out, uint64_t value, size_t bytes) {
    for (size_t i = 0; i < bytes; ++i) {
        out.push_back(static_cast<char>(value >> (8 * i)));
    }
}

uint64_t get(std::string_view in, size_t at, size_t bytes) {
    uint64_t value = 0;
    for (size_t i = 0; i < bytes; ++i) {
        value |= static_cast<uint64_t>(static_cast<uint8_t>(in[at + i])) << (8 * i);
    }
    return value;
}

bool is_known(uint64_t kind) {
    return (kind >= static_cast<uint64_t>(MessageKind::hello) && kind <= static_cast<uint64_t>(MessageKind::key)) ||
           (kind <= UINT16_MAX && is_about_links(static_cast<MessageKind>(kind)));
}

} // namespace

std::string encode(MessageKind kind, std::string_view body) {
    std::string out;
    put(out, body.size(), 4);
    put(out, static_cast<uint64_t>(kind), 2);
    put(out, 0, 2); // reserved
    out.append(body);
    return out;
}

std::string encode(const PeerHello &hello) {
    std::string body;
    put(body, hello.oldest, 2);
    put(body, hello.newest, 2);
    body.append(hello.start.begin(), hello.start.end());
    put(body, hello.name.size(), 2);
    body.append(hello.name);
    return encode(MessageKind::hello, body);
}

std::optional<PeerHello> hello_of(std::string_view body) {
    if (body.size() < kHelloFixed) {
        return std::nullopt;
    }
    PeerHello hello;
    hello.oldest = static_cast<uint16_t>(get(body, 0, 2));
    hello.newest = static_cast<uint16_t>(get(body, 2, 2));
    std::copy_n(body.begin() + 4, hello.start.size(), hello.start.begin());
    const uint64_t length = get(body, 20, 2);
    if (hello.oldest == 0 || hello.oldest > hello.newest || length == 0 || length > kMostPeerName ||
        length > body.size() - kHelloFixed) {
        return std::nullopt;
    }
    hello.name = body.substr(kHelloFixed, length);
    return hello;
}

std::string encode(const TellableKey &key) {
    return encode(MessageKind::key, {reinterpret_cast<const char *>(key.data()), key.size()});
}

std::optional<TellableKey> key_of(std::string_view body) {
    TellableKey key;
    if (body.size() < key.size()) {
        return std::nullopt;
    }
    std::copy_n(body.begin(), key.size(), key.begin());
    return key;
}

uint16_t common_version(const PeerHello &a, const PeerHello &b) {
    const uint16_t newest = std::min(a.newest, b.newest);
    return newest >= std::max(a.oldest, b.oldest) ? newest : 0;
}

size_t MessageReader::room() const {
    const size_t held = waiting_.size() - taken_;
    return held < kMostWaiting ? kMostWaiting - held : 0;
}

MessageReader::State MessageReader::next(Message &message) {
    const std::string_view rest = std::string_view(waiting_).substr(taken_);
    if (rest.size() >= kMessageHeader) {
        const uint64_t length = get(rest, 0, 4), kind = get(rest, 4, 2);
        if (length > kMostMessageBody || !is_known(kind) || get(rest, 6, 2) != 0) {
            return State::malformed;
        }
        if (rest.size() - kMessageHeader >= length) {
            message.kind = static_cast<MessageKind>(kind);
            message.body = rest.substr(kMessageHeader, length);
            taken_ += kMessageHeader + length;
            return State::message;
        }
    }
    waiting_.erase(0, taken_);
    taken_ = 0;
    return State::more;
}

} // namespace sd::monitor
