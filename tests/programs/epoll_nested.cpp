// Sets in sets, and sets in poll and select.
#include "tests/programs/sets.hpp"

#include <sys/eventfd.h>
#include <thread>

using namespace sdtest;

BEHAVIOUR("nested sets", nested, accelerated) {
    const Pair pair = make_pair();
    const int inner = MUST(epoll_create1(0)), outer = MUST(epoll_create1(0));
    SHOW(add(inner, pair.server, EPOLLIN, 1));
    SHOW(add(outer, inner, EPOLLIN, 2));
    say("%s", wait_set(outer, 0).c_str());
    send_all(pair.client, "x");
    say("%s", wait_set(outer, kPatience).c_str());
    say("%s", wait_set(inner, 0).c_str());
    receive(pair.server, 1);
    say("%s", wait_set(outer, 0).c_str());
    // Woken from a sleep, through two levels.
    std::thread writer([&] {
        sleep_ms(60);
        send_all(pair.client, "y");
    });
    say("%s", wait_set(outer, kPatience).c_str());
    writer.join();
    SHOW(add(inner, outer, EPOLLIN, 3)); // a loop
}

BEHAVIOUR("a set in poll and select", set_in_poll_and_select, accelerated) {
    const Pair pair = make_pair();
    const int set = MUST(epoll_create1(0));
    SHOW(add(set, pair.server, EPOLLIN, 1));
    show_ready("nothing", set);
    pollfd entry{set, POLLIN, 0};
    SHOW(poll(&entry, 1, 50));
    send_all(pair.client, "x");
    wait_for(pair.server, POLLIN);
    show_ready("data", set);
    receive(pair.server, 1);
    show_ready("read", set);
    std::thread writer([&] {
        sleep_ms(60);
        send_all(pair.client, "y");
    });
    SHOW(poll(&entry, 1, kPatience));
    writer.join();
    receive(pair.server, 1);
    std::thread again([&] {
        sleep_ms(60);
        send_all(pair.client, "z");
    });
    fd_set readable;
    FD_ZERO(&readable);
    FD_SET(set, &readable);
    timeval limit{5, 0};
    SHOW(select(set + 1, &readable, nullptr, nullptr, &limit));
    again.join();
}

// Ready through a member of the kernel's: each question finds it, however often and in whatever order the two
// halves are asked.
BEHAVIOUR("a set with a readable pipe in another", nested_set_with_a_readable_pipe, accelerated) {
    const Pair pair = make_pair();
    int ends[2];
    MUST(pipe(ends));
    const int inner = MUST(epoll_create1(0)), outer = MUST(epoll_create1(0));
    MUST(add(inner, pair.server, EPOLLIN, 1));
    MUST(add(inner, ends[0], EPOLLIN, 2));
    MUST(write(ends[1], "x", 1));
    MUST(add(outer, inner, EPOLLIN, 3));
    for (int i = 0; i < 4; ++i)
        say("%s", wait_set(outer, 0).c_str());
    send_all(pair.client, "x");
    wait_for(pair.server, POLLIN);
    for (int i = 0; i < 4; ++i)
        say("%s", wait_set(outer, 0).c_str());
}

// One thread sleeps in each of two sets when one is put into the other, or taken out of it, and the outer
// one's gives up first.
BEHAVIOUR("sets nested beneath sleepers", nested_beneath_sleepers, accelerated) {
    const Pair pair = make_pair(), quiet = make_pair();
    const int inner = MUST(epoll_create1(0)), outer = MUST(epoll_create1(0));
    MUST(add(inner, pair.server, EPOLLIN, 1));
    MUST(add(outer, quiet.server, EPOLLIN, 2));
    for (const bool put_in : {true, false}) {
        std::thread below([&] {
            epoll_event event{};
            SHOW(epoll_wait(inner, &event, 1, -1)); // a limit would end in a look
        });
        std::string above_saw;
        std::thread above([&] { above_saw = wait_set(outer, 400); });
        sleep_ms(150);
        if (put_in)
            MUST(add(outer, inner, EPOLLIN, 3));
        else
            MUST(epoll_ctl(outer, EPOLL_CTL_DEL, inner, nullptr));
        above.join();
        say("%s", above_saw.c_str());
        sleep_ms(50);
        send_all(pair.client, "x");
        below.join();
        receive(pair.server, 1);
    }
}

// Each arrival is an edge of the set that holds the member, be it ready already; reading is none.
BEHAVIOUR("arrivals in an edge-triggered nested set", arrivals_in_an_edge_triggered_set, accelerated) {
    const Pair pair = make_pair(), other = connect_through(pair.listener);
    const int inner = MUST(epoll_create1(0)), outer = MUST(epoll_create1(0));
    constexpr uint32_t kEdge = static_cast<uint32_t>(EPOLLET);
    MUST(add(outer, inner, EPOLLIN | kEdge, 1));
    MUST(add(inner, pair.server, EPOLLIN, 2));
    MUST(add(inner, other.server, EPOLLIN | kEdge, 3));
    say("nothing: %s", wait_set(outer, 0).c_str());
    for (int i = 0; i < 3; ++i) {
        send_all(pair.client, "x");
        say("arrival: %s", wait_set(outer, kPatience).c_str());
        say("no more: %s", wait_set(outer, 0).c_str());
    }
    for (int i = 0; i < 3; ++i) {
        send_all(other.client, "x");
        say("arrival at the other: %s", wait_set(outer, kPatience).c_str());
        say("no more: %s", wait_set(outer, 0).c_str());
    }
    receive(pair.server, 1);
    say("read: %s", wait_set(outer, 0).c_str());
    // Into a sleep, while a member is ready.
    for (int i = 0; i < 3; ++i) {
        std::thread writer([&] {
            sleep_ms(50);
            send_all(pair.client, "y");
        });
        say("woken: %s", wait_set(outer, kPatience).c_str());
        writer.join();
        say("no more: %s", wait_set(outer, 0).c_str());
    }
    say("inside: %s", wait_set(inner, 0).c_str());
    say("looked inside: %s", wait_set(outer, 0).c_str());
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.u64 = 4;
    MUST(epoll_ctl(inner, EPOLL_CTL_MOD, pair.server, &event));
    say("changed: %s", wait_set(outer, 0).c_str());
    receive(pair.server, 5);
    close(pair.client);
    say("closed: %s", wait_set(outer, kPatience).c_str());
    say("no more: %s", wait_set(outer, 0).c_str());
}

int main(int argc, char **argv) { return run_behaviour(argc, argv); }
