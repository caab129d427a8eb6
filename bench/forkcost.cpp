// fork() of a process that holds many connections: how long the call takes in the parent, and until a child
// that ends at once is reaped.
#include "bench/common/measure.hpp"
#include "bench/common/net.hpp"
#include "bench/common/options.hpp"
#include "bench/common/process.hpp"

#include <algorithm>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

using namespace sd::bench;

namespace {

double median(std::vector<std::uint64_t> &times) {
    std::sort(times.begin(), times.end());
    return static_cast<double>(times[times.size() / 2]);
}

} // namespace

int main(int argc, char **argv) {
    const Options options(argc, argv, "cost of fork() with open connections",
                          {{"connections", "10000", "connections the forking process holds"},
                           {"count", "60", "forks"},
                           {"cpu", "0", "processor of the forking process"}});
    raise_fd_limit();
    const long connections = options.integer("connections");
    std::uint16_t port = 0;
    const int listener = listen_tcp("127.0.0.1", port);
    const pid_t server = start_child(1, [&] {
        for (long i = 0; i < connections; ++i)
            (void)accept_tcp(listener);
        pause();
    });
    close(listener);
    pin_to_cpu(options.cpu(0));
    for (long i = 0; i < connections; ++i)
        (void)connect_tcp("127.0.0.1", port);
    std::vector<std::uint64_t> calls, wholes;
    for (long i = 0; i < options.integer("count"); ++i) {
        const std::uint64_t start = now_ns();
        const pid_t child = fork();
        if (child < 0)
            die("fork");
        if (child == 0)
            _exit(0);
        calls.push_back(now_ns() - start);
        join_child(child);
        wholes.push_back(now_ns() - start);
    }
    end_child(server);
    Report report("forkcost");
    report.add("connections", connections);
    report.add("fork_ns", median(calls));
    report.add("whole_ns", median(wholes));
    report.print();
    return 0;
}
