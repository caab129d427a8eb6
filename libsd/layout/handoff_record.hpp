// What somebody who comes to hold a connection later (the next program image of the process, or a process it
// is passed to) has to know besides the Ofd, which lies in the family segment. Also travels in messages to
// the monitor.
#pragma once
#include "libsd/layout/link_layout.hpp"

namespace sd {

/// A socket option as it was set, to be set again on a kernel socket.
struct FreshOption {
    int32_t level, name, length;
    unsigned char value[16];
};
constexpr uint32_t kMaxFreshOptions = 20;

/// What connect() on a connection answers.
enum class ConnectAnswer : uint8_t {
    connected, ///< EISCONN
    made,      ///< 0, once: a non-blocking connect was answered EINPROGRESS, and was not called again since
    invalid,   ///< EINVAL: as before, and it was shut down when it had been reset
};

/// Comes from a process of the same trust domain; it is checked against the Ofd all the same.
struct HandoffRecord {
    uint64_t link_id;
    uint32_t ofd_index;
    uint32_t slot;
    uint16_t generation; ///< Ofd::generation: the record may have been used again
    uint8_t side, family;
    uint8_t connect_answer; ///< ConnectAnswer
    uint8_t pad[3];
    SlotAddress client, server;
    uint32_t options; ///< how many of the following are valid
    FreshOption option[kMaxFreshOptions];
};

/// The inode number of a connection, as those who hold it tell it: no two living ones of a monitor have the
/// same, and none has one of the kernel's, which have 32 bits.
constexpr uint64_t connection_inode(uint64_t link_id, uint32_t slot, unsigned side) {
    static_assert(kLinkSlots <= 1u << 12);
    return uint64_t{1} << 46 | (link_id & 0xffff'ffff) << 13 | uint64_t{slot % kLinkSlots} << 1 | (side & 1);
}

/// TCP_NOTSENT_LOWAT of a kernel socket that stands for a passed connection: so a receiver with libsd knows
/// at the price of one system call that it is worth asking the monitor. As a limit it means nothing, being
/// larger than any send buffer.
constexpr int kParcelMark = 0x7d5dc0de;

} // namespace sd
