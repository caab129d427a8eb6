// Both directions of one connection at the same time: each end sends and receives as fast as it can, in one
// thread.
#include "bench/common/measure.hpp"
#include "bench/common/net.hpp"
#include "bench/common/options.hpp"
#include "bench/common/process.hpp"

#include <poll.h>

#include <atomic>
#include <csignal>
#include <vector>

using namespace sd::bench;

namespace {

struct Shared {
    std::atomic<bool> stop{false};
};

// One end. Writes and reads in turn while both move something, and waits in poll() when neither does.
class End {
  public:
    End(Duplex duplex, std::size_t size) : duplex_(duplex), out_(size, 'x'), in_(size) {
        set_nonblocking(duplex.in);
        if (duplex.out != duplex.in) {
            set_nonblocking(duplex.out);
        }
    }
    // Bytes received; negative when the peer has gone.
    ssize_t turn() {
        const ssize_t put = write(duplex_.out, out_.data() + sent_, out_.size() - sent_);
        if (put > 0) {
            sent_ = (sent_ + static_cast<std::size_t>(put)) % out_.size();
        } else if (errno != EAGAIN) {
            return -1;
        }
        const ssize_t got = read(duplex_.in, in_.data(), in_.size());
        if (got == 0 || (got < 0 && errno != EAGAIN)) {
            return -1;
        }
        if (put < 0 && got < 0) {
            pollfd set[2] = {{duplex_.in, POLLIN, 0}, {duplex_.out, POLLOUT, 0}};
            poll(set, 2, 100);
        }
        return got > 0 ? got : 0;
    }

  private:
    Duplex duplex_;
    std::vector<char> out_, in_;
    std::size_t sent_ = 0;
};

} // namespace

int main(int argc, char **argv) {
    const Options options(argc, argv, "both directions of one connection at once",
                          {{"via", "tcp", kTransports},
                           {"size", "8", "bytes of a message"},
                           {"seconds", "1", "time measured"},
                           {"warmup", "0.2", "seconds before that"},
                           {"cpu", "0,1", "processors of the two ends"}});
    std::signal(SIGPIPE, SIG_IGN);
    const auto size = static_cast<std::size_t>(options.integer("size"));
    auto *shared = shared_value<Shared>();
    Channel channel(options.text("via"));
    const pid_t other = start_child(options.cpu(1), [&] {
        End end(channel.client(), size);
        while (!shared->stop.load(std::memory_order_relaxed) && end.turn() >= 0) {
        }
    });
    pin_to_cpu(options.cpu(0));
    End end(channel.server(), size);
    std::uint64_t bytes = 0;
    const auto run_for = [&](double seconds) {
        const std::uint64_t start = now_ns();
        const auto until = start + static_cast<std::uint64_t>(seconds * 1e9);
        std::uint64_t now = start;
        bytes = 0;
        while (now < until) {
            for (int i = 0; i < 64; ++i) {
                const ssize_t got = end.turn();
                if (got < 0) {
                    errno = 0;
                    die("the other end went away");
                }
                bytes += static_cast<std::uint64_t>(got);
            }
            now = now_ns();
        }
        return static_cast<double>(now - start) / 1e9;
    };
    run_for(options.number("warmup"));
    const double took = run_for(options.number("seconds"));
    shared->stop.store(true);
    join_child(other);

    Report report("duplex");
    report.add("via", options.text("via"));
    report.add("size", static_cast<long>(size));
    // Received here; the other direction carries about the same at the same time.
    report.add("messages_per_s", static_cast<double>(bytes) / static_cast<double>(size) / took);
    report.add("bytes_per_s", static_cast<double>(bytes) / took);
    report.print();
    return 0;
}
