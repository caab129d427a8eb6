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

/// What the costs are made of, seconds, measured without the module.
struct Primitives {
    double call;       ///< a system call that does nothing
    double unmap, map; ///< a page of shared memory, many at a time
    double fault_copy; ///< writing to a page that is copied first: fault, new page, copy
    double access;     ///< first look at a page that was just mapped, and at one that lay there
    double flush;      ///< interrupting the other processors
    double atomic;     ///< a number that is changed so that other processors see it at once
    double object;     ///< something in the kernel that is made and let go of
    struct Copy {
        uint64_t bytes; ///< of the message: how much of it the caches still have follows from that
        double page;    ///< a page into the ring, or out of it
    };
    std::vector<Copy> page_copy; ///< by ascending sizes
};
/// For messages of up to that size. Takes a second. Throws Failure.
Primitives measure_primitives(uint64_t most);
/// What a message of that size should cost by them: copy_word, give_word, and give_all but for writing and
/// reading each byte, which no model is needed for.
struct Predicted {
    double copy, give, rewritten;
};
Predicted predicted(const Primitives &p, uint64_t bytes);

struct Calibration {
    bool only_look = false; ///< does not tell the module
    bool if_needed = false; ///< nothing without the module, or when it has been told since it was loaded
    bool all_sizes = false; ///< from 4 KiB to 64 MiB, instead of those that matter for programs
    bool predict = false;   ///< only the model, which needs no module
    bool as_json = false;
};
/// Measures, prints, and tells the module, which tells programs. Throws Failure.
void calibrate(const Calibration &how);

} // namespace sd::ctl
