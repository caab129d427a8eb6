// Taking connections from the queues of clients that are not to be trusted.
#include "libsd/vfs/connections/listener.hpp"
#include "libsd/vfs/connections/listener_links.hpp"
#include "tests/unit/stream_pair.hpp"

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <thread>
#include <vector>

using namespace sd;
using test::test_link;

TEST_CASE("a client that fills its queue with rubbish for ever does not hold up its server") {
    auto seg = std::make_unique<ListenerSegment>();
    Listener l;
    l.seg = seg.get();
    REQUIRE(l.links.push({test_link(1), &seg->link[0]}));
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

TEST_CASE("a listener lets go of the links of ended clients, however many there are") {
    constexpr unsigned kClients = 100;
    auto seg = std::make_unique<ListenerSegment>();
    Listener l;
    l.seg = seg.get();
    std::vector<std::unique_ptr<LinkMap>> links;
    std::vector<std::unique_ptr<uint8_t, decltype(&free)>> memory;
    for (unsigned i = 0; i < kClients; ++i) {
        memory.emplace_back(static_cast<uint8_t *>(aligned_alloc(4096, kPieceOffset)), &free);
        std::fill_n(memory.back().get(), kPieceOffset, uint8_t{0});
        links.push_back(std::make_unique<LinkMap>());
        links.back()->view.base = memory.back().get();
        links.back()->users = 2; // the list's, and one that keeps it mapped
        REQUIRE(l.links.push({links.back().get(), &seg->link[i]}));
    }
    for (unsigned i = 1; i < kClients; ++i)
        links[i]->view.header().side[0].flags = kLinkClientDead;
    seg->link_sequence = 1;
    listener_refresh(l);
    REQUIRE(l.links.size() == 1);
    REQUIRE(l.links[0].link == links[0].get());
    REQUIRE(std::all_of(links.begin() + 1, links.end(), [](const auto &link) { return link->users == 1; }));
}
