// Where a process's library has what a tracer may have it run (libsd/layout/forced_step.hpp). What the
// process says is taken for a claim: the kernel's list of its mappings has to agree.
#pragma once
#include "libsd/layout/forced_step.hpp"

#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace sd::ctl {

/// A line of /proc/PID/maps.
struct Mapping {
    uint64_t start = 0, end = 0;
    bool readable = false, writable = false, executable = false;
    std::string name; ///< "" where it has none
    bool has(uint64_t address, uint64_t bytes) const {
        return address >= start && address <= end && bytes <= end - address;
    }
};
/// Lines that are not like that are left out.
std::vector<Mapping> parse_mappings(const std::string &text);

/// What a library says, as far as it can be true.
struct ForcedEntry {
    uint64_t function, stack_top, call;
};
/// Reads memory of the process; false: not all of it could be read.
using ReadMemory = std::function<bool(uint64_t address, void *to, size_t bytes)>;
/// Nothing: no libsd.so that can do it is there, or what it says cannot be.
std::optional<ForcedEntry> find_entry(const std::vector<Mapping> &mappings, const ReadMemory &read);

} // namespace sd::ctl
