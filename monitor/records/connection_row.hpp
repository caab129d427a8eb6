// A connection as sdstat is told of it: a row of fixed size, so that ten thousand take the monitor, and who
// asks it, a few milliseconds.
#pragma once
#include "libsd/layout/channel_layout.hpp"
#include "libsd/layout/link_layout.hpp"

#include <cstddef>
#include <cstdint>
#include <string>

namespace sd::monitor {

enum class ConnectionState : uint8_t {
    established,
    waiting, ///< for accept
    half_closed,
    closing,
    reset,
    incomplete, ///< a process that may hold an end has not come back after a restart of the monitor
};

/// What carries a direction.
enum class Path : uint8_t { shm, kernel, rdma };

/// Why a direction is not on another path, or not yet.
enum class Blocker : uint8_t {
    none,
    put,        ///< it was put on the kernel's (sdctl), and stays there
    called,     ///< the receiving end asks for the kernel's
    pinned,     ///< a program without libsd may have the kernel's socket
    sender,     ///< the sending process has made no call since
    receiver,   ///< the receiving process has made no call since
    unread,     ///< the receiver has not read what is in the ring
    shared,     ///< several processes have the connection
    older,      ///< a process has a library that does not know how
    ended,      ///< one direction has ended
    passed,     ///< it is on its way to another process, or bridged
    elsewhere,  ///< it is of a network namespace that the monitor may not enter
    no_names,   ///< its listener has closed, and its names are not known for sure
    no_sockets, ///< the kernel gave no sockets
    alone,      ///< the process at the other end is not known
    one_sided,  ///< the other end could not take its kernel socket
};
constexpr unsigned kBlockers = static_cast<unsigned>(Blocker::one_sided) + 1;

/// For what a thread waits in the kernel, to be woken.
enum Asleep : uint8_t { kAsleepForData = 1, kAsleepForRoom = 2 };
/// Directions in which many threads use an end at once, so that their token works as a lock.
enum SharedUse : uint8_t { kSharedSend = 1, kSharedReceive = 2 };

struct RowEnd {
    uint64_t sent_bytes, sent_messages;
    uint64_t received_bytes, received_messages;
    SlotAddress address;
    uint32_t pid; ///< of one that holds it; 0: nobody, or not known
    uint32_t uid;
    uint32_t first_pid, pids; ///< all that hold it, in the table of the snapshot
    uint32_t flags;           ///< SideFlag
    char comm[16];
    uint8_t is_known; ///< a process holds it, so that the counts are its own
    uint8_t ring;     ///< class of the ring in which it sends
    uint8_t path;     ///< Path of what it sends
    uint8_t asleep;   ///< Asleep
    uint8_t shared;   ///< SharedUse
    uint8_t stalled;  ///< the program was told that there is no room, and none came since
    uint8_t blocker;  ///< Blocker of what it sends
    uint8_t pad;
};

/// Of what an end sends.
struct RowPath {
    uint64_t offset; ///< at which the former path was left: of the kernel's stream, or a position in the ring
    uint32_t moves;
    uint32_t pad;
};

/// Of what an end sends: large sends whose pages can go over a channel of the zero-copy module, in bytes.
/// What of all that it has sent is in none of `given` and `copied` was too small.
struct RowHanded {
    uint64_t channels; ///< that it had; 0: it has none, and nothing is counted
    uint64_t given;    ///< handed over as pages
    uint64_t mapped;   ///< of those: the receiver has the pages themselves
    uint64_t read;     ///< of those: the receiver has copied them
    uint64_t copied[kCopiedReasons];
};
/// Of the same, where the sender writes its pages anew.
struct RowRewritten {
    uint64_t once;   ///< of RowHanded::given: copied into pages by the call, once
    uint64_t copied; ///< by the sender, beside RowHanded::copied
};

struct ConnectionRow {
    uint64_t link; ///< with `slot`: what it is called until it ends, or the monitor does
    uint32_t slot;
    uint8_t state; ///< ConnectionState
    uint8_t pad[3];
    double since;  ///< seconds since 1970
    RowEnd end[2]; ///< client, server
    RowPath path[2];
    RowHanded handed[2];
    RowRewritten rewritten[2];
};
constexpr size_t kFirstRowBytes = offsetof(ConnectionRow, path); ///< of the first version

constexpr uint64_t kSnapshotMagic = 0x54415453'4453ULL; // "SDSTAT"
constexpr uint32_t kSnapshotVersion = 1;

/// Rows, then pids, then a JSON document with all that is not about a single connection.
struct SnapshotHeader {
    uint64_t magic;
    uint32_t version;
    uint32_t row_bytes; ///< of a later version there may be more in a row, behind what is known
    uint64_t rows, pids, text_bytes;
};

const char *state_name(ConnectionState state);
const char *path_name(Path path);
/// For programs ("no_names"), and for people.
const char *blocker_name(Blocker blocker);
const char *blocker_text(Blocker blocker);
/// Why bytes of large sends were copied, by number of Copied: for programs ("not_ours"), and for people.
const char *copied_name(unsigned why);
const char *copied_text(unsigned why);
/// Payload that `side` has sent in pieces too small to be handed over.
uint64_t too_small(const ConnectionRow &row, unsigned side);
/// "17.3", as sdstat and other commands name a connection.
std::string connection_id(const ConnectionRow &row);
/// "127.0.0.1:80" or "[::1]:80".
std::string address_text(const SlotAddress &address);

/// Payload that `side` has sent and the other end has not taken: -1 where one of the two is not known.
int64_t queued(const ConnectionRow &row, unsigned side);
/// What `side` has sent: its own count, or the other end's where it has gone.
uint64_t bytes_from(const ConnectionRow &row, unsigned side);
uint64_t messages_from(const ConnectionRow &row, unsigned side);

/// The row as an object of the JSON document that sdstat(1) describes. `pids`: the snapshot's table.
void append_json(std::string &out, const ConnectionRow &row, const uint32_t *pids);

} // namespace sd::monitor
