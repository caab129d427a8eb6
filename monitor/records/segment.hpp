// A family segment as the monitor sees it: which processes share it, and closing what a dead one held.
#pragma once
#include "libsd/layout/segment_layout.hpp"
#include "monitor/kernel/domain.hpp"
#include "monitor/records/link.hpp"

#include <functional>
#include <map>
#include <optional>
#include <set>

namespace sd::monitor {

struct Counters {
    uint64_t connects = 0, accepts = 0, joined = 0;
    uint64_t sleeps = 0, takeovers = 0, ring_changes = 0;
    uint64_t fallbacks[kMaxCauses]{};
    Counters &operator+=(const Counters &other);
};

struct RecentFallback {
    unsigned cause;
    uint16_t port;
    uint8_t ip[16];
    uint64_t when_ns;
};

class Segment {
  public:
    /// Null if it is not memory that can be mapped safely, or not a segment of this version.
    static std::shared_ptr<Segment> open(UniqueFd memfd);

    FileId file;
    uint64_t name = 0; ///< the monitor's, for who has no name for it yet
    /// Whose it is; none before somebody outside of the family is to be shown it.
    std::optional<Domain> domain;
    Charge charge;
    /// Which ProcRecord is whose. The segment itself says so too, but everything in it may be a lie.
    struct Member {
        const Client *client;
        unsigned proc_index;
        bool operator==(const Member &) const = default;
    };
    std::vector<Member> members;
    std::map<uint32_t, unsigned> parcels; ///< Ofds held by parcels, and by how many
    std::set<uint64_t> watches;           ///< the monitor's, of processes that have not registered

    /// Nobody more is let in: what is done for each of its members is bounded by that.
    bool is_full() const { return members.size() >= kSegProcs; }

    const SegmentView &view() const { return view_; }
    int fd() const { return memfd_.get(); }

    /// Finds the link an Ofd of the dead process is part of, or null; `side` has been checked to be 0 or 1.
    using FindLink = std::function<const Link *(uint64_t link_id, unsigned side)>;
    /// What a process held is on its way to be ended, in pieces. Until its last one, a process that died
    /// stays in `members` and counts as a holder: for all others it dies then.
    class Reaping {
      public:
        const Member &who() const { return who_; }
        bool executes() const { return only.has_value(); }

      private:
        friend class Segment;
        Member who_{};
        /// Executes another program: what ends, as words of `held` and bits in them.
        std::optional<std::vector<std::pair<unsigned, uint64_t>>> only;
        enum { held, rest, over } stage = held;
        size_t next = 0; ///< word of `held`, place in `only`, or Ofd
    };
    /// For a process that died. Its threads end at once.
    Reaping reap(const Member &member);
    /// For a process that executed another program: what it held ends, but for the Ofds in `retained`: words
    /// as of `held`, or none.
    Reaping retain(const Member &member, const std::vector<uint64_t> &retained);
    /// Goes on for about as many records. True: that was all.
    [[nodiscard]] bool advance(Reaping &at, const FindLink &find_link, unsigned records);

    /// There is one more parcel that holds this Ofd.
    void hold_parcel(uint32_t ofd);
    /// The last parcel that held this Ofd has ended, and is not in `parcels` any more.
    void release_parcel(uint32_t ofd, const FindLink &find_link);

    /// Which Ofds members hold, as words of 64 bits; those for which counts(client) is false, and parcels, do
    /// not count.
    std::vector<uint64_t> held_by_members(const std::function<bool(const Client &)> &counts) const;

    /// Who may hold one Ofd: also who is ending, or has not registered (yet), and parcels.
    struct Holders {
        unsigned all = 0, counted = 0; ///< and those of them for which counts(client) is true
    };
    Holders holders(uint32_t ofd, const std::function<bool(const Client &)> &counts) const;

    struct OpenOfd {
        uint64_t link_id;
        uint32_t slot;
        unsigned side;
        uint64_t tx_bytes, rx_bytes, tx_messages, rx_messages;
        uint32_t ring; ///< class of that in which it sends
        bool is_stalled, send_shared, receive_shared;
        uint32_t index, generation;
        bool has_paths, is_adopting, is_moved; ///< vfs/paths; kTxAdopt; kTxMoved, and not that
        int32_t wanted, stays;                 ///< PathWanted and PathStays, of one with paths
        std::vector<const Client *> holders;   ///< the first kMostShown of them
    };
    static constexpr size_t kMostShown = 64;
    /// Every open file description that some process holds.
    std::vector<OpenOfd> open_ofds() const;
    struct HeldEnd {
        uint64_t link_id;
        uint32_t slot;
        unsigned side;
    };
    /// Every end of a connection that somebody may hold, also processes that have not registered (yet).
    std::vector<HeldEnd> held_ends() const;
    /// Processes that the segment names and that have not registered: index of the record and pid.
    std::vector<std::pair<unsigned, pid_t>> strangers() const;
    /// Takes a free ProcRecord for a process that joins; kSegProcs: there is none.
    unsigned claim_record();
    /// Records in use, whoever uses them.
    struct Census {
        unsigned open_files = 0, processes = 0, threads = 0;
        Census &operator+=(const Census &other);
    };
    Census census() const;
    Counters counters() const;
    std::vector<RecentFallback> recent_fallbacks() const;

  private:
    template <typename Fn> void for_each_held_word(const DataExtents &proc_data, Fn fn) const;
    uint64_t held_word(unsigned proc_index, unsigned word) const;
    bool has_others(const Member &who) const;
    uint64_t held_by_others(const Member &who, unsigned word) const;
    void close_ofd(Ofd &ofd, const FindLink &find_link);
    unsigned end_word(const Member &who, unsigned word, uint64_t mask, const FindLink &find_link);
    void end_held(Reaping &at, const FindLink &find_link, unsigned records, unsigned &done);
    void end_rest(Reaping &at, const FindLink &find_link, unsigned records, unsigned &done);
    void end_threads(unsigned proc_index);

    UniqueFd memfd_;
    Mapping map_;
    SegmentView view_;
};

} // namespace sd::monitor
