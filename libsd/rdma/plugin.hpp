// What libsd.so and the plugin libsd-rdma.so say to each other: plain C types and functions, so that the two
// need nothing of each other but this table. The plugin is opened at first need (dlopen), by an ordinary
// call.
//
// All functions return 0 or -errno where nothing else is said, and keep errno.
#pragma once
#include "libsd/layout/link_layout.hpp"

namespace sd::rdma {

constexpr uint32_t kPluginVersion = 1;

struct Host;   ///< the device, as this process has it: one completion queue for all
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

struct Limits {
    uint64_t registered_bytes; ///< at most, of this process, in all
    uint32_t mailbox_bytes;    ///< of each peer: what can be under way to us; a power of two
    uint32_t receives;         ///< of each peer, posted
};
constexpr Limits kUsualLimits = {2u << 20, 256u << 10, 128};

/// What the plugin asks of libsd about a link. Called with the peer's lock, by who publishes or makes
/// progress; they call nothing of the plugin.
struct LinkCalls {
    /// Where the ring of class `cls` (not 0) of `sender` lies in this side's memory; null: it is not there.
    uint8_t *(*ring)(void *user, uint32_t slot, unsigned sender, unsigned cls);
    /// The peer has written about the slot: its data or flags, or room for ours.
    void (*wake)(void *user, uint32_t slot, bool data, bool room);
};

struct Counts {
    /// Sent: writes with an immediate, calls to post, and what they held
    uint64_t messages, posts, records, bytes;
    uint64_t received, credits; ///< messages, and those of them for credit alone
    uint64_t waits;             ///< times that something had to wait for credit or for the queue
    uint64_t registered_bytes;
};

enum class PeerState : uint32_t { idle, open, ended };

struct Plugin {
    uint32_t version;

    /// ENODEV: there is no device, or none that is up.
    int (*open)(const Limits &, Host **);
    void (*close)(Host *); ///< with no peer left
    /// Readable when progress() may have something to do; armed by arm().
    int (*event_fd)(Host *);
    /// Asks for the next event; then progress() is called once more before anybody sleeps.
    void (*arm)(Host *);
    /// Takes what has come. How many completions. Any thread.
    unsigned (*progress)(Host *);

    /// Makes a queue pair, and says what the other side has to know.
    int (*peer)(Host *, Hello *ours, Peer **);
    int (*join)(Peer *, const Hello &theirs);
    PeerState (*state)(const Peer *);
    /// Nothing more arrives of it after this, and nothing is under way: the links' words say what did.
    void (*end)(Peer *);
    void (*drop)(Peer *); ///< after end(), with no link left
    void (*counts)(const Peer *, Counts *);

    /// The link of that number, which both sides have given it, on this side's memory.
    int (*attach)(Peer *, uint32_t number, LinkView, unsigned side, const LinkCalls &, void *user, Remote **);
    void (*detach)(Remote *);
    /// Something of the slot has changed that its other side has to know. Any thread, any time; repeated
    /// without harm. False: it waits for credit, and goes out with what comes until then.
    bool (*publish)(Remote *, uint32_t slot);
};

} // namespace sd::rdma

extern "C" const sd::rdma::Plugin *sd_rdma_plugin(uint32_t version);
