// Verbs of devices: the list, opening, what a port and its addresses are, and what happens to them.
#include "tests/fake_verbs/completion.hpp"
#include "tests/fake_verbs/local.hpp"
#include "tests/fake_verbs/process.hpp"
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <unistd.h>
#undef ibv_query_port

using namespace sd::fake_verbs;

namespace {

/// One more than the last byte of a host's addresses says which it is; the one before, which device.
constexpr int kAddresses = 3;
bool address(const DeviceHandle &d, uint32_t index, ibv_gid *gid, uint32_t *type) noexcept {
    if (index >= kAddresses)
        return false;
    memset(gid, 0, sizeof *gid);
    if (index == 0) {
        gid->raw[0] = 0xfe;
        gid->raw[1] = 0x80;
    } else {
        gid->raw[10] = gid->raw[11] = 0xff;
        gid->raw[12] = 10;
        gid->raw[13] = 88;
    }
    gid->raw[14] = static_cast<uint8_t>(d.index);
    gid->raw[15] = static_cast<uint8_t>(d.host + 1);
    *type = index == 1 ? IBV_GID_TYPE_ROCE_V1 : IBV_GID_TYPE_ROCE_V2;
    return true;
}

DeviceHandle &device_of(ibv_context *c) noexcept { return *handle<DeviceHandle>(c->device); }

uint32_t number_in_environment(const char *name, uint32_t otherwise, uint32_t limit) noexcept {
    const char *text = getenv(name);
    const uint32_t n = text ? static_cast<uint32_t>(strtoul(text, nullptr, 10)) : otherwise;
    return n < limit ? n : limit - 1;
}

} // namespace

extern "C" {

ibv_device **ibv_get_device_list(int *count) {
    const Fabric *f = fabric();
    const uint32_t n = f ? number_in_environment("SD_FAKE_VERBS_DEVICES", 1, kDevices + 1) : 0;
    const uint32_t host = number_in_environment("SD_FAKE_VERBS_HOST", 0, kHosts);
    auto **list = static_cast<ibv_device **>(calloc(n + 1, sizeof(ibv_device *)));
    int found = 0;
    for (uint32_t i = 0; list && i < n; ++i) {
        static DeviceHandle known[kHosts][kDevices];
        if (f->device[host][i].removed.load())
            continue;
        DeviceHandle &d = known[host][i];
        d.host = host;
        d.index = i;
        d.v.node_type = IBV_NODE_CA;
        d.v.transport_type = IBV_TRANSPORT_IB;
        snprintf(d.v.name, sizeof d.v.name, "fake%u", i);
        snprintf(d.v.dev_name, sizeof d.v.dev_name, "uverbs%u", i);
        list[found++] = &d.v;
    }
    if (count)
        *count = found;
    return list;
}
void ibv_free_device_list(ibv_device **list) { free(list); }
const char *ibv_get_device_name(ibv_device *d) { return d->name; }
__be64 ibv_get_device_guid(ibv_device *d) {
    return handle<DeviceHandle>(d)->host * kDevices + handle<DeviceHandle>(d)->index + 1;
}
ibv_fork_status ibv_is_fork_initialized() { return IBV_FORK_UNNEEDED; }

ibv_context *ibv_open_device(ibv_device *device) {
    Fabric *f = fabric();
    const DeviceHandle &d = *handle<DeviceHandle>(device);
    if (f->device[d.host][d.index].removed.load()) {
        errno = ENODEV;
        return nullptr;
    }
    auto *c = static_cast<ContextHandle *>(calloc(1, sizeof(ContextHandle)));
    const int64_t i = c ? take_entry(*f, f->context, 0) : -1;
    if (i < 0) {
        free(c);
        errno = ENOMEM;
        return nullptr;
    }
    c->index = static_cast<uint32_t>(i);
    Context &e = f->context[i];
    e.context = c->index;
    e.host = d.host;
    e.device = d.index;
    e.pid = static_cast<uint32_t>(getpid());
    e.gone.store(0);
    c->v.device = device;
    c->v.ops.poll_cq = poll_queue;
    c->v.ops.req_notify_cq = arm_queue;
    c->v.ops.post_send = post_work;
    c->v.ops.post_recv = post_receives;
    c->v.num_comp_vectors = 1;
    pthread_mutex_init(&c->v.mutex, nullptr);
    c->v.cmd_fd = open_file("context", c->index);
    c->v.async_fd = open_pipe("async", c->index, 0);
    struct flock l {};
    l.l_type = F_WRLCK;
    l.l_whence = SEEK_SET;
    if (c->v.cmd_fd < 0 || c->v.async_fd < 0 || fcntl(c->v.cmd_fd, F_OFD_SETLK, &l) != 0) {
        ibv_close_device(&c->v);
        errno = EMFILE;
        return nullptr;
    }
    return &c->v;
}

int ibv_close_device(ibv_context *v) {
    auto *c = handle<ContextHandle>(v);
    if (v->cmd_fd >= 0)
        close(v->cmd_fd);
    if (v->async_fd >= 0)
        close(v->async_fd);
    pthread_mutex_destroy(&v->mutex);
    fabric()->context[c->index].used.store(0, std::memory_order_release);
    free(c);
    return 0;
}

int ibv_query_device(ibv_context *v, ibv_device_attr *a) {
    if (removed(v))
        return EIO;
    memset(a, 0, sizeof *a);
    snprintf(a->fw_ver, sizeof a->fw_ver, "0");
    a->max_mr_size = ~uint64_t{0};
    a->page_size_cap = 4096;
    a->max_qp = kQueuePairs;
    a->max_qp_wr = static_cast<int>(kSendDepth);
    a->max_sge = kMaxPieces;
    a->max_cq = kQueues;
    a->max_cqe = static_cast<int>(kQueueDepth);
    a->max_mr = kMemories;
    a->max_pd = kDomains;
    a->max_qp_rd_atom = a->max_qp_init_rd_atom = 16;
    a->max_pkeys = 1;
    a->phys_port_cnt = 1;
    a->vendor_id = getenv("SD_FAKE_VERBS_SOFT") ? 0xffffff : 0xfa4e; // soft-RoCE's; nobody's
    return 0;
}

int ibv_query_port(ibv_context *v, uint8_t port, _compat_ibv_port_attr *compat) {
    if (removed(v))
        return EIO;
    if (port != 1)
        return EINVAL;
    auto *a = reinterpret_cast<ibv_port_attr *>(compat); // the caller has a whole one, cleared
    const DeviceHandle &d = device_of(v);
    a->state = fabric()->device[d.host][d.index].port_down.load() ? IBV_PORT_DOWN : IBV_PORT_ACTIVE;
    a->max_mtu = IBV_MTU_4096;
    a->active_mtu = IBV_MTU_4096;
    a->gid_tbl_len = kAddresses;
    a->max_msg_sz = 1u << 31;
    a->pkey_tbl_len = 1;
    a->active_width = 1;
    a->active_speed = 1;
    a->phys_state = 5;
    a->link_layer = IBV_LINK_LAYER_ETHERNET;
    return 0;
}

int ibv_query_gid(ibv_context *v, uint8_t port, int index, ibv_gid *gid) {
    uint32_t type;
    if (port != 1 || index < 0 || !address(device_of(v), static_cast<uint32_t>(index), gid, &type)) {
        errno = EINVAL;
        return -1;
    }
    return 0;
}

int _ibv_query_gid_ex(ibv_context *v, uint32_t port, uint32_t index, ibv_gid_entry *e, uint32_t flags,
                      size_t size) {
    if (port != 1 || flags || size < sizeof *e)
        return EINVAL;
    memset(e, 0, size);
    if (!address(device_of(v), index, &e->gid, &e->gid_type))
        return ENODATA;
    e->gid_index = index;
    e->port_num = port;
    return 0;
}

ssize_t _ibv_query_gid_table(ibv_context *v, ibv_gid_entry *entry, size_t most, uint32_t flags, size_t size) {
    if (flags || size != sizeof *entry || most < kAddresses)
        return -EINVAL;
    if (removed(v))
        return -EIO;
    for (int i = 0; i < kAddresses; ++i)
        _ibv_query_gid_ex(v, 1, static_cast<uint32_t>(i), &entry[i], 0, size);
    return kAddresses;
}

int ibv_query_pkey(ibv_context *, uint8_t port, int index, __be16 *key) {
    if (port != 1 || index != 0)
        return -1;
    *key = 0xffff;
    return 0;
}

int ibv_get_async_event(ibv_context *v, ibv_async_event *event) {
    for (;;) {
        AsyncEvent e;
        const ssize_t n = read(v->async_fd, &e, sizeof e);
        if (n < 0)
            return -1;
        memset(event, 0, sizeof *event);
        event->event_type = static_cast<ibv_event_type>(e.type);
        const Fabric &f = *fabric();
        switch (event->event_type) {
        case IBV_EVENT_CQ_ERR:
            if (QueueHandle *q = queues[e.index].load(); q && f.queue[e.index].number.load() == e.number) {
                event->element.cq = &q->v;
                return 0;
            }
            continue; // it has gone
        case IBV_EVENT_QP_FATAL:
        case IBV_EVENT_QP_REQ_ERR:
        case IBV_EVENT_QP_ACCESS_ERR:
        case IBV_EVENT_COMM_EST:
            if (PairHandle *q = pairs[e.index].load(); q && f.queue_pair[e.index].number.load() == e.number) {
                ++q->events;
                event->element.qp = &q->v;
                return 0;
            }
            continue;
        default:
            event->element.port_num = 1;
            return 0;
        }
    }
}

void ibv_ack_async_event(ibv_async_event *event) {
    switch (event->event_type) {
    case IBV_EVENT_CQ_ERR:
        ++event->element.cq->async_events_completed;
        break;
    case IBV_EVENT_QP_FATAL:
    case IBV_EVENT_QP_REQ_ERR:
    case IBV_EVENT_QP_ACCESS_ERR:
    case IBV_EVENT_COMM_EST: {
        ibv_qp *q = event->element.qp;
        pthread_mutex_lock(&q->mutex);
        ++q->events_completed;
        pthread_cond_signal(&q->cond);
        pthread_mutex_unlock(&q->mutex);
        break;
    }
    default:
        break;
    }
}

} // extern "C"
