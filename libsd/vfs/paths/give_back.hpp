// What a receiver has not read of the ring comes by the socket instead: for one who has to leave the ring,
// and whose program has not read what is there (leave.cpp).
//
// R its receiver, S its sender, both tokens in hand; the words are those of the slot. The ring is in use, and
// both have said so.
//
//   R: back = (stopped, R)       and reads the socket; R: where it stands in the ring
//   S: offer's upper half = N    what it has written to the socket so far; its low 32 bits
//   S: back = (claimed, R)       by compare-and-swap: until then R may take back its stop, in the same way
//   S: writes what lies in the ring from R on to the socket, without waiting
//   S: back = (given, G)         up to where it got. Was that all, it leaves the ring as ever (moves.hpp)
//   R: passes over all up to G, back = 0     once it has read what came by the socket, and reads the ring;
//                                or at once, where the ring was left at G: what follows is in the socket
//
// R may have stopped before it has read the socket up to the ring's beginning: what is given back follows
// that there. Then S has its answer to that move with the word, and R makes it as it goes on in the ring.
//
// Between its claim and that word S waits for nobody. If it has got only to a part, since the socket had no
// room, it stays in the ring until R has passed that.
//
// Killed while it has claimed, S has written whole calls: who takes over its token asks the kernel how much,
// and goes on there. If nobody of its processes is left, R asks its own end, and makes the word itself.
// Killed at any step, R leaves what resume_reading() makes good; passing over goes up to a place and so may
// be done twice.
//
// S changes nothing of what it has sent, and R nothing but what it says of itself: a hostile peer's numbers
// lead to no place outside of a ring, and to no bytes but those of the rings.
#pragma once
#include "libsd/queue/unread.hpp"
#include "libsd/vfs/paths/moves.hpp"

namespace sd {

enum class BackState : uint8_t { none, stopped, claimed, given };

/// `back`, as long as it is stopped or claimed: with Credit::consumed it says where the receiver stands.
///
///   1..0   state           21..5   length of the record, of which     57..39  offset in the ring / 8
///   4..2   class of ring   38..22  so much was read; 0: none
struct BackWord {
    BackState state;
    uint32_t cls, length, read, offset;
};
constexpr uint64_t pack(const BackWord &w) {
    return static_cast<uint64_t>(w.state) | uint64_t{w.cls} << 2 | uint64_t{w.length} << 5 |
           uint64_t{w.read} << 22 | uint64_t{w.offset >> 3} << 39;
}
constexpr BackState back_state(uint64_t word) { return static_cast<BackState>(word & 3); }
/// Of a word that the peer may have written: nothing has been checked.
constexpr BackWord unpack_back(uint64_t word) {
    constexpr uint32_t kLength = (1u << 17) - 1;
    return {back_state(word), static_cast<uint32_t>(word >> 2) & 7,
            static_cast<uint32_t>(word >> 5) & kLength, static_cast<uint32_t>(word >> 22) & kLength,
            (static_cast<uint32_t>(word >> 39) & ((1u << 19) - 1)) << 3};
}
static_assert(ring::kMaxRecord < 1u << 17 && kRingSize[kRingClasses - 1] >> 3 <= 1u << 19 && kRingClasses <= 8);

/// `back` when it is given: up to where.   1..0 state, 18..2 read, 63..19 position / 8
constexpr uint64_t pack_given(const ring::At &to) {
    return static_cast<uint64_t>(BackState::given) | uint64_t{to.read} << 2 | (to.position >> 3) << 19;
}
constexpr ring::At unpack_given(uint64_t word) {
    return {(word >> 19) << 3, static_cast<uint32_t>(word >> 2) & ((1u << 17) - 1)};
}

/// In PathWords::offer: what the sender had written to the socket when it claimed.
constexpr uint64_t kGivenFrom = ~uint64_t{0} << 32;
/// In kPathRx, beside the step: the ring is not read. The step is not kPathRing then, and nobody takes it for
/// that.
constexpr uint32_t kReadingStopped = 0x40;
inline bool is_reading_stopped(const Ofd &o) noexcept {
    return static_cast<uint32_t>((o.opt.*kPathRx).load(std::memory_order_relaxed)) & kReadingStopped;
}

/// With the receive token: what is unread in the ring is to come by the socket. False: nothing is, or it
/// cannot. Whoever reads meanwhile takes it back.
[[nodiscard]] bool stop_reading(File &f) noexcept;
/// With the receive token, of one that has stopped: goes on where that can be told. `takes_back`: at once, if
/// nobody has claimed it. True: it is another path now that is read.
bool resume_reading(int fd, File &f, bool takes_back) noexcept;
/// With the receive token, or as a hint: how much of what lies in the ring has come by the socket.
uint64_t already_came(int fd, const File &f) noexcept;

enum class Giving : uint8_t {
    nothing, ///< is to be given back, or can be
    all,     ///< that is in the ring has been
    rest,    ///< of it has not, or may not have been: the ring stays in use
};
/// With the send token, while the ring is in use: gives back what the peer does not read there. `*tell`: it
/// is to be told.
[[nodiscard]] Giving give_back(int fd, File &f, bool *tell) noexcept;

} // namespace sd
