// The limit: a bare single-producer single-consumer byte ring in shared memory with the record format of libsd and
// nothing around it, one call per message.
#include "bench/common/bare_ring.hpp"
#include "bench/common/measure.hpp"
#include "bench/common/options.hpp"
#include "bench/common/process.hpp"

#include <sched.h>

#include <atomic>
#include <vector>

using namespace sd::bench;

namespace {

constexpr std::size_t kMaxRing = std::size_t{8} << 20;

struct Ring {
    alignas(64) RingWord credits{0};
    alignas(4096) RingWord words[kMaxRing / 8]{};
};

struct Pair {
    Ring to_server;
    Ring to_client;
    std::atomic<bool> stop{false};
};

inline void cpu_relax() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

} // namespace

int main(int argc, char **argv) {
    const Options options(
        argc, argv, "a bare shared-memory ring between two processes",
        {{"what", "latency", "latency (round trip) or stream (one way)"},
         {"size", "8", "bytes of a message"},
         {"ring", "262144", "bytes of the ring, a power of two, 8 MiB at most"},
         {"record", "65536", "bytes of a record at most"},
         {"backoff", "64", "pauses after a look at an empty ring, in a stream"},
         {"yield", "0", "1: give the core away after each look that found nothing"},
         {"pairs", "1", "client and server pairs at work at the same time; the first is measured"},
         {"seconds", "1", "time measured"},
         {"warmup", "0.2", "seconds before that"},
         {"cpu", "0,1", "processors of the two ends"}});
    const auto size = static_cast<std::size_t>(options.integer("size"));
    AnyShape shape{static_cast<std::size_t>(options.integer("ring")),
                   static_cast<std::size_t>(options.integer("record"))};
    if (shape.record > shape.ring / 4) {
        shape.record = shape.ring / 4;
    }
    if (size == 0 || shape.ring < 64 || shape.ring > kMaxRing || (shape.ring & (shape.ring - 1)) != 0) {
        errno = 0;
        die("--size must be 1 or more, --ring a power of two up to 8 MiB");
    }
    const long backoff = options.integer("backoff");
    const bool yield = options.integer("yield") != 0;
    const bool latency = options.text("what") == "latency";
    const auto nothing_yet = [&](long pauses) {
        if (yield) {
            sched_yield();
            return;
        }
        for (long k = 0; k < pauses; ++k) {
            cpu_relax();
        }
    };
    // False when the run is over.
    const auto send_all = [&](Producer<AnyShape> &producer, const char *data, const Pair &pair) {
        for (std::size_t done = 0; done < size;) {
            const std::size_t put = producer.push(data + done, size - done);
            done += put;
            if (put == 0) {
                if (pair.stop.load(std::memory_order_relaxed)) {
                    return false;
                }
                nothing_yet(0);
            }
        }
        return true;
    };
    const auto receive_all = [&](Consumer<AnyShape> &consumer, char *data, const Pair &pair, long pauses) {
        for (std::size_t done = 0; done < size;) {
            const std::size_t got = consumer.pop(data + done);
            done += got;
            if (got == 0) {
                if (pair.stop.load(std::memory_order_relaxed)) {
                    return false;
                }
                // A consumer at the producer's heels takes its cache line away at every record.
                nothing_yet(pauses);
            }
        }
        return true;
    };
    const auto serve = [&](Pair *pair) {
        std::vector<char> buffer(size + 8, 'x');
        Consumer<AnyShape> consumer(pair->to_client.words, &pair->to_client.credits, shape);
        Producer<AnyShape> producer(pair->to_server.words, &pair->to_server.credits, shape);
        while (!pair->stop.load(std::memory_order_relaxed)) {
            if (latency && !receive_all(consumer, buffer.data(), *pair, 0)) {
                break;
            }
            if (!send_all(producer, buffer.data(), *pair)) {
                break;
            }
        }
    };
    std::vector<pid_t> helpers;
    for (long i = 1; i < options.integer("pairs"); ++i) {
        auto *pair = shared_value<Pair>();
        helpers.push_back(start_child(options.cpu(1), [&, pair] { serve(pair); }));
        helpers.push_back(start_child(options.cpu(0), [&, pair] {
            std::vector<char> buffer(size + 8, 'y');
            Consumer<AnyShape> consumer(pair->to_server.words, &pair->to_server.credits, shape);
            Producer<AnyShape> producer(pair->to_client.words, &pair->to_client.credits, shape);
            while ((!latency || send_all(producer, buffer.data(), *pair)) &&
                   receive_all(consumer, buffer.data(), *pair, backoff)) {
            }
        }));
    }
    auto *pair = shared_value<Pair>();
    const pid_t other = start_child(options.cpu(1), [&] { serve(pair); });
    pin_to_cpu(options.cpu(0));
    std::vector<char> buffer(size + 8, 'y');
    Consumer<AnyShape> consumer(pair->to_server.words, &pair->to_server.credits, shape);
    Producer<AnyShape> producer(pair->to_client.words, &pair->to_client.credits, shape);
    Report report("rawring");
    report.add("what", options.text("what"));
    report.add("size", static_cast<long>(size));
    const auto warm_until = now_ns() + static_cast<std::uint64_t>(options.number("warmup") * 1e9);
    if (latency) {
        Histogram histogram;
        const auto budget = static_cast<std::uint64_t>(options.number("seconds") * 1e9 * ticks_per_ns());
        while (now_ns() < warm_until) {
            send_all(producer, buffer.data(), *pair);
            receive_all(consumer, buffer.data(), *pair, 0);
        }
        const std::uint64_t start = ticks();
        std::uint64_t before = start;
        while (before - start < budget) {
            send_all(producer, buffer.data(), *pair);
            receive_all(consumer, buffer.data(), *pair, 0);
            const std::uint64_t after = ticks();
            histogram.add(after - before);
            before = after;
        }
        report.add_latency(histogram);
    } else {
        const int calls = size >= 16384 ? 1 : static_cast<int>(16384 / size);
        while (now_ns() < warm_until) {
            for (int i = 0; i < calls; ++i) {
                receive_all(consumer, buffer.data(), *pair, backoff);
            }
        }
        std::uint64_t messages = 0;
        const std::uint64_t start = now_ns();
        const auto until = start + static_cast<std::uint64_t>(options.number("seconds") * 1e9);
        std::uint64_t now = start;
        while (now < until) {
            for (int i = 0; i < calls; ++i) {
                receive_all(consumer, buffer.data(), *pair, backoff);
            }
            messages += static_cast<std::uint64_t>(calls);
            now = now_ns();
        }
        const double rate = static_cast<double>(messages) / (static_cast<double>(now - start) / 1e9);
        report.add("messages_per_s", rate);
        report.add("bytes_per_s", rate * static_cast<double>(size));
    }
    pair->stop.store(true);
    join_child(other);
    for (const pid_t helper : helpers) {
        end_child(helper);
    }
    report.print();
    return 0;
}
