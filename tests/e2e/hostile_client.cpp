// A hostile client: whatever a process may do to the monitor and to honest servers that it can reach.
//
//   hostile_client MONITOR LIBRARY SEED PORT...
//
// Rounds of processes that ask the monitor for anything, and of such that write over the memory of
// connections that libsd made for them. Most are killed at some moment. On SIGTERM it ends the last ones and
// says what has been done, as a line of JSON.
#include "tests/e2e/hostile/hostile.hpp"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

namespace sd::hostile {

Board &board() {
    static Board *const it = [] {
        void *base = mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED, kBoard, 0);
        if (base == MAP_FAILED)
            abort();
        return static_cast<Board *>(base);
    }();
    return *it;
}

namespace {

constexpr int kAtOnce = 2; ///< processes of a round

volatile sig_atomic_t ending;

/// With another program image, as the library comes with an exec only.
pid_t start(char **argv, const char *role, uint64_t seed, bool with_library) {
    const pid_t pid = fork();
    if (pid != 0)
        return pid;
    signal(SIGTERM, SIG_DFL);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    setpgid(0, 0); // with all that it forks
    if (with_library) {
        setenv("LD_PRELOAD", argv[2], 1);
        setenv("SD_MONITOR", argv[1], 1);
    }
    setenv("SD_HOSTILE_ROLE", role, 1);
    const std::string number = std::to_string(seed);
    argv[3] = const_cast<char *>(number.c_str());
    execv("/proc/self/exe", argv);
    _exit(127);
}

void end(pid_t pid) {
    kill(-pid, SIGKILL);
    kill(pid, SIGKILL);
    waitpid(pid, nullptr, 0);
}

/// Until SIGTERM.
void rounds(char **argv, Random &random) {
    while (!ending) {
        pid_t pids[kAtOnce];
        for (pid_t &pid : pids) {
            const bool asks = chance(random, 50);
            pid = start(argv, asks ? "asks" : "scribbles", random(), !asks || chance(random, 10));
        }
        board().rounds.fetch_add(1, std::memory_order_relaxed);
        const auto ticks = static_cast<int>(1 + below(random, chance(random, 70) ? 40 : 200));
        for (int i = 0; i < ticks && !ending; ++i) {
            usleep(20'000);
            if (chance(random, 2)) // stopped for a moment, in the middle of anything
                for (const int signal : {SIGSTOP, SIGCONT}) {
                    kill(-pids[0], signal);
                    usleep(static_cast<useconds_t>(below(random, 300'000)));
                }
        }
        for (const pid_t pid : pids) {
            siginfo_t ended{};
            waitid(P_PID, static_cast<id_t>(pid), &ended, WEXITED | WNOHANG | WNOWAIT);
            board().killed.fetch_add(ended.si_pid == 0, std::memory_order_relaxed);
            end(pid);
        }
    }
}

void report() {
    const auto list = [](const std::atomic<uint64_t> *counts) {
        std::string text;
        for (unsigned i = 0; i < sd::hostile::kOperations; ++i)
            if (const uint64_t n = counts[i]; n != 0)
                text += (text.empty() ? "\"" : ",\"") + std::to_string(i) + "\":" + std::to_string(n);
        return text;
    };
    const Board &b = board();
    printf(
        "{\"rounds\":%lu,\"killed\":%lu,\"channels\":%lu,\"requests\":%lu,\"answers\":%lu,\"scribbles\":%lu,"
        "\"connections\":%lu,\"forks\":%lu,\"operations\":{%s},\"granted\":{%s}}\n",
        b.rounds.load(), b.killed.load(), b.channels.load(), b.requests.load(), b.answers.load(),
        b.scribbles.load(), b.connections.load(), b.forks.load(), list(b.operation).c_str(),
        list(b.granted).c_str());
}

int run(int argc, char **argv) {
    if (argc < 5)
        return 2;
    Random random(strtoull(argv[3], nullptr, 10));
    Target target{argv[1], {}};
    for (int i = 4; i < argc; ++i)
        target.servers.push_back(static_cast<uint16_t>(atoi(argv[i])));
    if (const char *role = getenv("SD_HOSTILE_ROLE"); role != nullptr) {
        signal(SIGPIPE, SIG_IGN);
        strcmp(role, "asks") == 0 ? ask_anything(target, random) : scribble(target, random);
        return 0;
    }
    const rlimit none{0, 0};
    setrlimit(RLIMIT_CORE, &none);
    const int file = memfd_create("board", 0);
    if (file < 0 || ftruncate(file, sizeof(Board)) != 0 || dup2(file, kBoard) < 0)
        return 1;
    close(file);
    struct sigaction action {};
    action.sa_handler = [](int) { ending = 1; };
    sigaction(SIGTERM, &action, nullptr);
    rounds(argv, random);
    report();
    return 0;
}

} // namespace

} // namespace sd::hostile

int main(int argc, char **argv) { return sd::hostile::run(argc, argv); }
