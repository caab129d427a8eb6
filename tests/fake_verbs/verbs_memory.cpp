// Verbs of protection domains and registered memory.
#include "tests/fake_verbs/engine.hpp"
#include "tests/fake_verbs/local.hpp"
#include "tests/fake_verbs/process.hpp"
#include "tests/fake_verbs/reach.hpp"
#include <cerrno>
#include <cstdlib>
#include <unistd.h>
#undef ibv_reg_mr

using namespace sd::fake_verbs;

extern "C" {

ibv_pd *ibv_alloc_pd(ibv_context *c) {
    Fabric *f = fabric();
    auto *d = removed(c) ? nullptr : static_cast<DomainHandle *>(calloc(1, sizeof(DomainHandle)));
    const int64_t i = d ? take_entry(*f, f->domain, index_of(c)) : -1;
    if (i < 0) {
        free(d);
        errno = removed(c) ? EIO : ENOMEM;
        return nullptr;
    }
    d->index = static_cast<uint32_t>(i);
    d->v.context = c;
    d->v.handle = d->index;
    return &d->v;
}

int ibv_dealloc_pd(ibv_pd *v) {
    Fabric *f = fabric();
    auto *d = handle<DomainHandle>(v);
    for (const Memory &m : f->memory)
        if (m.used.load() && m.domain == d->index && m.context == index_of(v->context))
            return EBUSY;
    for (const QueuePair &q : f->queue_pair)
        if (q.used.load() && q.domain == d->index && q.context == index_of(v->context))
            return EBUSY;
    f->domain[d->index].used.store(0, std::memory_order_release);
    free(d);
    return 0;
}

ibv_mr *ibv_reg_mr_iova2(ibv_pd *pd, void *address, size_t length, uint64_t iova, unsigned access) {
    Fabric *f = fabric();
    const bool writable = access & (IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC);
    if (removed(pd->context) || iova != reinterpret_cast<uint64_t>(address) ||
        (writable && !(access & IBV_ACCESS_LOCAL_WRITE))) {
        errno = removed(pd->context) ? EIO : EINVAL;
        return nullptr;
    }
    auto *h = static_cast<MemoryHandle *>(calloc(1, sizeof(MemoryHandle)));
    const int64_t i = h ? take_entry(*f, f->memory, index_of(pd->context)) : -1;
    if (i < 0) {
        free(h);
        errno = ENOMEM;
        return nullptr;
    }
    h->index = static_cast<uint32_t>(i);
    Memory &m = f->memory[i];
    m.pid = f->context[m.context].pid;
    m.access = access;
    m.address = iova;
    m.length = length;
    m.fd = file_behind(iova, length, &m.file_offset);
    m.domain = handle<DomainHandle>(pd)->index; // nobody knows the key before this returns
    h->v.context = pd->context;
    h->v.pd = pd;
    h->v.addr = address;
    h->v.length = length;
    h->v.handle = h->index;
    h->v.lkey = h->v.rkey = key_of(h->index, m.number.load());
    return &h->v;
}
ibv_mr *ibv_reg_mr(ibv_pd *pd, void *address, size_t length, int access) {
    return ibv_reg_mr_iova2(pd, address, length, reinterpret_cast<uint64_t>(address),
                            static_cast<unsigned>(access));
}

int ibv_dereg_mr(ibv_mr *v) {
    Fabric *f = fabric();
    auto *h = handle<MemoryHandle>(v);
    Memory &m = f->memory[h->index];
    const uint32_t domain = m.domain;
    const int fd = m.fd;
    m.domain = kDomains; // no key is good for it any more
    std::atomic_thread_fence(std::memory_order_seq_cst);
    wait_for_writers(*f, domain);
    m.used.store(0, std::memory_order_release);
    if (fd >= 0)
        close(fd);
    free(h);
    return 0;
}

} // extern "C"
