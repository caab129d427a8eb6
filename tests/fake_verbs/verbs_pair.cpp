// Verbs of queue pairs: their states, and posting.
#include "tests/fake_verbs/engine.hpp"
#include "tests/fake_verbs/local.hpp"
#include "tests/fake_verbs/process.hpp"
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <unistd.h>

namespace sd::fake_verbs {

std::atomic<PairHandle *> pairs[kQueuePairs];

namespace {

constexpr int kForInit = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
constexpr int kForReceiving = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                              IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
constexpr int kForSending = IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                            IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC;

/// As the specification has it for reliable connections.
bool may_become(ibv_qp_state from, ibv_qp_state to, int mask) noexcept {
    const auto has = [mask](int needed, int more) {
        return (mask & needed) == needed && !(mask & ~(needed | more));
    };
    if (to == IBV_QPS_ERR || to == IBV_QPS_RESET)
        return mask == IBV_QP_STATE;
    if (from == IBV_QPS_RESET && to == IBV_QPS_INIT)
        return has(kForInit, 0);
    if (from == IBV_QPS_INIT && to == IBV_QPS_INIT)
        return has(IBV_QP_STATE, kForInit);
    if (from == IBV_QPS_INIT && to == IBV_QPS_RTR)
        return has(kForReceiving, IBV_QP_PKEY_INDEX | IBV_QP_ACCESS_FLAGS | IBV_QP_ALT_PATH);
    if (from == IBV_QPS_RTR && to == IBV_QPS_RTS)
        return has(kForSending, IBV_QP_ACCESS_FLAGS | IBV_QP_MIN_RNR_TIMER | IBV_QP_CUR_STATE |
                                    IBV_QP_ALT_PATH | IBV_QP_PATH_MIG_STATE);
    return from == IBV_QPS_RTS && to == IBV_QPS_RTS &&
           has(IBV_QP_STATE, IBV_QP_ACCESS_FLAGS | IBV_QP_MIN_RNR_TIMER | IBV_QP_CUR_STATE);
}

QueuePair &entry(ibv_qp *v) noexcept { return fabric()->queue_pair[handle<PairHandle>(v)->index]; }

void reset(QueuePair &q) noexcept {
    q.carried = q.completed = 0;
    q.posted.store(0);
    q.freed.store(0);
    q.received = q.offered = 0;
}

int put(QueuePair &q, const ibv_send_wr &r, uint64_t at) noexcept {
    if (r.opcode != IBV_WR_RDMA_WRITE && r.opcode != IBV_WR_RDMA_WRITE_WITH_IMM)
        return EINVAL;
    if (r.num_sge < 0 || static_cast<uint32_t>(r.num_sge) > q.max_pieces)
        return EINVAL;
    if (at - q.freed.load(std::memory_order_acquire) >= q.send_depth)
        return ENOMEM;
    Work &w = q.work[at % kSendDepth];
    w.id = r.wr_id;
    w.opcode = r.opcode;
    w.flags = r.send_flags;
    w.immediate = r.imm_data;
    w.key = r.wr.rdma.rkey;
    w.remote = r.wr.rdma.remote_addr;
    w.pieces = static_cast<uint32_t>(r.num_sge);
    w.status = w.written = 0;
    w.start_at = w.complete_at = 0;
    uint64_t length = 0;
    for (uint32_t i = 0; i < w.pieces; ++i) {
        const ibv_sge &s = r.sg_list[i];
        if (r.send_flags & IBV_SEND_INLINE) {
            if (length + s.length > q.max_inline)
                return EINVAL;
            memcpy(w.data + length, reinterpret_cast<const void *>(s.addr), s.length);
        }
        w.piece[i] = {s.addr, s.length, s.lkey};
        length += s.length;
    }
    if (length > 1u << 31)
        return EINVAL;
    w.length = static_cast<uint32_t>(length);
    return 0;
}

} // namespace

int post_work(ibv_qp *v, ibv_send_wr *r, ibv_send_wr **bad) noexcept {
    QueuePair &q = entry(v);
    int error = 0;
    const uint32_t state = q.state.load(std::memory_order_acquire);
    *bad = r;
    if (state != IBV_QPS_RTS && state != IBV_QPS_ERR)
        return EINVAL;
    pthread_mutex_lock(&v->mutex); // threads of this process; who carries out sees it from `posted`
    uint64_t at = q.posted.load(std::memory_order_relaxed);
    for (; r; r = r->next, ++at)
        if ((error = put(q, *r, at))) {
            *bad = r;
            break;
        }
    q.posted.store(at, std::memory_order_seq_cst);
    pthread_mutex_unlock(&v->mutex);
    posted(*fabric(), handle<PairHandle>(v)->index);
    return error;
}

int post_receives(ibv_qp *v, ibv_recv_wr *r, ibv_recv_wr **bad) noexcept {
    Fabric &f = *fabric();
    QueuePair &q = entry(v);
    int error = 0;
    *bad = r;
    const uint32_t state = q.state.load(std::memory_order_acquire);
    if (state == IBV_QPS_RESET)
        return EINVAL;
    {
        Guard g(q.receive_lock);
        for (; r; r = r->next) {
            if (q.offered - q.received >= q.receive_depth) {
                *bad = r;
                error = ENOMEM;
                break;
            }
            q.receive[q.offered++ % kReceiveDepth] = r->wr_id;
        }
    }
    if (q.state.load(std::memory_order_acquire) == IBV_QPS_ERR)
        progress(f, handle<PairHandle>(v)->index); // they are flushed
    else if (state != IBV_QPS_INIT)
        peer_may_go_on(f, q);
    return error;
}

} // namespace sd::fake_verbs

using namespace sd::fake_verbs;

extern "C" {

ibv_qp *ibv_create_qp(ibv_pd *pd, ibv_qp_init_attr *a) {
    Fabric *f = fabric();
    const auto &cap = a->cap;
    if (removed(pd->context) || a->qp_type != IBV_QPT_RC || a->srq || !a->send_cq || !a->recv_cq ||
        cap.max_send_wr > kSendDepth || cap.max_recv_wr > kReceiveDepth || cap.max_send_sge > kMaxPieces ||
        cap.max_inline_data > kMaxInline) {
        errno = removed(pd->context) ? EIO : EINVAL;
        return nullptr;
    }
    const Context &context = f->context[index_of(pd->context)];
    if (Device &d = f->device[context.host][context.device]; d.full.load()) {
        if (cap.max_inline_data == kMaxInline) // who is refused may ask for less
            d.refused.fetch_add(1);
        errno = ENOMEM;
        return nullptr;
    }
    auto *h = static_cast<PairHandle *>(calloc(1, sizeof(PairHandle)));
    const int64_t i = h ? take_entry(*f, f->queue_pair, index_of(pd->context)) : -1;
    if (i < 0) {
        free(h);
        errno = ENOMEM;
        return nullptr;
    }
    h->index = static_cast<uint32_t>(i);
    QueuePair &q = f->queue_pair[i];
    {
        Guard s(q.send_lock);
        Guard r(q.receive_lock);
        reset(q);
        q.domain = handle<DomainHandle>(pd)->index;
        q.send_queue = handle<QueueHandle>(a->send_cq)->index;
        q.receive_queue = handle<QueueHandle>(a->recv_cq)->index;
        q.send_depth = cap.max_send_wr;
        q.receive_depth = cap.max_recv_wr;
        q.max_inline = cap.max_inline_data;
        q.max_pieces = cap.max_send_sge;
        q.all_signaled = a->sq_sig_all != 0;
        q.peer = 0;
        q.peer_host = kHosts;
        q.peer_seen = 0;
        q.waits.store(0);
        q.state.store(IBV_QPS_RESET);
    }
    h->initial = *a;
    h->v.context = pd->context;
    h->v.qp_context = a->qp_context;
    h->v.pd = pd;
    h->v.send_cq = a->send_cq;
    h->v.recv_cq = a->recv_cq;
    h->v.handle = h->index;
    h->v.qp_num = queue_pair_number(h->index, q.number.load());
    h->v.state = IBV_QPS_RESET;
    h->v.qp_type = a->qp_type;
    pthread_mutex_init(&h->v.mutex, nullptr);
    pthread_cond_init(&h->v.cond, nullptr);
    pairs[i].store(h, std::memory_order_release);
    return &h->v;
}

int ibv_modify_qp(ibv_qp *v, ibv_qp_attr *a, int mask) {
    Fabric &f = *fabric();
    auto *h = handle<PairHandle>(v);
    QueuePair &q = entry(v);
    const auto from = static_cast<ibv_qp_state>(q.state.load());
    if (removed(v->context))
        return EIO;
    if (!(mask & IBV_QP_STATE) || !may_become(from, a->qp_state, mask) ||
        ((mask & IBV_QP_PORT) && a->port_num != 1))
        return EINVAL;
    auto &kept = h->attributes;
    if (mask & IBV_QP_ACCESS_FLAGS)
        kept.qp_access_flags = a->qp_access_flags;
    if (mask & IBV_QP_PORT)
        kept.port_num = a->port_num;
    if (a->qp_state == IBV_QPS_RTR) {
        kept.ah_attr = a->ah_attr;
        kept.path_mtu = a->path_mtu;
        kept.dest_qp_num = a->dest_qp_num;
        kept.rq_psn = a->rq_psn;
        kept.min_rnr_timer = a->min_rnr_timer;
        kept.max_dest_rd_atomic = a->max_dest_rd_atomic;
    }
    if (a->qp_state == IBV_QPS_RTS && from == IBV_QPS_RTR) {
        kept.timeout = a->timeout;
        kept.retry_cnt = a->retry_cnt;
        kept.rnr_retry = a->rnr_retry;
        kept.sq_psn = a->sq_psn;
        kept.max_rd_atomic = a->max_rd_atomic;
    }
    v->state = a->qp_state;
    if (a->qp_state == IBV_QPS_ERR) {
        fail(f, h->index);
        return 0;
    }
    {
        Guard s(q.send_lock);
        Guard r(q.receive_lock);
        q.access = kept.qp_access_flags;
        q.peer = kept.dest_qp_num;
        q.peer_host = a->qp_state == IBV_QPS_RTR ? kept.ah_attr.grh.dgid.raw[15] - 1u : q.peer_host;
        q.rnr_retry = kept.rnr_retry;
        q.retry = kept.retry_cnt;
        if (a->qp_state == IBV_QPS_RESET)
            reset(q);
        q.state.store(a->qp_state, std::memory_order_seq_cst);
    }
    if (a->qp_state == IBV_QPS_RTR)
        peer_may_go_on(f, q);
    return 0;
}

int ibv_query_qp(ibv_qp *v, ibv_qp_attr *a, int, ibv_qp_init_attr *initial) {
    if (removed(v->context))
        return EIO;
    *a = handle<PairHandle>(v)->attributes;
    a->qp_state = a->cur_qp_state = static_cast<ibv_qp_state>(entry(v).state.load());
    v->state = a->qp_state;
    *initial = handle<PairHandle>(v)->initial;
    a->cap = initial->cap;
    return 0;
}

int ibv_destroy_qp(ibv_qp *v) {
    Fabric &f = *fabric();
    auto *h = handle<PairHandle>(v);
    QueuePair &q = entry(v);
    {
        Guard s(q.send_lock);
        Guard r(q.receive_lock);
        if (q.waits.exchange(0) != 0)
            f.queue[q.send_queue].waiting.fetch_sub(1);
        q.state.store(IBV_QPS_RESET);
        reset(q);
        q.used.store(0, std::memory_order_release);
    }
    pairs[h->index].store(nullptr, std::memory_order_release);
    pthread_mutex_lock(&v->mutex);
    while (v->events_completed != h->events)
        pthread_cond_wait(&v->cond, &v->mutex);
    pthread_mutex_unlock(&v->mutex);
    pthread_mutex_destroy(&v->mutex);
    pthread_cond_destroy(&v->cond);
    free(h);
    return 0;
}

} // extern "C"
