// What queue pairs can be made on: the ports of all devices that are up, and the addresses that they have.
#include "libsd/rdma/state.hpp"
#include <cerrno>
#include <cstring>
#include <new>

namespace sd::rdma {

namespace {

/// soft-RoCE (rdma_rxe) has a vendor that no maker of devices can have, 0 in old kernels; siw has its own.
bool is_soft(const ibv_device_attr &d) {
    return d.vendor_id == 0 || d.vendor_id == 0xffffff || d.vendor_id == 0x626d74;
}

struct Found {
    Place *place;
    unsigned n, most;
};

/// What an address is good for.
enum class Worth { others, link_local, routed, routed_v4 };

Worth worth_of(const ibv_gid_entry &e) {
    static const uint8_t kMapped[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
    if (e.gid_type != IBV_GID_TYPE_ROCE_V2)
        return Worth::others;
    if (memcmp(e.gid.raw, kMapped, sizeof kMapped) == 0)
        return Worth::routed_v4;
    return e.gid.raw[0] == 0xfe && (e.gid.raw[1] & 0xc0) == 0x80 ? Worth::link_local : Worth::routed;
}

/// The addresses of the port that are worth as much; how many.
unsigned add_addresses(Found &f, const Place &port, const ibv_gid_entry *entry, ssize_t entries, Worth worth) {
    unsigned added = 0;
    for (ssize_t i = 0; i < entries && f.n < f.most; ++i) {
        const ibv_gid_entry &e = entry[i];
        // The index is of 8 bits in a queue pair's address.
        if (e.port_num != port.port || e.gid_index > UINT8_MAX || worth_of(e) != worth)
            continue;
        Place &p = f.place[f.n++];
        p = port;
        p.index = static_cast<uint8_t>(e.gid_index);
        memcpy(p.address, e.gid.raw, sizeof p.address);
        ++added;
        if (worth < Worth::routed) // link-local, or InfiniBand's, or of v1: the first is as good as any
            break;
    }
    return added;
}

void add_device(Found &f, ibv_context *context, const ibv_device_attr &d) {
    Place port{};
    strncpy(port.device, ibv_get_device_name(context->device), sizeof port.device - 1);
    port.is_soft = is_soft(d);
    bool is_up[UINT8_MAX + 1] = {};
    size_t most = 0; // the kernel wants room for whole tables
    for (unsigned n = 1; n <= d.phys_port_cnt; ++n) {
        ibv_port_attr p{};
        if (ibv_query_port(context, static_cast<uint8_t>(n), &p) != 0)
            continue;
        is_up[n] = p.state == IBV_PORT_ACTIVE;
        most += static_cast<size_t>(p.gid_tbl_len);
    }
    auto *entry = new (std::nothrow) ibv_gid_entry[most + 1];
    const ssize_t entries = entry ? ibv_query_gid_table(context, entry, most, 0) : 0;
    for (unsigned n = 1; n <= d.phys_port_cnt; ++n) {
        port.port = static_cast<uint8_t>(n);
        if (!is_up[n])
            continue;
        const unsigned routed = add_addresses(f, port, entry, entries, Worth::routed_v4) +
                                add_addresses(f, port, entry, entries, Worth::routed);
        if (routed == 0 && add_addresses(f, port, entry, entries, Worth::link_local) == 0)
            add_addresses(f, port, entry, entries, Worth::others);
    }
    delete[] entry;
}

/// Null: it has none, or no longer.
ibv_context *context_of(ibv_device *device, Host *const *open, unsigned hosts, ibv_device_attr *d) {
    for (unsigned i = 0; i < hosts; ++i)
        if (strcmp(ibv_get_device_name(open[i]->context->device), ibv_get_device_name(device)) == 0 &&
            ibv_query_device(open[i]->context, d) == 0)
            return open[i]->context;
    return nullptr;
}

} // namespace

int find_places(Host *const *open, unsigned hosts, Place *place, unsigned most) {
    // Memory that a child must not have would be missing in it: no rings that it has inherited.
    if (ibv_is_fork_initialized() != IBV_FORK_UNNEEDED)
        return -EOPNOTSUPP;
    int n = 0;
    ibv_device **list = ibv_get_device_list(&n);
    if (!list)
        return -ENODEV;
    Found f{place, 0, most};
    for (const bool soft : {false, true})
        for (int i = 0; i < n; ++i) {
            ibv_device_attr d{};
            ibv_context *context = context_of(list[i], open, hosts, &d);
            ibv_context *const own = context ? nullptr : ibv_open_device(list[i]);
            if (own && ibv_query_device(own, &d) == 0)
                context = own;
            if (context && is_soft(d) == soft)
                add_device(f, context, d);
            if (own)
                ibv_close_device(own);
        }
    ibv_free_device_list(list);
    return n == 0 ? -ENODEV : static_cast<int>(f.n);
}

int look_at_place(ibv_context *context, const Place &place, ibv_mtu *mtu) {
    ibv_port_attr p{};
    if (ibv_query_port(context, place.port, &p) != 0)
        return -ENODEV;
    ibv_gid_entry e{};
    if (p.state != IBV_PORT_ACTIVE || ibv_query_gid_ex(context, place.port, place.index, &e, 0) != 0 ||
        memcmp(e.gid.raw, place.address, sizeof place.address) != 0)
        return -ENETDOWN;
    *mtu = p.active_mtu;
    return 0;
}

} // namespace sd::rdma
