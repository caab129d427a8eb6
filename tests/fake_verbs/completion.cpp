#include "tests/fake_verbs/completion.hpp"
#include "tests/fake_verbs/process.hpp"

namespace sd::fake_verbs {

bool complete(Fabric &f, uint32_t queue, const Completion &c, bool solicited) noexcept {
    CompletionQueue &q = f.queue[queue];
    bool wake = false;
    {
        Guard g(q.lock);
        const uint64_t tail = q.tail.load(std::memory_order_relaxed);
        if (tail - q.known_head >= q.depth)
            q.known_head = q.head.load(std::memory_order_acquire);
        if (tail - q.known_head >= q.depth) {
            if (q.overrun.exchange(1) == 0)
                raise_event(q.context, {IBV_EVENT_CQ_ERR, queue, q.number.load()});
            return false;
        }
        q.entry[tail % kQueueDepth] = c;
        q.tail.store(tail + 1, std::memory_order_seq_cst);
        const uint32_t armed = q.armed.load(std::memory_order_seq_cst);
        if (armed == kAny || (armed == kSolicited && (solicited || c.wc.status != IBV_WC_SUCCESS))) {
            q.armed.store(kNotArmed, std::memory_order_relaxed);
            wake = q.channel < kChannels;
        }
    }
    if (wake) {
        const ChannelEvent e{queue, q.number.load(std::memory_order_relaxed)};
        tell("channel", q.channel, &e, sizeof e);
    }
    return true;
}

void raise_event(uint32_t context, AsyncEvent e) noexcept { tell("async", context, &e, sizeof e); }

} // namespace sd::fake_verbs
