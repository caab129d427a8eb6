// Processor time and wake-ups of both ends and of the monitor while many connections are open and silent.
#include "bench/common/idle_pair.hpp"
#include "bench/common/measure.hpp"
#include "bench/common/options.hpp"
#include "bench/common/process.hpp"
#include "bench/common/procfs.hpp"

#include <unistd.h>

using namespace sd::bench;

int main(int argc, char **argv) {
    const Options options(argc, argv, "processor time used by silent connections",
                          {{"connections", "100", "connections open"},
                           {"seconds", "10", "time measured"},
                           {"settle", "1", "seconds of silence before that"},
                           {"monitor", "sd-monitor", "name of the monitor's process"},
                           {"cpu", "0,1", "processors of server and client"}});
    raise_fd_limit();
    IdlePair pair(options.integer("connections"), options.cpu(0), options.cpu(1));
    pair.open();
    usleep(static_cast<useconds_t>(options.number("settle") * 1e6));

    struct Watched {
        const char *name;
        pid_t pid;
        Activity before;
    };
    std::vector<Watched> watched{{"server", pair.server(), {}}, {"client", pair.client(), {}}};
    for (const pid_t pid : find_processes(options.text("monitor"))) {
        watched.push_back({"monitor", pid, {}});
    }
    for (Watched &each : watched) {
        each.before = activity_of(each.pid);
    }
    const std::uint64_t start = now_ns();
    usleep(static_cast<useconds_t>(options.number("seconds") * 1e6));
    const auto took = static_cast<double>(now_ns() - start);

    Report report("idle");
    report.add("connections", options.integer("connections"));
    double busy = 0;
    double wakeups = 0;
    for (const Watched &each : watched) {
        const Activity after = activity_of(each.pid);
        const auto run = static_cast<double>(after.run_ns - each.before.run_ns);
        const auto woken = static_cast<double>(after.wakeups - each.before.wakeups);
        report.add((std::string(each.name) + "_cpu_percent").c_str(), run / took * 100);
        report.add((std::string(each.name) + "_wakeups_per_s").c_str(), woken / (took / 1e9));
        busy += run;
        wakeups += woken;
    }
    report.add("cpu_percent", busy / took * 100);
    report.add("wakeups_per_s", wakeups / (took / 1e9));
    report.print();
    return 0;
}
