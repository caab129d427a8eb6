// The limit of many connections: what manyconn does, over bare rings that lie in memory as libsd's do, and
// nothing around them. Both ends know which connections are active and sweep over those, in order, answering
// what they find.
#include "bench/common/bare_ring.hpp"
#include "bench/common/measure.hpp"
#include "bench/common/options.hpp"
#include "bench/common/process.hpp"
#include "bench/common/turns.hpp"
#include "libsd/layout/link_layout.hpp"

#include <sys/mman.h>

#include <vector>

using namespace sd::bench;

namespace {

using Inline = FixedShape<sd::kInlineRing>;

// One end of a connection: the slot has the rings and the credits, the rest is private, in a line of its own.
struct alignas(64) End {
    End(sd::Slot &slot, unsigned side)
        : in(words(slot, 1 - side), &slot.side[side].credit.consumed, Inline{}),
          out(words(slot, side), &slot.side[1 - side].credit.consumed, Inline{}) {}

    static RingWord *words(sd::Slot &slot, unsigned sender) {
        return reinterpret_cast<RingWord *>(slot.ring[sender]);
    }
    void send(const char *data, std::size_t size) {
        if (out.push(data, size) != size) {
            errno = 0;
            die("no room for one message");
        }
    }

    Consumer<Inline> in;
    Producer<Inline> out;
};
static_assert(sizeof(End) == 64);

// One side of all connections.
class Side {
  public:
    Side(sd::Slot *slots, long connections, unsigned side, std::size_t size) : buffer_(size, 'x') {
        ends_.reserve(static_cast<std::size_t>(connections));
        for (long i = 0; i < connections; ++i) {
            ends_.emplace_back(slots[i], side);
        }
    }
    // Every connection carries a message each way, so that those without traffic have their memory, too.
    void open(bool asks) {
        for (End &end : ends_) {
            if (asks) {
                end.send(buffer_.data(), buffer_.size());
            }
        }
        for (End &end : ends_) {
            while (end.in.pop(buffer_.data()) == 0) {
            }
            if (!asks) {
                end.send(buffer_.data(), buffer_.size());
            }
        }
    }
    void activate(long active, bool asks) {
        const auto apart = ends_.size() / static_cast<std::size_t>(active);
        for (long i = 0; i < active; ++i) {
            active_.push_back(&ends_[static_cast<std::size_t>(i) * apart]);
            if (asks) {
                active_.back()->send(buffer_.data(), buffer_.size());
            }
        }
    }
    // Answers all that is there; how many messages that was.
    std::uint64_t sweep() {
        std::uint64_t answers = 0;
        for (End *end : active_) {
            if (const std::size_t got = end->in.pop(buffer_.data()); got != 0) {
                end->send(buffer_.data(), got);
                ++answers;
            }
        }
        return answers;
    }

  private:
    std::vector<End> ends_;
    std::vector<End *> active_;
    std::vector<char> buffer_;
};

} // namespace

int main(int argc, char **argv) {
    const Options options(argc, argv, "requests over many bare rings between two processes",
                          {{"connections", "1000", "connections open, each with two rings"},
                           {"active", "0", "how many of them have traffic; 0: all"},
                           {"size", "64", "bytes of a request and of its answer"},
                           {"seconds", "1", "time measured"},
                           {"warmup", "0.2", "seconds before that"},
                           kWindowsOption,
                           kTurnsOption,
                           {"cpu", "0,1", "processors of server and client"}});
    Windows windows(options);
    const long connections = options.integer("connections");
    const long active = options.integer("active") > 0 ? options.integer("active") : connections;
    const auto size = static_cast<std::size_t>(options.integer("size"));
    if (connections < active || size == 0 || size > Inline::record) {
        errno = 0;
        die("--active must not be above --connections, --size 1 to 128");
    }
    void *memory = mmap(nullptr, static_cast<std::size_t>(connections) * sizeof(sd::Slot),
                        PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) {
        die("mmap");
    }
    auto *slots = static_cast<sd::Slot *>(memory);
    auto *rest = shared_value<Rest>();
    const pid_t server = start_child(options.cpu(0), [&] {
        Side side(slots, connections, 1, size);
        side.open(false);
        side.activate(active, false);
        for (;;) {
            rest->heed();
            side.sweep();
        }
    });
    pin_to_cpu(options.cpu(1));
    Side side(slots, connections, 0, size);
    side.open(true);
    side.activate(active, true);
    const auto run_for = [&](double seconds) { return rate_over(seconds, [&] { return side.sweep(); }); };
    windows.run(
        run_for, [&](double seconds) { return 1e9 / run_for(seconds); }, rest);
    end_child(server);

    Report report("manyrings");
    report.add("connections", connections);
    report.add("active", active);
    report.add("requests_per_s", 1e9 / windows.median());
    report.add("ns_per_request", windows.median());
    report.add("windows", windows.figures());
    report.print();
    return 0;
}
