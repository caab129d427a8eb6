// sdctl calibrate: measures on this machine from which sizes on handing over pages costs less than copying.
#pragma once
#include "monitor/sdctl/failure.hpp"

#include <cstdint>
#include <vector>

namespace sd::ctl {

/// Of one message, seconds; both sides' work together, without their waiting for each other. `word`: one word
/// of the message is written, and one of each page is looked at; `all`: each byte is written and read.
struct Costs {
    uint64_t bytes;
    double copy_word, give_word;         ///< over a ring; as pages
    double copy_all, give_all, once_all; ///< and as pages that the call has copied (SDZC_GIVE_COPY)
};

constexpr uint64_t kNeverPays = ~uint64_t{0};
/// The least size from which on the second cost is always clearly below the first; or kNeverPays.
uint64_t crossing(const std::vector<Costs> &costs, double Costs::*copied, double Costs::*paged);

/// What the costs are made of, seconds, measured without the module but for `call`.
struct Primitives {
    double call;       ///< of the module, that does nothing
    double unmap, map; ///< a page of shared memory, in one call for many
    double fault_copy; ///< writing to a page that is copied first: fault, new page, copy
    double page_copy;  ///< a page into the ring, or out of it
    double access;     ///< first look at a page that was just mapped, and at one that lay there
    double flush;      ///< interrupting the other processors
};
/// What a message of that size should cost by them: copy_word, give_word, and give_all but for writing and
/// reading each byte, which no model is needed for.
struct Predicted {
    double copy, give, rewritten;
};
Predicted predicted(const Primitives &p, uint64_t bytes);

/// Measures, prints, and tells the module, which tells programs. `only_look`: does not tell it; `if_needed`:
/// does nothing without the module, or when it has been told since it was loaded. Throws Failure.
void calibrate(bool only_look, bool if_needed, bool as_json);

} // namespace sd::ctl
