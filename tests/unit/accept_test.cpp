// Taking connections from the queues of clients that are not to be trusted.
#include "libsd/vfs/connections/listener.hpp"
#include "libsd/vfs/connections/listener_links.hpp"
#include "tests/unit/stream_pair.hpp"

#include <algorithm>
#include <thread>

using namespace sd;
using test::test_link;

TEST_CASE("a client that fills its queue with rubbish for ever does not hold up its server") {
    auto seg = std::make_unique<ListenerSegment>();
    Listener l;
    l.seg = seg.get();
    l.links.push({test_link(1), &seg->link[0]});
    std::atomic<bool> over{false};
    std::atomic<uint32_t> rounds{0};
    std::thread client([&] {
        for (; !over.load(); ++rounds)
            for (uint32_t i = 0; i < kSynEntries; ++i)
                test_link(0)->view.syn(i).store(kLinkSlots + 2, std::memory_order_relaxed);
    });
    LinkMap *link = nullptr;
    uint32_t slot = 0;
    bool taken = false;
    uint32_t most = 0;
    for (int calls = 0; calls < 200; ++calls) {
        for (const uint32_t now = rounds; rounds - now < 2; std::this_thread::yield()) {
        }
        const uint32_t before = seg->link[0].syn_head;
        taken |= take_pending(l, 0, &link, &slot) != -EAGAIN;
        most = std::max(most, seg->link[0].syn_head - before);
    }
    over = true;
    client.join();
    REQUIRE_FALSE(taken);
    REQUIRE(most <= kSynEntries);
    for (uint32_t i = 0; i < kSynEntries; ++i)
        test_link(0)->view.syn(i).store(0);
}
