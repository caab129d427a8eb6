// Verbs of completion queues and their channels.
#include "tests/fake_verbs/completion.hpp"
#include "tests/fake_verbs/engine.hpp"
#include "tests/fake_verbs/local.hpp"
#include "tests/fake_verbs/process.hpp"
#include <cerrno>
#include <cstdlib>
#include <unistd.h>

namespace sd::fake_verbs {

std::atomic<QueueHandle *> queues[kQueues];

namespace {

constexpr uint64_t kLookAgainNs = 1'000'000;

/// Work that waits for a peer's receives ends when that peer has died; nobody else would notice.
void look_at_waiting(Fabric &f, uint32_t queue) noexcept {
    CompletionQueue &q = f.queue[queue];
    const uint64_t now = now_ns();
    if (now - q.looked_ns < kLookAgainNs)
        return;
    q.looked_ns = now;
    for (uint32_t i = 0; i < kQueuePairs; ++i)
        if (QueuePair &p = f.queue_pair[i]; p.used.load() && p.send_queue == queue && p.waits.load())
            posted(f, i);
}

} // namespace

int poll_queue(ibv_cq *v, int n, ibv_wc *wc) noexcept {
    Fabric &f = *fabric();
    const uint32_t index = handle<QueueHandle>(v)->index;
    CompletionQueue &q = f.queue[index];
    if (q.head.load(std::memory_order_relaxed) == q.tail.load(std::memory_order_acquire)) {
        if (q.waiting.load(std::memory_order_relaxed)) [[unlikely]]
            look_at_waiting(f, index);
        return 0;
    }
    Guard g(q.polling);
    int found = 0;
    uint64_t head = q.head.load(std::memory_order_relaxed);
    for (; found < n && head != q.tail.load(std::memory_order_acquire); ++head) {
        const Completion &c = q.entry[head % kQueueDepth];
        wc[found++] = c.wc;
        if (QueuePair &p = f.queue_pair[c.queue_pair]; c.sending && p.number.load() == c.number)
            p.freed.store(c.sequence + 1, std::memory_order_release);
    }
    q.head.store(head, std::memory_order_release);
    return found;
}

int arm_queue(ibv_cq *v, int solicited_only) noexcept {
    CompletionQueue &q = fabric()->queue[handle<QueueHandle>(v)->index];
    Guard g(q.lock);
    if (!solicited_only || q.armed.load() != kAny)
        q.armed.store(solicited_only ? kSolicited : kAny, std::memory_order_seq_cst);
    return 0;
}

} // namespace sd::fake_verbs

using namespace sd::fake_verbs;

extern "C" {

ibv_comp_channel *ibv_create_comp_channel(ibv_context *c) {
    Fabric *f = fabric();
    auto *h = removed(c) ? nullptr : static_cast<ChannelHandle *>(calloc(1, sizeof(ChannelHandle)));
    const int64_t i = h ? take_entry(*f, f->channel, index_of(c)) : -1;
    if (i >= 0)
        h->v.fd = open_pipe("channel", static_cast<uint32_t>(i), 0);
    if (i < 0 || h->v.fd < 0) {
        if (i >= 0)
            f->channel[i].used.store(0);
        free(h);
        errno = removed(c) ? EIO : EMFILE;
        return nullptr;
    }
    h->index = static_cast<uint32_t>(i);
    h->v.context = c;
    return &h->v;
}

int ibv_destroy_comp_channel(ibv_comp_channel *v) {
    auto *h = handle<ChannelHandle>(v);
    if (v->refcnt)
        return EBUSY;
    close(v->fd);
    fabric()->channel[h->index].used.store(0, std::memory_order_release);
    free(h);
    return 0;
}

ibv_cq *ibv_create_cq(ibv_context *c, int depth, void *user, ibv_comp_channel *channel, int vector) {
    Fabric *f = fabric();
    if (removed(c) || depth < 1 || depth > static_cast<int>(kQueueDepth) || vector != 0) {
        errno = removed(c) ? EIO : EINVAL;
        return nullptr;
    }
    auto *h = static_cast<QueueHandle *>(calloc(1, sizeof(QueueHandle)));
    const int64_t i = h ? take_entry(*f, f->queue, index_of(c)) : -1;
    if (i < 0) {
        free(h);
        errno = ENOMEM;
        return nullptr;
    }
    h->index = static_cast<uint32_t>(i);
    CompletionQueue &q = f->queue[i];
    q.depth = static_cast<uint32_t>(depth);
    q.channel = channel ? handle<ChannelHandle>(channel)->index : kChannels;
    q.armed.store(kNotArmed);
    q.overrun.store(0);
    q.waiting.store(0);
    q.head.store(0);
    q.tail.store(0);
    q.known_head = 0;
    h->v.context = c;
    h->v.channel = channel;
    h->v.cq_context = user;
    h->v.handle = h->index;
    h->v.cqe = depth;
    if (channel)
        ++channel->refcnt;
    pthread_mutex_init(&h->v.mutex, nullptr);
    pthread_cond_init(&h->v.cond, nullptr);
    queues[i].store(h, std::memory_order_release);
    return &h->v;
}

int ibv_destroy_cq(ibv_cq *v) {
    Fabric *f = fabric();
    auto *h = handle<QueueHandle>(v);
    for (const QueuePair &q : f->queue_pair)
        if (q.used.load() && (q.send_queue == h->index || q.receive_queue == h->index) &&
            q.context == index_of(v->context))
            return EBUSY;
    queues[h->index].store(nullptr, std::memory_order_release);
    f->queue[h->index].used.store(0, std::memory_order_release);
    pthread_mutex_lock(&v->mutex);
    while (v->comp_events_completed != h->events)
        pthread_cond_wait(&v->cond, &v->mutex);
    pthread_mutex_unlock(&v->mutex);
    if (v->channel)
        --v->channel->refcnt;
    pthread_mutex_destroy(&v->mutex);
    pthread_cond_destroy(&v->cond);
    free(h);
    return 0;
}

int ibv_get_cq_event(ibv_comp_channel *channel, ibv_cq **cq, void **user) {
    for (;;) {
        ChannelEvent e;
        if (read(channel->fd, &e, sizeof e) != sizeof e)
            return -1;
        QueueHandle *q = queues[e.queue].load(std::memory_order_acquire);
        if (!q || fabric()->queue[e.queue].number.load() != e.number)
            continue; // it has gone
        ++q->events;
        *cq = &q->v;
        *user = q->v.cq_context;
        return 0;
    }
}

void ibv_ack_cq_events(ibv_cq *cq, unsigned n) {
    pthread_mutex_lock(&cq->mutex);
    cq->comp_events_completed += n;
    pthread_cond_signal(&cq->cond);
    pthread_mutex_unlock(&cq->mutex);
}

} // extern "C"
