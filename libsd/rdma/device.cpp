// A device of this process.
#include "libsd/rdma/state.hpp"
#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <new>

namespace sd::rdma {

namespace {

ibv_context *open_device(const char *name) {
    int n = 0;
    ibv_device **list = ibv_get_device_list(&n);
    ibv_context *context = nullptr;
    for (int i = 0; list && i < n && !context; ++i)
        if (strcmp(ibv_get_device_name(list[i]), name) == 0)
            context = ibv_open_device(list[i]);
    if (list)
        ibv_free_device_list(list);
    return context;
}

} // namespace

int open_host(const Limits &limits, const Place &place, Host **out) {
    if (limits.mailbox_bytes < 2 * kMaxMessage || (limits.mailbox_bytes & (limits.mailbox_bytes - 1)) ||
        limits.receives < 8)
        return -EINVAL;
    auto *h = new (std::nothrow) Host;
    if (!h)
        return -ENOMEM;
    h->context = open_device(place.device);
    if (!h->context) {
        delete h;
        return -ENODEV;
    }
    h->limits = limits;
    // Room for all that can be outstanding of as many peers as the limit on memory allows, and the device.
    const uint32_t each = kSendDepth + limits.receives + 2;
    auto peers = static_cast<uint32_t>(limits.registered_bytes / (2 * limits.mailbox_bytes));
    ibv_device_attr d{};
    if (ibv_query_device(h->context, &d) == 0 && d.max_cqe > 0)
        peers = std::min(peers, static_cast<uint32_t>(d.max_cqe) / each);
    h->limits.registered_bytes = std::min(limits.registered_bytes, peers * (2 * uint64_t{limits.mailbox_bytes}));
    const uint32_t entries = (peers ? peers : 1) * each;
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
