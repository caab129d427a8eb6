// Threads with a set each: traffic of one does not wake the others.
#include "tests/programs/sets.hpp"

#include <cstdio>
#include <sys/syscall.h>
#include <thread>

using namespace sdtest;

namespace {

// How often a thread of this process has gone to sleep by itself, as the kernel counts it; -1: there is no such thread.
long sleeps_of(pid_t thread) {
    const std::string path = "/proc/self/task/" + std::to_string(thread) + "/status";
    FILE *status = fopen(path.c_str(), "re");
    if (status == nullptr)
        return -1;
    long count = -1;
    char line[256];
    while (fgets(line, sizeof line, status) != nullptr)
        if (sscanf(line, "voluntary_ctxt_switches: %ld", &count) == 1)
            break;
    fclose(status);
    return count;
}

// When a thread that waits has not moved for a while, it sleeps in the kernel for good.
long settled(pid_t thread) {
    long before = -1;
    for (int quiet = 0; quiet < 5; ++quiet) {
        sleep_ms(20);
        const long now = sleeps_of(thread);
        if (now != before)
            quiet = 0;
        before = now;
    }
    return before;
}

struct Worker {
    Pair pair = make_pair();
    std::atomic<pid_t> id{0};
    std::thread thread;

    void run() {
        const int set = MUST(epoll_create1(0));
        MUST(add(set, pair.server, EPOLLIN, 1));
        id = static_cast<pid_t>(syscall(SYS_gettid));
        for (;;) {
            epoll_event event{};
            if (epoll_wait(set, &event, 1, -1) != 1)
                continue;
            char byte = 0;
            if (recv(pair.server, &byte, 1, 0) != 1)
                break;
            send_all(pair.server, std::string(1, byte));
        }
        close(set);
    }
};

} // namespace

BEHAVIOUR(traffic_of_one) {
    constexpr int kMessages = 100;
    Worker workers[4];
    for (Worker &w : workers) {
        w.thread = std::thread([&w] { w.run(); });
        while (w.id == 0)
            sleep_ms(1);
    }
    long before[4];
    for (int i = 0; i < 4; ++i)
        before[i] = settled(workers[i].id);
    for (int i = 0; i < kMessages; ++i) {
        send_all(workers[0].pair.client, "x");
        receive(workers[0].pair.client, 1);
        sleep_ms(2); // it goes to sleep again
    }
    const long busy = sleeps_of(workers[0].id) - before[0];
    say("the first thread was woken: %s", busy > kMessages / 2 ? "yes" : "no");
    for (int i = 1; i < 4; ++i)
        say("thread %d was woken %ld times", i, sleeps_of(workers[i].id) - before[i]);
    for (Worker &w : workers) {
        shutdown(w.pair.client, SHUT_WR);
        w.thread.join();
    }
}

int main(int argc, char **argv) { return run_behaviour(argc, argv); }
