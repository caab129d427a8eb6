// What travels: messages, written into the other side's mailbox by one write with an immediate each, which is
// the message's place there in units of 64 bytes. The completion is what says that a message is whole.
//
// The mailbox is all that a peer can write. It holds copies: the rings and words of links are written by
// their owner alone, in its progress step, after it has looked at each length.
#pragma once
#include <cstdint>

namespace sd::rdma {

constexpr uint32_t kUnit = 64;
/// Records of one message, at most: the largest there is, with its header.
constexpr uint32_t kMaxRecords = (64u << 10) + 8;

enum MessageFlag : uint16_t {
    kHasWords = 1, ///< Words follow the records
};

struct Message {
    uint32_t link;
    uint16_t slot;
    uint16_t flags;
    uint32_t records;  ///< bytes of them, right behind this; each with its header, as in the ring
    uint32_t receives; ///< that the sender of this has posted in all; with the next, credit
    uint64_t emptied;  ///< of its mailbox, how far it has read
    uint64_t position; ///< of the first record
    uint64_t consumed; ///< SlotSide::Credit
    uint32_t use;      ///< which connection of the slot it is about, see Plugin::recycle
    uint32_t pad;
};
static_assert(sizeof(Message) == 48, "with a record of 8 bytes it fills a unit");
constexpr uint32_t kNoLink = ~0u; ///< credit alone

/// The other words of a side, if any has changed since they were last sent.
struct Words {
    uint32_t flags, ended_at;
    uint64_t oob;
    uint64_t offer, from, taken;
    uint32_t piece[6]; ///< where its larger rings lie, by class; of class 0 it says nothing
    /// Corked, of what has been sent: the record with this header is to be put where it belongs, without it.
    /// Once the word is another one the record is shown, with `shown_as` for a header. When it was held back
    /// the receiver counts by its own clock.
    uint64_t corked, cork_place, shown_as;
    uint64_t shown; ///< SlotSide::Credit
};
static_assert(sizeof(Words) == 96);

constexpr uint32_t kMaxMessage = sizeof(Message) + sizeof(Words) + kMaxRecords;
constexpr uint32_t in_units(uint32_t bytes) { return (bytes + kUnit - 1) / kUnit; }

} // namespace sd::rdma
