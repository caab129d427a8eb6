// A family segment as the monitor sees it.
//
// All of its content may have been scribbled on: indices are bounded, links are looked up among those the
// dead process had itself, and the worst that a lie can do is close a connection of the liar's own.
#include "monitor/records/segment.hpp"

#include "libsd/control/assert.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <bitset>
#include <optional>

namespace sd::monitor {

namespace {

constexpr uint32_t kOpen = static_cast<uint32_t>(OfdState::open);
constexpr uint32_t kClosing = static_cast<uint32_t>(OfdState::closing);
constexpr uint32_t kFree = static_cast<uint32_t>(OfdState::free);

size_t held_offset(unsigned proc, unsigned word) {
    return kSegProcOffset + proc * sizeof(ProcRecord) + offsetof(ProcRecord, held) + word * sizeof(uint64_t);
}
constexpr size_t kPage = 4096;
size_t ofd_offset(unsigned i) { return kSegOfdOffset + i * sizeof(Ofd); }

/// The value of a word that the client may be changing: read exactly once.
template <typename T> T once(const T &value) { return *const_cast<const volatile T *>(&value); }

bool is_shared(const Token &token) { return token.owner.load(std::memory_order_relaxed) == Token::kShared; }

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
    joined += other.joined;
    sleeps += other.sleeps;
    takeovers += other.takeovers;
    ring_changes += other.ring_changes;
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
    SegmentHeader &header = segment->view_.header();
    if (header.magic != kSegmentMagic || header.version != kLayoutVersion) {
        return nullptr;
    }
    header.capture_known.fetch_or(kKnownToMonitor, std::memory_order_relaxed);
    return segment;
}

/// Calls fn(record, word, bits) for each word of `held` that has memory and is not 0, each read once, in the
/// order of memory. What it costs does not depend on what the words say.
template <typename Fn> void Segment::for_each_held_word(const DataExtents &proc_data, Fn fn) const {
    for (const auto &range : proc_data.ranges()) {
        const size_t first = (range.from - kSegProcOffset) / sizeof(ProcRecord);
        for (size_t i = first; i < kSegProcs && held_offset(static_cast<unsigned>(i), 0) < range.to; ++i) {
            const auto proc = static_cast<unsigned>(i);
            const size_t begin = held_offset(proc, 0), end = held_offset(proc, kOfds / 64);
            for (size_t at = std::max(begin, range.from); at < std::min(end, range.to); at += sizeof(uint64_t)) {
                const auto word = static_cast<unsigned>((at - begin) / sizeof(uint64_t));
                if (const uint64_t bits = view_.proc(proc).held[word].load(std::memory_order_seq_cst)) {
                    fn(proc, word, bits);
                }
            }
        }
    }
}

std::vector<uint64_t> Segment::held_by_members(const std::function<bool(const Client &)> &counts) const {
    const DataExtents proc_data(memfd_.get(), kSegProcOffset, kSegProcOffset + kSegProcs * sizeof(ProcRecord));
    std::bitset<kSegProcs> counted;
    for (const Member &m : members) {
        if (m.client != nullptr && counts(*m.client)) {
            counted.set(m.proc_index);
        }
    }
    std::vector<uint64_t> held(kOfds / 64);
    for_each_held_word(proc_data, [&](unsigned proc, unsigned word, uint64_t bits) {
        held[word] |= counted.test(proc) ? bits : 0;
    });
    return held;
}

void Segment::close_ofd(Ofd &ofd, const FindLink &find_link) {
    const uint64_t link_id = once(ofd.link_id);
    const uint32_t slot = once(ofd.slot);
    const unsigned side = once(ofd.side);
    if (slot < kLinkSlots && side < 2) {
        if (const Link *link = find_link(link_id, side)) {
            // Released: the dead process had finished with the slot, which may belong to another connection
            // by now.
            const auto &flags = link->view(side).slot(slot).side[side].control.flags;
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

/// Before anybody is woken: who wakes up looks whether its tokens were those of a thread that has ended.
void Segment::end_threads(unsigned proc_index) {
    for_each_touched(memfd_.get(), kSegThreadOffset, sizeof(ThreadRecord), kSegThreads, [&](unsigned i) {
        // The busy marks stay: that nobody owns the record tells a taker of a token that its owner has died,
        // and the mark, where.
        uint32_t mine = proc_index + 1;
        view_.thread(i).state.compare_exchange_strong(mine, 0, std::memory_order_seq_cst);
    });
    view_.header().deaths.fetch_add(1, std::memory_order_seq_cst);
}

bool Segment::has_others(const Member &who) const {
    return !parcels.empty() ||
           std::any_of(members.begin(), members.end(), [&](const Member &m) { return m != who; });
}

uint64_t Segment::held_word(unsigned proc_index, unsigned word) const {
    const size_t offset = held_offset(proc_index, word);
    return next_data(memfd_.get(), offset, offset + sizeof(uint64_t)) == offset
               ? view_.proc(proc_index).held[word].load(std::memory_order_seq_cst)
               : 0;
}

uint64_t Segment::held_by_others(const Member &who, unsigned word) const {
    uint64_t result = 0;
    for (const Member &m : members) {
        result |= m == who ? 0 : held_word(m.proc_index, word);
    }
    for (auto it = parcels.lower_bound(word * 64); it != parcels.end() && it->first < (word + 1) * 64; ++it) {
        result |= uint64_t{1} << it->first % 64;
    }
    return result;
}

/// Clears a process's bits in one word, of those in `mask`, and closes what nobody else holds. How many.
unsigned Segment::end_word(const Member &who, unsigned word, uint64_t mask, const FindLink &find_link) {
    // Clear our bits first and then look at the others', as a living holder that closes does: of two, at
    // least one sees that nobody is left, and the state decides which one acts.
    auto &mine = view_.proc(who.proc_index).held[word];
    uint64_t held = mine.load(std::memory_order_relaxed) & mask;
    if (held == 0) {
        return 0;
    }
    held &= mine.fetch_and(~held, std::memory_order_seq_cst);
    const bool others = has_others(who);
    const uint64_t shared = others ? held_by_others(who, word) : 0;
    std::set<const Link *> to_ring;
    unsigned count = 0;
    for (; held != 0; held &= held - 1, ++count) {
        const auto bit = static_cast<unsigned>(std::countr_zero(held));
        const unsigned i = word * 64 + bit;
        if (next_data(memfd_.get(), ofd_offset(i), ofd_offset(i) + sizeof(uint32_t)) != ofd_offset(i)) {
            continue;
        }
        Ofd &ofd = view_.ofd(i);
        if ((shared >> bit & 1) != 0) {
            // Its last act may have been to publish something without getting to ring, or to disarm whoever
            // it was going to ring for. And its relatives may have to finish what it had begun.
            const uint32_t slot = once(ofd.slot);
            const unsigned side = once(ofd.side);
            const Link *link = slot < kLinkSlots && side < 2 ? find_link(once(ofd.link_id), side) : nullptr;
            if (link != nullptr) {
                show_everybody(*link, slot);
                to_ring.insert(link);
            }
            continue;
        }
        uint32_t expected = kOpen;
        if (ofd.state.compare_exchange_strong(expected, kClosing, std::memory_order_seq_cst) ||
            (expected == kClosing && !others)) {
            close_ofd(ofd, find_link);
        }
    }
    for (const Link *link : to_ring) {
        ring_everybody(*link);
    }
    return count;
}

Segment::Reaping Segment::reap(const Member &member) {
    Reaping at;
    at.who_ = member;
    view_.proc(member.proc_index).state.store(2, std::memory_order_seq_cst);
    end_threads(member.proc_index);
    return at;
}

Segment::Reaping Segment::retain(const Member &member, const std::vector<uint64_t> &retained) {
    Reaping at;
    at.who_ = member;
    end_threads(member.proc_index);
    // Noted now, since the next program adds its own. The bits stay until their turn comes, so that nobody
    // uses the Ofds for something else.
    auto &only = at.only.emplace();
    const ProcRecord &proc = view_.proc(member.proc_index);
    for_each_touched(
        memfd_.get(), held_offset(member.proc_index, 0), sizeof(uint64_t), kOfds / 64, [&](unsigned word) {
            const uint64_t keep = word < retained.size() ? retained[word] : 0;
            if (const uint64_t ends = proc.held[word].load(std::memory_order_relaxed) & ~keep; ends != 0) {
                only.emplace_back(word, ends);
            }
        });
    return at;
}

void Segment::end_held(Reaping &at, const FindLink &find_link, unsigned records, unsigned &done) {
    if (at.only) {
        for (; at.next < at.only->size() && done < records; ++at.next) {
            const auto &[word, bits] = (*at.only)[at.next];
            done += end_word(at.who_, word, bits, find_link);
        }
        at.stage = at.next == at.only->size() ? Reaping::over : Reaping::held;
        return;
    }
    constexpr unsigned kWords = kOfds / 64;
    const size_t table = held_offset(at.who_.proc_index, 0);
    for (bool look = true; at.next < kWords && done < records; ++at.next) {
        const size_t offset = table + at.next * sizeof(uint64_t);
        if (look || offset % kPage < sizeof(uint64_t)) {
            look = false;
            const size_t data = next_data(memfd_.get(), offset, table + kWords * sizeof(uint64_t));
            at.next = (data - table + sizeof(uint64_t) - 1) / sizeof(uint64_t);
            if (at.next == kWords) {
                break;
            }
        }
        done += end_word(at.who_, static_cast<unsigned>(at.next), ~uint64_t{0}, find_link);
    }
    if (at.next == kWords) {
        ProcRecord &proc = view_.proc(at.who_.proc_index);
        proc.pid.store(0, std::memory_order_relaxed);
        proc.state.store(0, std::memory_order_seq_cst);
        at.stage = Reaping::rest;
        at.next = 0;
    }
}

/// Where nobody is left to be in the middle of anything: what is not free now was being made or closed by the
/// dead.
void Segment::end_rest(Reaping &at, const FindLink &find_link, unsigned records, unsigned &done) {
    while (at.next < kOfds && !has_others(at.who_)) {
        if (done >= records) {
            return;
        }
        ++done; // a page
        const size_t data = next_data(memfd_.get(), ofd_offset(static_cast<unsigned>(at.next)), kSegmentBytes);
        const size_t end = std::min((data / kPage + 1) * kPage, ofd_offset(kOfds));
        at.next = (data - kSegOfdOffset + sizeof(Ofd) - 1) / sizeof(Ofd);
        for (; at.next < kOfds && ofd_offset(static_cast<unsigned>(at.next)) < end; ++at.next) {
            Ofd &ofd = view_.ofd(static_cast<unsigned>(at.next));
            if (ofd.state.load(std::memory_order_acquire) != kFree) {
                close_ofd(ofd, find_link);
                ++done;
            }
        }
    }
    at.stage = Reaping::over;
}

bool Segment::advance(Reaping &at, const FindLink &find_link, unsigned records) {
    SD_ASSERT(at.stage != Reaping::over && at.who_.proc_index < kSegProcs);
    unsigned done = 0;
    if (at.stage == Reaping::held) {
        end_held(at, find_link, records, done);
    }
    if (at.stage == Reaping::rest) {
        end_rest(at, find_link, records, done);
    }
    return at.stage == Reaping::over;
}

void Segment::hold_parcel(uint32_t i) {
    SD_ASSERT(i < kOfds && parcels.count(i) != 0);
    const size_t offset = held_offset(kParcelProc, i / 64);
    if (next_data(memfd_.get(), offset, offset + sizeof(uint32_t)) == offset) { // else nobody has said so
        view_.proc(kParcelProc).held[i / 64].fetch_or(uint64_t{1} << i % 64, std::memory_order_seq_cst);
    }
}

void Segment::release_parcel(uint32_t i, const FindLink &find_link) {
    SD_ASSERT(i < kOfds && parcels.count(i) == 0);
    const auto has_memory = [&](size_t offset) {
        return next_data(memfd_.get(), offset, offset + sizeof(uint32_t)) == offset;
    };
    if (!has_memory(held_offset(kParcelProc, i / 64)) || !has_memory(ofd_offset(i))) {
        return;
    }
    // The same order as where a holder closes: our bit first, then a look at the others'.
    view_.proc(kParcelProc).held[i / 64].fetch_and(~(uint64_t{1} << i % 64), std::memory_order_seq_cst);
    const Member nobody{nullptr, kSegProcs};
    uint32_t expected = kOpen;
    if ((held_by_others(nobody, i / 64) >> i % 64 & 1) == 0 &&
        view_.ofd(i).state.compare_exchange_strong(expected, kClosing, std::memory_order_seq_cst)) {
        close_ofd(view_.ofd(i), find_link);
    }
}

std::vector<Segment::OpenOfd> Segment::open_ofds() const {
    const DataExtents proc_data(memfd_.get(), kSegProcOffset, kSegProcOffset + kSegProcs * sizeof(ProcRecord));
    std::array<std::vector<const Client *>, kSegProcs> clients;
    for (const Member &m : members) {
        clients[m.proc_index].push_back(m.client);
    }
    std::vector<uint64_t> held(kOfds / 64);
    for_each_held_word(proc_data, [&](unsigned proc, unsigned word, uint64_t bits) {
        held[word] |= clients[proc].empty() ? 0 : bits;
    });
    std::vector<OpenOfd> result;
    for_each_touched(memfd_.get(), kSegOfdOffset, sizeof(Ofd), kOfds, [&](unsigned i) {
        const Ofd &ofd = view_.ofd(i);
        if ((held[i / 64] >> i % 64 & 1) != 0 && ofd.state.load(std::memory_order_acquire) == kOpen) {
            // In this order: an end that begins gets its paths before its mark goes.
            const uint32_t block = ofd.tx_block.load(std::memory_order_acquire);
            const bool has_paths = (ofd.flags_seen.load(std::memory_order_acquire) & kSeenPath) != 0;
            // The counters are their owners' plain words: a torn or late value only shows in a table.
            result.push_back({once(ofd.link_id),
                              once(ofd.slot),
                              once(ofd.side),
                              once(ofd.tx.s.bytes),
                              once(ofd.rx.s.bytes),
                              once(ofd.tx.s.messages),
                              once(ofd.rx.s.messages),
                              once(ofd.tx.s.cls),
                              once(ofd.tx.s.stalls) != 0,
                              is_shared(ofd.tx.token),
                              is_shared(ofd.rx.token),
                              i,
                              once(ofd.generation),
                              has_paths,
                              (block & kTxAdopt) != 0,
                              (block & kTxMoved) != 0 && (block & kTxAdopt) == 0,
                              has_paths ? (ofd.opt.*kPathWanted).load(std::memory_order_relaxed) : 0,
                              has_paths ? (ofd.opt.*kPathStays).load(std::memory_order_relaxed) : 0,
                              {}});
        }
    });
    if (result.empty()) {
        return result;
    }
    std::vector<uint64_t> full(kOfds / 64);
    for_each_held_word(proc_data, [&](unsigned proc, unsigned word, uint64_t bits) {
        for (uint64_t left = clients[proc].empty() ? 0 : bits & ~full[word]; left != 0; left &= left - 1) {
            const auto bit = static_cast<unsigned>(std::countr_zero(left));
            const uint32_t index = word * 64 + bit; // in whose order they are
            const auto at = std::lower_bound(result.begin(), result.end(), index,
                                             [](const OpenOfd &each, uint32_t i) { return each.index < i; });
            if (at == result.end() || at->index != index) {
                continue;
            }
            auto &holders = at->holders;
            holders.insert(holders.end(), clients[proc].begin(), clients[proc].end());
            full[word] |= holders.size() >= kMostShown ? uint64_t{1} << bit : 0;
        }
    });
    // What was held a moment ago
    std::erase_if(result, [](const OpenOfd &each) { return each.holders.empty(); });
    return result;
}

std::vector<Segment::HeldEnd> Segment::held_ends() const {
    const DataExtents proc_data(memfd_.get(), kSegProcOffset, kSegProcOffset + kSegProcs * sizeof(ProcRecord));
    std::bitset<kSegProcs> in_use;
    for (unsigned i = 0; i < kSegProcs; ++i) {
        if (proc_data.contains(kSegProcOffset + i * sizeof(ProcRecord), sizeof(uint32_t)) &&
            view_.proc(i).state.load(std::memory_order_acquire) != 0) { // also one that is being reaped
            in_use.set(i);
        }
    }
    std::vector<uint64_t> held(kOfds / 64);
    for_each_held_word(proc_data, [&](unsigned proc, unsigned word, uint64_t bits) {
        held[word] |= in_use.test(proc) ? bits : 0;
    });
    std::vector<HeldEnd> result;
    for_each_touched(memfd_.get(), kSegOfdOffset, sizeof(Ofd), kOfds, [&](unsigned i) {
        const Ofd &ofd = view_.ofd(i);
        if ((held[i / 64] >> i % 64 & 1) != 0 && ofd.state.load(std::memory_order_acquire) == kOpen) {
            result.push_back({once(ofd.link_id), once(ofd.slot), once(ofd.side)});
        }
    });
    return result;
}

Segment::Holders Segment::holders(uint32_t ofd, const std::function<bool(const Client &)> &counts) const {
    Holders result;
    std::bitset<kSegProcs> known;
    for (const Member &m : members) {
        known.set(m.proc_index);
        if ((held_word(m.proc_index, ofd / 64) >> ofd % 64 & 1) != 0) {
            ++result.all;
            result.counted += counts(*m.client) ? 1 : 0;
        }
    }
    for (const auto &[index, pid] : strangers()) {
        result.all += !known.test(index) && (held_word(index, ofd / 64) >> ofd % 64 & 1) != 0 ? 1 : 0;
    }
    const auto parcel = parcels.find(ofd);
    result.all += parcel != parcels.end() ? parcel->second : 0;
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
    result.joined = stats.joined.load(std::memory_order_relaxed);
    result.sleeps = stats.sleeps.load(std::memory_order_relaxed);
    result.takeovers = stats.takeovers.load(std::memory_order_relaxed);
    result.ring_changes = stats.ring_switches.load(std::memory_order_relaxed);
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
