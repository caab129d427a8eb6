// A link as the monitor sees it.
#include "monitor/records/link.hpp"
#include "libsd/control/assert.hpp"
#include "libsd/transport/fake_copier.hpp"
#include "monitor/records/listener.hpp"

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <sched.h>
#include <string_view>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

namespace sd::monitor {

namespace {

constexpr int kLinkSeals = F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_SEAL;

/// Calls fn(index) for each slot that has ever been touched.
template <typename Fn> void for_each_touched_slot(const Link &link, Fn fn) {
    const unsigned half = link.far ? 1 - link.far->side : 1;
    const size_t slots = (link.is_fake() || link.is_remote() ? fake_half(half) : 0) + kSlotOffset;
    const DataExtents extents(link.memfd.get(), slots, slots + kLinkSlots * sizeof(Slot));
    unsigned next = 0;
    for (const auto &range : extents.ranges()) {
        // A slot may straddle two pages, of which only one has memory: it still counts.
        const unsigned first = static_cast<unsigned>((range.from - slots) / sizeof(Slot));
        const unsigned last = static_cast<unsigned>((range.to - slots + sizeof(Slot) - 1) / sizeof(Slot));
        for (next = std::max(next, first); next < last && next < kLinkSlots; ++next) {
            fn(next);
        }
    }
}

void ring_sleepers(const Link &link, unsigned side, uint64_t ids) {
    ids &= link.header(side).side[side].sleep_mask.load(std::memory_order_seq_cst);
    for (; ids != 0; ids &= ids - 1) {
        const auto &bell = link.side[side].bells[static_cast<unsigned>(std::countr_zero(ids))];
        if (bell.eventfd) {
            ring_together(bell.eventfd);
        }
    }
}

fake::Memory memory_of(const Link &link) { return {link.view(0).base}; }

/// What `side` has written about a slot, to the other memory. Its holders are dead, or leave it to us.
void carry(const Link &link, unsigned slot, unsigned side) {
    const fake::Memory m = memory_of(link);
    FakeDirection &direction = m.state().direction[slot][side];
    fake::lock(direction, static_cast<uint32_t>(getpid()), [] { sched_yield(); });
    fake::carry_header(m, side);
    fake::carry_slot(m, slot, side, direction);
    fake::unlock(direction);
}

} // namespace

FakeTransport FakeTransport::from_environment() {
    const auto number = [](const char *name) {
        const char *text = std::getenv(name);
        return text != nullptr ? static_cast<uint32_t>(std::strtoul(text, nullptr, 10)) : 0;
    };
    const char *name = std::getenv("SD_TEST_TRANSPORT");
    return {name != nullptr && std::string_view(name) == "fake",
            name != nullptr && std::string_view(name) == "rdma", number("SD_TEST_LATE"), number("SD_TEST_CUTS")};
}

void Link::map() {
    const bool two = is_fake_ || is_remote_;
    map_ = Mapping(memfd.get(), is_fake_ ? kFakeBytes : is_remote_ ? kTwoHalves : kFirstArenas);
    for (unsigned side = 0; side < 2; ++side) {
        view_[side].base = map_.base() + (far ? fake_half(1 - far->side) : two ? fake_half(side) : 0);
    }
}

std::unique_ptr<Link> Link::create(uint64_t id, uint32_t listener_id, uint32_t port_base,
                                   const FakeTransport &fake, bool remote) {
    std::unique_ptr<Link> link(new Link);
    link->id = id;
    link->is_fake_ = fake.used;
    link->is_remote_ = remote;
    link->memfd = make_memfd("sd-link", fake.used ? kFakeBytes : remote ? kTwoHalves : kLinkBytes);
    seal(link->memfd.get(), kLinkSeals);
    link->file = file_id(link->memfd.get());
    link->map();
    link->lay_out(listener_id, port_base);
    if (fake.used) {
        memory_of(*link).state().late = fake.late;
        memory_of(*link).state().cuts = fake.cuts;
    }
    return link;
}

std::unique_ptr<Link> Link::create_far(uint64_t id, const Far &far) {
    std::unique_ptr<Link> link(new Link);
    link->id = id;
    link->is_remote_ = true;
    link->far = far;
    link->side[far.side].is_far = true;
    link->joins.emplace();
    link->memfd = make_memfd("sd-link", kTwoHalves);
    seal(link->memfd.get(), kLinkSeals);
    link->file = file_id(link->memfd.get());
    link->map();
    link->lay_out(0, 0);
    return link;
}

void Link::lay_out(uint32_t listener_id, uint32_t port_base) {
    for_each_view([&](LinkView view) {
        LinkHeader &header = view.header();
        header.version = kLayoutVersion;
        header.slots = kLinkSlots;
        header.link_id = id;
        header.listener_id = listener_id;
        header.port_base = port_base;
        for (auto &side : header.side) {
            side.arena_open.store(kArenaBytes, std::memory_order_relaxed);
        }
        header.magic = kLinkMagic;
    });
}

std::unique_ptr<Link> Link::adopt(UniqueFd memfd, uint64_t id) {
    struct stat st;
    const int seals = fcntl(memfd.get(), F_GET_SEALS);
    if (seals < 0 || (seals & kLinkSeals) != kLinkSeals || fstat(memfd.get(), &st) != 0) {
        return nullptr;
    }
    const auto size = static_cast<size_t>(st.st_size);
    const bool fake = size == kFakeBytes && FakeTransport::from_environment().used;
    if ((size != kLinkBytes && !fake) || !safe_to_map(memfd.get(), size)) {
        return nullptr;
    }
    std::unique_ptr<Link> link(new Link);
    link->id = id;
    link->is_fake_ = fake;
    link->file = {st.st_dev, st.st_ino};
    link->memfd = std::move(memfd);
    link->map();
    for (unsigned side = 0; side < 2; ++side) {
        const LinkHeader &header = link->header(side);
        if (header.magic != kLinkMagic || header.version != kLayoutVersion || header.slots != kLinkSlots) {
            return nullptr;
        }
    }
    return link;
}

int Link::give_bell(unsigned side_index, unsigned wanted, std::shared_ptr<BellFd> eventfd, const Client *owner) {
    LinkSide &s = side[side_index];
    unsigned id = wanted;
    if (wanted == 0) {
        // The id that has been free for longest is the least likely to have stale bits about.
        for (unsigned tried = kFirstDoorbell; tried <= kLastDoorbell; ++tried) {
            s.last_bell = s.last_bell >= kLastDoorbell ? kFirstDoorbell : s.last_bell + 1;
            if (!s.bells[s.last_bell].eventfd) {
                id = s.last_bell;
                break;
            }
        }
        if (id == 0) {
            return -ENOSPC;
        }
        // Nothing that was meant for the last waiter with this id may reach the new one: the peer drops its
        // cached eventfd when the generation changes. Ready bits left over would only cause a look in vain;
        // clear them all the same.
        const LinkView own = view(side_index);
        own.header().bell_generation[side_index][id].fetch_add(1, std::memory_order_seq_cst);
        own.header().side[side_index].sleep_mask.fetch_and(~(uint64_t{1} << id), std::memory_order_seq_cst);
        if (own.ready_summary(side_index, id).exchange(0, std::memory_order_seq_cst) != 0) {
            for (unsigned w = 0; w < kReadyWords; ++w) {
                own.ready_word(side_index, id, w).store(0, std::memory_order_relaxed);
            }
        }
    } else if (wanted < kFirstDoorbell || wanted > kLastDoorbell) {
        return -EINVAL;
    } else if (s.bells[wanted].eventfd && s.bells[wanted].eventfd->id != eventfd->id) {
        return -EBUSY;
    }
    SD_ASSERT(id >= kFirstDoorbell && id <= kLastDoorbell);
    s.bells[id].eventfd = std::move(eventfd);
    s.bells[id].owners.insert(owner);
    return static_cast<int>(id);
}

bool Link::take_bell(unsigned side_index, unsigned id, const Client *owner) {
    if (id < kFirstDoorbell || id > kLastDoorbell || side[side_index].bells[id].owners.erase(owner) == 0) {
        return false;
    }
    if (side[side_index].bells[id].owners.empty()) {
        side[side_index].bells[id] = Bell{};
        header(side_index).side[side_index].sleep_mask.fetch_and(~(uint64_t{1} << id), std::memory_order_seq_cst);
        header(side_index).side[side_index].in_kernel.fetch_and(~(uint64_t{1} << id), std::memory_order_seq_cst);
    }
    return true;
}

unsigned Link::take_bells(unsigned side_index, const Client *owner) {
    unsigned taken = 0;
    for (unsigned id = kFirstDoorbell; id <= kLastDoorbell; ++id) {
        taken += take_bell(side_index, id, owner) ? 1 : 0;
    }
    return taken;
}

void Link::note_holder(unsigned side_index, pid_t pid, uint64_t start) {
    if (pid <= 0) {
        return;
    }
    auto &table = header(side_index).holder[side_index];
    LinkHeader::Holder *free = nullptr;
    for (auto &holder : table) {
        const uint32_t there = holder.pid.load(std::memory_order_relaxed);
        if (there == static_cast<uint32_t>(pid)) {
            free = &holder;
            break;
        }
        if (there == 0 && free == nullptr) {
            free = &holder;
        }
    }
    if (free != nullptr) {
        free->start_time = start;
        free->pid.store(static_cast<uint32_t>(pid), std::memory_order_release);
    }
}

void Link::forget_holder(unsigned side_index, pid_t pid, uint64_t start) {
    for (auto &holder : header(side_index).holder[side_index]) {
        if (pid > 0 && holder.pid.load(std::memory_order_relaxed) == static_cast<uint32_t>(pid) &&
            holder.start_time == start) {
            holder.pid.store(0, std::memory_order_relaxed);
        }
    }
}

std::optional<uint32_t> Link::take_joined_slot() {
    // The far side may have let go of a slot and not have said so here: its process never came to it. Its
    // monitor knows, and refuses the others.
    for (const bool trusting : {false, true}) {
        for (unsigned looked = 0; looked < kLinkSlots && (far || !trusting); ++looked) {
            const uint32_t slot = next_joined++ % kLinkSlots;
            const auto is_free = [&](unsigned end) {
                return is_let_go(slot, end) || (trusting && end == far->side);
            };
            if (!joins->test(slot) || (is_free(0) && is_free(1))) {
                begin_slot(slot, ++joined_so_far);
                return slot;
            }
        }
    }
    return std::nullopt;
}

void Link::lose(unsigned side_index) const {
    if (!lost_) {
        lost_ = std::chrono::steady_clock::now();
    }
    mark(side_index, kLinkLost);
}

Link::Carried *Link::carried(uint32_t slot) const {
    const auto it = carried_.find(slot);
    return it == carried_.end() ? nullptr : &it->second;
}

bool Link::arrived(uint32_t slot, unsigned sender, uint32_t cls, uint64_t position, uint64_t base) const {
    if (cls >= kRingClasses || position % 8 != 0 || base % 8 != 0) {
        return false;
    }
    Carried &made = carried_[slot];
    if (!made.known[sender]) {
        made.known[sender] = true;
        made.direction[sender].cls = cls;
        made.direction[sender].position = position;
        made.direction[sender].base = base;
    }
    return true;
}

void Link::has_arrived(uint32_t slot, unsigned sender, const RingPlace &place) const {
    if (Carried *made = carried(slot); made != nullptr && made->known[sender]) {
        made->direction[sender].cls = place.cls;
        made->direction[sender].position = place.position;
        made->direction[sender].base = place.base;
    }
}

bool Link::is_let_go(uint32_t slot, unsigned end) const {
    return (view(end).slot(slot).side[end].control.flags.load(std::memory_order_acquire) &
            (kFlagReleased | kFlagDead)) != 0;
}

void Link::begin_slot(uint32_t slot, uint32_t use) {
    SD_ASSERT(joins && slot < kLinkSlots);
    joins->set(slot);
    carried_.erase(slot);
    if (far) {
        uses_[slot] = use;
    }
    for_each_view([&](LinkView view) {
        // The inline rings only need to begin without a record; what else is left there is never read.
        Slot &s = view.slot(slot);
        memset(static_cast<void *>(&s), 0, offsetof(Slot, ring) + sizeof(uint64_t));
        memset(s.ring[1], 0, sizeof(uint64_t));
        s.identity.arrival = is_remote_ ? use : 0;
    });
}

bool Link::take_slot(uint32_t slot, uint32_t use) {
    if (joins->test(slot) && (!is_let_go(slot, 1 - far->side) || arrival(slot) >= use)) {
        return false;
    }
    begin_slot(slot, use);
    return true;
}

void Link::withdraw_requests() {
    stop_requests(*this); // for other threads of the client: after this they see that, or we see theirs
    if (listener == nullptr || requests_end) {
        return;
    }
    const uint32_t end = end_of_requests();
    requests_end = end;
    listener->segment().link[place].syn_end.store(end + 1, std::memory_order_release);
}

/// Behind the last request in the queue.
uint32_t Link::end_of_requests() const {
    uint32_t end = listener->segment().link[place].syn_head.load(std::memory_order_acquire);
    for (unsigned i = 0; i < kSynEntries && view(1).syn(end).load(std::memory_order_acquire) != 0; ++i) {
        ++end;
    }
    return end - (end == UINT32_MAX); // what says that there is no end
}

bool Link::had_no_request() {
    const uint32_t end = end_of_requests();
    return std::exchange(former_end_, end) == end;
}

// A client makes its request, then looks at the flag; here the flag is set, then requests are looked for. So
// either we count its request, or it sees the flag and asks.
void Link::pause_requests() {
    mark(1, kLinkPaused);
    std::atomic_thread_fence(std::memory_order_seq_cst);
    paused_ = true;
    listener->segment().link[place].syn_end.store(end_of_requests() + 1, std::memory_order_release);
}

// The flag goes last: a client that finds it gone wakes acceptors that see the queue without an end.
void Link::resume_requests() {
    paused_ = false;
    if (listener != nullptr && !requests_end) {
        listener->segment().link[place].syn_end.store(0, std::memory_order_release);
    }
    for_each_view(
        [](LinkView v) { v.header().side[1].flags.fetch_and(~kLinkPaused, std::memory_order_seq_cst); });
}

bool Link::has_pending_syn() const {
    if (requests_end && listener != nullptr &&
        static_cast<int32_t>(listener->segment().link[place].syn_head.load(std::memory_order_acquire) -
                             *requests_end) >= 0) {
        return false;
    }
    bool found = false;
    for_each_touched_slot(*this, [&](unsigned i) {
        found = found || view(1).slot(i).identity.state.load(std::memory_order_acquire) ==
                             static_cast<uint32_t>(SlotState::syn);
    });
    return found;
}

bool Link::had_no_holder(unsigned side_index) const {
    const auto &table = header(side_index).holder[side_index];
    return std::all_of(std::begin(table), std::end(table),
                       [](const auto &holder) { return holder.pid.load(std::memory_order_acquire) == 0; });
}

std::optional<std::pair<SlotAddress, uint32_t>> Link::first_request() const {
    const uint32_t named = view(1).syn(0).load(std::memory_order_acquire); // its own words: 1 + slot
    if (named == 0 || named > kLinkSlots) {
        return std::nullopt;
    }
    SlotAddress server; // a private copy
    memcpy(&server, &view(1).slot(named - 1).identity.server, sizeof server);
    return std::pair{server, 0u};
}

void mark_and_ring(const Link &link, unsigned slot_index, unsigned side, uint32_t flags) {
    const unsigned peer = 1 - side;
    if (flags != 0) {
        auto &own = link.view(side).slot(slot_index).side[side].control;
        own.flags.fetch_or(flags, std::memory_order_seq_cst); // A
    }
    if (link.is_fake()) { // for the dead
        carry(link, slot_index, side);
    } else if (Link::Carried *carried = link.carried(slot_index);
               !link.far && carried != nullptr && carried->known[side]) {
        fake::carry_slot(memory_of(link), slot_index, side, carried->direction[side]);
    } else if (link.is_remote() && flags != 0) {
        // What it had sent and not posted lies in its memory. The other side ends the queue pair, and asks.
        if ((flags & kFlagDead) != 0 && (flags & kFlagReleased) == 0) {
            link.lose(side);
        }
        link.view(peer).slot(slot_index).side[side].control.flags.fetch_or(flags, std::memory_order_seq_cst);
    }
    std::atomic_thread_fence(std::memory_order_seq_cst);
    auto &control = link.view(peer).slot(slot_index).side[peer].control;
    uint64_t armed = (control.rx_arm.exchange(0, std::memory_order_seq_cst) | // C
                      control.tx_arm.exchange(0, std::memory_order_seq_cst)) &
                     kUsableDoorbells;
    // The dead may have taken the arms, and not have got to ring.
    for (unsigned id = kFirstDoorbell; (flags & kFlagDead) != 0 && id <= kLastDoorbell; ++id) {
        armed |= uint64_t{link.side[peer].bells[id].eventfd != nullptr} << id;
    }
    const unsigned word = slot_index / 64;
    for (uint64_t ids = armed; ids != 0; ids &= ids - 1) {
        const auto id = static_cast<unsigned>(std::countr_zero(ids));
        link.view(peer).ready_word(peer, id, word).fetch_or(uint64_t{1} << slot_index % 64, std::memory_order_seq_cst);
        link.view(peer).ready_summary(peer, id).fetch_or(uint64_t{1} << word, std::memory_order_seq_cst);
    }
    ring_sleepers(link, peer, armed); // D
}

void carry_late(const Link &link) {
    if (!link.is_fake()) {
        return;
    }
    for (unsigned side = 0; side < 2; ++side) {
        for (unsigned w = kReadyWords; w-- > 0;) { // not in the order in which they changed
            for (uint64_t slots = memory_of(link).state().behind[side][w].exchange(0, std::memory_order_seq_cst);
                 slots != 0; slots &= slots - 1) {
                mark_and_ring(link, w * 64 + static_cast<unsigned>(std::countr_zero(slots)), side, 0);
            }
        }
    }
}

void break_locks(const Link &link, pid_t dead) {
    if (!link.is_fake()) {
        return;
    }
    for (auto &slot : memory_of(link).state().direction) {
        for (FakeDirection &direction : slot) {
            auto there = static_cast<uint32_t>(dead);
            direction.lock.compare_exchange_strong(there, 0, std::memory_order_acq_rel);
        }
    }
}

void show_everybody(const Link &link, unsigned slot_index) {
    for (unsigned side = 0; side < 2; ++side) {
        for (unsigned id = kFirstDoorbell; id <= kLastDoorbell; ++id) {
            if (link.side[side].bells[id].eventfd) {
                link.view(side)
                    .ready_word(side, id, slot_index / 64)
                    .fetch_or(uint64_t{1} << slot_index % 64, std::memory_order_seq_cst);
                link.view(side).ready_summary(side, id).fetch_or(uint64_t{1} << slot_index / 64,
                                                                 std::memory_order_seq_cst);
            }
        }
    }
}

void ring_everybody(const Link &link) {
    for (unsigned side = 0; side < 2; ++side) {
        ring_sleepers(link, side, kUsableDoorbells);
    }
}

void wake_everybody(const Link &link) {
    for_each_touched_slot(link, [&](unsigned slot) { show_everybody(link, slot); });
    ring_everybody(link);
}

void ring_acceptors(const Link &link) {
    std::atomic_thread_fence(std::memory_order_seq_cst);
    ring_sleepers(link, 1,
                  link.header(1).side[1].syn_arm.exchange(0, std::memory_order_seq_cst) & kUsableDoorbells);
}

void stop_requests(const Link &link) {
    link.mark(1, kLinkListenerClosed);
    std::atomic_thread_fence(std::memory_order_seq_cst);
}

void close_to_requests(const Link &link) {
    stop_requests(link);
    for_each_touched_slot(link, [&](unsigned i) {
        auto expected = static_cast<uint32_t>(SlotState::syn);
        if (link.view(1).slot(i).identity.state.compare_exchange_strong(
                expected, static_cast<uint32_t>(SlotState::refused), std::memory_order_seq_cst)) {
            mark_and_ring(link, i, 1, kFlagReset | kFlagClosed | kFlagDead);
        }
    });
}

std::set<uint32_t> left_behind(const Link &link, unsigned side, const std::bitset<kLinkSlots> &held,
                               std::optional<uint32_t> syn_head) {
    std::set<uint32_t> result;
    std::bitset<kLinkSlots> queued;
    for (uint32_t i = 0; syn_head && i < kSynEntries; ++i) {
        const uint32_t entry = link.view(1).syn(*syn_head + i).load(std::memory_order_acquire);
        if (entry == 0 || entry > kLinkSlots) {
            break;
        }
        queued.set(entry - 1);
    }
    for_each_touched_slot(link, [&](unsigned i) {
        const uint32_t state = link.view(1).slot(i).identity.state.load(std::memory_order_acquire);
        const uint32_t flags = link.view(side).slot(i).side[side].control.flags.load(std::memory_order_acquire);
        if ((flags & (kFlagReleased | kFlagDead)) != 0) {
            return;
        }
        const bool pending = state == static_cast<uint32_t>(SlotState::syn);
        const bool accepted = state == static_cast<uint32_t>(SlotState::accepted);
        const bool lost =
            pending && side == 1 ? syn_head && !queued.test(i) : (pending || accepted) && !held.test(i);
        if (lost) {
            result.insert(i);
        }
    });
    return result;
}

unsigned slots_in_use(const Link &link) {
    unsigned result = 0;
    for_each_touched_slot(link, [&](unsigned i) {
        const auto let_go = [&](unsigned side) {
            return (link.view(side).slot(i).side[side].control.flags.load(std::memory_order_relaxed) &
                    (kFlagReleased | kFlagDead)) != 0;
        };
        const uint32_t state = link.view(1).slot(i).identity.state.load(std::memory_order_relaxed);
        result += state != static_cast<uint32_t>(SlotState::free) && !(let_go(0) && let_go(1)) ? 1 : 0;
    });
    return result;
}

void bury(const Link &link, unsigned side, uint32_t slot) {
    auto pending = static_cast<uint32_t>(SlotState::syn);
    if (side == 1 && link.view(1).slot(slot).identity.state.compare_exchange_strong(
                         pending, static_cast<uint32_t>(SlotState::refused), std::memory_order_seq_cst)) {
        // An acceptor may have moved the head without clearing the entry
        for (uint32_t i = 0; i < kSynEntries; ++i) {
            uint32_t entry = slot + 1;
            link.view(1).syn(i).compare_exchange_strong(entry, 0, std::memory_order_seq_cst);
        }
        mark_and_ring(link, slot, 1, kFlagReset | kFlagClosed | kFlagDead);
    } else {
        mark_and_ring(link, slot, side, kFlagDead | kFlagClosed);
    }
}

void mark_all(const Link &link, unsigned side) {
    for_each_touched_slot(link, [&](unsigned i) {
        const uint32_t state = link.view(1).slot(i).identity.state.load(std::memory_order_acquire);
        const bool used = state == static_cast<uint32_t>(SlotState::accepted) ||
                          (side == 0 && state == static_cast<uint32_t>(SlotState::syn));
        if (used && (link.view(side).slot(i).side[side].control.flags.load(std::memory_order_acquire) &
                     kFlagReleased) == 0) {
            mark_and_ring(link, i, side, kFlagDead | kFlagClosed);
        }
    });
}

} // namespace sd::monitor
