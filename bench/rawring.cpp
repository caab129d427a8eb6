// The limit: a bare single-producer single-consumer byte ring in shared memory, records with an 8-byte
// header.
#include "bench/common/measure.hpp"
#include "bench/common/options.hpp"
#include "bench/common/process.hpp"

#include <atomic>
#include <cstring>
#include <vector>

using namespace sd::bench;

namespace {

// A record is a header word (its size, or 0 for "nothing yet") and the bytes, rounded up to 8. The producer
// clears the header behind a record before it publishes the record, so the consumer writes nothing but its
// credits.
struct Ring {
    static constexpr std::size_t kBytes = 256 * 1024;
    alignas(64) std::atomic<std::uint64_t> credits{0}; // bytes consumed, told every eighth of the ring
    alignas(64) std::atomic<std::uint64_t> words[kBytes / 8]{};
};

struct Pair {
    Ring to_server;
    Ring to_client;
    std::atomic<bool> stop{false};
};

constexpr std::size_t kMask = Ring::kBytes - 1;

// Never wraps inside a record: the measured sizes are made to divide the ring (see record_bytes).
class Producer {
  public:
    explicit Producer(Ring &ring) : ring_(ring) {}
    bool push(const char *data, std::size_t size, std::size_t record) {
        while (position_ + record + 8 - seen_ > Ring::kBytes) {
            seen_ = ring_.credits.load(std::memory_order_acquire);
            if (position_ + record + 8 - seen_ > Ring::kBytes) {
                return false;
            }
        }
        std::atomic<std::uint64_t> *header = &ring_.words[(position_ & kMask) / 8];
        std::memcpy(reinterpret_cast<char *>(header + 1), data, size);
        position_ += record;
        ring_.words[(position_ & kMask) / 8].store(0, std::memory_order_relaxed);
        header->store(size, std::memory_order_release);
        return true;
    }

  private:
    Ring &ring_;
    std::uint64_t position_ = 0;
    std::uint64_t seen_ = 0;
};

class Consumer {
  public:
    explicit Consumer(Ring &ring) : ring_(ring) {}
    bool pop(char *data, std::size_t record) {
        std::atomic<std::uint64_t> *header = &ring_.words[(position_ & kMask) / 8];
        const std::uint64_t size = header->load(std::memory_order_acquire);
        if (size == 0) {
            return false;
        }
        std::memcpy(data, reinterpret_cast<const char *>(header + 1), size);
        position_ += record;
        if (position_ - told_ >= Ring::kBytes / 8) {
            told_ = position_;
            ring_.credits.store(position_, std::memory_order_release);
        }
        return true;
    }

  private:
    Ring &ring_;
    std::uint64_t position_ = 0;
    std::uint64_t told_ = 0;
};

inline void cpu_relax() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

std::size_t record_bytes(std::size_t size) {
    std::size_t record = 16;
    while (record < size + 8) {
        record *= 2;
    }
    return record;
}

} // namespace

int main(int argc, char **argv) {
    const Options options(argc, argv, "a bare shared-memory ring between two processes",
                          {{"what", "latency", "latency (round trip) or stream (one way)"},
                           {"size", "8", "bytes of a message, 65536 at most"},
                           {"backoff", "64", "pauses after a look at an empty ring, in a stream"},
                           {"seconds", "1", "time measured"},
                           {"cpu", "0,1", "processors of the two ends"}});
    const auto size = static_cast<std::size_t>(options.integer("size"));
    const std::size_t record = record_bytes(size);
    if (size == 0 || size > 65536) {
        errno = 0;
        die("--size must be 1 to 65536");
    }
    const long backoff = options.integer("backoff");
    const bool latency = options.text("what") == "latency";
    auto *pair = shared_value<Pair>();
    const pid_t other = start_child(options.cpu(1), [&] {
        std::vector<char> buffer(size + 8, 'x');
        Consumer consumer(pair->to_client);
        Producer producer(pair->to_server);
        while (!pair->stop.load(std::memory_order_relaxed)) {
            if (!latency || consumer.pop(buffer.data(), record)) {
                producer.push(buffer.data(), size, record);
            }
        }
    });
    pin_to_cpu(options.cpu(0));
    std::vector<char> buffer(size + 8, 'y');
    Consumer consumer(pair->to_server);
    Producer producer(pair->to_client);
    Report report("rawring");
    report.add("what", options.text("what"));
    report.add("size", static_cast<long>(size));
    if (latency) {
        Histogram histogram;
        const auto budget = static_cast<std::uint64_t>(options.number("seconds") * 1e9 * ticks_per_ns());
        const std::uint64_t start = ticks();
        std::uint64_t before = start;
        while (before - start < budget) {
            producer.push(buffer.data(), size, record);
            while (!consumer.pop(buffer.data(), record)) {
            }
            const std::uint64_t after = ticks();
            histogram.add(after - before);
            before = after;
        }
        report.add_latency(histogram);
    } else {
        std::uint64_t messages = 0;
        const std::uint64_t start = now_ns();
        const auto until = start + static_cast<std::uint64_t>(options.number("seconds") * 1e9);
        std::uint64_t now = start;
        while (now < until) {
            for (int i = 0; i < 1024;) {
                if (consumer.pop(buffer.data(), record)) {
                    ++i;
                } else {
                    // A consumer at the producer's heels takes its cache line away at every record.
                    for (long k = 0; k < backoff; ++k) {
                        cpu_relax();
                    }
                }
            }
            messages += 1024;
            now = now_ns();
        }
        const double rate = static_cast<double>(messages) / (static_cast<double>(now - start) / 1e9);
        report.add("messages_per_s", rate);
        report.add("bytes_per_s", rate * static_cast<double>(size));
    }
    pair->stop.store(true);
    join_child(other);
    report.print();
    return 0;
}
