// Memory that an open, silent connection costs, both ends and the monitor together.
#include "bench/common/idle_pair.hpp"
#include "bench/common/measure.hpp"
#include "bench/common/options.hpp"
#include "bench/common/process.hpp"
#include "bench/common/procfs.hpp"

#include <unistd.h>

using namespace sd::bench;

int main(int argc, char **argv) {
    const Options options(argc, argv, "memory per silent connection",
                          {{"connections", "1000", "connections open"},
                           {"settle", "0.5", "seconds of silence before looking"},
                           {"monitor", "sd-monitor", "name of the monitor's process"},
                           {"cpu", "0,1", "processors of server and client"}});
    raise_fd_limit();
    const long connections = options.integer("connections");
    IdlePair pair(connections, options.cpu(0), options.cpu(1));
    usleep(200'000);
    std::vector<pid_t> pids = find_processes(options.text("monitor"));
    pids.push_back(pair.server());
    pids.push_back(pair.client());
    const auto sum = [&] {
        Memory total;
        for (const pid_t pid : pids) {
            const Memory one = memory_of(pid);
            total.private_bytes += one.private_bytes;
            total.shared_bytes += one.shared_bytes;
        }
        return total;
    };
    const Memory before = sum();
    const std::uint64_t kernel_before = kernel_bytes();
    pair.open();
    usleep(static_cast<useconds_t>(options.number("settle") * 1e6));
    const Memory after = sum();
    const std::uint64_t kernel_after = kernel_bytes();

    const auto each = [&](std::uint64_t from, std::uint64_t to) {
        return (static_cast<double>(to) - static_cast<double>(from)) / static_cast<double>(connections);
    };
    Report report("membytes");
    report.add("connections", connections);
    report.add("private_bytes", each(before.private_bytes, after.private_bytes));
    report.add("shared_bytes", each(before.shared_bytes, after.shared_bytes));
    report.add("user_bytes",
               each(before.private_bytes + before.shared_bytes, after.private_bytes + after.shared_bytes));
    report.add("kernel_bytes", each(kernel_before, kernel_after));
    // What libsd adds to a process before its first connection shows when this is compared with a run without
    // it.
    report.add("server_private_bytes", static_cast<long>(memory_of(pair.server()).private_bytes));
    report.print();
    return 0;
}
