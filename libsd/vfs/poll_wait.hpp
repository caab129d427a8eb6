// Waiting for a list of descriptors, some of them accelerated; what poll and select have in common.
#pragma once
#include "libsd/vfs/file.hpp"
#include "libsd/vfs/held.hpp"
#include <poll.h>

namespace sd {

/// One call's descriptors. The arrays are the caller's, `n` long.
struct PollList {
    pollfd *all;    ///< events in, revents out
    File **file;    ///< ours, or nullptr
    pollfd *kernel; ///< room for the kernel's part, n + 2 long
    LinkMap **link; ///< links of the connections kept open while we sleep
    uint32_t *from; ///< kernel[k] belongs to all[from[k]]
    size_t n;
};

/// Fills in `file`. True when any descriptor needs us.
bool poll_classify(PollList &l) noexcept;
/// Waits. The number of entries with revents, or -errno. `timeout_ns` < 0: for ever. `mask`: signal mask for the wait, or nullptr.
long poll_wait(PollList &l, int64_t timeout_ns, const uint64_t *mask) noexcept;

/// Scratch arrays for a list: on the stack for the usual sizes, mapped for large ones. For one call.
class PollSpace {
  public:
    explicit PollSpace(size_t n) noexcept;
    ~PollSpace();
    explicit operator bool() const noexcept { return list.all != nullptr; }
    PollSpace(const PollSpace &) = delete;
    PollSpace &operator=(const PollSpace &) = delete;
    PollList list{};

  private:
    static constexpr size_t kInline = 64;
    static constexpr size_t kEach = 2 * sizeof(pollfd) + 2 * sizeof(void *) + sizeof(uint32_t);
    alignas(8) unsigned char here_[kEach * kInline + 2 * sizeof(pollfd)];
    void *mapped_ = nullptr;
    size_t bytes_ = 0;
    unsigned mark_ = 0;
};

} // namespace sd
