// Connections that come from another program image or process.
#include "libsd/vfs/sharing/handoff.hpp"
#include "libsd/control/assert.hpp"
#include "libsd/vfs/connections/connection.hpp"
#include "libsd/vfs/options/option_records.hpp"

namespace sd {

void write_handoff(const File &f, HandoffRecord &p) noexcept {
    SD_ASSERT(f.link && f.slot < kLinkSlots && f.ofd_index != 0 && f.ofd_index < kOfds);
    p.link_id = f.link->id;
    p.ofd_index = f.ofd_index;
    p.slot = f.slot;
    p.generation = f.ofd->generation;
    p.side = f.side;
    p.family = f.family;
    p.connect_answer = static_cast<uint8_t>(f.stream.connect_answer);
    p.client = f.stream.client;
    p.server = f.stream.server;
    p.options = copy_options(f, p.option);
}

bool handoff_valid(const HandoffRecord &p, unsigned seg, const LinkMap &l) noexcept {
    if (p.ofd_index == 0 || p.ofd_index >= kOfds || p.slot >= kLinkSlots || p.side > 1 ||
        p.options > FreshState::kMax)
        return false;
    const Ofd &o = segments[seg].view.ofd(p.ofd_index);
    if (!ring::sound(o.tx.s) || !ring::sound(o.rx.s))
        return false;
    return o.state.load(std::memory_order_acquire) == static_cast<uint32_t>(OfdState::open) &&
           o.generation == p.generation && o.link_id == p.link_id && o.slot == p.slot && o.side == p.side &&
           l.id == p.link_id && l.side == p.side;
}

File *admit(const HandoffRecord &p, unsigned seg, LinkMap &l) noexcept {
    SD_ASSERT(p.link_id == l.id && p.side == l.side && p.options <= FreshState::kMax); // see handoff_valid()
    File *f = new_file(FileKind::fresh);
    if (!f)
        return nullptr;
    if (p.options)
        restore_options(*f, p.option, p.options);
    f->stream.client = p.client;
    f->stream.server = p.server;
    f->stream.connect_answer = static_cast<ConnectAnswer>(p.connect_answer);
    const uint8_t family = segments[seg].view.ofd(p.ofd_index).family; // IPV6_ADDRFORM may have changed it
    join_stream(*f, l, seg, p.ofd_index, p.slot, family == AF_INET ? AF_INET : AF_INET6);
    return f;
}

} // namespace sd
