// What libsd.so and the plugin libsd-rdma.so say to each other: plain C types and functions, so that the two
// need nothing of each other but this table. The plugin is opened at first need (dlopen), by an ordinary
// call.
//
// All functions return 0 or -errno where nothing else is said, and keep errno.
#pragma once
#include "libsd/layout/link_layout.hpp"

namespace sd::rdma {

constexpr uint32_t kPluginVersion = 5;
constexpr uint32_t kHelloVersion = 4; ///< of Hello and of messages, which travel
/// Of a larger write each record has so much, at most: several messages are under way then, and the receiver
/// copies one while the next arrives.
constexpr uint32_t kMostAtOnce = 4 * 4096 - 64;
/// So many calls of progress() in a row that find nothing tell the other side of credit by itself.
constexpr uint32_t kLooksBeforeTelling = 1000;

struct Host;   ///< a device, as this process has it: one completion queue for all
struct Peer;   ///< a process of another host, and the queue pair to it
struct Remote; ///< a link whose other side is there

/// What the two ends of a queue pair have to know of each other. It is told over another channel, which says
/// who it is: this is believed about itself only.
struct Hello {
    uint32_t version;
    uint32_t queue_pair;
    uint8_t address[16];
    uint32_t mtu; ///< ibv_mtu
    uint32_t mailbox_key;
    uint64_t mailbox_address;
    uint32_t mailbox_bytes;
    uint32_t receives; ///< that are posted
};

/// How far the records of a direction have come: where the next one begins.
struct Arrived {
    uint32_t cls; ///< of its ring
    uint64_t position, base;
    uint32_t use; ///< of which use of the slot
};

/// What a queue pair can be made on: a port that is up, and one of its addresses.
struct Place {
    char device[64];
    uint8_t port;
    uint8_t index;       ///< of the address, in the port's table
    bool is_soft;        ///< a device that the kernel emulates
    uint8_t address[16]; ///< of RoCE v2 the IP address; IPv4 is mapped
};
constexpr unsigned kMostPlaces = 64;

struct Limits {
    uint64_t registered_bytes; ///< at most, of this process, in all
    uint32_t mailbox_bytes;    ///< of each peer: what can be under way to us; a power of two
    uint32_t receives;         ///< of each peer, posted
    /// Where all devices of the process count what is registered; null: each by itself
    std::atomic<uint64_t> *registered = nullptr;
};
constexpr Limits kUsualLimits = {2u << 20, 256u << 10, 128};

/// What the plugin asks of libsd about a link. Called with the peer's lock, by who publishes or makes
/// progress; they call nothing of the plugin.
struct LinkCalls {
    /// Where the ring of class `cls` (not 0) of `sender` lies in this side's memory; null: it is not there.
    uint8_t *(*ring)(void *user, uint32_t slot, unsigned sender, unsigned cls);
    /// The peer has written about the slot: its data or flags, or room for ours; or there is room in its
    /// mailbox again.
    void (*wake)(void *user, uint32_t slot, bool data, bool room);
};

struct Counts {
    /// Sent: writes with an immediate, calls to post, and what they held
    uint64_t messages, posts, records, bytes;
    uint64_t received, credits; ///< messages, and those of them for credit alone
    uint64_t waits;             ///< times that something had to wait for credit or for the queue
    uint64_t registered_bytes;
};

enum class PeerState : uint32_t {
    idle,
    joined, ///< the other side may send; it may not be able to receive yet
    open,
    ended
};

struct Plugin {
    uint32_t version;

    /// All that there are now, `most` at most, of all devices: real ones before those that the kernel
    /// emulates, in the order of the library's list. Of a port those of RoCE v2 that are routed, IPv4 first;
    /// without such its first one. Devices that are not among the `hosts` that are open are opened meanwhile.
    /// How many; ENODEV: there is no device.
    int (*places)(Host *const *open, unsigned hosts, Place *, unsigned most);
    /// The device of the place. ENODEV: it is not there.
    int (*open)(const Limits &, const Place &, Host **);
    void (*close)(Host *); ///< with no peer left
    /// The descriptors that the device has in this process, `most` at most; how many. The caller may give
    /// them other numbers, as long as nothing else is called.
    unsigned (*descriptors)(Host *, int **number, unsigned most);
    /// In a forked child: the host is its parent's. Makes no verb, and leaves the memory.
    void (*abandon)(Host *);
    /// Readable when progress() may have something to do; armed by arm().
    int (*event_fd)(Host *);
    /// Has the next completion raise an event; then progress() is called once more before anybody sleeps,
    /// which tells the other side of all credit. Costs next to nothing where it is armed.
    void (*arm)(Host *);
    /// After a sleep that the descriptor has ended: takes the event. If others sleep, arm() and progress()
    /// follow.
    void (*take_events)(Host *);
    /// Takes what has come, and sends what could not be sent before. How many completions. Any thread.
    unsigned (*progress)(Host *);
    /// The same, and waits for another thread that is at it: not where it could wait for itself.
    void (*take_all)(Host *);

    /// Makes a queue pair at a place of this device, and says what the other side has to know. ENODEV: the
    /// device is gone, and this Host stays of no use. ENETDOWN: the port is down, or has another address now.
    /// ENOMEM: no more can be registered, or the device makes no more queue pairs.
    int (*peer)(Host *, const Place &, Hello *ours, Peer **);
    int (*join)(Peer *, const Hello &theirs);
    /// The other side has joined as well: from now on this one sends.
    void (*start)(Peer *);
    PeerState (*state)(const Peer *);
    /// A word that changes whenever a peer has ended.
    const std::atomic<uint32_t> *(*endings)(const Host *);
    /// Nothing more arrives of it after this, and nothing is under way: the links' words say what did.
    void (*end)(Peer *);
    void (*drop)(Peer *); ///< after end(), with no link left
    void (*counts)(const Peer *, Counts *);

    /// The link of that number, which both sides have given it, on this side's memory.
    int (*attach)(Peer *, uint32_t number, LinkView, unsigned side, const LinkCalls &, void *user, Remote **);
    void (*detach)(Remote *);
    /// The slot is another connection's from now on, which both sides have given the number `use`, higher
    /// than the last one's. What the other side has said about it already stays. Waits for other threads.
    void (*recycle)(Remote *, uint32_t slot, uint32_t use);
    /// Something of the slot has changed that its other side has to know. Any thread, any time; repeated
    /// without harm. `credit_alone`: who waits for room is to know; if what was consumed is all that has
    /// changed, that may go with what comes next. False: it waits for credit, and goes out with what comes
    /// until then.
    bool (*publish)(Remote *, uint32_t slot, bool credit_alone);
    /// Can a record of kMostAtOnce bytes go out at once? False: LinkCalls::wake says when. Other threads may
    /// take what there is.
    bool (*may_send)(Remote *, uint32_t slot);
    /// How far the peer's records have come. After end() it is the last word.
    Arrived (*arrived)(const Remote *, uint32_t slot);
};

} // namespace sd::rdma

extern "C" const sd::rdma::Plugin *sd_rdma_plugin(uint32_t version);
