// Whether two performances of one sequence can be told apart.
#pragma once

#include "tests/differential/controller.hpp"

#include <optional>

namespace sd::differential {

struct Difference {
    int step; ///< where it shows first
    std::string kernel, ours;
};

/// Empty when they are alike, or differ only in what LIMITS.md lists.
std::optional<Difference> compare(const Sequence &sequence, const Trace &kernel, const Trace &ours);

/// The sequence with what each side observed, for people.
std::string report(const Sequence &sequence, const Trace &kernel, const Trace &ours);

} // namespace sd::differential
