// The table by which libsd.so knows this library, and the links of a peer.
#include "libsd/rdma/state.hpp"
#include <cerrno>
#include <new>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace sd::rdma {

namespace {

constexpr size_t kStateBytes = kLinkSlots * sizeof(SlotState);
constexpr uint32_t kMaxLinkNumber = 1u << 16;

struct KeepErrno {
    int saved = errno;
    ~KeepErrno() { errno = saved; }
};

int places(Host *const *open, unsigned hosts, Place *place, unsigned most) {
    const KeepErrno keep;
    return find_places(open, hosts, place, most);
}
int open(const Limits &limits, const Place &place, Host **h) {
    const KeepErrno keep;
    return open_host(limits, place, h);
}
void close(Host *h) {
    const KeepErrno keep;
    close_host(h);
}
int event_fd(Host *h) { return h->channel->fd; }

unsigned descriptors(Host *h, int **number, unsigned most) {
    int *const all[] = {&h->context->cmd_fd, &h->context->async_fd, &h->channel->fd};
    unsigned n = 0;
    for (int *one : all)
        if (n < most)
            number[n++] = one;
    return n;
}

/// What the parent has stays its own when its child has no descriptor of it any more.
void abandon(Host *h) {
    const KeepErrno keep;
    int *number[8];
    for (unsigned i = 0, n = descriptors(h, number, 8); i < n; ++i)
        syscall(SYS_close, *number[i]); // no function that somebody has put in front of it
}

// Nobody sleeps without an event to come. `armed` says that the queue is armed or its event can be read: each
// request for one follows a change from false to true, each change back follows a read, so there is one at
// most. Who sleeps is counted (by the caller), then finds the word true or arms, then looks. Who takes the
// event clears the word, and then arms if anybody is counted. If the sleeper was counted by then, that is for
// it; else it comes to the word after it was cleared. What came before the queue was armed raises no event,
// and is found by the look that follows: the sleeper's own, or that of who has taken the event, which wakes
// whom it concerns.
void arm(Host *h) {
    const KeepErrno keep;
    h->tells.store(true, std::memory_order_seq_cst);
    if (!h->armed.exchange(true, std::memory_order_seq_cst))
        ibv_req_notify_cq(h->queue, 0);
}

void take_events(Host *h) {
    const KeepErrno keep;
    ibv_cq *queue;
    void *user;
    if (ibv_get_cq_event(h->channel, &queue, &user) != 0)
        return; // another thread has it
    ibv_ack_cq_events(queue, 1);
    h->armed.store(false, std::memory_order_seq_cst);
}

int peer(Host *h, const Place &place, Hello *ours, Peer **p) {
    const KeepErrno keep;
    return make_peer(h, place, ours, p);
}
int join(Peer *p, const Hello &theirs) {
    const KeepErrno keep;
    return join_peer(p, theirs);
}
void start(Peer *p) {
    const KeepErrno keep;
    start_peer(p);
}
const std::atomic<uint32_t> *endings(const Host *h) { return &h->endings; }
PeerState state(const Peer *p) { return p->state.load(std::memory_order_acquire); }
void end(Peer *p) {
    const KeepErrno keep;
    end_peer(p);
}
void drop(Peer *p) {
    const KeepErrno keep;
    drop_peer(p);
}

void counts(const Peer *p, Counts *c) {
    *c = p->counts;
    c->received = p->received.load();
    c->credits = p->credits.load();
    c->registered_bytes = p->host->registered().load();
}

int attach(Peer *p, uint32_t number, LinkView view, unsigned side, const LinkCalls &calls, void *user,
           Remote **out) {
    const KeepErrno keep;
    if (number >= kMaxLinkNumber)
        return -EINVAL;
    auto *r = new (std::nothrow) Remote;
    void *states =
        mmap(nullptr, kStateBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (!r || states == MAP_FAILED) {
        if (states != MAP_FAILED)
            munmap(states, kStateBytes);
        delete r;
        return -ENOMEM;
    }
    r->peer = p;
    r->number = number;
    r->view = view;
    r->side = side;
    r->calls = calls;
    r->user = user;
    r->slot = static_cast<SlotState *>(states);
    p->host->polling.wait();
    p->sending.wait();
    const bool free = number >= p->links.size() || !p->links[number];
    if (free) {
        if (number >= p->links.size())
            p->links.resize(number + 1);
        p->links[number] = r;
    }
    p->sending.let_go();
    p->host->polling.let_go();
    if (!free) {
        munmap(states, kStateBytes);
        delete r;
        return -EEXIST;
    }
    *out = r;
    return 0;
}

void detach(Remote *r) {
    const KeepErrno keep;
    Peer *p = r->peer;
    p->host->polling.wait();
    p->sending.wait();
    p->links[r->number] = nullptr;
    p->sending.let_go();
    p->host->polling.let_go();
    munmap(r->slot, kStateBytes);
    delete r;
}

void recycle(Remote *r, uint32_t slot, uint32_t use) {
    const KeepErrno keep;
    Peer &p = *r->peer;
    p.host->polling.wait();
    recycle_in(*r, slot, use);
    p.host->polling.let_go();
    p.sending.wait();
    recycle_out(*r, slot, use);
    p.sending.let_go();
}
bool publish_slot(Remote *r, uint32_t slot, bool credit_alone) {
    const KeepErrno keep;
    return publish(r, slot, credit_alone);
}
Arrived arrived_of(const Remote *r, uint32_t slot) {
    Peer &p = *r->peer;
    p.host->polling.wait();
    const Arrived a = arrived(*r, slot);
    p.host->polling.let_go();
    return a;
}

constexpr Plugin kPlugin = {
    kPluginVersion, places,   open,   close,   descriptors,  abandon,  event_fd,  arm, take_events,
    progress,       take_all, peer,   join,    start,        state,    endings,   end, drop,
    counts,         attach,   detach, recycle, publish_slot, may_send, arrived_of};

} // namespace
} // namespace sd::rdma

extern "C" __attribute__((visibility("default"))) const sd::rdma::Plugin *sd_rdma_plugin(uint32_t version) {
    return version == sd::rdma::kPluginVersion ? &sd::rdma::kPlugin : nullptr;
}
