// How far apart two processors are: the time that a word takes from one to the other and back.
//
// Other work on them only lengthens single blocks, so the quickest tenth is taken.
#include "bench/common/options.hpp"
#include "bench/common/process.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <thread>
#include <vector>

using namespace sd::bench;

namespace {

struct alignas(64) Word {
    std::atomic<long> value{0};
};
Word there, back;

constexpr long kBlock = 50;

void answer(int cpu, long turns) {
    pin_to_cpu(cpu);
    back.value.store(-1, std::memory_order_release); // begun
    for (long turn = 1; turn <= turns; ++turn) {
        while (there.value.load(std::memory_order_acquire) != turn) {
        }
        back.value.store(turn, std::memory_order_release);
    }
}

} // namespace

int main(int argc, char **argv) {
    const Options options(argc, argv, "round trip of a word between two processors, in ns",
                          {{"blocks", "60", "of 50 round trips each"}, {"cpu", "0,1", "processors"}});
    const long blocks = options.integer("blocks");
    std::thread peer(answer, options.cpu(1), blocks * kBlock);
    while (back.value.load(std::memory_order_acquire) != -1) // asleep: it may have begun on our processor
        std::this_thread::sleep_for(std::chrono::microseconds(100));
    pin_to_cpu(options.cpu(0));
    std::vector<double> times;
    long turn = 0;
    for (long block = 0; block < blocks; ++block) {
        const auto begun = std::chrono::steady_clock::now();
        for (long n = 0; n < kBlock; ++n) {
            there.value.store(++turn, std::memory_order_release);
            while (back.value.load(std::memory_order_acquire) != turn) {
            }
        }
        times.push_back(
            std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - begun).count() / kBlock);
    }
    peer.join();
    std::sort(times.begin(), times.end());
    std::printf("%.0f\n", times[times.size() / 10]);
}
