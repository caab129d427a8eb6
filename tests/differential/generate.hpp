// From a seed to a sequence of steps.
#pragma once

#include "tests/differential/step.hpp"

namespace sd::differential {

/// Families of steps that can be left out.
struct Features {
    bool exec = true, passing = true, signals = true;
    Users users = Users::one;
    bool apart = false; ///< actors are in two network namespaces, by turns
};

/// The same seed and features give the same sequence on every machine.
Sequence generate(uint64_t seed, const Features &features);

} // namespace sd::differential
