// The ledger of a channel of the zero-copy module: over it one direction of one connection hands over pages
// of its sender's own memory (docs/design/zero-copy-sends.md). To the monitor it is a pool: it has the
// descriptor of the receiver's end where a pool has its bytes, and a ledger of its own kind.
//
// A HandleRecord names a number of the ledger, and an offset in what the module has under the handle that
// stands there. The sender fills an entry with the send token; whoever reads its last byte empties it.
// Everything here is of one trust domain, and yet nobody's word leads further than to his own bytes: the
// module looks at handle, offset and length itself.
#pragma once
#include "libsd/layout/pool_layout.hpp"

namespace sd {

constexpr uint64_t kChannelMagic = 0x3148434453ULL; // "SDCH1"
constexpr unsigned kChannelNumbers = 1000;

/// Why bytes of large sends were copied.
enum class Copied : uint8_t {
    ends,      ///< before the first whole page, and behind the last one
    foreign,   ///< the memory is not of the device, and the module cannot copy once
    refused,   ///< a limit of the module's, or no memory for what it needs
    untaken,   ///< the receiver has no channel: without the module or libsd-pages.so, or of another domain
    unmapped,  ///< the receiver's buffers do not take pages: tried again after a while
    held,      ///< what goes another way: held back for more, captured, about to change its path
    rewritten, ///< the sender writes its pages anew, and the module cannot copy once
};
constexpr unsigned kCopiedReasons = 6; ///< that have a count in `copied`: all but the last

struct ChannelLedger {
    // As a PoolLedger begins
    uint64_t magic;
    std::atomic<uint32_t> taken;   ///< the receiver has its end: pages may be handed over
    std::atomic<uint32_t> ended;   ///< the receiver has closed the connection
    std::atomic<uint32_t> unused0; ///< PoolLedger::releases
    std::atomic<uint32_t> unused1; ///< PoolLedger::waiters
    // The sender's, with its token; bytes
    std::atomic<uint64_t> given;
    std::atomic<uint64_t> copied[kCopiedReasons];
    // The receiver's, with its token; bytes that came over the channel
    std::atomic<uint64_t> mapped, read;
    // The sender's
    std::atomic<uint64_t> once;      ///< of `given`: copied by the call into pages (SDZC_GIVE_COPY)
    std::atomic<uint64_t> rewritten; ///< copied for Copied::rewritten
    uint8_t unused[272];
    struct Entry {
        std::atomic<uint64_t> handle; ///< the module's; 0: the number is free
        std::atomic<uint64_t> bytes;  ///< that the handle stands for, whole pages
    } entry[kChannelNumbers];
};
static_assert(sizeof(ChannelLedger) == sizeof(PoolLedger), "the monitor asks for no other size");

/// The counts, as others read them from the file.
struct ChannelCounts {
    uint64_t given, copied[kCopiedReasons], mapped, read, once, rewritten;
};
constexpr size_t kChannelCountsOffset = offsetof(ChannelLedger, given);
static_assert(offsetof(ChannelLedger, rewritten) + sizeof(uint64_t) ==
              kChannelCountsOffset + sizeof(ChannelCounts));

/// What /proc/PID/fd says of an end of a channel.
constexpr char kChannelLink[] = "anon_inode:[socksdirect-zerocopy]";

} // namespace sd
