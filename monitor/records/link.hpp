// A link as the monitor sees it: who is attached on which side, and the doorbells of each side.
#pragma once
#include "libsd/layout/fake_layout.hpp"
#include "monitor/kernel/domain.hpp"
#include "monitor/kernel/shared_memory.hpp"
#include "monitor/peers/far_records.hpp"
#include "monitor/records/doorbell.hpp"

#include <array>
#include <bitset>
#include <chrono>
#include <map>
#include <optional>
#include <set>

namespace sd::monitor {

struct Client;
struct Listener;
struct RemoteHost;

/// A doorbell id in use. A forked child that goes on using its parent's eventfd registers it again under
/// the same id.
struct Bell {
    std::shared_ptr<BellFd> eventfd; ///< null: the id is free
    std::set<const Client *> owners;
};

struct LinkSide {
    std::set<Client *> attached;
    std::optional<Domain> domain; ///< of who was shown it by the monitor, as an acceptor
    /// After a restart: processes that were attached according to the link itself and have not come back
    /// yet. Any number in here keeps the side from being taken for dead.
    std::set<uint64_t> awaited;
    std::array<Bell, kDoorbells> bells;
    unsigned parcels = 0; ///< ends of connections on their way from one process to another
    unsigned last_bell = kLastDoorbell;
    bool death_seen = false; ///< since the last audit
    bool is_far = false;     ///< a process of another host has it, and has not been said to have ended
    bool empty() const { return attached.empty() && awaited.empty() && parcels == 0 && !is_far; }
};

/// For tests: links get the fake transport, with faults. From the environment of sd-monitor.
struct FakeTransport {
    bool used = false; ///< SD_TEST_TRANSPORT=fake
    bool rdma = false; ///< SD_TEST_TRANSPORT=rdma: links for connections that began in the kernel are of RDMA
    uint32_t late = 0; ///< SD_TEST_LATE: FakeState::late
    uint32_t cuts = 0; ///< SD_TEST_CUTS: FakeState::cuts
    static FakeTransport from_environment();
};

/// A pool from which a side of a connection hands over bytes, for those who have not mapped it yet.
struct LinkPool {
    UniqueFd bytes, ledger;
    unsigned side;    ///< whose
    uint32_t slot;    ///< of the connection
    uint64_t arrival; ///< of the connection, see Link::arrival()
    Domain domain;    ///< of its owner, when it was named
    Charge charge;
    bool is_channel = false; ///< of the zero-copy module: `bytes` is its receiver's end
};

class Link {
  public:
    uint64_t id = 0; ///< this monitor's; clients that brought it back call it otherwise, see adopt.cpp
    FileId file;
    UniqueFd memfd;
    Charge charge;
    std::shared_ptr<Account> maker; ///< whose link it is among those of its server; null: nobody's
    LinkSide side[2];
    Listener *listener =
        nullptr; ///< null once it has closed, and after a restart until a server process brings it back
    uint32_t place = 0;                   ///< in the listener's segment
    uint32_t reach = 0;                   ///< for which connections (wire::Reach) its client may use it
    std::optional<uint32_t> requests_end; ///< none is taken from this entry of the SYN queue on
    /// For connections that began in the kernel, between two processes: the slots that were given out.
    /// Nothing: its client gives them out
    std::optional<std::bitset<kLinkSlots>> joins;
    unsigned next_joined = 0;   ///< where a free one is looked for
    uint32_t joined_so_far = 0; ///< connections that had a slot
    /// Over RDMA: what each side has said about itself
    struct Greeted {
        uint32_t step = 0;  ///< wire::GreetingStep
        uint64_t owner = 0; ///< the client that has the queue pair
        std::array<unsigned char, 48> hello{};
    } greeted[2];
    /// One that leads to another host has one memory only, its process's, for both sides: what is written in
    /// the name of the far side is what the process sees of it.
    struct Far {
        RemoteHost *host; ///< null: its monitor does not know this link any more, and queue pairs alone tell
        unsigned side;    ///< which is there
        uint64_t process; ///< that monitor's number for it
        uint64_t number;  ///< that monitor's for the link; 0: not told yet
        bool is_crowded = false; ///< several processes have the far side: no more connections get it
        bool has_ended = false;  ///< the process there, whose monitor still has what it had not sent
    };
    std::optional<Far> far;
    /// Of a link between hosts: the process of the side that is here; null: nobody, or several.
    Client *own_process() const {
        const auto &own = side[1 - far->side].attached;
        return own.size() == 1 ? *own.begin() : nullptr;
    }
    /// Offers that have been given a slot, and of which their processes have not heard
    std::set<std::pair<uint64_t, uint64_t>> offers;
    bool was_adopted = false;           ///< made by a former monitor
    bool is_loss_noted = false;         ///< in Client::lost_pairs of who has connected
    std::map<uint64_t, LinkPool> pools; ///< by name
    std::chrono::steady_clock::time_point adopted{};
    bool awaits_listener = false; ///< adopted, with requests that nobody has come for

    /// Makes a new one. Throws std::system_error.
    static std::unique_ptr<Link> create(uint64_t id, uint32_t listener_id, uint32_t port_base,
                                        const FakeTransport &fake = {}, bool remote = false);
    /// One whose side `far.side` is on another host.
    static std::unique_ptr<Link> create_far(uint64_t id, const Far &far);
    /// Takes over one that a former monitor made; null if it is not a well-formed link. `id`: a new one.
    static std::unique_ptr<Link> adopt(UniqueFd memfd, uint64_t id);

    /// The memory that the processes of a side have: one for both, but over the fake transport. What belongs
    /// to a side's waiters is in its own; birth is in the server's.
    LinkView view(unsigned side) const { return view_[side]; }
    LinkHeader &header(unsigned side) const { return view_[side].header(); }
    /// Calls fn(view) for each memory.
    template <typename Fn> void for_each_view(Fn fn) const {
        fn(view_[0]);
        if (view_[1].base != view_[0].base) {
            fn(view_[1]);
        }
    }
    /// Sets LinkFlags of a side where either side sees them.
    void mark(unsigned side, uint32_t flags) const {
        for_each_view(
            [&](LinkView v) { v.header().side[side].flags.fetch_or(flags, std::memory_order_seq_cst); });
    }
    /// Does each side have a memory of its own that processes alone carry over?
    bool is_remote() const { return is_remote_; }
    /// A slot of one whose queue pair has ended: by sender, how far its records have come, if the receiver
    /// has said so. From then on nothing comes but what is carried here.
    struct Carried {
        bool known[2] = {};
        FakeDirection direction[2]{};
    };
    Carried *carried(uint32_t slot) const; ///< null: it is not
    /// False: there is no such place.
    bool arrived(uint32_t slot, unsigned sender, uint32_t cls, uint64_t position, uint64_t base) const;
    void has_arrived(uint32_t slot, unsigned sender, const RingPlace &place) const; ///< further than before
    /// The queue pair of that side has ended.
    void lose(unsigned side) const;
    /// When it was lost first; no connection is given a slot of it then.
    std::optional<std::chrono::steady_clock::time_point> lost() const { return lost_; }
    /// Does it have the fake transport? Then both memories are mapped in one piece, from view(0) on.
    bool is_fake() const { return is_fake_; }

    /// Gives a doorbell id of a side to a waiter: `wanted`, or any for 0. ENOSPC, EBUSY, EINVAL as negative
    /// values.
    [[nodiscard]] int give_bell(unsigned side, unsigned wanted, std::shared_ptr<BellFd> eventfd,
                                const Client *owner);
    /// False if the client has no such bell.
    [[nodiscard]] bool take_bell(unsigned side, unsigned id, const Client *owner);
    unsigned take_bells(unsigned side, const Client *owner); ///< all of a client; how many

    /// Writes down who is attached, for the next monitor. The table is advisory and may be full.
    void note_holder(unsigned side, pid_t pid, uint64_t start);
    void forget_holder(unsigned side, pid_t pid, uint64_t start);

    /// Which use of the slot it is, as the monitor has given it out.
    uint32_t use(uint32_t slot) const {
        const auto it = uses_.find(slot);
        return it == uses_.end() ? 0 : it->second;
    }
    /// Will that end not touch the slot again?
    bool is_let_go(uint32_t slot, unsigned end) const;
    /// Calls fn(slot) for each slot that was given out and that this end has not let go of.
    template <typename Fn> void for_each_open(unsigned end, Fn fn) const {
        for (uint32_t slot = 0; joins && slot < kLinkSlots; ++slot) {
            if (joins->test(slot) && !is_let_go(slot, end)) {
                fn(slot);
            }
        }
    }
    /// A slot for a connection between the two processes of a link that joins, at rest and all 0; nothing:
    /// all are in use.
    std::optional<uint32_t> take_joined_slot();
    /// The one that the far side has given out. False: it is in use, or was with such a number.
    [[nodiscard]] bool take_slot(uint32_t slot, uint32_t use);

    /// Whether a connection request waits for being accepted.
    bool has_pending_syn() const;
    /// Of one that no acceptor has had yet: the address that its first request is for, and where that stands.
    std::optional<std::pair<SlotAddress, uint32_t>> first_request() const;
    /// Has nobody at that side ever been noted as attached?
    bool had_no_holder(unsigned side) const;
    /// The client makes no further request: acceptors take those that are there, and none that comes later.
    void withdraw_requests();
    /// Whether no request has come since this was asked for.
    bool had_no_request();
    /// The client asks before its next request: acceptors take those that are there, and none that comes
    /// before resume_requests(). For a link that takes requests.
    void pause_requests();
    void resume_requests();
    bool is_paused() const { return paused_; }
    /// When the connection in the slot was made, in its client's words.
    uint64_t arrival(uint32_t slot) const {
        return *const_cast<const volatile uint64_t *>(&view(1).slot(slot).identity.arrival);
    }

  private:
    Link() = default;
    void map();
    void lay_out(uint32_t listener_id, uint32_t port_base);
    void begin_slot(uint32_t slot, uint32_t use);
    uint32_t end_of_requests() const;
    Mapping map_; ///< all but the arenas, in which the monitor has no business; over the fake all
    LinkView view_[2];
    uint32_t former_end_ = 0;
    mutable std::map<uint32_t, Carried> carried_; ///< by slot
    std::map<uint32_t, uint32_t> uses_;           ///< by slot, of one that leads to another host
    mutable std::optional<std::chrono::steady_clock::time_point> lost_;
    bool is_fake_ = false;
    bool is_remote_ = false;
    bool paused_ = false;
};

/// Marks `side` of a slot with `flags` and wakes whoever waits on the other side. With flags 0 it only wakes.
/// It does A to D of queue/sleeper.hpp, whose argument holds: see there for the monitor. At the latest an
/// eventfd is written when the outermost RingTogether goes.
void mark_and_ring(const Link &link, unsigned slot, unsigned side, uint32_t flags);
/// Has everybody on either side look at a slot, armed or not: a dead process may have disarmed them. Who
/// sleeps is woken by ring_everybody(), once for all slots.
void show_everybody(const Link &link, unsigned slot);
void ring_everybody(const Link &link);
/// Has everybody look at all slots that are in use, or were.
void wake_everybody(const Link &link);

/// For a client process that died: it may have published a connection request without getting to ring.
/// Wakes the acceptors; same argument.
void ring_acceptors(const Link &link);

/// No further connection request is made on the link; those that wait go on waiting.
///
/// A client publishes its request (slot state syn), makes a full fence and then looks at
/// kLinkListenerClosed. We set that flag, make a full fence, and then look at all slots. So either the
/// client sees the flag, or we see its slot. Both may: then the compare-and-swap of the state decides who
/// acts.
void stop_requests(const Link &link);
/// For a listener that has gone: those that wait are refused, too.
void close_to_requests(const Link &link);

/// Slots that are in use on `side` although no end in `held` (one bit per slot) belongs to them, and, for
/// the server's side, connection requests that an acceptor took off the queue (whose head is at `syn_head`)
/// and did not accept. What a living process is just about to do can look like this for a moment, so only
/// what is found twice, some time apart, has been left behind by a dead one.
std::set<uint32_t> left_behind(const Link &link, unsigned side, const std::bitset<kLinkSlots> &held,
                               std::optional<uint32_t> syn_head);
/// Ends what was left behind in a slot.
void bury(const Link &link, unsigned side, uint32_t slot);

/// Over the fake transport: carries what stayed behind, and goes on where a dead process was about to carry.
void carry_late(const Link &link);
void break_locks(const Link &link, pid_t dead);

/// Slots that at least one side has not let go of.
unsigned slots_in_use(const Link &link);

/// For a side that died without leaving records of what it held: marks its end of every slot that is in use.
void mark_all(const Link &link, unsigned side);

} // namespace sd::monitor
