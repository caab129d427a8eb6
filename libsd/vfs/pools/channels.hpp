// Sends by handle: pages of the program's own memory go over a channel of the zero-copy module
// (docs/design/zero-copy-sends.md). What is below is asked for large transfers only, and in a process with
// libsd-pages.so and the module.
//
// The sender's ends are an OwnChannel, of which a File has at most one, as long as it is open; a forked child
// goes on with it, since the send token says who uses it. The receiver's end is a TakenPool without bytes.
#pragma once
#include "libsd/layout/channel_layout.hpp"
#include "libsd/layout/page_calls.hpp"
#include "libsd/queue/ring.hpp"
#include "libsd/vfs/descriptors/file.hpp"
#include "libsd/vfs/family/segment.hpp"
#include "libsd/vfs/pools/pools.hpp"

namespace sd {

/// Measured in the virtual machine with kernel 6.1 (docs/design/zero-copy-costs.md): below, copying is
/// cheaper.
constexpr size_t kLeastGiven = 64u << 10;
/// The same for one copy in the call, where nobody has measured it: sdctl calibrate says better.
constexpr size_t kLeastCopied = 128u << 10;
constexpr size_t kLeastMapped = 16u << 10; ///< of a receiver: below, a copy is cheaper than a change of pages

/// May this process hand pages over, or take some? No more than a look at one word.
inline bool may_use_channels() noexcept { return &::socksdirect_page_calls != nullptr; }
/// The same, with the module there. Any thread, async-signal-safe.
const PageCalls *page_calls() noexcept;
/// A call on an end of a channel, also in a process without the library. 0 or -errno.
[[nodiscard]] long call_channel(int end, unsigned long request, void *argument) noexcept;
/// Does this memory lie where the device's does? The module has the last word.
inline bool may_be_of_device(const PageCalls &calls, const void *at, size_t length) noexcept {
    const uintptr_t offset = reinterpret_cast<uintptr_t>(at) - calls.window;
    return offset < calls.window_bytes && length <= calls.window_bytes - offset;
}

struct OwnChannel {
    /// Hidden. Pages are given at `end`; -1: the object is free. `far_end` is the receiver's, to bring it
    /// back to a restarted monitor, and to take back what is left
    int end = -1, far_end = -1, ledger_fd = -1;
    ChannelLedger *ledger = nullptr;
    uint64_t name = 0; ///< the monitor's
    uint64_t link_id = 0;
    uint32_t slot = 0;
    uint8_t side = 0;
    std::atomic<bool> stopped{false}; ///< who may read is of another trust domain now
    // With the send token
    uint32_t next = 0;              ///< number that is tried next
    uint64_t judged = 0;            ///< bytes given when the receiver's ways were looked at last
    uint64_t mapped = 0, read = 0;  ///< what it had mapped and read by then
    bool proven = false;            ///< it has mapped something since it was tried anew
    uint64_t pause = 0, pauses = 0; ///< bytes to copy before it is tried again; how many times it was so
    // Of pages that were handed over as they are, lately
    uint64_t watched = 0, rewrote = 0; ///< bytes; of those the program had written since it was done last
    /// Bytes to copy once before that is tried again; how many times it was so; how often it went well since
    uint64_t once = 0, onces = 0, well = 0;
    OwnChannel *pool_next = nullptr;
};

// own_channels.cpp
/// The File's; null: it has none. With the send token, or as a hint.
OwnChannel *channel_of(const File &f) noexcept;
/// Before a large send, without a token: makes the channel if there is none and there can be one.
void prepare_channel(int fd, File &f) noexcept;
/// Is as much given as may wait? A hint without the token.
[[nodiscard]] bool channel_is_full(const File &f) noexcept;
/// What of the program's bytes is next.
struct Handed {
    uint64_t given = 0; ///< bytes that were published
    uint64_t copy = 0;  ///< otherwise: bytes to be copied
    Copied why = Copied::ends;
    bool full = false; ///< otherwise: there is no room
};
/// With the send token: hands over the beginning of `piece`, of at least kLeastGiven bytes. `plain`: nothing
/// is held back or captured.
Handed hand_pages(File &f, const iovec &piece, bool plain, bool grow_far) noexcept;
/// With the send token: `n` bytes of a large send were copied.
void count_copied(const File &f, Copied why, uint64_t n) noexcept;
/// Closes the ends, without a token. `over`: nobody else holds this end of the connection.
void let_go_of_channel(OwnChannel *channel, bool over) noexcept;
void stop_own_channels() noexcept;
void restore_channels() noexcept;
void channels_moved(int from, int to) noexcept;
void channels_fork_child() noexcept;

// leave_pages.cpp
/// Has anonymous memory put in the place of the device's in a process that `sdctl detach` has put back on
/// kernel TCP, once. Without a token, nor a lock; any thread. Where it may be so: leave_pages_if_told().
[[gnu::cold]] void leave_pages() noexcept;
inline void leave_pages_if_told() noexcept {
    if (may_use_channels() && is_detached()) [[unlikely]]
        leave_pages();
}

// taken_channels.cpp
/// Before a large read into that memory, without a token: takes the channel that the peer has made.
void prepare_to_map(int fd, File &f, const void *to, size_t n) noexcept;
/// With the receive token: reads up to `n` bytes at the handle that is next, whose channel is `pool`, and of
/// those behind it. Bytes; -EFAULT: nothing was read; -EPROTO: there is nothing behind the handle.
[[nodiscard]] long read_channel(const File &f, RxState &s, const ring::Record &rec, TakenPool &pool, void *to,
                                uint64_t n, bool discard, bool captured) noexcept;
/// Is this the end of a channel that a module has made which we can work with?
bool is_channel(int fd) noexcept;
/// From now on the peers copy: this process may lose its right to read.
void stop_taken_channels() noexcept;

} // namespace sd
