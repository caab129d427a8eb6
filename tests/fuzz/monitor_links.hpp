// Links of which each side has a memory of its own, for reap_fuzz: over the transport for tests, over RDMA
// between two processes of one host, and one whose other side is on another host. What a process writes into
// its memory is anything; what is the monitor's own, and what a far monitor says, is what the inputs make it.
#pragma once
#include "libsd/layout/record.hpp"
#include "libsd/transport/fake_copier.hpp"
#include "monitor/peers/far_records.hpp"
#include "monitor/records/link.hpp"
#include "tests/fuzz/input.hpp"
#include "tests/fuzz/memory.hpp"

namespace sdfuzz {

using namespace sd;
using namespace sd::monitor;

enum class LinkKind { shared, joined, fake, remote, far_client, far_server };
constexpr unsigned kOtherKinds = 5;

/// Numbered 1, as the one that two processes share.
inline std::unique_ptr<Link> make_link(LinkKind kind) {
    std::unique_ptr<Link> link;
    switch (kind) {
    case LinkKind::shared:
        return Link::create(1, 3, 40000);
    case LinkKind::fake:
        return Link::create(1, 3, 40000, {.used = true, .late = 500, .cuts = 1000});
    case LinkKind::far_client:
    case LinkKind::far_server:
        return Link::create_far(
            1, {.host = nullptr, .side = kind == LinkKind::far_server ? 1U : 0U, .process = 5, .number = 6});
    default:
        link = Link::create(1, 0, 0, {}, kind == LinkKind::remote);
        link->joins.emplace();
        return link;
    }
}

/// Records in a row, as an honest sender has them or not, and perhaps one that is held back. `has_larger`:
/// the monitor has mapped the larger rings, too.
inline void put_records(Input &in, LinkView v, bool has_larger, uint32_t slot, unsigned sender, uint64_t at) {
    using sd::ring::RecordKind;
    constexpr RecordKind kKinds[] = {RecordKind::data, RecordKind::data, RecordKind::change, RecordKind::urgent};
    const unsigned cls = in.below(4) != 0 || !has_larger ? 0 : 1;
    uint8_t *const bytes = fake::ring_in(v, slot, sender, cls);
    for (unsigned n = 1 + in.below(6); n > 0 && bytes != nullptr; --n) {
        const RecordKind kind = kKinds[in.below(4)];
        const bool changes = kind == RecordKind::change;
        const uint32_t length = changes ? in.below(kRingClasses + 1) : in.below(255);
        const uint64_t header = sd::ring::make_header(kind, length, at);
        if (in.rarely(8)) {
            v.slot(slot).side[sender].control.back.header = header;
            return;
        }
        ring::word(bytes, at & (kRingSize[cls] - 1)) = header;
        at += 8 + (changes ? 0 : sd::ring::pad8(length));
    }
}

/// Any word of a slot, in the memory of one side.
inline void scribble_memory(Input &in, const Link &link) {
    const LinkView v = link.view(in.below(2));
    const uint32_t slot = in.below(8), sender = in.below(2);
    const unsigned what = in.below(8);
    const uint64_t value = in.below(2) != 0 ? in.take<uint8_t>() : in.take<uint64_t>();
    switch (what) {
    case 0:
        v.piece(slot, sender, 1 + in.below(kRingClasses - 1)) = static_cast<uint32_t>(value);
        break;
    case 1: {
        auto *words = reinterpret_cast<std::atomic<uint64_t> *>(&v.slot(slot).side[sender]);
        words[in.below(sizeof(SlotSide) / 8)] = value;
        break;
    }
    case 2: {
        auto *words = reinterpret_cast<std::atomic<uint64_t> *>(v.slot(slot).ring[sender]);
        words[in.below(kInlineRing / 8)] = value;
        break;
    }
    case 3: // as the sender of a connection between hosts has it
        v.slot(slot).identity.state = in.below(4);
        v.slot(slot).identity.arrival = value;
        break;
    case 4:
        v.header().side[in.below(2)].flags = static_cast<uint32_t>(value);
        break;
    default:
        put_records(in, v, link.is_fake() || link.is_remote(), slot, sender, (value & 63) * 8);
    }
}

/// What one end's process tells of the other's records, or a far monitor sends of them.
inline RingPlace any_place(Input &in) {
    const uint32_t cls = in.below(4) != 0 ? in.below(2) : in.below(8);
    const uint64_t position = in.below(8) != 0 ? in.below(64) * 8U : in.take<uint64_t>();
    return {cls, position, in.below(4) != 0 ? 0 : in.take<uint64_t>()};
}

/// Reads a direction out of a process's memory, and writes it, or what a liar makes of it, into another's.
inline void carry_between_hosts(Input &in, const Link &link) {
    const uint32_t slot = in.below(8);
    const unsigned side = in.below(2);
    RingPlace from = any_place(in);
    from.position &= ~uint64_t{7};
    from.base &= ~uint64_t{7};
    RecordsRead read = read_records(link.view(side), slot, side, from, in.take<uint16_t>());
    if (in.rarely(4)) {
        in.fill(read.bytes.data(), std::min<size_t>(read.bytes.size(), 64));
    }
    RingPlace to = in.below(2) != 0 ? from : any_place(in);
    to.cls = std::min(to.cls, kRingClasses - 1); // the monitor has looked at it: Link::arrived
    to.position &= ~uint64_t{7};
    to.base &= ~uint64_t{7};
    between_hosts::Words words = read_words(link.view(side), slot, side);
    if (in.rarely(4)) {
        in.fill(&words.piece, sizeof words.piece);
        words.flags = in.take<uint16_t>();
    }
    const LinkView target = link.view(1 - side);
    put_first_words(target, slot, side, words);
    RecordsWriter writer(slot, side, to);
    bool is_taken = true;
    for (std::string_view left = read.bytes; is_taken && !left.empty();) {
        const size_t n = std::min<size_t>(left.size(), (1 + in.below(12)) * 8U);
        is_taken = writer.add(target, left.substr(0, n));
        left.remove_prefix(n);
    }
    if (is_taken && !writer.is_inside()) {
        link.has_arrived(slot, side, writer.place());
    }
    put_last_words(target, slot, side, words);
}

/// What the monitor does with a link for which it, or the monitor of another host, gives out the slots.
inline void join(Input &in, Link &link) {
    if (!link.joins) {
        return;
    }
    switch (in.below(4)) {
    case 0:
        if (const auto slot = link.take_joined_slot()) {
            must(*slot < kLinkSlots && link.joins->test(*slot));
        }
        break;
    case 1: {
        const uint32_t slot = in.below(8), use = in.below(8);
        if (link.far && link.take_slot(slot, use)) {
            must(link.use(slot) == use);
        }
        break;
    }
    case 2: // all but some are in use
        link.joins->set();
        for (unsigned n = in.below(4); n > 0; --n) {
            link.joins->reset(in.below(8));
        }
        break;
    default:
        link.for_each_open(in.below(2),
                           [&](uint32_t slot) { must(slot < kLinkSlots && link.joins->test(slot)); });
    }
}

/// The queue pair of the link ends, and what is in its rings goes on by the monitor; or a process of the
/// transport for tests has died.
inline void lose_or_carry(Input &in, Link &link) {
    const uint32_t slot = in.below(8);
    const unsigned side = in.below(2);
    switch (in.below(8)) {
    case 0:
        if (link.is_remote()) {
            link.lose(side);
        }
        break;
    case 1:
    case 2:
    case 3: {
        const RingPlace place = any_place(in);
        if (link.is_remote() && link.arrived(slot, side, place.cls, place.position, place.base)) {
            must(link.carried(slot)->known[side]);
            mark_and_ring(link, slot, side, 0);
            mark_and_ring(link, slot, 1 - side, 0);
        }
        break;
    }
    case 4:
        if (link.is_remote()) {
            carry_between_hosts(in, link);
        }
        break;
    case 5:
        if (link.is_fake()) {
            fake::Memory{link.view(0).base}.state().behind[side][in.below(2)] = in.take<uint64_t>() & 255;
        }
        carry_late(link);
        break;
    case 6:
        if (link.is_fake()) { // by a process that died with it
            fake::Memory{link.view(0).base}.state().direction[slot][side].lock = 77;
        }
        break_locks(link, 77);
        break;
    default:
        mark_and_ring(link, slot, side, in.take<uint16_t>());
    }
}

} // namespace sdfuzz
