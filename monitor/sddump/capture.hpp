// One run of sddump: a process, its segments, and what is written of them.
#pragma once
#include "monitor/sddump/process.hpp"

#include <cstdint>
#include <string>

namespace sd::dump {

struct Options {
    std::string connection, output, socket;
    uint32_t pid = 0;
    uint32_t snap = UINT32_MAX;
    uint64_t count = 0; ///< packets; 0: no end
    uint64_t buffer = 0;
};

/// Until a signal, the process's end or `count`. Throws Failure.
void capture(const Options &options);

} // namespace sd::dump
