// What carries the words of a link from one side to the other: the functions that differ between shared
// memory and a transport between hosts. All of them are slow paths. The fast path is the same for all: it
// writes to and reads from the memory that this side has, and looks at the peer's arm words there.
//
// A transport whose other side is not in this memory keeps bit 63 of the peer's arm words set in its copy
// (kAlwaysArmed). So notify() falls into its slow half after each change, and that comes to publish(). Shared
// memory pays nothing for it.
//
//   open      once a link's memory is mapped        close    before it is unmapped
//   offer     a client asks for a connection        take     an acceptor takes the next request
//   publish   something in a slot has changed       settle   a larger ring is to be had for sending
//   announce  a waiter is about to sleep            withdraw it has woken up
//   recycle   a slot is made ready for a connection release  this side will never touch it again
//   sleep_on  what else a sleeper has to look at
#pragma once
#include "libsd/layout/link_layout.hpp"

namespace sd {

struct LinkMap;

/// Of an arm word: its owner is not here, and every change is to be carried to it. Not a doorbell's id.
constexpr uint64_t kAlwaysArmed = uint64_t{1} << 63;

/// Of take(), instead of a slot.
constexpr int64_t kOtherWasFaster = -1;
constexpr int64_t kNoRequest = -2; ///< nothing that can be accepted; it is out of the queue

enum class Offer {
    made,
    full, ///< as many wait as the listener wants
    gone  ///< the listener has closed; the request is taken back
};

struct Transport {
    /// With the link's memory mapped, before anybody else of this process sees it. False: not to be had.
    bool (*open)(LinkMap &) noexcept;
    void (*close)(LinkMap &) noexcept;

    /// Client side, with slot_lock. Acceptors are notified by notify_acceptors(), without it.
    Offer (*offer)(LinkMap &, uint32_t slot, uint32_t backlog) noexcept;
    /// Server side: the request at `head` of the queue, whose slot is accepted then; `entry` is what the
    /// queue has there. Who comes first among acceptors of all processes owns it. Below 0: the next one is
    /// to be tried.
    int64_t (*take)(LinkMap &, std::atomic<uint32_t> &head, uint32_t at, uint32_t entry) noexcept;

    /// After publishing, without a token, any thread at any time, also in a signal handler: `arm` is a word
    /// of the other side's part of the slot, as this side sees it, and not 0. May be repeated without harm.
    void (*publish)(LinkMap &, uint32_t slot, std::atomic<uint64_t> &arm) noexcept;
    /// With the send token: the ring of class `cls` (not 0) in which this side sends over the slot is there.
    /// False: the receiver has not opened that much, or this process cannot map it.
    bool (*settle)(LinkMap &, uint32_t slot, unsigned cls) noexcept;

    /// Steps 1 and 6 of queue/sleeper.hpp.
    void (*announce)(LinkMap &, unsigned id) noexcept;
    void (*withdraw)(LinkMap &, unsigned id) noexcept;

    /// Client side, with slot_lock, of a slot that both sides have released: its words become those of a new
    /// connection. Between hosts each side, of a slot that the monitors have given to one that they joined.
    void (*recycle)(LinkMap &, uint32_t slot) noexcept;
    /// The last holder has closed, and the other side may use the slot again once it has let go of it, too.
    void (*release)(LinkMap &, uint32_t slot) noexcept;

    /// A descriptor that is readable when something has come over the link, for those who sleep with it
    /// announced; -1: none is needed.
    int (*sleep_on)(LinkMap &) noexcept;
};

/// Both sides have the same memory.
extern const Transport shm_transport;
/// Each side has a memory of its own, and a copier goes between: for tests (transport/fake.cpp).
extern const Transport fake_transport;
/// The other side is on another host (libsd/rdma/transport.cpp).
extern const Transport rdma_transport;

} // namespace sd
