// epoll with company: other kinds of files, fairness, several threads and processes, deadlines.
#include "tests/programs/process.hpp"
#include "tests/programs/sets.hpp"

#include <set>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>

using namespace sdtest;

namespace {

volatile sig_atomic_t handled = 0;

} // namespace

BEHAVIOUR("mixed kinds of members", mixed_kinds, accelerated) {
    const Pair pair = make_pair();
    int ends[2];
    MUST(pipe(ends));
    const int counter = MUST(eventfd(0, EFD_NONBLOCK));
    const int timer = MUST(timerfd_create(CLOCK_MONOTONIC, 0));
    const int datagram = MUST(socket(AF_INET, SOCK_DGRAM, 0));
    const Address any = make_address("127.0.0.1", 0);
    MUST(bind(datagram, any.raw(), any.length));
    const int set = MUST(epoll_create1(0));
    SHOW(add(set, pair.server, EPOLLIN, 1));
    SHOW(add(set, ends[0], EPOLLIN, 2));
    SHOW(add(set, counter, EPOLLIN, 3));
    SHOW(add(set, timer, EPOLLIN, 4));
    SHOW(add(set, datagram, EPOLLIN, 5));
    SHOW(add(set, pair.listener, EPOLLIN, 6));
    say("%s", wait_set(set, 0).c_str());
    // Each of them wakes a sleeping wait.
    for (int i = 1; i <= 6; ++i) {
        std::thread waker([&] {
            sleep_ms(40);
            const itimerspec soon{{0, 0}, {0, 1000000}};
            const Address to = local_address(datagram);
            if (i == 1)
                send_all(pair.client, "x");
            else if (i == 2)
                MUST(write(ends[1], "x", 1));
            else if (i == 3)
                MUST(eventfd_write(counter, 1));
            else if (i == 4)
                MUST(timerfd_settime(timer, 0, &soon, nullptr));
            else if (i == 5)
                MUST(sendto(datagram, "x", 1, 0, to.raw(), to.length));
            else
                connect_to(pair.listener);
        });
        say("%s", wait_set(set, kPatience).c_str());
        waker.join();
        char buffer[16];
        if (i == 6)
            MUST(accept(pair.listener, nullptr, nullptr));
        else
            MUST(read(i == 1   ? pair.server
                      : i == 2 ? ends[0]
                      : i == 3 ? counter
                      : i == 4 ? timer
                               : datagram,
                      buffer, 8));
    }
    // All of them at once.
    send_all(pair.client, "x");
    MUST(write(ends[1], "x", 1));
    MUST(eventfd_write(counter, 1));
    connect_to(pair.listener);
    wait_for(pair.server, POLLIN);
    wait_for(pair.listener, POLLIN);
    say("%s", wait_set(set, 0).c_str());
}

// With room for one event, every ready member gets its turn.
BEHAVIOUR("fair with room for one event", fair_with_little_room, accelerated) {
    std::vector<Pair> pairs;
    const int listener = make_listener();
    const int set = MUST(epoll_create1(0));
    int ends[2];
    MUST(pipe(ends));
    MUST(write(ends[1], "x", 1));
    for (uint64_t i = 0; i < 8; ++i) {
        pairs.push_back(connect_through(listener));
        MUST(add(set, pairs.back().server, EPOLLIN, i));
        send_all(pairs.back().client, "x");
        wait_for(pairs.back().server, POLLIN);
    }
    MUST(add(set, ends[0], EPOLLIN, 8));
    std::set<uint64_t> seen;
    for (int i = 0; i < 27; ++i) {
        epoll_event event{};
        MUST(epoll_wait(set, &event, 1, kPatience));
        seen.insert(event.data.u64);
    }
    say("%zu of 9 seen", seen.size());
}

// However long a program has been busy, every ready member gets its turn, and each edge is told once.
BEHAVIOUR("fair to all when busy", fair_when_busy, accelerated) {
    constexpr int kMembers = 40;
    const int listener = make_listener();
    const int set = MUST(epoll_create1(0));
    const pid_t peer = spawn([&] {
        std::vector<int> clients;
        for (int i = 0; i < kMembers; ++i) {
            clients.push_back(connect_to(listener));
            send_all(clients.back(), "x");
        }
        char byte;
        MUST(read(clients.back(), &byte, 1)); // until the set is done with
    });
    std::vector<int> servers;
    for (uint64_t i = 0; i < kMembers; ++i) {
        servers.push_back(MUST(accept(listener, nullptr, nullptr)));
        wait_for(servers.back(), POLLIN);
        MUST(add(set, servers.back(), EPOLLIN, i));
    }
    epoll_event events[64];
    std::set<uint64_t> seen;
    const auto note = [&](int n) {
        for (int k = 0; k < n; ++k)
            seen.insert(events[k].data.u64);
    };
    for (int i = 0; i < 200; ++i)
        MUST(epoll_wait(set, events, 64, kPatience));
    for (int i = 0; i < 6; ++i)
        note(MUST(epoll_wait(set, events, 64, kPatience)));
    say("%zu of %d seen", seen.size(), kMembers);
    for (uint64_t i = 0; i < kMembers; ++i) {
        epoll_event event{EPOLLIN | EPOLLET, {}};
        event.data.u64 = i;
        MUST(epoll_ctl(set, EPOLL_CTL_MOD, servers[i], &event));
    }
    seen.clear();
    int edges = 0;
    for (int n; (n = MUST(epoll_wait(set, events, 64, 0))) > 0; edges += n)
        note(n);
    say("%d edges of %zu", edges, seen.size());
    send_all(servers.back(), "x");
    reap("peer", peer);
}

// A busy connection does not keep a pipe from being noticed.
BEHAVIOUR("a busy socket does not hide a pipe", busy_socket_and_quiet_pipe, accelerated) {
    const Pair pair = make_pair();
    const int set = MUST(epoll_create1(0));
    int ends[2];
    MUST(pipe(ends));
    MUST(add(set, pair.server, EPOLLIN, 1));
    MUST(add(set, ends[0], EPOLLIN, 2));
    send_all(pair.client, "never read");
    wait_for(pair.server, POLLIN);
    MUST(write(ends[1], "x", 1));
    bool seen = false;
    Stopwatch watch;
    while (!seen && watch.ms() < kPatience) {
        epoll_event event{};
        MUST(epoll_wait(set, &event, 1, kPatience));
        seen = event.data.u64 == 2;
    }
    SHOW_BOOL(seen);
}

BEHAVIOUR("rules of EPOLLEXCLUSIVE", exclusive, accelerated) {
    const Pair pair = make_pair();
    const int set = MUST(epoll_create1(0));
    SHOW(add(set, pair.listener, EPOLLIN | EPOLLEXCLUSIVE, 1));
    SHOW(add(set, pair.server, EPOLLIN | EPOLLEXCLUSIVE | EPOLLONESHOT, 2));
    SHOW(add(set, pair.server, EPOLLIN | EPOLLEXCLUSIVE | EPOLLRDHUP, 2));
    SHOW(add(set, pair.server, EPOLLIN | EPOLLEXCLUSIVE | EPOLLET, 2));
    epoll_event event{};
    event.events = EPOLLIN | EPOLLEXCLUSIVE;
    SHOW(epoll_ctl(set, EPOLL_CTL_MOD, pair.listener, &event));
    event.events = EPOLLIN;
    SHOW(epoll_ctl(set, EPOLL_CTL_MOD, pair.listener, &event));
    say("%s", wait_set(set, 0).c_str());
    const int client = connect_to(pair.listener);
    say("%s", wait_set(set, kPatience).c_str());
    close(client);
}

// Several sets wait exclusively on one listener: at least one is woken for each connection, none is lost.
BEHAVIOUR("several exclusive waiters", exclusive_listeners, accelerated) {
    const int listener = make_listener();
    set_nonblocking(listener);
    std::atomic<int> accepted{0};
    std::atomic<bool> stop{false};
    std::vector<std::thread> workers;
    for (int i = 0; i < 3; ++i)
        workers.emplace_back([&] {
            const int set = MUST(epoll_create1(0));
            MUST(add(set, listener, EPOLLIN | EPOLLEXCLUSIVE, 1));
            while (!stop) {
                epoll_event event{};
                if (epoll_wait(set, &event, 1, 50) != 1)
                    continue;
                const int fd = accept(listener, nullptr, nullptr);
                if (fd >= 0) {
                    ++accepted;
                    close(fd);
                }
            }
            close(set);
        });
    for (int i = 0; i < 60; ++i) {
        close(connect_to(listener));
        if (i % 10 == 0)
            sleep_ms(10);
    }
    for (Stopwatch watch; accepted < 60 && watch.ms() < kPatience;)
        sleep_ms(5);
    stop = true;
    for (std::thread &worker : workers)
        worker.join();
    say("accepted %d", accepted.load());
}

BEHAVIOUR("changed while somebody waits", changed_while_waiting, accelerated) {
    const Pair pair = make_pair();
    const int set = MUST(epoll_create1(0));
    std::string seen;
    std::thread waiter([&] { seen = wait_set(set, kPatience); });
    sleep_ms(60);
    send_all(pair.client, "x");
    SHOW(add(set, pair.server, EPOLLIN, 9));
    waiter.join();
    say("%s", seen.c_str());
    receive(pair.server, 1);
    std::thread again([&] { seen = wait_set(set, kPatience); });
    sleep_ms(60);
    epoll_event event{};
    event.events = EPOLLOUT;
    event.data.u64 = 10;
    SHOW(epoll_ctl(set, EPOLL_CTL_MOD, pair.server, &event));
    again.join();
    say("%s", seen.c_str());
}

// Several threads wait on one set; one message in one-shot mode wakes exactly one of them.
BEHAVIOUR("several waiters, one-shot", several_waiters_one_shot, accelerated) {
    const Pair pair = make_pair();
    const int set = MUST(epoll_create1(0));
    MUST(add(set, pair.server, EPOLLIN | EPOLLONESHOT, 1));
    std::atomic<int> woken{0};
    std::vector<std::thread> waiters;
    for (int i = 0; i < 4; ++i)
        waiters.emplace_back([&] {
            epoll_event event{};
            if (epoll_wait(set, &event, 1, 400) == 1)
                ++woken;
        });
    sleep_ms(80);
    send_all(pair.client, "x");
    for (std::thread &waiter : waiters)
        waiter.join();
    say("woken %d", woken.load());
}

// The set made before a fork is one set for both.
BEHAVIOUR("shared with a child", shared_with_a_child, accelerated) {
    const Pair pair = make_pair();
    const int set = MUST(epoll_create1(0));
    MUST(add(set, pair.server, EPOLLIN, 1));
    const Gate ready;
    const pid_t child = spawn([&] {
        ready.open();
        say("child %s", wait_set(set, kPatience).c_str());
        say("child got %s", receive(pair.server, 4).c_str());
    });
    ready.pass();
    sleep_ms(40);
    send_all(pair.client, "news");
    reap("child", child);
    say("parent %s", wait_set(set, 0).c_str());
    send_all(pair.client, "more");
    say("parent %s", wait_set(set, kPatience).c_str());
}

BEHAVIOUR("deadlines", deadlines, accelerated) {
    const Pair pair = make_pair();
    const int set = MUST(epoll_create1(0));
    MUST(add(set, pair.server, EPOLLIN, 1));
    Stopwatch watch;
    say("%s", wait_set(set, 100).c_str());
    SHOW_BOOL(watch.ms() >= 95);
    epoll_event event{};
    Stopwatch again;
    SHOW(epoll_pwait(set, &event, 1, 100, nullptr));
    SHOW_BOOL(again.ms() >= 95);
    const timespec limit{0, 100000000}, bad{0, 2000000000};
    Stopwatch third;
    SHOW(epoll_pwait2(set, &event, 1, &limit, nullptr));
    SHOW_BOOL(third.ms() >= 95);
    SHOW(epoll_pwait2(set, &event, 1, &bad, nullptr));
    send_all(pair.client, "x");
    SHOW(epoll_pwait2(set, &event, 1, nullptr, nullptr));
    SHOW(epoll_wait(set, &event, 1, -1));
}

BEHAVIOUR("signal masks", signal_masks, accelerated) {
    const Pair pair = make_pair();
    const int set = MUST(epoll_create1(0));
    MUST(add(set, pair.server, EPOLLIN, 1));
    signal(SIGUSR1, [](int) { handled = handled + 1; });
    sigset_t blocked, open;
    sigemptyset(&open);
    sigemptyset(&blocked);
    sigaddset(&blocked, SIGUSR1);
    MUST(sigprocmask(SIG_BLOCK, &blocked, nullptr));
    raise(SIGUSR1);
    epoll_event event{};
    SHOW(epoll_wait(set, &event, 1, 50));
    say("handled %d", static_cast<int>(handled));
    SHOW(epoll_pwait(set, &event, 1, kPatience, &open));
    say("handled %d", static_cast<int>(handled));
    raise(SIGUSR1);
    SHOW(epoll_pwait2(set, &event, 1, nullptr, &open));
    say("handled %d", static_cast<int>(handled));
}

// A ping-pong that sleeps on both sides, many times: no wake-up may be lost.
BEHAVIOUR("no lost wake-up", no_lost_wakeup, accelerated) {
    const Pair pair = make_pair();
    std::thread echo([&] {
        const int set = MUST(epoll_create1(0));
        MUST(add(set, pair.server, EPOLLIN | EPOLLET, 1));
        epoll_event event{};
        char byte;
        for (;;) {
            if (epoll_wait(set, &event, 1, kPatience) != 1)
                say("lost at the server");
            if (recv(pair.server, &byte, 1, MSG_DONTWAIT) != 1)
                return;
            send_all(pair.server, &byte, 1);
        }
    });
    const int set = MUST(epoll_create1(0));
    MUST(add(set, pair.client, EPOLLIN | EPOLLET, 1));
    int done = 0;
    for (; done < 3000; ++done) {
        epoll_event event{};
        char byte = static_cast<char>(done);
        send_all(pair.client, &byte, 1);
        if (epoll_wait(set, &event, 1, kPatience) != 1 || recv(pair.client, &byte, 1, MSG_DONTWAIT) != 1)
            break;
        if (done % 500 == 0)
            sleep_ms(5); // long enough for the other side to fall asleep
    }
    say("%d round trips", done);
    close(pair.client);
    echo.join();
}

// A client that another thread connects, while the set has known nothing but an idle listener.
BEHAVIOUR("a client that another thread adds beside an idle listener", client_added_beside_an_idle_listener,
          accelerated) {
    const int idle = make_listener(), listener = make_listener();
    const int set = MUST(epoll_create1(0));
    MUST(add(set, idle, EPOLLIN, 1));
    epoll_event event{};
    SHOW(epoll_wait(set, &event, 1, 10));
    std::thread waiter([&] {
        SHOW(epoll_wait(set, &event, 1, kPatience));
        say("member %llu", static_cast<unsigned long long>(event.data.u64));
    });
    sleep_ms(100);
    const int client = connect_to(local_address(listener));
    MUST(add(set, client, EPOLLIN, 2));
    sleep_ms(100);
    const int server = MUST(accept(listener, nullptr, nullptr));
    send_all(server, "x");
    waiter.join();
}

// The listener is waited for on the link that a connection of the set had as well, the last of which another
// thread takes out meanwhile.
BEHAVIOUR("a client after the last connection has left the set", client_after_the_last_connection_has_left,
          accelerated) {
    const int listener = make_listener(), set = MUST(epoll_create1(0));
    const int first = connect_to(local_address(listener));
    const int server = MUST(accept(listener, nullptr, nullptr));
    MUST(add(set, listener, EPOLLIN, 1));
    MUST(add(set, server, EPOLLIN, 2));
    std::thread waiter([&] {
        epoll_event event{};
        SHOW(epoll_wait(set, &event, 1, -1)); // a limit would end in a look
        say("member %llu", static_cast<unsigned long long>(event.data.u64));
    });
    sleep_ms(100);
    MUST(epoll_ctl(set, EPOLL_CTL_DEL, server, nullptr));
    sleep_ms(100);
    connect_to(local_address(listener));
    waiter.join();
    close(first);
}

int main(int argc, char **argv) { return run_behaviour(argc, argv); }
