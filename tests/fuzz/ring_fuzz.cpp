// A connection of which the peer has written everything that it can: ring, credit, what is held back, the
// table of pieces. Whoever receives or sends there stays within the link, and ends.
#include "libsd/queue/cork.hpp"
#include "libsd/queue/small_record.hpp"
#include "libsd/transport/slots.hpp"
#include "tests/fuzz/input.hpp"

#include <cstdlib>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>
#include <vector>

using namespace sd;

namespace {

LinkMap &own_link() {
    static LinkMap *link = [] {
        const int memfd = memfd_create("link", MFD_CLOEXEC | MFD_ALLOW_SEALING);
        LinkHeader h{};
        h.magic = kLinkMagic;
        h.version = kLayoutVersion;
        h.slots = kLinkSlots;
        h.link_id = 1;
        h.side[1].arena_open = kArenaBytes;
        long error = 0;
        if (memfd < 0 || ftruncate(memfd, static_cast<off_t>(kLinkBytes)) != 0 ||
            pwrite(memfd, &h, sizeof h, 0) != sizeof h ||
            fcntl(memfd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
            abort();
        }
        return map_link(memfd, 1, 0, 0, LinkPeer::own, &error);
    }();
    if (link == nullptr) {
        abort();
    }
    return *link;
}

constexpr uint32_t kSlot = 7;

/// What a receiver does, in an order that the input chooses.
void receive(sdfuzz::Input &in, Slot &slot, const ring::Place &place) {
    RxState s{};
    std::atomic<uint64_t> consumed{0};
    char to[600];
    for (int i = 0; i < 64 && !in.empty(); ++i) {
        if (place.settle(s.cls) < 0) {
            return;
        }
        const uint64_t before = s.head;
        switch (in.below(6)) {
        case 0:
            (void)ring::take_small(s, place, to, 1 + in.below(255) * 2);
            break;
        case 1: {
            ring::Record record{};
            const int r = ring::next_record(s, place, consumed, &record);
            if (r == 1) {
                const long got = ring::take(s, place, record, to, 1 + in.below(255));
                if (got < 0 || got > 255) {
                    abort();
                }
            } else if (r == ring::kHandleNext) {
                (void)ring::handle_at(s, place);
                (void)ring::skip(s, record, 1 + in.below(255) * 255);
            } else if (r == ring::kUrgentNext) {
                ring::skip_urgent(s);
            } else if (r < 0) {
                return; // the connection ends
            }
            break;
        }
        case 2:
            (void)ring::available(s, place, 1 + in.below(255));
            break;
        case 3:
            ring::uncork_late(s, place, slot.side[1].control.back, slot.side[0].credit);
            break;
        case 4:
            if (in.rarely(2)) { // killed in a change of ring, before or after the new one began
                s.changing = static_cast<uint16_t>(in.below(kRingClasses + 2));
                s.base = in.below(2) != 0 ? s.head + 8 : s.base;
            }
            ring::recover_rx(s, consumed);
            break;
        default:
            (void)ring::peek_header(s, place);
        }
        if (s.head < before || s.cls >= kRingClasses) {
            abort();
        }
    }
}

/// What a sender does, whose peer says what it likes about how far it got.
void send(sdfuzz::Input &in, Slot &slot, const ring::Place &place) {
    TxState s{};
    const std::vector<char> from(600, 'x');
    auto &receiver = slot.side[1].credit;
    auto &consumed = receiver.consumed;
    auto &back = slot.side[0].control.back;
    for (int i = 0; i < 64 && !in.empty(); ++i) {
        if (place.settle(s.cls) < 0) {
            return;
        }
        const uint32_t n = 1 + in.below(255) * 2;
        switch (in.below(8)) {
        case 6:
            if (ring::room(s) >= ring::kHandleFootprint) {
                ring::put_handle(s, place, {in.take<uint64_t>(), in.take<uint64_t>()}, n);
            }
            break;
        case 0:
            (void)ring::put_small(s, place, from.data(), n);
            break;
        case 1:
            if (ring::room(s) >= 8 + ring::pad8(n)) {
                (void)ring::put(s, place, from.data(), n);
            }
            break;
        case 2:
            consumed = in.below(2) != 0 ? in.take<uint64_t>() : s.tail;
            (void)ring::refresh_credit(s, consumed);
            break;
        case 3: {
            const unsigned cls = in.below(kRingClasses);
            if (cls > s.cls && ring::may_grow(s) && provide_ring(own_link(), kSlot, cls)) {
                (void)ring::change_class(s, place, cls);
            }
            break;
        }
        case 4:
            if (!ring::is_corked(back, receiver) && ring::room(s) >= 8 + ring::pad8(n) &&
                ring::copy_in(s, place, from.data(), n) == 0) {
                ring::cork(s, place, back, receiver, n, 1, 0);
            }
            break;
        case 5:
            (void)ring::uncork(s, place, back, receiver);
            break;
        default:
            if (in.rarely(2)) {
                s.changing = static_cast<uint16_t>(1 + in.below(kRingClasses + 1));
                s.base = in.below(2) != 0 ? s.tail + 8 : s.base;
            } else if (in.rarely(2)) { // the header stands there, and was not counted
                ring::word_at(place, s.cls, (s.tail - s.base) & (kRingSize[s.cls] - 1)) =
                    ring::make_header(static_cast<ring::RecordKind>(1 + in.below(6)), in.below(64), s.tail);
            }
            ring::recover_tx(s, place, back);
        }
        if (ring::room(s) > kRingSize[s.cls] || s.cls >= kRingClasses) {
            abort();
        }
    }
}

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    sdfuzz::Input in(data, size);
    LinkMap &l = own_link();
    Slot &slot = l.view.slot(kSlot);
    const unsigned sender = in.below(2);
    l.view.header().side[0].arena_used = in.below(2) != 0 ? in.take<uint32_t>() : 0;
    for (unsigned side = 0; side < 2; ++side) {
        for (unsigned cls = 1; cls < kRingClasses; ++cls) {
            // Either what an honest side would have written, or anything.
            const uint32_t honest = 1 + kRingSize[cls] / kPieceUnit;
            l.view.piece(kSlot, side, cls) = in.below(4) != 0 ? honest : in.take<uint32_t>();
        }
    }
    for (auto &side : slot.side) {
        side.control.back.header = 0;
        side.control.back.where = in.take<uint64_t>();
        side.credit.consumed = 0;
        side.credit.shown = in.below(2) != 0 ? in.take<uint64_t>() : 0;
    }
    slot.side[sender].control.back.header = in.below(2) != 0 ? in.take<uint64_t>() : 0;
    // Records with sound headers, so that more than the first one is looked at; the input spoils what it
    // likes.
    std::memset(slot.ring[sender], 0, kInlineRing);
    uint64_t at = 0;
    const unsigned records = in.below(8);
    for (unsigned i = 0; i < records && at + 40 < kInlineRing; ++i) {
        constexpr ring::RecordKind kKinds[] = {ring::RecordKind::data, ring::RecordKind::change,
                                               ring::RecordKind::urgent, ring::RecordKind::handle};
        const ring::RecordKind kind = kKinds[in.below(4)];
        const uint32_t n = kind == ring::RecordKind::data     ? 1 + in.below(32)
                           : kind == ring::RecordKind::handle ? 1 + in.below(255) * 255
                                                              : in.below(kRingClasses);
        ring::word(slot.ring[sender], at) = ring::make_header(kind, n, at);
        at += 8 + (kind == ring::RecordKind::change   ? 0
                   : kind == ring::RecordKind::handle ? sizeof(ring::HandleRecord)
                                                      : ring::pad8(n));
    }
    const unsigned spoilt = in.below(64);
    in.fill(slot.ring[sender] + in.below(255) * 2, spoilt < 2 ? 0 : spoilt - 2);
    const ring::Place place{slot.ring[sender]};
    if (sender == 0) {
        send(in, slot, place);
    } else {
        receive(in, slot, place);
    }
    return 0;
}
