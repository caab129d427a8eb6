// What the means to share a connection cost who does not share it: 8-byte messages by libsd as it is, by the
// same code compiled without tokens, and by that with what puts off the thread's own signal handlers, in
// turns. Once between two threads on two cores, there and back (round_trip), as connections are used; and
// once to itself in one thread (alone), where nothing but instructions counts.
#include "bench/common/measure.hpp"
#include "bench/common/options.hpp"
#include "bench/common/process.hpp"

#include <algorithm>
#include <cstdlib>
#include <dlfcn.h>
#include <unistd.h>
#include <vector>

using namespace sd::bench;

namespace {

struct Variant {
    void (*run)(unsigned long) = nullptr;
    void (*round_trips)(unsigned long, int) = nullptr;
    std::vector<double> alone, round_trip;

    explicit Variant(const std::string &path) {
        void *module = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
        if (module == nullptr) {
            errno = 0;
            die(dlerror());
        }
        reinterpret_cast<void (*)()>(dlsym(module, "sharing_setup"))();
        run = reinterpret_cast<void (*)(unsigned long)>(dlsym(module, "sharing_run"));
        round_trips = reinterpret_cast<void (*)(unsigned long, int)>(dlsym(module, "sharing_round_trips"));
    }
    static double median(std::vector<double> &ns) {
        std::sort(ns.begin(), ns.end());
        return ns[ns.size() / 2];
    }
};

} // namespace

int main(int argc, char **argv) {
    const Options options(argc, argv, "an uncontended send and receive, with and without tokens",
                          {{"rounds", "41", "times that each is measured"},
                           {"messages", "200000", "send and receive pairs each time"},
                           {"trips", "30000", "round trips each time"},
                           {"cpu", "0,1", "processors"}});
    // The library's thread-local data is made to be there from the start of a program; loaded later, twice,
    // it needs more room than libc sets aside.
    if (!getenv("GLIBC_TUNABLES")) {
        setenv("GLIBC_TUNABLES", "glibc.rtld.optional_static_tls=65536", 1);
        execv("/proc/self/exe", argv);
        die("execv");
    }
    pin_to_cpu(options.cpu(0));
    std::string directory = argv[0];
    directory.resize(directory.rfind('/') == std::string::npos ? 0 : directory.rfind('/') + 1);
    Variant with((directory.empty() ? "./" : directory) + "sharing_with.so");
    Variant without((directory.empty() ? "./" : directory) + "sharing_without.so");
    Variant handlers((directory.empty() ? "./" : directory) + "sharing_handlers.so");
    const auto messages = static_cast<unsigned long>(options.integer("messages"));
    const auto trips = static_cast<unsigned long>(options.integer("trips"));
    const double per_ns = ticks_per_ns();
    for (long i = 0; i < options.integer("rounds"); ++i) {
        for (Variant *v : {&with, &without, &handlers}) {
            v->run(messages / 10);
            const std::uint64_t start = ticks();
            v->run(messages);
            const std::uint64_t between = ticks();
            v->alone.push_back(static_cast<double>(between - start) / per_ns / static_cast<double>(messages));
            v->round_trips(trips, options.cpu(1));
            v->round_trip.push_back(static_cast<double>(ticks() - between) / per_ns / static_cast<double>(trips));
        }
    }
    Report report("sharing");
    const auto add = [&](const std::string &what, std::vector<double> Variant::*ns) {
        const double cost = Variant::median(with.*ns), bare = Variant::median(without.*ns),
                     mark = Variant::median(handlers.*ns);
        report.add((what + "_with_ns").c_str(), cost);
        report.add((what + "_without_ns").c_str(), bare);
        report.add((what + "_handlers_ns").c_str(), mark);
        report.add((what + "_ratio").c_str(), cost / bare);
        report.add((what + "_handlers_ratio").c_str(), cost / mark);
    };
    add("round_trip", &Variant::round_trip);
    add("alone", &Variant::alone);
    report.print();
    return 0;
}
