// What a launcher (sdrun) adds to a program: time to start and end it, and private memory while it sleeps.
#include "bench/common/measure.hpp"
#include "bench/common/options.hpp"
#include "bench/common/process.hpp"
#include "bench/common/procfs.hpp"

#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <vector>

extern char **environ;

using namespace sd::bench;

namespace {

pid_t spawn(const std::string &launcher, std::vector<const char *> words) {
    if (!launcher.empty()) {
        words.insert(words.begin(), launcher.c_str());
    }
    words.push_back(nullptr);
    pid_t pid = -1;
    errno = posix_spawnp(&pid, words[0], nullptr, nullptr, const_cast<char *const *>(words.data()), environ);
    if (errno != 0) {
        die(words[0]);
    }
    return pid;
}

} // namespace

int main(int argc, char **argv) {
    const Options options(argc, argv, "cost of starting a program through a launcher",
                          {{"launcher", "", "program to put in front, for example build/sdrun"},
                           {"count", "100", "times /bin/true is started"},
                           {"cpu", "0", "processor"}});
    pin_to_cpu(options.cpu(0));
    const std::string &launcher = options.text("launcher");
    std::vector<std::uint64_t> times;
    for (long i = 0; i < options.integer("count"); ++i) {
        const std::uint64_t start = now_ns();
        join_child(spawn(launcher, {"/bin/true"}));
        times.push_back(now_ns() - start);
    }
    std::sort(times.begin(), times.end());

    const pid_t sleeper = spawn(launcher, {"/bin/sleep", "1000"});
    usleep(300'000);
    const Memory memory = memory_of(sleeper);
    end_child(sleeper);

    Report report("footprint");
    report.add("start_ns", static_cast<double>(times[times.size() / 2]));
    report.add("private_bytes", static_cast<long>(memory.private_bytes));
    report.print();
    return 0;
}
