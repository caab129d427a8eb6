// What the plugin itself costs: 8 bytes there and back between two processes, each on its own link, over the
// fake verbs, which copy within the post; and the same in shared memory, where both have one link. Prints
// nanoseconds for a round trip, the best of many batches. Not a test: nothing is asserted. It wants two
// processors for itself.
//
//   LD_LIBRARY_PATH=build/tests/fake_verbs build/tests/rdma/round_trip
#include "tests/rdma/host_process.hpp"
#include <ctime>

using namespace sd;
using sd::test::HostProcess;
using sd::test::TwoHosts;

namespace {

constexpr int kBatches = 3000, kRounds = 100;

uint64_t now_ns() {
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return static_cast<uint64_t>(t.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(t.tv_nsec);
}

/// One side's view of a direction each way, and what makes it go on.
template <class Tell, class Look> void play(const char *name, unsigned side, ring::Place out, ring::Place in,
                                            SlotSide &mine, const SlotSide &theirs, Tell tell, Look look) {
    TxState tx{};
    RxState rx{};
    uint64_t best = ~uint64_t{0}, value = 0;
    const auto send = [&] {
        while (ring::room(tx) < 16)
            HOST_REQUIRE(ring::refresh_credit(tx, theirs.credit.consumed));
        HOST_REQUIRE(ring::put(tx, out, &value, sizeof value) == 0);
        tell();
    };
    const auto receive = [&] {
        ring::Record r{};
        while (ring::next_record(rx, in, mine.credit.consumed, &r) == 0)
            look();
        HOST_REQUIRE(ring::take(rx, in, r, &value, sizeof value) == sizeof value);
        mine.credit.consumed.store(ring::read_up_to(rx), std::memory_order_release);
    };
    for (int batch = 0; batch < kBatches; ++batch) {
        const uint64_t start = now_ns();
        for (int i = 0; i < kRounds; ++i) {
            if (side == 0) {
                send();
                receive();
            } else {
                receive();
                send();
            }
        }
        const uint64_t took = (now_ns() - start) / kRounds;
        best = took < best ? took : best;
    }
    if (side == 0)
        printf("%-28s %6lu ns\n", name, best);
}

} // namespace

int main() {
    {
        // One link for both, as in shared memory, mapped before they part.
        TwoHosts hosts;
        Slot *slot =
            static_cast<Slot *>(mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
        hosts.run([slot](unsigned side, int) {
            play(
                "shared memory", side, {slot->ring[side]}, {slot->ring[1 - side]}, slot->side[side],
                slot->side[1 - side], [] {}, [] { __builtin_ia32_pause(); });
            fflush(stdout);
        });
    }
    TwoHosts hosts;
    hosts.run([](unsigned side, int other) {
        HostProcess h(side, other);
        play(
            "plugin, over fake verbs", side, h.sending(0), h.receiving(0), h.mine(0), h.theirs(0),
            [&h] { h.tell(0); }, [&h] { h.plugin->progress(h.device); });
        rdma::Counts c{};
        h.plugin->counts(h.peer, &c);
        if (side == 0)
            printf("%lu messages, %lu came for credit alone; %lu posts\n", c.messages, c.credits, c.posts);
        fflush(stdout);
        h.meet_and_serve();
        h.plugin->end(h.peer);
        h.plugin->detach(h.remote);
        h.plugin->drop(h.peer);
        h.plugin->close(h.device);
    });
    return 0;
}
