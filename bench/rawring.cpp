// The limit: a bare single-producer single-consumer byte ring in shared memory with the record format of
// libsd and nothing around it, one call per message.
#include "bench/common/bare_ring.hpp"
#include "bench/common/measure.hpp"
#include "bench/common/options.hpp"
#include "bench/common/process.hpp"
#include "bench/common/turns.hpp"

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
    Rest rest;
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
         kWindowsOption,
         kTurnsOption,
         {"cpu", "0,1", "processors of the two ends"}});
    Windows windows(options);
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
    const auto send_all = [&](Producer<AnyShape> &producer, const char *data, Pair &pair) {
        for (std::size_t done = 0; done < size;) {
            const std::size_t put = producer.push(data + done, size - done);
            done += put;
            if (put == 0) {
                if (!pair.rest.heed()) {
                    return false;
                }
                nothing_yet(0);
            }
        }
        return true;
    };
    const auto receive_all = [&](Consumer<AnyShape> &consumer, char *data, Pair &pair, long pauses) {
        for (std::size_t done = 0; done < size;) {
            const std::size_t got = consumer.pop(data + done);
            done += got;
            if (got == 0) {
                if (!pair.rest.heed()) {
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
        while (pair->rest.heed()) {
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
    if (latency) {
        Histogram histogram;
        const auto round_trip = [&] {
            send_all(producer, buffer.data(), *pair);
            receive_all(consumer, buffer.data(), *pair, 0);
        };
        windows.run([&](double seconds) { repeat_for(seconds, round_trip); },
                    [&](double seconds) {
                        return latency_over(
                            seconds, histogram, [] { return false; }, round_trip);
                    },
                    &pair->rest);
        report.add("windows", windows.figures());
        report.add_latency(histogram);
    } else {
        const std::size_t calls = size >= 16384 ? 1 : 16384 / size;
        const auto run_for = [&](double seconds) {
            return rate_over(seconds, [&] {
                for (std::size_t i = 0; i < calls; ++i) {
                    receive_all(consumer, buffer.data(), *pair, backoff);
                }
                return calls * size;
            });
        };
        windows.run(run_for, run_for, &pair->rest);
        report.add("messages_per_s", windows.median() / static_cast<double>(size));
        report.add("bytes_per_s", windows.median());
        report.add("windows", windows.figures());
    }
    pair->rest.finish();
    join_child(other);
    for (const pid_t helper : helpers) {
        end_child(helper);
    }
    report.print();
    return 0;
}
