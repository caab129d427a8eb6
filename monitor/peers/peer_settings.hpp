// The hosts whose monitors this one talks with, as the configuration names them.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace sd::monitor {

constexpr size_t kMostPeers = 1024;
constexpr size_t kMostPeerName = 63;
constexpr unsigned kMostRegistered = 1024;      ///< MiB
constexpr size_t kLeastKey = 32, kMostKey = 64; ///< bytes

/// One host. It is proven by a key that the two hosts alone have, or by a certificate.
struct PeerSettings {
    std::string name;
    std::string address; ///< where it is connected to
    uint16_t port = 0;
    std::string key;                    ///< the bytes; empty: certificates
    std::string certificates;           ///< PEM: its own, or those of who signs it
    std::vector<std::string> addresses; ///< networks that are its own, `address` among them
    bool operator==(const PeerSettings &) const = default;
};

/// Whether connections with these hosts may go over RDMA.
enum class UseRdma : uint8_t {
    never,
    automatic, ///< over devices that are ones, not over those that the kernel emulates
    always,
};

struct PeersSettings {
    std::string name; ///< of this host, for its peers
    std::string listen = "::";
    uint16_t port = 7471;
    unsigned deadline = 15;               ///< seconds without a word, after which a host counts as gone
    std::string certificate, private_key; ///< PEM, of this host; empty: it has keys only
    // Of no concern to sd-peers:
    UseRdma rdma = UseRdma::automatic;
    std::vector<std::string> addresses; ///< networks of this host's devices that may be used; none: all
    unsigned registered = 0;            ///< MiB that a process may register at most; 0: nothing is said
    std::vector<PeerSettings> peers;
    bool operator==(const PeersSettings &) const = default;
    bool is_used() const { return !peers.empty(); }
};

/// Of two hosts one connects, always the same.
inline bool connects(const std::string &own, const std::string &peer) { return own < peer; }

/// How settings go to sd-peers: a JSON document in a memory file.
std::string text_of(const PeersSettings &settings);
/// Throws std::exception. Only the monitor's word is read.
PeersSettings settings_of(const std::string &text);

} // namespace sd::monitor
