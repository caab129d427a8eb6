// The memory of a link over the fake transport: one for each side, each laid out as a link, and what the
// copier between them has to know. For tests; a monitor makes such links when it is told to
// (SD_TEST_TRANSPORT=fake).
//
//   0            what side 0, the client, has mapped as its link
//   kLinkBytes   what side 1 has
//   kFakeState   FakeState
//
// Nobody but the copier, which is transport/fake_copier.hpp in whatever process runs it, and the words of
// birth and of waiters (link_layout.hpp) goes across.
#pragma once
#include "libsd/layout/link_layout.hpp"

namespace sd {

/// How far one direction of a slot has been carried over. Under `lock`.
struct FakeDirection {
    std::atomic<uint32_t> lock; ///< pid of who is at work; 0: nobody
    uint32_t cls;
    uint64_t position, base;
    uint64_t corked; ///< header of what was carried while it was corked; 0: nothing
    uint32_t corked_cls, corked_offset;
};

struct FakeState {
    /// Of a thousand changes so many stay behind until the monitor, as the copier, comes by; it takes slots
    /// in any order.
    std::atomic<uint32_t> late;
    /// Of a million changes so many cut the link: both sides are reset.
    std::atomic<uint32_t> cuts;
    std::atomic<uint32_t> draws; ///< how often it was decided
    /// [side]: slots that stayed behind, or were cut
    alignas(64) std::atomic<uint64_t> behind[2][kReadyWords];
    FakeDirection direction[kLinkSlots][2]; ///< [side]: the sender's
};

constexpr size_t fake_half(unsigned side) { return side * kLinkBytes; }
constexpr size_t kFakeState = 2 * kLinkBytes;
constexpr size_t kFakeBytes = kFakeState + align_up(sizeof(FakeState), 4096);

/// For tests of RDMA between two processes of one host: the two memories, and nothing that goes between. A
/// process maps its own.
constexpr size_t kTwoHalves = 2 * kLinkBytes + 2 * 4096;
static_assert(kTwoHalves < kFakeBytes);

} // namespace sd
