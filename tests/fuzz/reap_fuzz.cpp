// A family segment and a link in which everything may be a lie, and the monitor, who counts, shows, and ends
// what a dead process held. The input's last byte may choose a link of another kind (monitor_links.hpp).
#include "monitor/records/client.hpp"
#include "tests/fuzz/monitor_links.hpp"

#include <sys/eventfd.h>

using namespace sd;
using namespace sd::monitor;

namespace {

constexpr unsigned kUsed[] = {1, 2, 63, 64, 65, 5000, kOfds - 1}; ///< Ofds that inputs write
constexpr unsigned kMany = sizeof kUsed / sizeof kUsed[0];

struct World {
    int segment_fd = sdfuzz::segment_memory();
    std::shared_ptr<Segment> segment = Segment::open(UniqueFd(sdfuzz::copy_of(segment_fd)));
    std::unique_ptr<Link> usual = sdfuzz::make_link(sdfuzz::LinkKind::shared), other;
    Link *link = usual.get();
    Listener listener{3, ListenProof{}, nullptr};
    std::shared_ptr<BellFd> bell = std::make_shared<BellFd>();
    std::array<Client, 4> clients; ///< that of each ProcRecord
    World() {
        sdfuzz::must(segment != nullptr);
        bell->id = 1;
        bell->fd.reset(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
        give_bells();
    }
    /// The link of this input: of the usual kind there is one for all.
    void choose(sdfuzz::LinkKind kind) {
        if (kind != sdfuzz::LinkKind::shared) {
            other = sdfuzz::make_link(kind);
            link = other.get();
            give_bells();
        }
    }
    void end_other() {
        link = usual.get();
        other.reset();
    }
    const Link *find(uint64_t id, unsigned side) const {
        sdfuzz::must(side < 2);
        return id == 1 ? link : nullptr;
    }
    Segment::Member member(unsigned proc) const { return {&clients[proc], proc}; }
    /// All but those that there were at first.
    void take_bells() const {
        for (const unsigned side : {0u, 1u}) {
            for (const Client &client : clients) {
                link->take_bells(side, &client);
            }
            link->take_bells(side, nullptr);
            link->side[side].last_bell = kLastDoorbell;
        }
        give_bells();
    }

  private:
    void give_bells() const {
        for (const unsigned side : {0u, 1u}) {
            sdfuzz::must(link->give_bell(side, 5, bell, nullptr) == 5);
        }
    }
};

unsigned any(sdfuzz::Input &in) { return kUsed[in.below(kMany)]; }

void scribble_ofd(sdfuzz::Input &in, const SegmentView &v) {
    Ofd &o = v.ofd(any(in));
    o.state = in.below(8) != 0 ? in.below(3) : in.take<uint32_t>();
    o.link_id = in.below(8) != 0 ? 1 : in.take<uint64_t>();
    o.slot = in.below(4) != 0   ? in.below(8)
             : in.below(2) != 0 ? kLinkSlots - in.below(3)
                                : in.take<uint32_t>();
    o.side = static_cast<uint8_t>(in.below(8) != 0 ? in.below(2) : in.take<uint8_t>());
    o.opt.linger_on = static_cast<int>(in.below(2));
    o.tx.s.bytes = in.take<uint8_t>();
}

void scribble_link(sdfuzz::Input &in, const Link &link) {
    const LinkView &v = link.view(0);
    const uint32_t slot = in.below(8);
    switch (in.below(6)) {
    case 0:
        v.slot(slot).identity.state = in.below(8) != 0 ? in.below(4) : in.take<uint32_t>();
        break;
    case 1:
        v.slot(slot).side[in.below(2)].control.flags = in.take<uint8_t>();
        break;
    case 2:
        v.slot(slot).side[in.below(2)].control.rx_arm = in.take<uint64_t>();
        break;
    case 3:
        v.header().side[in.below(2)].sleep_mask = in.take<uint64_t>();
        break;
    case 4:
        v.syn(in.below(16)) = in.below(8) != 0 ? 1 + in.below(10) : in.take<uint32_t>();
        break;
    default:
        v.header().side[1].syn_arm = in.take<uint64_t>();
    }
}

void scribble(sdfuzz::Input &in, World &w) {
    const SegmentView &v = w.segment->view();
    switch (in.below(8)) {
    case 0:
    case 1:
        scribble_ofd(in, v);
        break;
    case 2:
    case 3: {
        const unsigned i = any(in);
        v.proc(in.below(4)).held[i / 64].fetch_or(uint64_t{1} << i % 64);
        break;
    }
    case 4: {
        ProcRecord &r = v.proc(in.below(4));
        r.state = in.below(4);
        r.pid = in.below(2) != 0 ? in.below(8) : in.take<uint32_t>();
        break;
    }
    case 5:
        v.thread(in.below(4)).state = in.below(8);
        break;
    case 6: {
        FallbackRecord &r = v.header().stats.recent[in.below(kFallbackRing)];
        r.sequence = in.take<uint32_t>();
        r.cause = in.take<uint16_t>();
        v.header().stats.fallbacks[in.below(kMaxCauses)] = in.take<uint64_t>();
        break;
    }
    default:
        if (w.other != nullptr && in.below(4) != 0) {
            sdfuzz::scribble_memory(in, *w.link);
        } else {
            scribble_link(in, *w.link);
        }
    }
}

void end(sdfuzz::Input &in, World &w, Segment::Reaping at) {
    const unsigned at_a_time = 1 + in.below(64);
    const auto find = [&w](uint64_t id, unsigned side) { return w.find(id, side); };
    unsigned pieces = 0;
    while (!w.segment->advance(at, find, at_a_time)) {
        sdfuzz::must(++pieces < 4 * kOfds);
        if (in.below(4) == 0) {
            scribble(in, w);
        }
    }
}

/// Of the first byte of an operation: from here on it is about the link, its bells and its slots.
constexpr uint8_t kOfLinks = 224;

void operate_link(sdfuzz::Input &in, World &w, unsigned what) {
    Link &link = *w.link;
    const unsigned side = in.below(2), id = in.below(4) != 0 ? in.below(8) : in.take<uint8_t>();
    const Client *owner = in.below(2) != 0 ? &w.clients[in.below(4)] : nullptr;
    switch (what % 16) {
    case 0:
    case 1:
        if (const int given = link.give_bell(side, id, w.bell, owner); given > 0) {
            sdfuzz::must(given <= static_cast<int>(kLastDoorbell));
        }
        break;
    case 2:
        (void)link.take_bell(side, id, owner);
        break;
    case 3:
        sdfuzz::must(link.take_bells(side, owner) < kDoorbells);
        break;
    case 4:
        if (link.listener != nullptr) {
            link.pause_requests();
        }
        break;
    case 5:
        link.resume_requests();
        break;
    case 6:
        if (link.listener != nullptr) {
            (void)link.had_no_request();
        }
        break;
    case 7:
        show_everybody(link, in.below(8));
        break;
    case 8:
    case 9:
        sdfuzz::join(in, link);
        break;
    default:
        sdfuzz::lose_or_carry(in, link);
    }
}

void operate(sdfuzz::Input &in, World &w) {
    Segment &s = *w.segment;
    const auto find = [&w](uint64_t id, unsigned side) { return w.find(id, side); };
    const uint8_t what = in.take<uint8_t>();
    if (what >= kOfLinks) {
        operate_link(in, w, what - kOfLinks);
        return;
    }
    switch (what % 16) {
    case 0:
        end(in, w, s.reap(w.member(in.below(4))));
        break;
    case 1: {
        std::vector<uint64_t> kept(in.below(2) != 0 ? kOfds / 64 : in.below(4));
        for (unsigned n = in.below(4); n > 0; --n) {
            if (const unsigned i = any(in); i / 64 < kept.size()) {
                kept[i / 64] |= uint64_t{1} << i % 64;
            }
        }
        end(in, w, s.retain(w.member(in.below(4)), kept));
        break;
    }
    case 2: {
        const unsigned ofd = any(in);
        s.view().proc(kParcelProc).held[ofd / 64].fetch_or(uint64_t{1} << ofd % 64);
        s.parcels.erase(ofd); // as the monitor does, with the last one of it
        s.release_parcel(ofd, find);
        break;
    }
    case 3:
        for (const Segment::OpenOfd &o : s.open_ofds()) {
            sdfuzz::must(!o.holders.empty());
        }
        (void)s.held_by_members([&](const Client &c) { return &c != w.clients.data(); });
        (void)s.holders(any(in), [&](const Client &c) { return &c != w.clients.data(); });
        break;
    case 4: {
        std::bitset<kLinkSlots> held;
        for (const Segment::HeldEnd &e : s.held_ends()) {
            if (e.slot < kLinkSlots) {
                held.set(e.slot);
            }
        }
        const auto head = in.below(2) != 0 ? std::optional<uint32_t>(in.below(16)) : std::nullopt;
        for (const unsigned side : {0u, 1u}) {
            for (const uint32_t slot : left_behind(*w.link, side, held, head)) {
                bury(*w.link, side, slot);
            }
        }
        break;
    }
    case 5:
        for (const auto &[record, pid] : s.strangers()) {
            sdfuzz::must(record < kSegProcs && pid > 0);
        }
        break;
    case 6:
        sdfuzz::must(s.claim_record() <= kSegProcs);
        break;
    case 7:
        (void)s.census();
        (void)s.counters();
        (void)s.recent_fallbacks();
        break;
    case 8:
        (void)slots_in_use(*w.link);
        (void)w.link->has_pending_syn();
        break;
    case 9:
        mark_all(*w.link, in.below(2));
        break;
    case 10:
        close_to_requests(*w.link);
        break;
    case 11:
        if (w.link->listener == nullptr) {
            sdfuzz::must(w.listener.add(*w.link, in.below(16)));
            w.link->listener = &w.listener;
        }
        w.link->withdraw_requests();
        break;
    case 12:
        ring_acceptors(*w.link);
        ring_everybody(*w.link);
        break;
    case 13: {
        w.link->note_holder(in.below(2), 100 + static_cast<pid_t>(in.below(4)), in.below(4));
        w.link->forget_holder(in.below(2), 100 + static_cast<pid_t>(in.below(4)), in.below(4));
        break;
    }
    case 14:
        if (in.below(2) != 0) {
            s.parcels[any(in)] = 1;
        } else {
            s.parcels.clear();
        }
        break;
    default:
        if (s.members.size() < 3) {
            s.members.push_back(w.member(in.below(4)));
        } else {
            s.members.clear();
        }
    }
}

/// Memory that somebody brings, which is a segment or a link, or is not.
void bring(sdfuzz::Input &in) {
    const bool is_link = in.below(2) != 0;
    const UniqueFd fd(memfd_create("brought", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    const size_t bytes = is_link ? kLinkBytes : kSegmentBytes;
    sdfuzz::must(ftruncate(fd.get(), static_cast<off_t>(in.below(8) != 0 ? bytes : in.take<uint16_t>())) == 0);
    LinkHeader l{};
    l.magic = kLinkMagic;
    l.version = kLayoutVersion;
    l.slots = kLinkSlots;
    SegmentHeader s{};
    s.magic = kSegmentMagic;
    s.version = kLayoutVersion;
    std::array<unsigned char, 32> head;
    memcpy(head.data(), is_link ? static_cast<const void *>(&l) : &s, head.size());
    if (in.below(2) != 0) {
        head[in.below(20)] = in.take<uint8_t>();
    }
    (void)pwrite(fd.get(), head.data(), head.size(), 0);
    fcntl(fd.get(), F_ADD_SEALS, in.below(4) != 0 ? F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL : F_SEAL_GROW);
    if (is_link) {
        (void)Link::adopt(UniqueFd(sdfuzz::copy_of(fd.get())), 9);
    } else {
        (void)Segment::open(UniqueFd(sdfuzz::copy_of(fd.get())));
    }
}

} // namespace

/// The last byte of an input from here on chooses the kind of the link.
constexpr uint8_t kOtherLinks = 240;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static World w;
    if (size != 0 && data[size - 1] >= kOtherLinks) {
        --size;
        w.choose(static_cast<sdfuzz::LinkKind>(1 + data[size] % sdfuzz::kOtherKinds));
    }
    sdfuzz::Input in(data, size);
    for (unsigned step = 0; step < 64 && !in.empty(); ++step) {
        if (in.below(64) == 0) {
            bring(in);
        } else if (in.below(3) != 0) {
            scribble(in, w);
        } else {
            operate(in, w);
        }
    }
    // As it was.
    w.segment->members.clear();
    w.segment->parcels.clear();
    if (w.link->listener != nullptr) {
        w.listener.remove(*w.link);
        w.link->listener = nullptr;
        w.link->requests_end.reset();
        w.link->resume_requests();
    }
    w.end_other();
    w.take_bells();
    sdfuzz::wipe(w.segment_fd, 4096, kSegmentBytes);
    SegmentHeader &h = w.segment->view().header();
    memset(static_cast<void *>(&h.ofd_high), 0, sizeof h - offsetof(SegmentHeader, ofd_high));
    for (uint32_t i = 0; i < 8; ++i) {
        memset(static_cast<void *>(&w.link->view(0).slot(i)), 0, sizeof(Slot));
        memset(static_cast<void *>(&w.link->view(0).slot(kLinkSlots - 1 - i)), 0, sizeof(Slot));
    }
    for (uint32_t i = 0; i < 32; ++i) {
        w.link->view(0).syn(i) = 0;
    }
    memset(static_cast<void *>(w.link->header(0).side), 0, sizeof w.link->header(0).side);
    return 0;
}
