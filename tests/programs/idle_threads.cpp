// Threads with a set each: traffic of one does not wake the others.
#include "tests/programs/sets.hpp"

#include <cstdio>
#include <thread>
#include <unistd.h>

using namespace sdtest;

namespace {

// How often a thread of this process has gone to sleep by itself, as the kernel counts it; -1: there is no
// such thread.
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

// A thread that echoes bytes until the end of its connection.
struct Worker {
    Pair pair;
    std::atomic<pid_t> id{0};
    std::atomic<int> events{0};
    std::thread thread{[this] { run(); }};

    ~Worker() {
        MUST(shutdown(pair.client, SHUT_WR));
        thread.join();
    }
    Worker(int listener) : pair(connect_through(listener)) {}
    Worker(const Worker &) = delete;
    Worker &operator=(const Worker &) = delete;

    // How often it has gone to sleep, once it does so for good.
    long settle() {
        while (id == 0)
            sleep_ms(1);
        return settled(id);
    }

    void run() {
        const int set = MUST(epoll_create1(0));
        MUST(add(set, pair.server, EPOLLIN, 1));
        id = gettid();
        for (char byte;;) {
            epoll_event event{};
            MUST(epoll_wait(set, &event, 1, -1));
            ++events;
            if (recv(pair.server, &byte, 1, 0) != 1)
                break;
            send_all(pair.server, &byte, 1);
        }
        close(set);
    }
};
constexpr int kThreads = 4;

// Sends one message after the other to the first thread and takes its answers.
void keep_busy(const Worker &first, int messages, int pause_ms) {
    int right = 0;
    for (int k = 0; k < messages; ++k) {
        send_all(first.pair.client, "x", 1);
        right += receive(first.pair.client, 1) == "x";
        if (pause_ms > 0)
            sleep_ms(pause_ms);
    }
    SHOW_BOOL(right == messages);
}

} // namespace

BEHAVIOUR("threads with nothing to do sleep", threads_with_nothing_to_do, accelerated) {
    const int listener = make_listener();
    Worker workers[] = {listener, listener, listener, listener};
    long before = 0, after = 0;
    for (int i = 1; i < kThreads; ++i)
        before += workers[i].settle();
    keep_busy(workers[0], 20000, 0);
    for (int i = 1; i < kThreads; ++i)
        after += sleeps_of(workers[i].id);
    SHOW_BOOL(before > 0 && after - before < 50); // a timer of ours may look after memory now and then
    say("%d %d %d", workers[1].events.load(), workers[2].events.load(), workers[3].events.load());
}

// The busy one goes to sleep after each message, and is woken for the next.
BEHAVIOUR("traffic of one of four threads wakes no other", one_that_is_woken, accelerated) {
    constexpr int kMessages = 100;
    Worker workers[] = {make_listener(), make_listener(), make_listener(), make_listener()};
    long before[kThreads];
    for (int i = 0; i < kThreads; ++i)
        before[i] = workers[i].settle();
    keep_busy(workers[0], kMessages, 2);
    const long busy = sleeps_of(workers[0].id) - before[0];
    say("the first thread was woken: %s", busy > kMessages / 2 ? "yes" : "no");
    for (int i = 1; i < kThreads; ++i)
        say("thread %d was woken %ld times", i, sleeps_of(workers[i].id) - before[i]);
}

int main(int argc, char **argv) { return run_behaviour(argc, argv); }
