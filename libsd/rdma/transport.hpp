// The plugin behind the seam of libsd/transport/transport.hpp. Nothing but its test uses it yet: no
// connection is made over it. What is missing for that stands in docs/design/rdma.md.
#pragma once
#include "libsd/rdma/plugin.hpp"
#include "libsd/transport/slots.hpp"

namespace sd::rdma {

/// What a link of the table is in the plugin. Set before the link is used.
struct Attached {
    const Plugin *plugin;
    Remote *remote;
};
inline Attached attached[kMaxLinks];

namespace seam {

inline bool open(LinkMap &) noexcept { return true; }
inline void close(LinkMap &l) noexcept { attached[l.index] = {}; }

// Connections between hosts begin as the kernel's.
inline Offer offer(LinkMap &, uint32_t, uint32_t) noexcept { return Offer::gone; }
inline int64_t take(LinkMap &, std::atomic<uint32_t> &, uint32_t, uint32_t) noexcept { return -1; }

inline void publish(LinkMap &l, uint32_t slot, std::atomic<uint64_t> &) noexcept {
    const Attached &a = attached[l.index];
    a.plugin->publish(a.remote, slot);
}
inline void announce(LinkMap &l, unsigned id) noexcept { shm_transport.announce(l, id); }
inline void withdraw(LinkMap &l, unsigned id) noexcept { shm_transport.withdraw(l, id); }
inline void recycle(LinkMap &l, uint32_t slot) noexcept { reset_slot(l.view.slot(slot), 1u - l.side); }
inline void release(LinkMap &l, uint32_t slot) noexcept {
    shm_transport.release(l, slot);
    publish(l, slot, l.view.slot(slot).side[1u - l.side].control.rx_arm);
}

} // namespace seam

inline const Transport transport = {seam::open,    seam::close,  seam::offer,    seam::take,
                                    seam::publish, provide_ring, seam::announce, seam::withdraw,
                                    seam::recycle, seam::release};

} // namespace sd::rdma
