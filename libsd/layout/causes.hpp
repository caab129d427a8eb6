// The numbered causes for falling back to kernel TCP, shared by libsd, the monitor and sdstat.
#pragma once
#include <cstdint>

namespace sd {

enum class Cause : uint8_t {
    none = 0,
#define SD_CAUSE(number, name, text) name = number,
#include "libsd/layout/causes.def"
#undef SD_CAUSE
};

/// One more than the highest cause number there can ever be; sizes the counter tables in shared memory.
constexpr unsigned kMaxCauses = 64;

/// Short name ("no_monitor") of a cause, "unknown" for a number this build does not know.
constexpr const char *cause_name(unsigned number) {
    switch (number) {
    case 0:
        return "none";
#define SD_CAUSE(n, name, text)                                                                              \
    case n:                                                                                                  \
        return #name;
#include "libsd/layout/causes.def"
#undef SD_CAUSE
    default:
        return "unknown";
    }
}

/// One sentence for people.
constexpr const char *cause_text(unsigned number) {
    switch (number) {
#define SD_CAUSE(n, name, text)                                                                              \
    case n:                                                                                                  \
        return text;
#include "libsd/layout/causes.def"
#undef SD_CAUSE
    default:
        return "";
    }
}

} // namespace sd
