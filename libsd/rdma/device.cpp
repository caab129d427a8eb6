// The device of this process: the first one whose port is up, real ones before those that the kernel
// emulates; and the address to use on it.
#include "libsd/rdma/state.hpp"
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <initializer_list>
#include <new>

namespace sd::rdma {

namespace {

/// An address of RoCE v2 that is an IPv4 one, if there is any; else any of v2; else (InfiniBand, v1) the
/// first.
bool choose_address(Host &h, int entries) {
    static const uint8_t kMapped[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
    int best = -1;
    for (int i = 0; i < entries; ++i) {
        ibv_gid_entry e;
        if (ibv_query_gid_ex(h.context, h.port, static_cast<uint32_t>(i), &e, 0) != 0)
            continue;
        const int worth = e.gid_type != IBV_GID_TYPE_ROCE_V2    ? 0
                          : memcmp(e.gid.raw, kMapped, 12) != 0 ? 1
                                                                : 2;
        if (worth <= best)
            continue;
        best = worth;
        h.address = e.gid;
        h.address_index = static_cast<uint8_t>(i);
        if (worth == 2)
            break; // each one costs a system call, and soft-RoCE has a thousand
    }
    return best >= 0;
}

/// soft-RoCE (rdma_rxe) has a vendor that no maker of devices can have, 0 in old kernels; siw has its own.
bool is_soft(const ibv_device_attr &d) {
    return d.vendor_id == 0 || d.vendor_id == 0xffffff || d.vendor_id == 0x626d74;
}

bool port_is_up(Host &h) {
    ibv_device_attr d{};
    if (ibv_query_device(h.context, &d) != 0)
        return false;
    h.is_soft = is_soft(d);
    for (h.port = 1; h.port <= d.phys_port_cnt; ++h.port) {
        ibv_port_attr p{};
        if (ibv_query_port(h.context, h.port, &p) == 0 && p.state == IBV_PORT_ACTIVE) {
            h.mtu = p.active_mtu;
            return choose_address(h, p.gid_tbl_len);
        }
    }
    return false;
}

} // namespace

int open_host(const Limits &limits, Host **out) {
    // Memory that a child must not have would be missing in it: no rings that it has inherited.
    if (ibv_is_fork_initialized() != IBV_FORK_UNNEEDED)
        return -EOPNOTSUPP;
    if (limits.mailbox_bytes < 2 * kMaxMessage || (limits.mailbox_bytes & (limits.mailbox_bytes - 1)) ||
        limits.receives < 8)
        return -EINVAL;
    int n = 0;
    ibv_device **list = ibv_get_device_list(&n);
    if (!list)
        return -ENODEV;
    auto *h = new (std::nothrow) Host;
    bool any_soft = false;
    for (const bool soft : {false, true})
        for (int i = 0; h && i < n && !h->context && (!soft || any_soft); ++i) {
            h->context = ibv_open_device(list[i]);
            if (!h->context)
                continue;
            const bool is_up = port_is_up(*h);
            any_soft = any_soft || (is_up && h->is_soft);
            if (!is_up || h->is_soft != soft || (soft && !limits.soft)) {
                ibv_close_device(h->context);
                h->context = nullptr;
            }
        }
    ibv_free_device_list(list);
    if (!h)
        return -ENOMEM;
    if (!h->context) {
        delete h;
        return any_soft ? -ENXIO : -ENODEV;
    }
    h->limits = limits;
    // Room for all that can be outstanding of as many peers as the limit on memory allows.
    const auto peers = static_cast<uint32_t>(limits.registered_bytes / (2 * limits.mailbox_bytes));
    const uint32_t entries = (peers ? peers : 1) * (kSendDepth + limits.receives + 2);
    h->domain = ibv_alloc_pd(h->context);
    h->channel = ibv_create_comp_channel(h->context);
    h->queue =
        h->channel ? ibv_create_cq(h->context, static_cast<int>(entries), nullptr, h->channel, 0) : nullptr;
    if (!h->domain || !h->queue || fcntl(h->channel->fd, F_SETFL, O_NONBLOCK) != 0) {
        close_host(h);
        return -ENOMEM;
    }
    *out = h;
    return 0;
}

void close_host(Host *h) {
    if (h->queue)
        ibv_destroy_cq(h->queue);
    if (h->channel)
        ibv_destroy_comp_channel(h->channel);
    if (h->domain)
        ibv_dealloc_pd(h->domain);
    ibv_close_device(h->context);
    delete h;
}

} // namespace sd::rdma
