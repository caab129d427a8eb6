// ppoll where RLIMIT_NOFILE is smaller than the list, which the kernel then refuses, 0 for instance: by
// pselect, which knows no such limit.
#pragma once
#include <cstddef>
#include <cstdint>
#include <ctime>
#include <poll.h>

namespace sd {

/// As ppoll. What select cannot tell apart is reported as the least: an end or an error as readable or
/// writable; where nothing was asked for, as POLLHUP.
[[nodiscard]] long poll_by_select(pollfd *p, size_t n, const timespec *timeout, const uint64_t *mask) noexcept;

} // namespace sd
