// Messages that a process of another host writes into the mailbox that it was given (libsd/rdma/message.hpp):
// each is taken or ends its queue pair, and a program receives what they have put into its link meanwhile.
#include "libsd/layout/record.hpp"
#include "libsd/rdma/state.hpp"
#include "libsd/transport/arena.hpp"
#include "tests/fuzz/input.hpp"
#include "tests/fuzz/process.hpp"

#include <algorithm>

using namespace sd;

namespace {

constexpr unsigned kMessages = 24;
constexpr uint32_t kMailbox = 32 << 10, kOtherLink = 3;

uint8_t *ring(void *link, uint32_t slot, unsigned sender, unsigned cls) {
    return larger_ring(static_cast<LinkMap *>(link)->view.slot(slot).ring[sender], cls, nullptr);
}
void wake(void *, uint32_t slot, bool, bool) { sdfuzz::must(slot < kLinkSlots); }

/// This process's half of the queue pair, without a device: nothing is sent.
struct Receiver {
    sdfuzz::Process process;
    rdma::Host host;
    rdma::Peer peer;
    rdma::Remote *remote = nullptr;

    Receiver() {
        host.limits = {kMailbox, kMailbox, 8};
        peer.host = &host;
        // Behind the mailbox lies a page that cannot be touched.
        static const sdfuzz::Room room;
        peer.mailbox = static_cast<uint8_t *>(room.last(kMailbox));
        LinkMap &l = *process.link[0];
        const rdma::Plugin *plugin = sd_rdma_plugin(rdma::kPluginVersion);
        sdfuzz::must(plugin != nullptr && plugin->attach(&peer, 0, l.view, 0, {ring, wake}, &l, &remote) == 0);
    }
    /// As it was attached.
    void reset() {
        for (uint32_t i = 0; i < sdfuzz::kSlots; ++i)
            remote->slot[sdfuzz::kFirstSlot + i] = {};
        memset(peer.mailbox, 0, kMailbox);
        peer.emptied = peer.their_emptied = 0;
        peer.their_receives = 0;
        process.reset();
    }
};

/// Records as an honest sender has them, and such as are none. How many bytes.
uint32_t put_records(sdfuzz::Input &in, uint8_t *to, uint32_t room, uint64_t position, uint64_t *last) {
    uint32_t used = 0;
    for (unsigned n = in.below(5); n > 0; --n) {
        const auto kind = static_cast<ring::RecordKind>(!in.rarely(4) ? 1 : in.below(8));
        const bool changes = kind == ring::RecordKind::change;
        uint32_t length = changes ? in.below(kRingClasses + 1) : in.take<uint16_t>() % 600;
        if (in.rarely(16))
            length = in.take<uint32_t>() >> 8;
        const uint64_t h =
            in.rarely(16) ? in.take<uint64_t>() : ring::make_header(kind, length, position + used);
        const uint32_t bytes = 8 + (changes ? 0 : static_cast<uint32_t>(ring::pad8(std::min(length, room))));
        if (used + bytes > room)
            break;
        memcpy(to + used, &h, sizeof h);
        in.fill(to + used + 8, std::min(bytes - 8, 16U));
        used += bytes;
        *last = h;
    }
    return in.rarely(16) ? used + in.below(9) : used;
}

/// False: the queue pair has ended.
bool message(sdfuzz::Input &in, Receiver &r) {
    const auto emptied = r.peer.emptied.load();
    const auto expected = static_cast<uint32_t>(emptied) & (kMailbox - 1);
    const bool from_start = in.rarely(8);
    const uint32_t at = from_start ? 0 : expected;
    uint8_t *to = r.peer.mailbox + at;
    const uint32_t room = kMailbox - at;
    rdma::Message m{};
    m.link = !in.rarely(8) ? 0 : in.below(2) != 0 ? rdma::kNoLink : kOtherLink;
    m.slot = static_cast<uint16_t>(!in.rarely(16)     ? sdfuzz::kFirstSlot
                                   : in.below(2) != 0 ? kLinkSlots
                                                      : in.take<uint16_t>());
    if (m.slot >= sdfuzz::kFirstSlot + sdfuzz::kSlots && m.slot < kLinkSlots)
        m.slot = sdfuzz::kFirstSlot; // others are not put back
    m.slot = std::max<uint16_t>(m.slot, sdfuzz::kFirstSlot);
    m.flags = in.below(2) != 0 ? uint16_t{rdma::kHasWords}
                               : uint16_t{in.rarely(8) ? in.take<uint16_t>() : uint16_t{0}};
    m.receives = in.take<uint8_t>();
    m.emptied = in.rarely(4) ? in.take<uint64_t>() : in.take<uint8_t>() * 64U;
    m.consumed = in.rarely(4) ? in.take<uint64_t>() : in.take<uint16_t>();
    m.use = in.rarely(8) ? in.below(4) : 0;
    uint64_t corked = 0;
    uint32_t used = sizeof m;
    const uint32_t words = (m.flags & rdma::kHasWords) != 0 ? sizeof(rdma::Words) : 0;
    if (m.slot < kLinkSlots) {
        const rdma::SlotState &s = r.remote->slot[m.slot];
        m.position = !in.rarely(16) ? (m.use == s.in_use ? s.in.position : 0) : in.take<uint64_t>();
    }
    if (room < used + words + 64)
        return r.host.endings == 0 && rdma::take_message(r.peer, in.take<uint16_t>(), in.take<uint16_t>());
    m.records = put_records(in, to + used + words, room - used - words, m.position, &corked);
    if (words != 0) {
        rdma::Words w{};
        if (in.rarely(4))
            in.fill(&w, sizeof w);
        w.flags |= in.rarely(8) ? in.take<uint8_t>() : 0;
        w.corked = in.below(2) != 0 ? corked : in.below(2);
        w.shown_as =
            in.below(2) != 0 ? r.remote->slot[sdfuzz::kFirstSlot].in_corked.header : in.take<uint64_t>();
        for (unsigned cls = 1; cls < kRingClasses; ++cls) // where an honest one would have put them
            if (in.below(2) != 0)
                w.piece[cls] = r.process.link[0]->view.piece(sdfuzz::kFirstSlot, 1, cls);
        memcpy(to + used, &w, sizeof w);
        used += words;
    }
    used += m.records;
    if (in.rarely(16))
        m.records = in.take<uint32_t>();
    memcpy(to, &m, sizeof m);
    const uint32_t place = in.rarely(32) ? in.take<uint32_t>() : at / rdma::kUnit;
    return rdma::take_message(r.peer, place, in.rarely(32) ? in.take<uint32_t>() : std::min(used, room));
}

void receive(sdfuzz::Input &in, int fd) {
    static const sdfuzz::Room room;
    File *f = file_of(fd);
    if (f == nullptr || f->kind != FileKind::stream)
        return;
    constexpr int kKinds[] = {0, 0, 0, MSG_PEEK, MSG_OOB, MSG_TRUNC};
    const size_t n = in.take<uint8_t>() * 8U;
    switch (in.below(4)) {
    case 0: {
        pollfd p{fd, POLLIN | POLLOUT | POLLPRI, 0};
        const timespec now{0, 0};
        (void)vfs::poll(&p, 1, &now, nullptr);
        break;
    }
    case 1:
        (void)vfs::send(fd, f, room.last(n), n, MSG_DONTWAIT | MSG_NOSIGNAL);
        break;
    default: {
        const long got = vfs::recv(fd, f, room.last(n), n, MSG_DONTWAIT | kKinds[in.below(6)]);
        sdfuzz::must(got == vfs::kPass || got <= static_cast<long>(n) || got <= 1 << 22);
    }
    }
}

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static Receiver &receiver = *new Receiver;
    sdfuzz::Input in(data, size);
    LinkMap &theirs = *receiver.process.link[1];
    for (unsigned cls = 1; cls < 4; ++cls)
        if (in.below(4) == 0)
            (void)provide_ring(theirs, sdfuzz::kFirstSlot, cls);
    const int fd = receiver.process.connection(0, 0);
    for (unsigned step = 0; step < kMessages && !in.empty(); ++step) {
        if (!message(in, receiver))
            break;
        if (in.below(2) != 0)
            receive(in, fd);
    }
    receive(in, fd);
    vfs::close(fd);
    receiver.reset();
    return 0;
}
