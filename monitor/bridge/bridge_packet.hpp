// What sd-monitor sends to sd-bridge: one packet for each bridge, on the Unix SOCK_SEQPACKET socket that
// sd-bridge has as descriptor 3.
#pragma once
#include <cstdint>

namespace sd::monitor {

constexpr int kBridgeChannel = 3;
constexpr uint32_t kBridgeMagic = 0x42'44'53'31; // "1SDB"

/// The first packet to an sd-bridge that the service manager has started: who it is to become. It sends
/// one byte then, to which the kernel adds which process it is, and nothing else ever.
struct BridgeUser {
    uint32_t magic = kBridgeMagic;
    uint32_t uid[3]{}, gid[3]{}; ///< real, effective, saved
};

/// Comes with SCM_RIGHTS for exactly two descriptors: the accelerated connection, then the kernel's socket
/// whose other end some program has that cannot be preloaded. Both then belong to the bridge.
struct BridgePacket {
    uint32_t magic = kBridgeMagic;
    uint32_t exclusive = 0; ///< nobody else works on the accelerated connection: its options are the bridge's
};

} // namespace sd::monitor
