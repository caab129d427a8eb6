// Messages between libsd (or a command-line client) and sd-monitor, over a Unix SOCK_SEQPACKET socket.
//
// A request is one packet with the header, its body and, where noted, descriptors; each gets exactly one
// reply packet with the same sequence number, and none where that number is kNoAnswer. The monitor sends
// nothing unasked, so a readable or hung-up channel means it is gone. All numbers are in host byte order;
// both ends are on one host. A version that is not served, or a wrong length, is answered with EPROTO, and
// the channel is closed after that. An unknown operation is answered with ENOSYS, and the channel stays: a
// library may be newer than its monitor. What may change between two releases: docs/versions.md.
//
// Rules that are not visible in the structures:
//  - The monitor takes the sender's identity from the kernel (SO_PASSCRED is set on its end), with every
//    packet. A second hello on a channel is a new program image in the same process (exec): with the same
//    segment memfd everything registered stays, with another one all that the old image held is treated as if
//    the process had died.
//  - An exec that keeps connections open keeps the channel open, too: image says that the next program has
//    taken over. What the table does not list (Ofds, links, listeners) and all doorbells end, as if the
//    process had died and come again.
//  - A process that may not, or cannot, connect to the monitor's socket any more (it has become another user,
//    or its root is elsewhere) sends enter on a channel that it has from before: sdrun's presence, say. That
//    is one socket in the hands of many processes, so nothing but unanswered requests may be sent there.
//  - A parcel is a connection on its way to another process (SCM_RIGHTS, or an exec of a program without
//    libsd). The kernel socket that is passed is connected to one that the monitor keeps: when the latter
//    hangs up, nobody has the parcel any more. Meanwhile ProcRecord kParcelProc holds the Ofd. A receiver of
//    the same trust domain that claims it comes to share segment and link; where nobody claims it for a
//    while, or it is used as the kernel socket it is, sd-bridge claims it and copies between the two.
//  - Where those who hold a connection with libsd are to share a kernel socket with somebody without
//    (BridgeStart::for_all), the monitor marks the Ofd (kTxMoved, kMovedLowat) and rings its side before
//    sd-bridge learns of it. It keeps a descriptor of the socket until no process but sd-bridge holds the
//    Ofd.
//  - Who is shown a segment, or the server side of a link, is of the trust domain of those who have it
//    (docs/security.md); EPERM else.
//  - Link ids, and the names of segments, only mean something together with the caller: they are looked up
//    among what the caller has.
//  - connect attaches the caller to side 0 of the new link, links attaches it to side 1 of each link it is
//    given (again, too: close what is known already), adopt_link to the side named; a forked child starts
//    with a copy of its parent's attachments. Everyone attached must say drop_link in the end, or die;
//    ListenerSegment::link_sequence is also bumped when the client side of a link has died, as a hint to the
//    server's processes to look for links that can be dropped.
//  - Death of a process: for each Ofd whose bit is set in its ProcRecord::held and in no other living
//    process's record, the monitor sets
//    kFlagDead and kFlagClosed on the Ofd's side of the slot, rings the peer, frees Ofd::state. So: state
//    and link_id, slot, side of an Ofd are valid before its bit in held is set, and the bit is cleared before
//    kFlagReleased is set (after which the slot may be somebody else's). Where others still hold the Ofd,
//    both sides are rung all the same, since the dead process may have published something without getting to
//    ring. Its ThreadRecords are freed first, and the death counted in SegmentHeader::deaths.
//  - When the last holder of a listener has gone, kLinkListenerClosed is set, then after a full fence every
//    slot in state syn is compare-and-swapped to refused. So a client publishes its SYN, makes a full fence,
//    and then looks at kLinkListenerClosed. Where the kernel still listens the slots are left as they are,
//    for whoever registers the listener next; others make a new link then.
//  - An eventfd given as a bell is written with 1 by the monitor; it should be non-blocking. An accept bell
//    lives until unlisten. Only processes of the waiter's trust domain are given it, since whoever has an
//    eventfd can also read it, fill it, and make it block. bell with an id that somebody else has: EBUSY.
//    More bells than ids: ENOSPC.
#pragma once
#include "libsd/layout/causes.hpp"
#include "libsd/layout/handoff_record.hpp"
#include <cstdint>

namespace sd {

/// ioctl for sd-bridge, on any TCP socket: opens the channel to the monitor and makes all that later calls
/// would open files for.
constexpr unsigned long kIoctlContact = 0x89ee;

} // namespace sd

namespace sd::wire {

constexpr uint32_t kMagic = 0x4d445331; // "1SDM"
constexpr uint16_t kVersion = 1; ///< of the header and of what follows from it; an answer has its request's
constexpr uint16_t kOldestVersion = 1; ///< that the monitor serves
constexpr bool is_served(uint16_t version) { return version >= kOldestVersion && version <= kVersion; }
constexpr uint32_t kNoAnswer = 0; ///< Header::sequence
constexpr unsigned kMaxFds = 8;
constexpr unsigned kMaxText = 512;

enum class Op : uint16_t {
    /// Hello + fds {family segment memfd, a TCP socket of the process's network namespace} -> HelloReply +
    /// {directory memfd, read-only}
    hello = 1,
    /// No body: a connection that only says "somebody is here" (sdrun); may be followed by hello on the same
    /// channel
    presence = 2,
    /// Fork -> ForkReply + {channel for the child}: made before fork(); the child shares all that the parent
    /// has registered
    fork = 3,
    /// Child: first message of a forked child on its channel, sent with SCM_CREDENTIALS -> empty reply
    child = 4,
    /// Segment + {memfd}: a further family segment: a forked child's own one, or (after a restart of the
    /// monitor) an inherited one -> empty reply
    segment = 5,
    /// Listen + {listening socket} -> ListenReply + {listener segment memfd}; the same socket registered
    /// twice gives the same listener
    listen = 6,
    unlisten = 7, ///< ListenerRef: this process no longer holds it -> empty
    /// Links -> LinksReply + {up to kMaxFds link memfds}: the links of a listener, from a place on
    links = 8,
    connect = 9,    ///< Connect -> ConnectReply + {link memfd}: a new link from this process to the listener
    drop_link = 10, ///< LinkRef: this process will not use this side of the link again -> empty
    bell = 11,      ///< Bell + {eventfd}: register a doorbell -> BellReply
    unbell = 12,    ///< BellRef: give the id back -> empty
    /// BellRef (side is the peer's, or the own for a bell of another process) -> empty + {eventfd, or a
    /// socket that rings it}; EXDEV: only the monitor may ring it for the caller
    peer_bell = 13,
    accept_bell = 14, ///< ListenerRef + {eventfd}: to be rung when the listener gets a new link -> empty
    /// Adopt + {link memfd}: after a restart of the monitor, a process brings back the links it has -> empty
    adopt_link = 15,
    log = 16,    ///< Log: one line for the monitor's log -> empty
    status = 17, ///< no body -> empty + {memfd with a JSON document}: for sdstat
    /// Image + {memfd with an ExecTable, a TCP socket of the process's network namespace} -> HelloReply +
    /// {directory memfd}: a new program image in the same process took over what the table lists; the rest
    /// ends
    image = 18,
    /// Pass + {kernel socket, the other end of its connection}: a connection is about to be passed to another
    /// process; the socket stands for it -> PassReply
    pass = 20,
    /// No body + {kernel socket}: it has arrived -> ClaimReply + {family segment memfd, link memfd}, or an
    /// error: it stays the kernel socket it is. EPERM may come with a Refused, and that with the socket that
    /// the connection's holders share, which is to take its place
    claim = 21,
    claimed = 22, ///< ParcelRef: the caller holds what it claimed, if ClaimReply asked to be told -> empty
    /// ListenerRef: somebody without libsd comes to hold the listener: new connections to it are the kernel's
    /// -> empty
    unlist = 23,
    /// BellRef (side as for peer_bell): the monitor writes the doorbell, for a process that does not wait for
    /// it or may not have it -> empty
    ring = 24,
    /// No body + {one end of a socketpair the caller has made} -> (sent to the other end of that) ForkReply +
    /// {channel, as if it had been connected}
    enter = 25,
    /// BellRef (the caller's own) + {one end of a pair of Unix sockets}: what a process of another trust
    /// domain, for which BellReply::foreign asked, is given to ring with -> BellReply
    foreign_bell = 27,
    mute_bell = 26, ///< no body + {eventfd}: no listener of this process rings it any more -> empty
    /// Memory -> empty + {sealed memfd of that size}: for a process that may make no file (RLIMIT_FSIZE); the
    /// monitor keeps nothing of it
    memory = 33,
    /// No body: of processes that have ended by now nothing is left when the answer comes -> empty
    ends = 28,
    /// ListenerRef -> empty, or ENOENT: whether the kernel's socket listens still, for a client that cannot
    /// ask the kernel itself
    check = 29,
    /// Moved -> empty + {kernel socket}: of a connection that has gone over to one for all who hold it
    /// (BridgeStart::for_all)
    moved = 30,
    let_go = 31, ///< Moved: this process does not hold the Ofd any more -> empty
    /// SegmentRef: before it becomes somebody else the caller gives up a segment that others have as well,
    /// and in which it holds nothing -> empty
    part = 32,
    /// Leave: before an exec that hands nothing on: what the process holds ends when this channel closes ->
    /// empty
    leave = 19,
    /// No body: the caller keeps this channel although it may say nothing there for long. One that has said
    /// nothing at all is closed where its user has as many as it may -> empty
    stay = 34,
    /// LinkRef (side 1): the caller could not map a link that it was given. It is detached from it, requests
    /// on it are refused unless another acceptor has it, and it gets no more before it has let go of one
    /// -> empty
    no_room = 35,
    /// LinkRef: the caller will make no further connection over this link (client side), or take one (server
    /// side). Acceptors take none that comes after this; other clients make new links -> empty
    withdraw = 36,
    /// LinkRef (side 0), before the next connection over a link that has kLinkPaused: what may object to its
    /// connections is looked at anew -> empty, or EACCES: the link takes none any more
    renew = 46,
    /// No body: the caller is in a sandbox. From now on it is answered on no channel, nor are its children on
    /// theirs, but for what living connections need; everything else is EPERM -> empty
    sandbox = 37,
    /// No body -> empty + {memfd with SnapshotHeader, rows and text (monitor/records/connection_row.hpp)}:
    /// what status says, in a form that is made and read in a moment, for sdstat
    snapshot = 45,
    /// Offer + {connected TCP socket}: this process's end of a connection that the kernel carries could be
    /// carried otherwise -> OfferReply, and {link memfd} if the other end has been offered as well
    offer = 47,
    /// No body + {the socket that was offered}: SegmentHeader::joined has changed -> as for offer; ENOENT:
    /// it is still alone, or not known
    other_end = 48,
    /// Offered: nobody will ask any more for what was offered -> empty
    take_back = 49,
    /// Greeting -> GreetingReply: what the two ends of a link have to know of each other before it carries
    /// anything, between hosts. LinkHeader::Side::flags say when the other side has gone on.
    greet = 50,
    /// Carry -> empty: the queue pair of a link has ended here, and what both sides have written of a slot
    /// goes on by way of the monitor. ENXIO: it cannot, and both ends have been reset
    carry = 51,
    /// Pool + {memfd with the bytes, memfd with the ledger (layout/pool_layout.hpp)}: a pool of the caller's
    /// for what it sends over a connection. After a restart of the monitor it is brought back under its name
    /// -> PoolReply
    pool = 60,
    /// PoolRef: a pool of the other side -> empty + {the two memfds}; ENOENT: there is none by that name for
    /// the caller; EXDEV: it is of another trust domain, and not to be read in place
    peer_pool = 61,
    /// PoolRef: nobody will ask for it any more -> empty
    end_pool = 62,
    /// Steer: where connections are to go -> SteerReply; EPERM: the caller does not look after this host, and
    /// has to prove that the process is in its hands
    steer = 70,
    /// The same + {memfd of a segment of the process}, which only its family has, and who may trace it
    steer_mine = 71,
};

/// Whether an answer may bring some. Not by mistake for an operation that is new.
constexpr bool brings_descriptors(Op op) {
    switch (op) {
    case Op::child:
    case Op::segment:
    case Op::unlisten:
    case Op::drop_link:
    case Op::bell:
    case Op::unbell:
    case Op::accept_bell:
    case Op::adopt_link:
    case Op::log:
    case Op::pass:
    case Op::claimed:
    case Op::unlist:
    case Op::ring:
    case Op::foreign_bell:
    case Op::mute_bell:
    case Op::ends:
    case Op::check:
    case Op::let_go:
    case Op::part:
    case Op::leave:
    case Op::no_room:
    case Op::withdraw:
    case Op::renew:
    case Op::sandbox:
    case Op::take_back:
    case Op::greet:
    case Op::carry:
    case Op::pool:
    case Op::end_pool:
        return false;
    default:
        return true;
    }
}

struct Header {
    uint32_t magic;
    uint16_t version;
    uint16_t op;
    uint32_t sequence;
    int32_t status;  ///< replies: 0 or -errno; requests: 0
    uint16_t cause;  ///< replies that fail: Cause that a caller should record, or 0
    uint16_t length; ///< of the body
    uint32_t fds;    ///< how many descriptors come with it
};

struct Hello {
    uint32_t layout_version; ///< kLayoutVersion of the shared memory
    uint32_t pid;            ///< as the process sees itself
    uint32_t proc_index;     ///< its ProcRecord in its segment
    uint32_t former;         ///< folded() id this program had before it gave its channel up; 0: it had none
};
/// A client id, of which half tells the monitor's run.
constexpr uint32_t folded(uint64_t client_id) { return static_cast<uint32_t>(client_id ^ client_id >> 32); }
/// What a profile says of looking before a sleep (spinner.hpp). Others are taken for automatic.
enum class Spin : uint16_t { automatic, never, always };
constexpr uint64_t kArenasUnit = 64u << 10;
struct HelloReply {
    uint64_t client_id;
    /// What its links' arenas may take of its control group's memory, in kArenasUnit. 0, and what release
    /// 0.1.0 has here, the size of the directory's file: no bound
    uint32_t arenas;
    Spin spin;
    uint16_t most_ring; ///< 1 + the class of its largest ring; 0: no profile says
};
struct Image {
    uint32_t layout_version;
    uint32_t pid; ///< as the process sees itself
};
struct Leave {
    uint32_t leaving; ///< 0: the exec failed
    uint32_t pad;
};
enum class BridgeStart : uint32_t {
    unclaimed, ///< when it is in the hands of a process that does not claim it
    left,      ///< as soon as the caller has gone from this channel (exec)
    at_once,
    for_all, ///< at once, and whoever holds the connection goes over to the socket: see moved
};
struct Pass {
    HandoffRecord handoff;
    uint64_t segment; ///< what the caller calls it; 0: by its own client id
    uint32_t start;   ///< BridgeStart
    uint32_t pad;
};
struct Moved {
    uint64_t segment; ///< as above
    uint32_t ofd_index;
    uint16_t generation; ///< Ofd::generation
    /// adoption_of() the Ofd: of that alone a socket is asked for, or has been taken; 0: of any, or none was
    uint16_t adoption;
};
struct PassReply {
    uint64_t parcel;
};
struct ClaimReply {
    HandoffRecord handoff;
    uint64_t segment; ///< what the caller has to call it; its own client id: its own
    uint64_t parcel;
    uint32_t tell; ///< say claimed
    uint32_t pad;
};
/// Of a connection that the receiver may not share.
struct Refused {
    uint64_t inode; ///< connection_inode(): what its sender may have told
};
struct ParcelRef {
    uint64_t parcel;
};
struct Fork {
    uint32_t segments; ///< how many of the following are valid
    struct {
        uint64_t owner_client;
        uint32_t proc_index;
        uint32_t pad;
    } child_in[16]; ///< per inherited segment (by its creator's client id), the child's ProcRecord there
};
struct ForkReply {
    uint64_t client_id; ///< the child's
};
struct Child {
    uint32_t pid;
    uint32_t pad;
};
struct Segment {
    /// kAnyProc: the monitor takes a free one, so that it knows of it from the first moment
    uint32_t proc_index;
    uint32_t pad;
    uint64_t owner_client; ///< what the caller calls it in Fork::child_in; 0: by the caller's own client id
};
struct SegmentReply { ///< only to kAnyProc
    uint32_t proc_index;
    uint32_t pad;
};
struct SegmentRef {
    uint64_t segment; ///< what the caller calls it
};
constexpr uint32_t kAnyProc = UINT32_MAX;
struct Listen {
    uint32_t backlog;
    uint32_t pad;
};
struct ListenReply {
    uint32_t listener_id;
    uint32_t was_orphan; ///< nobody held it: what waits in its links came before what the kernel has
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
    struct {
        uint64_t link_id;
        uint32_t place;
        /// 1: all who have the other side are of the caller's trust domain; 0: they are not, or who knows
        uint32_t is_own;
    } link[kMaxFds];
};
/// Which connections a link is for: the kernel could treat them differently.
enum Reach : uint32_t {
    kLoopbackAddresses = 1u << 0, ///< between addresses of 127.0.0.0/8, or ::1
    kOtherAddresses = 1u << 1,    ///< between other addresses of this host
};
struct Connect {
    uint32_t listener_id;
    uint32_t wanted; ///< a Reach
};
struct ConnectReply {
    uint64_t link_id;
    uint32_t reach;  ///< of the link: what was wanted, and perhaps more
    uint32_t is_own; ///< as in LinksReply, of those who have the listener
};
struct LinkRef {
    uint64_t link_id;
    uint32_t side; ///< a process may be attached to both sides of one link
    uint32_t pad;
};
struct Bell {
    uint64_t link_id;
    uint32_t side; ///< the caller's
    uint32_t id;   ///< 0: any; else keep this id (after a restart of the monitor)
};
struct BellReply {
    uint32_t id;
    uint32_t generation;
    /// Not 0: somebody of another trust domain is on the other side and has nothing to ring with yet but the
    /// monitor
    uint32_t foreign;
    uint32_t pad;
};
struct BellRef {
    uint64_t link_id;
    uint32_t side;
    uint32_t id;
};
struct Adopt {
    uint64_t link_id; ///< what the caller calls it from now on; the monitor has a number of its own for it
    uint32_t side;
    uint32_t pad[3]; ///< 0
};
struct Memory {
    uint64_t bytes;
};
constexpr uint64_t kMostMemory = uint64_t{1} << 30;
struct Log {
    uint16_t level; ///< 0 info, 1 warning, 2 error
    uint16_t cause;
    char text[kMaxText];
};

struct Offer {
    uint32_t side;    ///< 0: it has connected, 1: it was accepted
    uint32_t no_rdma; ///< why nothing can move to another host from here: a Cause; 0: it can
};
struct OfferReply {
    uint64_t link_id; ///< 0: the other end has not been offered yet
    uint32_t slot;    ///< of the link, for this connection alone; the caller has the side that it offered
    uint32_t is_own;  ///< as in LinksReply
};
struct Offered {
    uint64_t cookie; ///< SO_COOKIE
};

enum class SteerTo : uint32_t {
    kernel, ///< one connection: both directions to the kernel's socket
    shm,    ///< one connection: both directions to the ring
    detach, ///< all connections of a process, and those to come, are the kernel's
    attach, ///< no longer
};
struct Steer {
    uint32_t to;   ///< SteerTo
    uint32_t pid;  ///< as the monitor sees it: of the process, or of one that has an end of the connection
    uint32_t link; ///< kernel, shm: half of the link's id, as in the name of a connection (LINK.SLOT)
    uint32_t slot;
};
/// Where that has led to so far; asked again, it counts anew.
struct SteerReply {
    uint32_t directions; ///< of the connections that were meant
    uint32_t there;      ///< of these, those that are where they are to be
    uint32_t never;      ///< of the others, those that cannot go there
    uint32_t blocker;    ///< monitor/records/connection_row.hpp: what keeps one of them; 0: nothing is known
};

enum GreetingStep : uint32_t {
    kNotGreeted = 0,
    kGreets = 1,     ///< here is what the other end needs
    kCanReceive = 2, ///< this end has what it needs of the other one
    kAsks = 3,       ///< only how far the other one is
    kMayUse = 5,    ///< is this host's policy content with the device's address in `hello`? EACCES: it is not
    kHasNoPair = 4, ///< this process could have no queue pair for the link, and lets go of it
};
struct Greeting {
    uint64_t link_id;
    uint32_t side;
    uint32_t step;
    unsigned char hello[48]; ///< with kGreets: rdma::Hello
};
constexpr unsigned kHelloAddress = 8; ///< in there: the device's, 16 bytes; IPv4 is mapped
struct GreetingReply {
    uint32_t step; ///< of the other side
    uint32_t pad;
    unsigned char hello[48];
};

struct Carry {
    uint64_t link_id;
    uint32_t side; ///< the caller's
    uint32_t slot;
    /// 1: what follows says how far the other side's records have come, and no more come but by the monitor
    uint32_t tells;
    uint32_t cls; ///< of the ring in which the next record begins
    uint64_t position, base;
};

struct Pool {
    uint64_t link_id;
    uint32_t side; ///< the caller's
    uint32_t slot;
    uint64_t pool; ///< 0: a new one
};
struct PoolReply {
    uint64_t pool;
};
struct PoolRef {
    uint64_t link_id;
    uint32_t side; ///< whose pool it is
    uint32_t pad;
    uint64_t pool;
};

constexpr unsigned kMaxBody = sizeof(ClaimReply) > sizeof(Pass) ? sizeof(ClaimReply) : sizeof(Pass);
static_assert(kMaxBody >= sizeof(Fork) && kMaxBody >= sizeof(Log) && kMaxBody >= sizeof(LinksReply));

/// A whole packet. Only header + header.length bytes travel.
struct Packet {
    Header header;
    alignas(8) unsigned char body[kMaxBody];
};

} // namespace sd::wire
