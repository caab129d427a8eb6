// All connections that somebody may see. What is read here is written meanwhile, and much of it by strangers:
// each word is read once, bounded, and only shown.
#include "monitor/records/connection_table.hpp"
#include "monitor/kernel/process_info.hpp"
#include "monitor/steering/path_state.hpp"

#include <algorithm>
#include <cstring>
#include <ctime>
#include <map>
#include <unistd.h>

namespace sd::monitor {

namespace {

struct End {
    const Link *link;
    const Segment::OpenOfd *ofd;
    bool operator<(const End &other) const {
        return link != other.link             ? std::less<>{}(link, other.link)
               : ofd->slot != other.ofd->slot ? ofd->slot < other.ofd->slot
                                              : ofd->side < other.ofd->side;
    }
    bool same_connection(const End &other) const {
        return link == other.link && ofd->slot == other.ofd->slot;
    }
};

double seconds(clockid_t clock) {
    timespec now;
    clock_gettime(clock, &now);
    return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) / 1e9;
}

ConnectionState state_of(const Slot &slot, uint32_t flags, bool both_known) {
    if ((flags & (kFlagDead | kFlagReset)) != 0) {
        return ConnectionState::reset;
    }
    if ((flags & kFlagClosed) != 0) {
        return ConnectionState::closing;
    }
    if (slot.identity.state.load(std::memory_order_relaxed) == static_cast<uint32_t>(SlotState::syn)) {
        return ConnectionState::waiting;
    }
    if ((flags & kFlagWriteShut) != 0) {
        return ConnectionState::half_closed;
    }
    return both_known ? ConnectionState::established : ConnectionState::incomplete;
}

void name(RowEnd &end, pid_t pid, uid_t uid, const std::string &comm) {
    end.pid = static_cast<uint32_t>(pid);
    end.uid = uid;
    memcpy(end.comm, comm.data(), std::min(comm.size(), sizeof end.comm));
}

/// Is somebody who is armed here also asleep?
uint8_t asleep_of(const SlotSide::Control &control, uint64_t sleep_mask) {
    const uint64_t asleep = sleep_mask & kUsableDoorbells;
    return static_cast<uint8_t>(
        ((control.rx_arm.load(std::memory_order_relaxed) & asleep) != 0 ? kAsleepForData : 0) |
        ((control.tx_arm.load(std::memory_order_relaxed) & asleep) != 0 ? kAsleepForRoom : 0));
}

class Maker {
  public:
    Maker(ConnectionTable &out, const AwaitedHolders &awaited)
        : out_(out), awaited_(awaited), wall_(seconds(CLOCK_REALTIME)), monotonic_(seconds(CLOCK_MONOTONIC)) {}

    void add(const Link &link, uint32_t number, const Segment::OpenOfd *const (&ends)[2]) {
        ConnectionRow &row = out_.rows.emplace_back();
        const Slot &slot = link.view(1).slot(number);
        row.link = (ends[0] != nullptr ? ends[0] : ends[1])->link_id; // as its processes call it
        row.slot = number;
        uint32_t flags = 0;
        for (unsigned side = 0; side < 2; ++side) {
            fill(row.end[side], link, number, side, ends[side]);
            const PathState path = path_state(link, number, side, ends[side]);
            const bool is_rdma = link.is_remote() && path.path == Path::shm;
            row.end[side].path = static_cast<uint8_t>(is_rdma ? Path::rdma : path.path);
            row.end[side].blocker = static_cast<uint8_t>(path.blocker);
            row.path[side] = {path.offset, path.moves, 0};
            count_handed(row.handed[side], row.rewritten[side], link, number, side);
            flags |= row.end[side].flags;
        }
        memcpy(&row.end[0].address, &slot.identity.client, sizeof row.end[0].address);
        memcpy(&row.end[1].address, &slot.identity.server, sizeof row.end[1].address);
        row.state = static_cast<uint8_t>(state_of(slot, flags, ends[0] != nullptr && ends[1] != nullptr));
        const double age = monotonic_ - static_cast<double>(slot.identity.connected_ns) / 1e9;
        row.since = wall_ - std::clamp(age, 0.0, monotonic_);
    }

  private:
    /// The channels of a link are found once, for all its connections.
    void count_handed(RowHanded &sum, RowRewritten &rewritten, const Link &link, uint32_t number, unsigned side) {
        if (link_ != &link) {
            link_ = &link;
            channels_.clear();
            for (const auto &entry : link.pools) {
                if (entry.second.is_channel && link.arrival(entry.second.slot) == entry.second.arrival) {
                    channels_.emplace(entry.second.slot, &entry.second);
                }
            }
        }
        const auto [first, end] = channels_.equal_range(number);
        for (auto it = first; it != end; ++it) {
            ChannelCounts counts{};
            if (it->second->side != side || pread(it->second->ledger.get(), &counts, sizeof counts,
                                                  kChannelCountsOffset) != sizeof counts) {
                continue;
            }
            ++sum.channels;
            sum.given += counts.given;
            sum.mapped += counts.mapped;
            sum.read += counts.read;
            rewritten.once += counts.once;
            rewritten.copied += counts.rewritten;
            for (unsigned why = 0; why < kCopiedReasons; ++why) {
                sum.copied[why] += counts.copied[why];
            }
        }
    }

    void fill(RowEnd &end, const Link &link, uint32_t number, unsigned side, const Segment::OpenOfd *ofd) {
        const SlotSide::Control &control = link.view(side).slot(number).side[side].control;
        end.flags = control.flags.load(std::memory_order_relaxed);
        end.asleep = asleep_of(control, link.header(side).side[side].sleep_mask.load(std::memory_order_relaxed));
        end.first_pid = static_cast<uint32_t>(out_.pids.size());
        if (ofd != nullptr) {
            const Client &holder = *ofd->holders.front();
            name(end, holder.pid, holder.who.uid, holder.comm);
            end.is_known = 1;
            end.sent_bytes = ofd->tx_bytes;
            end.sent_messages = ofd->tx_messages;
            end.received_bytes = ofd->rx_bytes;
            end.received_messages = ofd->rx_messages;
            end.ring = static_cast<uint8_t>(std::min<uint32_t>(ofd->ring, kRingClasses - 1));
            end.stalled = ofd->is_stalled ? 1 : 0;
            end.shared = static_cast<uint8_t>((ofd->send_shared ? kSharedSend : 0) |
                                              (ofd->receive_shared ? kSharedReceive : 0));
            for (const Client *each : ofd->holders) {
                out_.pids.push_back(static_cast<uint32_t>(each->pid));
            }
        } else if (const auto it = awaited_.find({&link, side}); it != awaited_.end()) {
            name(end, it->second, 0, process_comm(it->second));
        }
        end.pids = static_cast<uint32_t>(out_.pids.size()) - end.first_pid;
    }

    ConnectionTable &out_;
    const AwaitedHolders &awaited_;
    double wall_, monotonic_;
    const Link *link_ = nullptr;
    std::multimap<uint32_t, const LinkPool *> channels_; ///< of that link, by slot
};

} // namespace

ConnectionTable list_connections(const std::vector<std::shared_ptr<Segment>> &segments,
                                 const AwaitedHolders &awaited,
                                 const std::function<bool(const Client &)> &may_see) {
    std::vector<std::vector<Segment::OpenOfd>> tables; // keeps alive what the ends point to
    std::vector<End> ends;
    for (const auto &segment : segments) {
        tables.push_back(segment->open_ofds());
        for (const Segment::OpenOfd &ofd : tables.back()) {
            const Link *link = ofd.slot < kLinkSlots ? ofd.holders.front()->link(ofd.link_id, ofd.side) : nullptr;
            if (link != nullptr) {
                ends.push_back({link, &ofd});
            }
        }
    }
    std::sort(ends.begin(), ends.end());
    ConnectionTable table;
    table.rows.reserve(ends.size() / 2 + 1);
    Maker maker(table, awaited);
    for (size_t i = 0; i < ends.size();) {
        const Segment::OpenOfd *both[2] = {nullptr, nullptr};
        bool is_visible = false;
        const size_t first = i;
        for (; i < ends.size() && ends[i].same_connection(ends[first]); ++i) {
            both[ends[i].ofd->side] = ends[i].ofd;
            is_visible = is_visible || may_see(*ends[i].ofd->holders.front());
        }
        if (is_visible) {
            maker.add(*ends[first].link, ends[first].ofd->slot, both);
        }
    }
    return table;
}

} // namespace sd::monitor
