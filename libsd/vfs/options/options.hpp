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

/// Sets the recorded options on kernel socket `fd`. 0, or the first -errno.
long replay_options(int fd, const FreshState &s) noexcept;
/// Sets what `f`, a connection, was told and keeps itself on kernel socket `fd`, on which its recorded
/// options have been set.
void replay_stored_options(int fd, const File &f) noexcept;
void free_fresh(FreshState *s) noexcept;

/// For option_inherit.cpp: puts the extras into the File's record.
void record_extras(File &f, const InheritedSet &set) noexcept;

/// The File's record for the next holder (at most FreshState::kMax); how many there are.
uint32_t copy_options(const File &f, FreshOption *out) noexcept;
/// The other way round, for a new File. What claims to be longer than its value is left out.
void restore_options(File &f, const FreshOption *from, uint32_t count) noexcept;

/// IP_TOS as it was set on a socket that is not connected yet; 0: it was not.
uint8_t type_of_service(const File &f) noexcept;
/// IPV6_V6ONLY was set on a socket that is not connected yet.
bool is_v6only(const File &f) noexcept;
/// TCP_QUICKACK was switched off on a socket that is not connected yet: the kernel then ends the handshake
/// with the first data, or 200 ms later, and the server does not see the client before.
bool handshake_waits(const File &f) noexcept;

void options_fork_child() noexcept;

} // namespace sd
