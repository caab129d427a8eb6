// A sequence as a C program of its own.
#pragma once

#include "tests/differential/step.hpp"

namespace sd::differential {

std::string c_program(const Sequence &sequence);

} // namespace sd::differential
