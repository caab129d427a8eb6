// A peer process: its queue pair, from the first to the last.
#include "libsd/rdma/state.hpp"
#include <cerrno>
#include <cstring>
#include <new>
#include <sys/mman.h>
#include <unistd.h>

namespace sd::rdma {

namespace {

constexpr uint32_t kInline = 256;

uint8_t *shared_memory(size_t bytes) {
    const int fd = memfd_create("rdma", MFD_CLOEXEC);
    if (fd < 0)
        return nullptr;
    void *p = ftruncate(fd, static_cast<off_t>(bytes)) == 0
                  ? mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0)
                  : MAP_FAILED;
    close(fd);
    return p == MAP_FAILED ? nullptr : static_cast<uint8_t *>(p);
}

bool make_pair(Peer &p) {
    ibv_qp_init_attr a{};
    a.send_cq = a.recv_cq = p.host->queue;
    a.qp_type = IBV_QPT_RC;
    a.cap.max_send_wr = kSendDepth + 1;
    a.cap.max_recv_wr = p.host->limits.receives + 1;
    a.cap.max_send_sge = 1;
    a.cap.max_recv_sge = 1;
    for (a.cap.max_inline_data = kInline; !p.pair; a.cap.max_inline_data /= 2) {
        p.pair = ibv_create_qp(p.host->domain, &a);
        if (!p.pair && a.cap.max_inline_data == 0)
            return false;
        p.max_inline = a.cap.max_inline_data < kInline ? a.cap.max_inline_data : kInline;
        if (p.pair)
            break;
    }
    ibv_qp_attr m{};
    m.qp_state = IBV_QPS_INIT;
    m.port_num = p.port;
    m.qp_access_flags = IBV_ACCESS_REMOTE_WRITE;
    return ibv_modify_qp(p.pair, &m, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS) == 0;
}

void free_peer(Peer *p) {
    Host &h = *p->host;
    if (p->pair)
        ibv_destroy_qp(p->pair);
    if (p->mailbox_memory)
        ibv_dereg_mr(p->mailbox_memory);
    if (p->staging_memory)
        ibv_dereg_mr(p->staging_memory);
    if (p->mailbox)
        munmap(p->mailbox, 2 * size_t{h.limits.mailbox_bytes});
    h.registered().fetch_sub(2 * uint64_t{h.limits.mailbox_bytes});
    delete p;
}

} // namespace

int make_peer(Host *h, const Place &place, Hello *ours, Peer **out) {
    ibv_mtu mtu;
    if (const int wrong = look_at_place(h->context, place, &mtu))
        return wrong;
    const uint64_t bytes = 2 * uint64_t{h->limits.mailbox_bytes};
    if (h->registered().fetch_add(bytes) + bytes > h->limits.registered_bytes) {
        h->registered().fetch_sub(bytes);
        return -ENOMEM;
    }
    auto *p = new (std::nothrow) Peer;
    if (!p) {
        h->registered().fetch_sub(bytes);
        return -ENOMEM;
    }
    p->host = h;
    p->port = place.port;
    p->address_index = place.index;
    p->mtu = mtu;
    p->mailbox = shared_memory(bytes);
    if (p->mailbox) {
        p->staging = p->mailbox + h->limits.mailbox_bytes;
        p->mailbox_memory = ibv_reg_mr(h->domain, p->mailbox, h->limits.mailbox_bytes,
                                       IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
        p->staging_memory = ibv_reg_mr(h->domain, p->staging, h->limits.mailbox_bytes, 0);
    }
    if (!p->mailbox_memory || !p->staging_memory || !make_pair(*p) || !post_receives(*p, h->limits.receives)) {
        free_peer(p);
        return -ENOMEM;
    }
    ours->version = kHelloVersion;
    ours->queue_pair = p->pair->qp_num;
    memcpy(ours->address, place.address, sizeof ours->address);
    ours->mtu = mtu;
    ours->mailbox_key = p->mailbox_memory->rkey;
    ours->mailbox_address = reinterpret_cast<uint64_t>(p->mailbox);
    ours->mailbox_bytes = h->limits.mailbox_bytes;
    ours->receives = p->told_receives = h->limits.receives;
    h->polling.wait();
    h->peers.push_back(p);
    h->polling.let_go();
    *out = p;
    return 0;
}

int join_peer(Peer *p, const Hello &theirs) {
    const Host &h = *p->host;
    // Staging has their mailbox's offsets.
    if (theirs.version != kHelloVersion || theirs.mailbox_bytes != h.limits.mailbox_bytes || theirs.receives < 8)
        return -EPROTO;
    p->theirs = theirs;
    p->their_receives.store(theirs.receives);
    ibv_qp_attr m{};
    m.qp_state = IBV_QPS_RTR;
    m.path_mtu = theirs.mtu >= IBV_MTU_256 && theirs.mtu < p->mtu ? static_cast<ibv_mtu>(theirs.mtu) : p->mtu;
    m.dest_qp_num = theirs.queue_pair;
    m.min_rnr_timer = 1;
    m.max_dest_rd_atomic = 1;
    m.ah_attr.is_global = 1;
    m.ah_attr.port_num = p->port;
    memcpy(m.ah_attr.grh.dgid.raw, theirs.address, sizeof theirs.address);
    m.ah_attr.grh.sgid_index = p->address_index;
    m.ah_attr.grh.hop_limit = 64;
    if (ibv_modify_qp(p->pair, &m,
                      IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                          IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER) != 0)
        return -EIO;
    m = {};
    m.qp_state = IBV_QPS_RTS;
    m.timeout = 17;  // 0.5 s: a busy machine answers late
    m.retry_cnt = 6; // 7 would be for ever with soft-RoCE
    m.rnr_retry = 7; // the other side may get here later; after that credits see to it
    m.max_rd_atomic = 1;
    if (ibv_modify_qp(p->pair, &m,
                      IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
                          IBV_QP_MAX_QP_RD_ATOMIC) != 0)
        return -EIO;
    p->state.store(PeerState::joined, std::memory_order_seq_cst);
    return 0;
}

void start_peer(Peer *p) {
    auto joined = PeerState::joined;
    if (p->state.compare_exchange_strong(joined, PeerState::open, std::memory_order_seq_cst))
        serve(*p);
}

// In the error state nothing of the peer is written here any more. What had arrived before, and what was
// under way, comes out of the completion queue: all receives that were posted, and a last work request,
// which is flushed like them. The queue pair is empty after that, and its memory can be used again. (A last
// receive would not do: soft-RoCE does not flush what is posted later.)
void end_peer(Peer *p) {
    mark_ended(*p);
    p->sending.wait();
    ibv_qp_attr m{};
    m.qp_state = IBV_QPS_ERR;
    p->host->polling.wait(); // nobody posts receives meanwhile
    const bool in_error = ibv_modify_qp(p->pair, &m, IBV_QP_STATE) == 0;
    p->host->polling.let_go();
    ibv_send_wr w{}, *bad;
    w.wr_id = work_id(p, kLastWork);
    w.opcode = IBV_WR_RDMA_WRITE;
    w.send_flags = IBV_SEND_SIGNALED;
    // A queue that is full has room again once some of it was flushed and polled.
    for (bool posted = false; in_error && !(p->drained && p->receives_done == p->receives.load());) {
        posted = posted || ibv_post_send(p->pair, &w, &bad) == 0;
        if (progress(p->host) == 0)
            sched_yield();
    }
    // One whose state could not be changed, since the device has gone, brings nothing from here on, either.
    p->host->polling.wait();
    p->over = true;
    p->host->polling.let_go();
    p->sending.let_go();
}

void drop_peer(Peer *p) {
    p->host->polling.wait();
    std::erase(p->host->peers, p);
    p->host->polling.let_go();
    free_peer(p);
}

} // namespace sd::rdma
