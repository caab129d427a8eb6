// Messages between libsd (or a command-line client) and sd-monitor, over a Unix SOCK_SEQPACKET socket.
//
// A request is one packet with the header, its body and, where noted, descriptors; each gets exactly one reply packet with
// the same sequence number. The monitor sends nothing unasked, so a readable or hung-up channel means it is gone.
// All numbers are in host byte order; both ends are on one host. Unknown operations are answered with ENOSYS,
// another version or a wrong length with EPROTO, and the channel is closed after that.
#pragma once
#include "libsd/control/causes.hpp"
#include <cstdint>

namespace sd::wire {

constexpr uint32_t kMagic = 0x4d445331; // "1SDM"
constexpr uint16_t kVersion = 1;
constexpr unsigned kMaxFds = 8;
constexpr unsigned kMaxText = 512;

enum class Op : uint16_t {
    hello = 1,     ///< Hello + fds {family segment memfd, a TCP socket of the process's network namespace} -> HelloReply + {directory memfd, read-only}
    presence = 2,  ///< no body: a connection that only says "somebody is here" (sdrun); may be followed by hello on the same channel
    fork = 3,      ///< Fork -> ForkReply + {channel for the child}: made before fork(); the child shares all that the parent has registered
    child = 4,     ///< Child: first message of a forked child on its channel, sent with SCM_CREDENTIALS -> empty reply
    segment = 5,   ///< no body + {memfd}: the child's own family segment -> empty reply
    listen = 6,    ///< Listen + {listening socket} -> ListenReply + {listener segment memfd}; the same socket registered twice gives the same listener
    unlisten = 7,  ///< ListenerRef: this process no longer holds it -> empty
    links = 8,     ///< Links -> LinksReply + {up to kMaxFds link memfds}: the links of a listener, from a place on
    connect = 9,   ///< ListenerRef -> ConnectReply + {link memfd}: a new link from this process to the listener
    drop_link = 10,///< LinkRef: this process has unmapped the link -> empty
    bell = 11,     ///< Bell + {eventfd}: register a doorbell -> BellReply
    unbell = 12,   ///< BellRef: give the id back -> empty
    peer_bell = 13,///< BellRef (side is the peer's) -> empty + {eventfd}
    accept_bell = 14, ///< ListenerRef + {eventfd}: to be rung when the listener gets a new link -> empty
    adopt_link = 15,  ///< Adopt + {link memfd}: after a restart of the monitor, a process brings back the links it has -> empty
    log = 16,      ///< Log: one line for the monitor's log -> empty
    status = 17,   ///< no body -> empty + {memfd with a JSON document}: for sdstat
    fault_pages = 18, ///< reserved
};

struct Header {
    uint32_t magic;
    uint16_t version;
    uint16_t op;
    uint32_t sequence;
    int32_t status; ///< replies: 0 or -errno; requests: 0
    uint16_t cause; ///< replies that fail: Cause that a caller should record, or 0
    uint16_t length; ///< of the body
    uint32_t fds;    ///< how many descriptors come with it
};

struct Hello {
    uint32_t layout_version; ///< kLayoutVersion of the shared memory
    uint32_t pid;            ///< as the process sees itself
    uint32_t proc_index;     ///< its ProcRecord in its segment
    uint32_t pad;
};
struct HelloReply {
    uint64_t client_id;
    uint64_t directory_bytes;
};
struct Fork {
    uint32_t segments;            ///< how many of the following are valid
    struct { uint64_t owner_client; uint32_t proc_index; uint32_t pad; } child_in[16]; ///< per inherited segment (by its creator's client id), the child's ProcRecord there
};
struct ForkReply {
    uint64_t client_id; ///< the child's
};
struct Child {
    uint32_t pid;
    uint32_t pad;
};
struct Segment {
    uint32_t proc_index;
    uint32_t pad;
};
struct Listen {
    uint32_t backlog;
    uint32_t pad;
};
struct ListenReply {
    uint32_t listener_id;
    uint32_t pad;
};
struct ListenerRef {
    uint32_t listener_id;
    uint32_t pad;
};
struct Links {
    uint32_t listener_id;
    uint32_t from; ///< place in ListenerSegment::link to start at
};
struct LinksReply {
    uint32_t count;
    uint32_t next; ///< place to ask from next; UINT32_MAX: that was all
    struct { uint64_t link_id; uint32_t place; uint32_t pad; } link[kMaxFds];
};
struct ConnectReply {
    uint64_t link_id;
};
struct LinkRef {
    uint64_t link_id;
};
struct Bell {
    uint64_t link_id;
    uint32_t side; ///< the caller's
    uint32_t id;   ///< 0: any; else keep this id (after a restart of the monitor)
};
struct BellReply {
    uint32_t id;
    uint32_t generation;
};
struct BellRef {
    uint64_t link_id;
    uint32_t side;
    uint32_t id;
};
struct Adopt {
    uint64_t link_id;
    uint32_t side;
    uint32_t listener_id; ///< the server side's new id, 0 for the client side
    uint32_t syn_head;    ///< server side: where accepting had got to
    uint32_t pad;
};
struct Log {
    uint16_t level; ///< 0 info, 1 warning, 2 error
    uint16_t cause;
    char text[kMaxText];
};

constexpr unsigned kMaxBody = sizeof(Fork) > sizeof(Log) ? sizeof(Fork) : sizeof(Log);

/// A whole packet. Only header + header.length bytes travel.
struct Packet {
    Header header;
    alignas(8) unsigned char body[kMaxBody];
};

} // namespace sd::wire
