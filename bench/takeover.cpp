// What it costs to send on a connection that another thread sent on last.
//
//   alone_ns       a send by the thread that sent before
//   takeover_ns    a send by another thread, so late that the connection counts as not shared
//   handoff_ns     a send when two threads take turns without pause
//   membarrier_ns  membarrier(PRIVATE_EXPEDITED) under the same conditions, the measure for takeover_ns
#include "bench/common/measure.hpp"
#include "bench/common/net.hpp"
#include "bench/common/options.hpp"
#include "bench/common/process.hpp"

#include <atomic>
#include <linux/membarrier.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <thread>
#include <vector>

using namespace sd::bench;

namespace {

enum class Job { none, send, barrier, end };

struct Player {
    alignas(64) std::atomic<Job> job{Job::none};
    alignas(64) std::atomic<std::uint64_t> took{0};
};

void send_once(int fd) {
    if (send(fd, "12345678", 8, MSG_NOSIGNAL) != 8) {
        die("send");
    }
}

std::uint64_t do_job(Job job, int fd) {
    const std::uint64_t before = ticks();
    if (job == Job::send) {
        send_once(fd);
    } else {
        syscall(SYS_membarrier, MEMBARRIER_CMD_PRIVATE_EXPEDITED, 0, 0);
    }
    return ticks() - before;
}

} // namespace

int main(int argc, char **argv) {
    const Options options(argc, argv, "sending by turns",
                          {{"rounds", "60", "takeovers measured"},
                           {"gap-ms", "20", "pause before each"},
                           {"handoffs", "200000", "turns without pause"},
                           {"cpu", "0,1", "processors of the two threads"}});
    syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED, 0, 0);
    std::uint16_t port = 0;
    const int listener = listen_tcp("127.0.0.1", port);
    const int fd = connect_tcp("127.0.0.1", port);
    const int other = accept_tcp(listener);
    const auto drain = [&] {
        char buffer[65536];
        while (recv(other, buffer, sizeof buffer, MSG_DONTWAIT) > 0) {
        }
    };
    Player player;
    std::thread second([&] {
        pin_to_cpu(options.cpu(1));
        for (;;) {
            const Job job = player.job.load(std::memory_order_acquire);
            if (job == Job::end) {
                return;
            }
            if (job != Job::none) {
                player.took.store(do_job(job, fd), std::memory_order_relaxed);
                player.job.store(Job::none, std::memory_order_release);
            }
        }
    });
    pin_to_cpu(options.cpu(0));
    const auto second_does = [&](Job job) {
        player.job.store(job, std::memory_order_release);
        while (player.job.load(std::memory_order_acquire) != Job::none) {
        }
        return player.took.load(std::memory_order_relaxed);
    };
    Histogram alone, takeover, barrier;
    const double per_ns = ticks_per_ns();
    const auto gap = static_cast<useconds_t>(options.integer("gap-ms") * 1000);
    for (long i = 0; i < options.integer("rounds"); ++i) {
        usleep(gap);
        barrier.add(second_does(Job::barrier));
        send_once(fd);
        usleep(gap);
        takeover.add(second_does(Job::send));
        alone.add(second_does(Job::send));
        drain();
    }
    const long handoffs = options.integer("handoffs");
    std::uint64_t handed = 0;
    for (long i = 0; i < handoffs; ++i) {
        handed += do_job(Job::send, fd) + second_does(Job::send);
        if (i % 64 == 0) {
            drain();
        }
    }
    player.job.store(Job::end, std::memory_order_release);
    second.join();
    const auto ns = [&](const Histogram &h) { return h.quantile(0.5, tick_step()) / per_ns; };
    Report report("takeover");
    report.add("alone_ns", ns(alone));
    report.add("takeover_ns", ns(takeover));
    report.add("handoff_ns", static_cast<double>(handed) / (2.0 * static_cast<double>(handoffs)) / per_ns);
    report.add("membarrier_ns", ns(barrier));
    report.add("takeover_in_membarriers", ns(takeover) / ns(barrier));
    report.print();
    return 0;
}
