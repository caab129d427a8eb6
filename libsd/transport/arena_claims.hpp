// What this process can be charged for the arenas of its links: its own rings there, and what strangers may
// send it in theirs. A page that nobody has written is charged to who reads it first, and a stranger may say
// that he has written it. Where a control group has little memory the monitor gives a bound
// (control::Profile::arenas): nobody is to be killed for what the kernel would have pushed back.
//
// All may be called by any thread at any time, and are async-signal-safe. A forked child has its parent's
// counts: what both have counts for both.
#pragma once
#include "libsd/layout/link_layout.hpp"

#include <atomic>
#include <cstdint>

namespace sd {

struct LinkMap;

/// A stranger's link has this much of his arena whatever is claimed; so many links does the monitor let a
/// process have that it comes to half of the bound. The other half is what is claimed here.
constexpr uint64_t kLeastOpened = kRingSize[2];

/// Claimed for all links together, in bytes.
extern std::atomic<uint64_t> arena_claims;

/// For one of the link's own rings. False: that would be beyond the bound, and nothing is claimed. One of
/// kAlwaysHad is had however little memory there is: a connection with less would be slower than through the
/// kernel.
constexpr uint64_t kAlwaysHad = kRingSize[1];
[[nodiscard]] bool claim_arena(LinkMap &l, uint64_t bytes) noexcept;
/// Whether claim_arena() would succeed; a hint.
[[nodiscard]] bool arena_to_be_claimed(uint64_t bytes) noexcept;
/// Gives back what claim_arena() has claimed.
void unclaim_arena(LinkMap &l, uint64_t bytes) noexcept;

/// Of a stranger's arena, from its beginning to `end`; true where that is claimed already. One link has no
/// more than is still free for all others.
[[nodiscard]] bool claim_strangers_arena(LinkMap &l, uint64_t end) noexcept;
/// How much of a stranger's arena is opened to him at once: `most`, or less where memory is little.
[[nodiscard]] uint64_t opened_at_first(uint64_t most) noexcept;

/// A link is made, or is about to be unmapped: it has claimed nothing.
void unclaim_arenas(LinkMap &l) noexcept;

} // namespace sd
