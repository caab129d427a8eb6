// What a process has for each object of the fabric: the structure that the program sees, and which entry it
// is.
#pragma once
#include "tests/fake_verbs/fabric.hpp"
#include <cstddef>

namespace sd::fake_verbs {

struct DeviceHandle {
    ibv_device v;
    uint32_t host, index;
};
struct ContextHandle {
    ibv_context v;
    uint32_t index;
};
struct DomainHandle {
    ibv_pd v;
    uint32_t index;
};
struct MemoryHandle {
    ibv_mr v;
    uint32_t index;
};
struct ChannelHandle {
    ibv_comp_channel v;
    uint32_t index;
};
struct QueueHandle {
    ibv_cq v;
    uint32_t index;
    uint32_t events; ///< read from the channel
};
struct PairHandle {
    ibv_qp v;
    uint32_t index;
    uint32_t events;
    ibv_qp_attr attributes; ///< as they were set
    ibv_qp_init_attr initial;
};

template <class Handle, class Verbs> Handle *handle(Verbs *v) noexcept {
    static_assert(offsetof(Handle, v) == 0);
    return reinterpret_cast<Handle *>(v);
}
inline uint32_t index_of(ibv_context *c) noexcept { return handle<ContextHandle>(c)->index; }

/// This process's, of an entry; nullptr: none, or no longer.
extern std::atomic<QueueHandle *> queues[kQueues];
extern std::atomic<PairHandle *> pairs[kQueuePairs];

/// Has the context's device been removed? Then every verb that the kernel would carry out fails with EIO.
inline bool removed(ibv_context *c) noexcept {
    return fabric()->context[index_of(c)].gone.load(std::memory_order_acquire) != 0;
}

// The functions that a context has for its inlined verbs.
int poll_queue(ibv_cq *, int n, ibv_wc *) noexcept;
int arm_queue(ibv_cq *, int solicited_only) noexcept;
int post_work(ibv_qp *, ibv_send_wr *, ibv_send_wr **bad) noexcept;
int post_receives(ibv_qp *, ibv_recv_wr *, ibv_recv_wr **bad) noexcept;

} // namespace sd::fake_verbs
