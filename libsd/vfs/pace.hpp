// Sending no faster than a program can bear.
//
// sockperf's ping-pong client keeps a time for every message in a table for 600,000 messages a second, and ends with an error
// ("_seqN > m_maxSequenceNo") when a round trip takes less than 1.67 microseconds. Shared memory is faster than that, so this one
// program's messages leave 1.7 microseconds apart, unless it was told with --mps how many messages to make room for.
#pragma once
#include <cstdint>

namespace sd {

/// Whether this process is to be slowed down. Set once, before main.
extern bool paced;

/// Whether a program that was started like this needs it.
bool needs_pace(int argc, const char *const *argv) noexcept;

/// Returns when this thread may send its next message.
void wait_for_pace() noexcept;

} // namespace sd
