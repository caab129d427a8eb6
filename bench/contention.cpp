// Several threads or processes that send small messages on one connection without pause, and one receiver.
//
// With --via ring the same records go into libsd's own ring under a pthread mutex: what a lock around the
// ring would give.
#include "bench/common/measure.hpp"
#include "bench/common/net.hpp"
#include "bench/common/options.hpp"
#include "bench/common/process.hpp"
#include "libsd/queue/ring.hpp"

#include <algorithm>
#include <atomic>
#include <functional>
#include <pthread.h>
#include <sched.h>
#include <sys/socket.h>
#include <thread>
#include <vector>

using namespace sd::bench;

/// There is no link here, and the one ring is known.
std::uint8_t *sd::larger_ring(const std::uint8_t *, std::uint32_t, long *) noexcept { return nullptr; }

namespace {

struct Board {
    std::atomic<bool> stop{false};
    std::atomic<std::uint64_t> sent[16]{};
};

/// libsd's ring in shared memory, of the class that a busy connection gets.
struct LockedRing {
    static constexpr std::uint32_t kClass = 3;
    pthread_mutex_t mutex;
    alignas(64) sd::TxState tx{};
    alignas(64) sd::RxState rx{};
    alignas(64) std::atomic<std::uint64_t> consumed{0};
    alignas(64) std::uint8_t ring[sd::kRingSize[kClass]]{};

    LockedRing() {
        pthread_mutexattr_t how;
        pthread_mutexattr_init(&how);
        pthread_mutexattr_setpshared(&how, PTHREAD_PROCESS_SHARED);
        pthread_mutex_init(&mutex, &how);
        tx.cls = rx.cls = kClass;
    }
    sd::ring::Place place() { return {ring, reinterpret_cast<std::uint64_t>(ring) | kClass}; }
    bool send(const char *data, std::uint32_t size) {
        pthread_mutex_lock(&mutex);
        bool done = sd::ring::room(tx) >= 8 + sd::ring::pad8(size) ||
                    (sd::ring::refresh_credit(tx, consumed) && sd::ring::room(tx) >= 8 + sd::ring::pad8(size));
        done = done && sd::ring::put(tx, place(), data, size) == 0;
        pthread_mutex_unlock(&mutex);
        return done;
    }
    std::size_t receive(char *data, std::size_t size) {
        std::size_t done = 0;
        sd::ring::Record record{};
        while (done < size && sd::ring::next_record(rx, place(), consumed, &record) == 1) {
            const long got = sd::ring::take(rx, place(), record, data + done, size - done);
            done += got > 0 ? static_cast<std::size_t>(got) : 0;
        }
        consumed.store(rx.head, std::memory_order_release);
        return done;
    }
};

} // namespace

int main(int argc, char **argv) {
    const Options options(argc, argv, "senders that share one connection",
                          {{"via", "tcp", "tcp, or ring: libsd's ring under a pthread mutex"},
                           {"who", "threads", "threads or processes"},
                           {"senders", "2", "how many, 16 at most"},
                           {"size", "8", "bytes of a message"},
                           {"seconds", "1", "time measured"},
                           {"warmup", "0.3", "seconds before that"},
                           {"cpu", "-1", "processors of receiver and senders"}});
    const auto size = static_cast<std::size_t>(options.integer("size"));
    const auto senders = static_cast<unsigned>(std::clamp(options.integer("senders"), 1L, 16L));
    const bool ring = options.text("via") == "ring";
    const bool processes = options.text("who") == "processes";
    if (size > 4096) {
        errno = 0;
        die("--size must be 4096 at most");
    }
    auto *board = shared_value<Board>();
    auto *locked = ring ? shared_value<LockedRing>() : nullptr;
    int ends[2] = {-1, -1};
    if (!ring) {
        std::uint16_t port = 0;
        const int listener = listen_tcp("127.0.0.1", port);
        ends[0] = connect_tcp("127.0.0.1", port);
        ends[1] = accept_tcp(listener);
        close(listener);
    }
    const pid_t receiver = start_child(options.cpu(0), [&] {
        if (ends[0] >= 0) {
            close(ends[0]);
        }
        std::vector<char> buffer(65536);
        for (;;) {
            if (ring) {
                if (locked->receive(buffer.data(), buffer.size()) == 0) {
                    if (board->stop.load(std::memory_order_relaxed)) {
                        return;
                    }
                    sched_yield();
                }
            } else if (read(ends[1], buffer.data(), buffer.size()) <= 0) {
                return;
            }
        }
    });
    const auto send_all_the_time = [&](unsigned index) {
        const std::vector<char> buffer(size, 'x');
        std::uint64_t sent = 0;
        while ((sent & 63) != 0 || !board->stop.load(std::memory_order_relaxed)) {
            if (ring) {
                while (!locked->send(buffer.data(), static_cast<std::uint32_t>(size))) {
                    if (board->stop.load(std::memory_order_relaxed)) {
                        return;
                    }
                    sched_yield();
                }
            } else if (send(ends[0], buffer.data(), size, MSG_NOSIGNAL) != static_cast<ssize_t>(size)) {
                return;
            }
            board->sent[index].store(++sent, std::memory_order_relaxed);
        }
    };
    std::vector<pid_t> children;
    std::vector<std::thread> threads;
    for (unsigned i = 0; i < senders; ++i) {
        if (processes) {
            children.push_back(start_child(options.cpu(1 + i), [&, i] { send_all_the_time(i); }));
        } else {
            threads.emplace_back([&, i] {
                pin_to_cpu(options.cpu(1 + i));
                send_all_the_time(i);
            });
        }
    }
    const auto sum = [&](std::uint64_t *least, const std::vector<std::uint64_t> &before) {
        std::uint64_t all = 0;
        *least = ~std::uint64_t{0};
        for (unsigned i = 0; i < senders; ++i) {
            const std::uint64_t n = board->sent[i].load(std::memory_order_relaxed) - before[i];
            all += n;
            *least = std::min(*least, n);
        }
        return all;
    };
    const auto rest = [](double seconds) { usleep(static_cast<useconds_t>(seconds * 1e6)); };
    rest(options.number("warmup"));
    std::vector<std::uint64_t> before(senders);
    for (unsigned i = 0; i < senders; ++i) {
        before[i] = board->sent[i].load();
    }
    const std::uint64_t start = now_ns();
    rest(options.number("seconds"));
    std::uint64_t least = 0;
    const std::uint64_t messages = sum(&least, before);
    const double seconds = static_cast<double>(now_ns() - start) / 1e9;
    board->stop.store(true);
    for (const pid_t child : children) {
        join_child(child);
    }
    for (std::thread &thread : threads) {
        thread.join();
    }
    if (ends[0] >= 0) {
        close(ends[0]);
        close(ends[1]);
    }
    join_child(receiver);
    Report report("contention");
    report.add("via", options.text("via"));
    report.add("who", options.text("who"));
    report.add("senders", static_cast<long>(senders));
    report.add("size", static_cast<long>(size));
    report.add("messages_per_s", static_cast<double>(messages) / seconds);
    report.add("least_share", messages ? static_cast<double>(least) / static_cast<double>(messages) : 0.0);
    report.print();
    return 0;
}
