// A family segment as the monitor sees it.
//
// All of its content may have been scribbled on: indices are bounded, links are looked up among those the
// dead process had itself, and the worst that a lie can do is close a connection of the liar's own.
#include "monitor/records/segment.hpp"

#include <algorithm>
#include <bit>
#include <optional>

namespace sd::monitor {

namespace {

constexpr uint32_t kOpen = static_cast<uint32_t>(OfdState::open);
constexpr uint32_t kClosing = static_cast<uint32_t>(OfdState::closing);
constexpr uint32_t kFree = static_cast<uint32_t>(OfdState::free);

size_t held_offset(unsigned proc, unsigned word) {
    return kSegProcOffset + proc * sizeof(ProcRecord) + offsetof(ProcRecord, held) + word * sizeof(uint64_t);
}
size_t ofd_offset(unsigned i) { return kSegOfdOffset + i * sizeof(Ofd); }

/// The value of a word that the client may be changing: read exactly once.
template <typename T> T once(const T &value) { return *const_cast<const volatile T *>(&value); }

/// Calls fn(index) for each record of a table that starts in a page that has memory.
template <typename Fn> void for_each_touched(int fd, size_t offset, size_t record, unsigned count, Fn fn) {
    const DataExtents data(fd, offset, offset + count * record);
    for (const auto &range : data.ranges()) {
        for (size_t i = (range.from - offset + record - 1) / record;
             i < count && offset + i * record < range.to; ++i) {
            fn(static_cast<unsigned>(i));
        }
    }
}

} // namespace

Counters &Counters::operator+=(const Counters &other) {
    connects += other.connects;
    accepts += other.accepts;
    for (unsigned i = 0; i < kMaxCauses; ++i) {
        fallbacks[i] += other.fallbacks[i];
    }
    return *this;
}

std::shared_ptr<Segment> Segment::open(UniqueFd memfd) {
    if (!safe_to_map(memfd.get(), kSegmentBytes)) {
        return nullptr;
    }
    auto segment = std::make_shared<Segment>();
    segment->file = file_id(memfd.get());
    segment->memfd_ = std::move(memfd);
    segment->map_ = Mapping(segment->memfd_.get(), kSegmentBytes);
    segment->view_.base = segment->map_.base();
    const SegmentHeader &header = segment->view_.header();
    if (header.magic != kSegmentMagic || header.version != kLayoutVersion) {
        return nullptr;
    }
    return segment;
}

bool Segment::holds(const Member &member, unsigned ofd, const DataExtents &proc_data) const {
    return proc_data.contains(held_offset(member.proc_index, ofd / 64), sizeof(uint64_t)) &&
           (view_.proc(member.proc_index).held[ofd / 64].load(std::memory_order_seq_cst) >> ofd % 64 & 1) != 0;
}

bool Segment::held_by_living(unsigned ofd, const DataExtents &proc_data) const {
    return parcels.count(ofd) != 0 || std::any_of(members.begin(), members.end(),
                                                  [&](const Member &m) { return holds(m, ofd, proc_data); });
}

std::vector<const Client *> Segment::holders(unsigned ofd) const {
    const DataExtents proc_data(memfd_.get(), kSegProcOffset, kSegProcOffset + kSegProcs * sizeof(ProcRecord));
    std::vector<const Client *> result;
    for (const Member &m : members) {
        if (m.client != nullptr && holds(m, ofd, proc_data)) {
            result.push_back(m.client);
        }
    }
    return result;
}

void Segment::close_ofd(Ofd &ofd, const FindLink &find_link) {
    const uint64_t link_id = once(ofd.link_id);
    const uint32_t slot = once(ofd.slot);
    const unsigned side = once(ofd.side);
    if (slot < kLinkSlots && side < 2) {
        if (const Link *link = find_link(link_id, side)) {
            // Released: the dead process had finished with the slot, which may belong to another connection
            // by now.
            const auto &flags = link->view().slot(slot).side[side].control.flags;
            if ((flags.load(std::memory_order_acquire) & kFlagReleased) == 0) {
                // SO_LINGER with no time resets the connection, whoever closes it.
                const bool resets = ofd.opt.linger_on.load(std::memory_order_relaxed) != 0 &&
                                    ofd.opt.linger_s.load(std::memory_order_relaxed) == 0;
                mark_and_ring(*link, slot, side, kFlagDead | kFlagClosed | (resets ? uint32_t{kFlagReset} : 0));
            }
        }
    }
    ofd.state.store(kFree, std::memory_order_seq_cst);
}

void Segment::free_threads(unsigned proc_index) {
    for_each_touched(memfd_.get(), kSegThreadOffset, sizeof(ThreadRecord), kSegThreads, [&](unsigned i) {
        // The busy marks stay: that nobody owns the record tells a taker of a token that its owner has died,
        // and the mark, where.
        uint32_t mine = proc_index + 1;
        view_.thread(i).state.compare_exchange_strong(mine, 0, std::memory_order_seq_cst);
    });
}

/// Ends the threads of a process, clears its bits and closes what nobody else holds. `others`: the segment
/// has further members.
void Segment::let_go(unsigned index, const std::set<uint32_t> &kept, bool others, const FindLink &find_link) {
    // Looked up when there is something to end: many a forked child holds nothing.
    std::optional<DataExtents> proc_data, ofd_data;
    ProcRecord &proc = view_.proc(index);
    // Before anybody is woken: who wakes up looks whether its tokens were those of a thread that has ended.
    free_threads(index);
    view_.header().deaths.fetch_add(1, std::memory_order_seq_cst);
    for_each_touched(memfd_.get(), held_offset(index, 0), sizeof(uint64_t), kOfds / 64, [&](unsigned word) {
        // Clear our bit first and then look at the others', as a living holder that closes does: of two, at
        // least one sees that nobody is left, and the state decides which one acts.
        uint64_t keep = 0;
        for (auto it = kept.lower_bound(word * 64); it != kept.end() && *it < (word + 1) * 64; ++it) {
            keep |= uint64_t{1} << *it % 64;
        }
        uint64_t held = proc.held[word].load(std::memory_order_relaxed) & ~keep;
        if (held == 0) {
            return;
        }
        if (!ofd_data) {
            proc_data.emplace(memfd_.get(), kSegProcOffset, kSegProcOffset + kSegProcs * sizeof(ProcRecord));
            ofd_data.emplace(memfd_.get(), kSegOfdOffset, kSegmentBytes);
        }
        held &= proc.held[word].fetch_and(~held, std::memory_order_seq_cst);
        for (; held != 0; held &= held - 1) {
            const unsigned i = word * 64 + static_cast<unsigned>(std::countr_zero(held));
            if (!ofd_data->contains(ofd_offset(i), sizeof(uint32_t))) {
                continue;
            }
            Ofd &ofd = view_.ofd(i);
            if (others && held_by_living(i, *proc_data)) {
                // Its last act may have been to publish something without getting to ring, or to disarm
                // whoever it was going to ring for. And its relatives may have to finish what it had begun.
                const uint32_t slot = once(ofd.slot);
                const unsigned side = once(ofd.side);
                const Link *link = slot < kLinkSlots && side < 2 ? find_link(once(ofd.link_id), side) : nullptr;
                if (link != nullptr) {
                    ring_everybody(*link, slot);
                }
                continue;
            }
            uint32_t expected = kOpen;
            if (ofd.state.compare_exchange_strong(expected, kClosing, std::memory_order_seq_cst) ||
                (expected == kClosing && !others)) {
                close_ofd(ofd, find_link);
            }
        }
    });
}

void Segment::retain(const Member &member, const std::set<uint32_t> &kept, const FindLink &find_link) {
    let_go(member.proc_index, kept, members.size() > 1 || !parcels.empty(), find_link);
}

void Segment::reap(const Member &member, const FindLink &find_link) {
    const unsigned index = member.proc_index;
    const bool others = !members.empty() || !parcels.empty();
    ProcRecord &proc = view_.proc(index);
    proc.state.store(2, std::memory_order_seq_cst);
    let_go(index, {}, others, find_link);
    proc.pid.store(0, std::memory_order_relaxed);
    proc.state.store(0, std::memory_order_seq_cst);

    if (!others) {
        // Nobody is left to be in the middle of anything: what is not free now was being made or closed by
        // the dead.
        for_each_touched(memfd_.get(), kSegOfdOffset, sizeof(Ofd), kOfds, [&](unsigned i) {
            if (view_.ofd(i).state.load(std::memory_order_acquire) != kFree) {
                close_ofd(view_.ofd(i), find_link);
            }
        });
    }
}

void Segment::release_parcel(uint32_t i, const FindLink &find_link) {
    const DataExtents proc_data(memfd_.get(), kSegProcOffset, kSegProcOffset + kSegProcs * sizeof(ProcRecord));
    const DataExtents ofd_data(memfd_.get(), kSegOfdOffset, kSegmentBytes);
    if (!proc_data.contains(held_offset(kParcelProc, i / 64), sizeof(uint64_t)) ||
        !ofd_data.contains(ofd_offset(i), sizeof(uint32_t))) {
        return;
    }
    // The same order as where a holder closes: our bit first, then a look at the others'.
    view_.proc(kParcelProc).held[i / 64].fetch_and(~(uint64_t{1} << i % 64), std::memory_order_seq_cst);
    uint32_t expected = kOpen;
    if (!held_by_living(i, proc_data) &&
        view_.ofd(i).state.compare_exchange_strong(expected, kClosing, std::memory_order_seq_cst)) {
        close_ofd(view_.ofd(i), find_link);
    }
}

std::vector<Segment::OpenOfd> Segment::open_ofds() const {
    const DataExtents proc_data(memfd_.get(), kSegProcOffset, kSegProcOffset + kSegProcs * sizeof(ProcRecord));
    std::vector<OpenOfd> result;
    for_each_touched(memfd_.get(), kSegOfdOffset, sizeof(Ofd), kOfds, [&](unsigned i) {
        const Ofd &ofd = view_.ofd(i);
        if (ofd.state.load(std::memory_order_acquire) != kOpen) {
            return;
        }
        std::vector<const Client *> holders;
        for (const Member &m : members) {
            if (holds(m, i, proc_data)) {
                holders.push_back(m.client);
            }
        }
        if (!holders.empty()) {
            // The counters are their owners' plain words: a torn or late value only shows in a table.
            result.push_back({once(ofd.link_id), once(ofd.slot), once(ofd.side), once(ofd.tx.s.bytes),
                              once(ofd.rx.s.bytes), once(ofd.tx.s.messages), once(ofd.rx.s.messages),
                              std::move(holders)});
        }
    });
    return result;
}

std::vector<Segment::HeldEnd> Segment::held_ends() const {
    const DataExtents proc_data(memfd_.get(), kSegProcOffset, kSegProcOffset + kSegProcs * sizeof(ProcRecord));
    std::vector<Member> all;
    for (unsigned i = 0; i < kSegProcs; ++i) {
        if (proc_data.contains(kSegProcOffset + i * sizeof(ProcRecord), sizeof(uint32_t)) &&
            view_.proc(i).state.load(std::memory_order_acquire) == 1) {
            all.push_back({nullptr, i});
        }
    }
    std::vector<HeldEnd> result;
    for_each_touched(memfd_.get(), kSegOfdOffset, sizeof(Ofd), kOfds, [&](unsigned i) {
        const Ofd &ofd = view_.ofd(i);
        if (ofd.state.load(std::memory_order_acquire) == kOpen &&
            std::any_of(all.begin(), all.end(), [&](const Member &m) { return holds(m, i, proc_data); })) {
            result.push_back({once(ofd.link_id), once(ofd.slot), once(ofd.side)});
        }
    });
    return result;
}

std::vector<std::pair<unsigned, pid_t>> Segment::strangers() const {
    std::vector<std::pair<unsigned, pid_t>> result;
    const DataExtents proc_data(memfd_.get(), kSegProcOffset, kSegProcOffset + kSegProcs * sizeof(ProcRecord));
    for (unsigned i = 0; i < kSegProcs; ++i) {
        if (i == kParcelProc || !proc_data.contains(kSegProcOffset + i * sizeof(ProcRecord), sizeof(uint32_t)) ||
            view_.proc(i).state.load(std::memory_order_acquire) != 1 ||
            std::any_of(members.begin(), members.end(), [i](const Member &m) { return m.proc_index == i; })) {
            continue;
        }
        // 0: a child that is just being made, whose parent has told us of it or will.
        if (const auto pid = static_cast<pid_t>(view_.proc(i).pid.load(std::memory_order_relaxed)); pid > 0) {
            result.emplace_back(i, pid);
        }
    }
    return result;
}

unsigned Segment::claim_record() {
    for (unsigned i = 0; i < kSegProcs; ++i) {
        uint32_t free = 0;
        if (i != kParcelProc &&
            std::none_of(members.begin(), members.end(), [i](const Member &m) { return m.proc_index == i; }) &&
            view_.proc(i).state.compare_exchange_strong(free, 1, std::memory_order_seq_cst)) {
            view_.proc(i).pid.store(0, std::memory_order_relaxed); // until the process has put its own there
            return i;
        }
    }
    return kSegProcs;
}

Segment::Census &Segment::Census::operator+=(const Census &other) {
    open_files += other.open_files;
    processes += other.processes;
    threads += other.threads;
    return *this;
}

Segment::Census Segment::census() const {
    Census result;
    for_each_touched(memfd_.get(), kSegProcOffset, sizeof(ProcRecord), kSegProcs, [&](unsigned i) {
        result.processes += i != kParcelProc && view_.proc(i).state.load(std::memory_order_relaxed) != 0 ? 1 : 0;
    });
    for_each_touched(memfd_.get(), kSegThreadOffset, sizeof(ThreadRecord), kSegThreads, [&](unsigned i) {
        result.threads += view_.thread(i).state.load(std::memory_order_relaxed) != 0 ? 1 : 0;
    });
    for_each_touched(memfd_.get(), kSegOfdOffset, sizeof(Ofd), kOfds, [&](unsigned i) {
        result.open_files += view_.ofd(i).state.load(std::memory_order_relaxed) != kFree ? 1 : 0;
    });
    return result;
}

Counters Segment::counters() const {
    const SegmentStats &stats = view_.header().stats;
    Counters result;
    result.connects = stats.connects.load(std::memory_order_relaxed);
    result.accepts = stats.accepts.load(std::memory_order_relaxed);
    for (unsigned i = 0; i < kMaxCauses; ++i) {
        result.fallbacks[i] = stats.fallbacks[i].load(std::memory_order_relaxed);
    }
    return result;
}

std::vector<RecentFallback> Segment::recent_fallbacks() const {
    std::vector<RecentFallback> result;
    for (const FallbackRecord &record : view_.header().stats.recent) {
        if (record.sequence.load(std::memory_order_acquire) != 0) {
            RecentFallback fallback{record.cause, record.port, {}, record.when_ns};
            std::copy(std::begin(record.ip), std::end(record.ip), fallback.ip);
            result.push_back(fallback);
        }
    }
    return result;
}

} // namespace sd::monitor
