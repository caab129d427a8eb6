// Packets passed along a row of processes: each reads them from its standard input and writes them to its
// standard output, one call per packet, as the stages of a packet filter or of a shell pipeline would.
#include "bench/common/measure.hpp"
#include "bench/common/net.hpp"
#include "bench/common/options.hpp"
#include "bench/common/process.hpp"

#include <csignal>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <string>
#include <vector>

using namespace sd::bench;

namespace {

void onto(int fd, int standard) {
    if (fd != standard) {
        if (dup2(fd, standard) < 0) {
            die("dup2");
        }
        close(fd);
    }
}

// What a stage does; also the whole program when it was started with `stage` (see --exec).
int pass_along(std::size_t size) {
    std::signal(SIGPIPE, SIG_IGN);
    std::vector<char> packet(size);
    Mover mover({STDIN_FILENO, STDOUT_FILENO}, Waiting::blocking);
    while (mover.receive(packet.data(), size)) {
        ++packet[0]; // somebody has to look at it
        if (!mover.send(packet.data(), size)) {
            break;
        }
    }
    return 0;
}

} // namespace

int main(int argc, char **argv) {
    if (argc == 3 && std::strcmp(argv[1], "stage") == 0) {
        return pass_along(std::strtoul(argv[2], nullptr, 10));
    }
    const Options options(
        argc, argv, "packets passed along a row of processes",
        {{"via", "tcp", kTransports},
         {"stages", "4", "processes between the first, which makes packets, and this one"},
         {"size", "64", "bytes of a packet"},
         {"exec", "0", "1: every stage is a program of its own, which finds its sockets under 0 and 1"},
         {"seconds", "1", "time measured"},
         {"warmup", "0.2", "seconds before that"},
         {"cpu", "0,1", "processors, given out in turn from the last process to the first"}});
    std::signal(SIGPIPE, SIG_IGN);
    const auto size = static_cast<std::size_t>(options.integer("size"));
    const auto stages = static_cast<std::size_t>(options.integer("stages"));
    const bool exec = options.integer("exec") != 0;
    if (size == 0) {
        errno = 0;
        die("--size must be 1 or more");
    }
    // Every stage writes into the channel of its number; the receiving end of one opens it before the sender
    // does.
    std::deque<Channel> channels;
    for (std::size_t i = 0; i <= stages; ++i) {
        channels.emplace_back(options.text("via"));
    }
    std::vector<pid_t> children;
    children.push_back(start_child(options.cpu(stages + 1), [&] {
        for (std::size_t i = 1; i <= stages; ++i) {
            channels[i].drop();
        }
        Mover mover(channels[0].client(), Waiting::blocking);
        const std::vector<char> packet(size, 'x');
        while (mover.send(packet.data(), size)) {
        }
    }));
    for (std::size_t i = 0; i < stages; ++i) {
        children.push_back(start_child(options.cpu(stages - i), [&, i] {
            for (std::size_t k = 0; k <= stages; ++k) {
                if (k != i && k != i + 1) {
                    channels[k].drop();
                }
            }
            // The next stage may be waiting for us: connect first, then wait for the one before.
            const Duplex next = channels[i + 1].client();
            const Duplex before = channels[i].server();
            onto(before.in, STDIN_FILENO);
            onto(next.out, STDOUT_FILENO);
            if (exec) {
                const std::string bytes = std::to_string(size);
                execl("/proc/self/exe", "pipeline", "stage", bytes.c_str(), static_cast<char *>(nullptr));
                die("exec");
            }
            pass_along(size);
            _exit(0);
        }));
    }
    pin_to_cpu(options.cpu(0));
    for (std::size_t i = 0; i < stages; ++i) {
        channels[i].drop();
    }
    Mover mover(channels[stages].server(), Waiting::blocking);
    std::vector<char> packet(size);
    std::uint64_t packets = 0;
    const auto run_for = [&](double seconds) {
        const std::uint64_t start = now_ns();
        const auto until = start + static_cast<std::uint64_t>(seconds * 1e9);
        std::uint64_t now = start;
        packets = 0;
        while (now < until) {
            for (int i = 0; i < 256; ++i) {
                if (!mover.receive(packet.data(), size)) {
                    errno = 0;
                    die("the stage before went away");
                }
            }
            packets += 256;
            now = now_ns();
        }
        return static_cast<double>(now - start) / 1e9;
    };
    run_for(options.number("warmup"));
    const double took = run_for(options.number("seconds"));
    for (const pid_t child : children) {
        end_child(child);
    }
    Report report("pipeline");
    report.add("via", options.text("via"));
    report.add("stages", static_cast<long>(stages));
    report.add("size", static_cast<long>(size));
    report.add("packets_per_s", static_cast<double>(packets) / took);
    report.add("passed_right", static_cast<long>(packet[0] == static_cast<char>('x' + static_cast<int>(stages))));
    report.print();
    return 0;
}
