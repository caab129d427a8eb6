// What sd-peers and the monitor say to each other, on the Unix SOCK_SEQPACKET socket that sd-peers has as
// descriptor 3. The monitor sends orders: settings (peer_settings.hpp), in a memory file beside the packet,
// and messages for a peer; sd-peers sends reports.
#pragma once
#include <cstdint>
#include <string_view>

namespace sd::monitor {

constexpr int kPeersChannel = 3;
constexpr uint32_t kPeersMagic = 0x50'44'53'32; // "2SDP"

enum class PeerState : uint32_t { waiting, connecting, up };
constexpr std::string_view kPeerStates[] = {"waiting", "connecting", "up"};

/// Why a channel is not there, or ended the last time.
enum class PeerCause : uint32_t {
    none,
    new_settings,
    unreachable,
    refused,
    no_answer,
    wrong_key,
    unknown_host,
    other_proof,
    untrusted,
    expired,
    wrong_name,
    no_tls,
    no_version,
    malformed,
    silent,
    ended,
    closed,
    replaced,
    unusable,
    too_slow,
};
struct CauseText {
    std::string_view name, text;
};
constexpr CauseText kPeerCauses[] = {
    {"", ""},
    {"new_settings", "the configuration has changed"},
    {"unreachable", "the host cannot be reached"},
    {"refused", "nobody listens there"},
    {"no_answer", "no answer within the deadline"},
    {"wrong_key", "the two hosts have different keys for each other"},
    {"unknown_host", "the other host does not know this one by its name, or not by a key"},
    {"other_proof", "one of the hosts has a key for the other, the other one a certificate"},
    {"untrusted", "the certificate is not the one that is configured, nor signed by it"},
    {"expired", "a certificate is not valid yet, or not any more, by the wall clock of who looked at it"},
    {"wrong_name", "it is another host than the one that is configured"},
    {"no_tls", "what is there does not speak TLS 1.3 as this host does"},
    {"no_version", "the two monitors know no common version"},
    {"malformed", "it has sent what is no message"},
    {"silent", "nothing was heard from it within the deadline"},
    {"ended", "its monitor has ended"},
    {"closed", "the connection broke"},
    {"replaced", "it has connected anew"},
    {"unusable", "this host's own settings cannot be used"},
    {"too_slow", "it does not take what it is sent"},
};
static_assert(sizeof kPeerCauses / sizeof *kPeerCauses == static_cast<size_t>(PeerCause::too_slow) + 1);

/// One packet. Its writer talks with strangers, so nothing in it is believed without a look.
struct PeerReport {
    enum Kind : uint32_t { peer = 1, listening = 2, strangers = 3, key = 4, message = 5 };
    uint32_t magic = kPeersMagic;
    uint32_t kind = peer;
    uint32_t settings = 0; ///< which settings these are: they are counted
    PeerState state = PeerState::waiting;
    PeerCause cause = PeerCause::none; ///< also of listening: not possible
    uint32_t version = 0;              ///< that is spoken; strangers: how many were turned away
    uint64_t session = 0;              ///< of the peer: each one that comes up has a number of its own
    char name[64]{};                   ///< the peer's
    uint16_t message_kind = 0;         ///< MessageKind
    uint16_t size = 0;                 ///< of its body
    uint32_t reserved = 0;
    /// What the system, or OpenSSL, says; strangers: the last one's address; key: the TellableKey of the
    /// peer; message: the body
    char detail[128]{};
};

/// One packet; settings come with a memory file.
struct PeersOrder {
    enum Kind : uint32_t {
        settings_come = 1,
        message = 2, ///< for the peer whose session that is; dropped if it is over
        refuse = 3,  ///< end that session: what it says cannot be
    };
    uint32_t magic = kPeersMagic;
    uint32_t kind = settings_come;
    uint32_t settings = 0; ///< the how many
    uint32_t has_key = 0;
    unsigned char key[16]{}; ///< the TellableKey of this host, if discovery is on
    uint64_t session = 0;
    uint16_t message_kind = 0; ///< MessageKind
    uint16_t size = 0;         ///< of its body
    uint32_t reserved = 0;
    char body[128]{}; ///< refuse: why, in words
};

} // namespace sd::monitor
