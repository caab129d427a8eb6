// What two monitors say to each other, inside of TLS.
//
// A message is a header and a body. Numbers are little-endian. The first message each way is hello; from then
// on both speak the newest version that both know.
#pragma once
#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

namespace sd::monitor {

constexpr uint16_t kOldestPeerVersion = 1, kPeerVersion = 3;
/// From this one on they speak of connections between their hosts (link_message.hpp).
constexpr uint16_t kLinksVersion = 2;
/// From this one on what a queue pair had not carried goes by way of the monitors.
constexpr uint16_t kCarryVersion = 3;

enum class MessageKind : uint16_t {
    hello = 1,
    ping = 2,   ///< "say something"
    pong = 3,   ///< with the body of the ping
    ending = 4, ///< the last word: it ends in order
    key = 5,    ///< ProofKey: by it the other host recognises this one's ends of connections
    // link_message.hpp
    epoch = 16,
    offer = 17,
    withdrawn = 18,
    joined = 19,
    taken = 20,
    refused = 21,
    greeting = 22,
    gone = 23,
    links = 24,
    lost = 25,
    changed = 26,
    pull = 27,
    words = 28,
    records = 29,
    pulled = 30,
};

constexpr bool is_about_links(MessageKind kind) {
    return kind >= MessageKind::epoch && kind <= MessageKind::pulled;
}

/// The version that has such messages.
constexpr uint16_t version_of(MessageKind kind) {
    return kind >= MessageKind::lost    ? kCarryVersion
           : kind >= MessageKind::epoch ? kLinksVersion
                                        : kOldestPeerVersion;
}

constexpr size_t kMessageHeader = 8;
constexpr size_t kMostMessageBody = 4096;

struct Message {
    MessageKind kind = MessageKind::hello;
    std::string body;
};

/// The key of discovery's proofs (monitor/discovery): 16 bytes that are no number.
using TellableKey = std::array<uint8_t, 16>;

/// Who somebody is, and which versions it knows.
struct PeerHello {
    uint16_t oldest = kOldestPeerVersion, newest = kPeerVersion;
    std::array<uint8_t, 16> start{}; ///< random, new with each start of sd-peers
    std::string name;                ///< the host's
    bool operator==(const PeerHello &) const = default;
};

std::string encode(MessageKind kind, std::string_view body);
std::string encode(const PeerHello &hello);
/// Nothing: it is no such message. A longer one, of a later version, is read as far as it is known.
std::optional<PeerHello> hello_of(std::string_view body);
std::string encode(const TellableKey &key);
std::optional<TellableKey> key_of(std::string_view body);
/// The version that both speak; 0: there is none.
uint16_t common_version(const PeerHello &a, const PeerHello &b);

/// Puts messages together from pieces. Holds no more than one message and what came with its end.
class MessageReader {
  public:
    enum class State { more, message, malformed };
    /// Bytes as they came; at most room() of them.
    void add(std::string_view bytes) { waiting_.append(bytes); }
    size_t room() const;
    /// Takes the next message out. After malformed there is none any more.
    State next(Message &message);

  private:
    std::string waiting_;
    size_t taken_ = 0; ///< of the front of waiting_
};

} // namespace sd::monitor
