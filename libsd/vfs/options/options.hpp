// Socket options of accelerated sockets: kept here where we honour them, in a kernel socket where only the
// kernel knows the answer.
#pragma once
#include "libsd/vfs/descriptors/file.hpp"
#include <cstddef>

namespace sd {

/// What an accepted socket takes over from its listener, as Linux copies it. Options that we keep ourselves
/// come first; `extra` holds those that differ from a new socket's and matter only to a kernel socket made
/// later.
struct InheritedSet {
    static constexpr unsigned kStored = 12, kExtras = 16;
    int32_t stored[kStored]; ///< in the order of the option table
    int32_t linger_on, linger_s;
    int32_t rcvlowat, sndbuf;
    uint32_t extras;
    int64_t rcvtimeo_ns, sndtimeo_ns;
    FreshOption extra[kExtras];
};

/// The listener's options as last read from the kernel, so that accepting needs no system call for them.
/// forget() and read() may be called by any thread at the same time.
class ListenerOptions {
  public:
    void forget() noexcept { valid_until_.store(0, std::memory_order_release); }
    /// Something was set. A timeout of {-1, 0}, which means not to wait at all, reads back from the kernel as
    /// none.
    void note(int level, int name, const void *value, socklen_t n) noexcept;
    /// The socket has begun to listen: the same for what was set on it before.
    void begin(const File &f) noexcept;
    /// SO_RCVTIMEO, which is accept()'s, asked of the kernel's socket: ns, 0: none, kNoWait.
    int64_t receive_timeout(int fd) const noexcept;
    /// From the cache if it is young, else from the kernel's socket `fd`.
    void read(int fd, InheritedSet &out) noexcept;

  private:
    void read_kernels(int fd, InheritedSet &out) noexcept;
    enum Direction : uint8_t { to_receive, to_send };
    /// What was set, of which `read_back` is what the kernel tells.
    int64_t as_set(Direction d, int64_t read_back) const noexcept;
    static constexpr unsigned kWords = sizeof(InheritedSet) / sizeof(uint32_t);
    static constexpr unsigned kHeadWords = offsetof(InheritedSet, extra) / sizeof(uint32_t);
    // A sequence lock: `sequence_` is odd while a thread writes; readers never wait.
    std::atomic<uint32_t> sequence_{0};
    std::atomic<int64_t> valid_until_{0};
    std::atomic<bool> no_wait_[2]{}; ///< by Direction
    std::atomic<uint32_t> word_[kWords]{};
};

} // namespace sd
