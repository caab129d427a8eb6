// The directory: which addresses are listened on by accelerated programs, one per network namespace.
// Written by sd-monitor alone; every process maps it read-only (the memfd is sealed against other writers).
#pragma once
#include <atomic>
#include <cstdint>

namespace sd {

constexpr uint64_t kDirectoryMagic = 0x31524944'4453ULL; // "SDDIR1"
constexpr unsigned kDirectoryEntries = 4096;             ///< open addressing, keyed by port

/// Where there is this file, programs that start leave everything to the kernel (sdctl detach all --stay).
constexpr const char kDisabledFile[] = "/etc/socksdirect/disabled";

/// An entry is valid while `id` is not 0. The monitor clears `id` before it changes anything and sets it
/// last; a reader loads id, copies the rest, and loads id again. `used` stays 1 once an entry was ever taken,
/// so that probing knows where a chain ends.
struct DirectoryEntry {
    std::atomic<uint32_t> id; ///< listener id
    std::atomic<uint32_t> used;
    uint16_t port;  ///< host byte order
    uint8_t family; ///< AF_INET or AF_INET6 of the listening socket
    uint8_t v6only;
    uint32_t backlog;
    uint8_t ip[16]; ///< v4 addresses v4-mapped; all zero (or ::ffff:0.0.0.0): wildcard
    uint32_t owner; ///< user id of the socket: only those of one user share an address
    uint32_t pad;
    uint64_t cookie; ///< SO_COOKIE of the listening socket
};

struct Directory {
    uint64_t magic;
    uint32_t version;
    uint32_t entries;
    std::atomic<uint32_t> monitor_gone; ///< set to 1 by a monitor that ends in order
    uint32_t monitor_pid;
    uint64_t epoch; ///< differs between monitor starts
    /// Bumped when a connection that was refused a link for what the kernel could object to might get one
    std::atomic<uint64_t> birth_sequence;
    DirectoryEntry entry[kDirectoryEntries];
    /// Not 0: sockets that connect or listen in the kernel are to be marked (kMarkLevel)
    std::atomic<uint32_t> discovery;
    uint32_t pad;
};

/// A setsockopt by which a TCP socket is marked before it connects or listens; where no BPF program of a
/// monitor takes it, the kernel answers ENOPROTOOPT. monitor/discovery/option_layout.h has the same.
constexpr int kMarkLevel = 0x5344, kMarkName = 1;
constexpr int kMark = 1, kMarkAgain = 2; ///< its values; again: one that listens, after a monitor's restart

constexpr uint32_t directory_hash(uint16_t port) { return (port * 2654435761u) >> 20; }
static_assert(kDirectoryEntries == 1u << 12);

// A listener segment: shared by the processes that accept on one listener, and the monitor. Clients never see
// it.
constexpr uint64_t kListenerMagic = 0x31534c4453ULL; // "SDLS1"
constexpr unsigned kListenerLinks = 8192;
constexpr unsigned kKernelPlaces = 16;

struct ListenerLink {
    std::atomic<uint64_t> link_id; ///< 0: the place is free (the link ended)
    /// Next entry of the link's SYN queue to accept; acceptors compare-and-swap it
    std::atomic<uint32_t> syn_head;
    /// One more than the entry of the queue from which on none is taken: its client makes no more
    /// (wire::Op::withdraw), or has to ask first (kLinkPaused); 0: there is no such
    std::atomic<uint32_t> syn_end;
};

struct ListenerSegment {
    uint64_t magic;
    uint32_t version;
    uint32_t listener_id;
    std::atomic<uint32_t> closed;
    std::atomic<uint32_t> link_high;     ///< places below this index have been used
    std::atomic<uint64_t> link_sequence; ///< bumped by the monitor whenever a link is added or removed
    /// Acceptors that take a connection from the kernel's queue just now: the process's folded client id, 0:
    /// free. The first place is also the right to do so, see vfs/connections/kernel_queue.hpp. The monitor
    /// frees those of processes that have ended.
    std::atomic<uint32_t> in_kernel[kKernelPlaces];
    ListenerLink link[kListenerLinks];
};

} // namespace sd
