// poll, ppoll, select and pselect: readiness in every state, mixtures of kinds, deadlines, errors.
#include "tests/programs/cases.hpp"
#include "tests/programs/process.hpp"

#include <sys/eventfd.h>

using namespace sdtest;

namespace {

std::string poll_many(std::vector<pollfd> entries, int timeout) {
    const int count = poll(entries.data(), entries.size(), timeout);
    std::string text = std::to_string(count) + ":";
    for (const pollfd &entry : entries)
        text += " " + event_names(static_cast<uint32_t>(entry.revents));
    return text;
}

volatile sig_atomic_t alarms = 0;

} // namespace

BEHAVIOUR("readiness in every state", every_state, accelerated) {
    const int fresh = MUST(socket(AF_INET, SOCK_STREAM, 0));
    show_ready("fresh", fresh);
    const Address any = make_address("127.0.0.1", 0);
    MUST(bind(fresh, any.raw(), any.length));
    show_ready("bound", fresh);
    MUST(listen(fresh, 5));
    show_ready("listening", fresh);
    const int client = connect_to(fresh);
    wait_for(fresh, POLLIN);
    show_ready("somebody waits", fresh);
    show_ready("client not yet accepted", client);
    const int server = MUST(accept(fresh, nullptr, nullptr));
    show_ready("listening again", fresh);
    show_ready("client", client);
    show_ready("server", server);
    send_all(client, "data");
    wait_for(server, POLLIN);
    show_ready("data", server);
    receive(server, 2);
    show_ready("some left", server);
    receive(server, 2);
    show_ready("none left", server);
    MUST(shutdown(client, SHUT_WR));
    wait_for(server, POLLRDHUP);
    show_ready("peer has finished", server);
    show_ready("self has finished", client);
    MUST(shutdown(server, SHUT_WR));
    wait_for(client, POLLHUP);
    wait_for(server, POLLHUP);
    show_ready("both finished", client);
    show_ready("both finished", server);
}

BEHAVIOUR("a full connection, drained", full_and_drained, accelerated) {
    const Pair pair = make_pair();
    set_nonblocking(pair.client);
    const std::string data = pattern(65536);
    size_t total = 0;
    ssize_t sent;
    while ((sent = send(pair.client, data.data(), data.size(), 0)) > 0)
        total += static_cast<size_t>(sent);
    show_ready("full", pair.client);
    send_all(pair.server, "x");
    wait_for(pair.client, POLLIN);
    show_ready("full, data waits", pair.client);
    receive(pair.server, total);
    wait_for(pair.client, POLLOUT);
    show_ready("drained", pair.client);
}

BEHAVIOUR("only what was asked for", only_what_was_asked, accelerated) {
    const Pair pair = make_pair();
    send_all(pair.client, "data");
    wait_for(pair.server, POLLIN);
    for (const int events : {0, POLLIN, POLLOUT, POLLPRI, POLLRDHUP, POLLIN | POLLOUT, POLLRDNORM, POLLWRNORM,
                             POLLRDBAND, POLLERR | POLLHUP | POLLNVAL})
        say("%x -> %x", static_cast<unsigned>(events),
            static_cast<unsigned>(poll_now(pair.server, static_cast<short>(events))));
    close(pair.client);
    wait_for(pair.server, POLLRDHUP);
    for (const int events : {0, POLLIN, POLLRDHUP})
        say("%x -> %x", static_cast<unsigned>(events),
            static_cast<unsigned>(poll_now(pair.server, static_cast<short>(events))));
}

BEHAVIOUR("mixed kinds of descriptors", mixed_kinds, accelerated) {
    const Pair one = make_pair(), two = make_pair();
    int ends[2];
    MUST(pipe(ends));
    const int counter = MUST(eventfd(0, 0));
    const std::vector<pollfd> all = {
        {one.server, POLLIN, 0},  {two.server, POLLIN, 0},   {ends[0], POLLIN, 0}, {ends[1], POLLOUT, 0},
        {counter, POLLIN, 0},     {one.listener, POLLIN, 0}, {-1, POLLIN, 0},      {999, POLLIN, 0},
        {one.client, POLLOUT, 0}, {STDIN_FILENO, POLLOUT, 0}};
    say("%s", poll_many(all, 0).c_str());
    send_all(two.client, "x");
    wait_for(two.server, POLLIN);
    say("%s", poll_many(all, 1000).c_str());
    MUST(write(ends[1], "x", 1));
    MUST(eventfd_write(counter, 1));
    say("%s", poll_many(all, 1000).c_str());
    close(ends[0]);
    say("%s", poll_many(all, 1000).c_str());
}

// Each kind wakes a poll that sleeps on all of them.
BEHAVIOUR("woken by each kind", woken_by_each_kind, accelerated) {
    const Pair pair = make_pair();
    int ends[2];
    MUST(pipe(ends));
    const std::vector<pollfd> all = {{pair.server, POLLIN, 0}, {ends[0], POLLIN, 0}, {pair.listener, POLLIN, 0}};
    for (int i = 0; i < 3; ++i) {
        int late = -1;
        std::thread waker([&] {
            sleep_ms(60);
            if (i == 0)
                send_all(pair.client, "x");
            else if (i == 1)
                MUST(write(ends[1], "x", 1));
            else
                late = connect_to(pair.listener);
        });
        say("%s", poll_many(all, kPatience).c_str());
        waker.join();
        char byte;
        if (i == 0)
            MUST(read(pair.server, &byte, 1));
        else if (i == 1)
            MUST(read(ends[0], &byte, 1));
        else
            MUST(accept(pair.listener, nullptr, nullptr));
    }
}

BEHAVIOUR("deadlines of poll, ppoll, select, pselect", deadlines, accelerated) {
    const Pair pair = make_pair();
    pollfd entry{pair.server, POLLIN, 0};
    Stopwatch watch;
    SHOW(poll(&entry, 1, 100));
    SHOW_BOOL(watch.ms() >= 95);
    timespec limit{0, 100000000};
    Stopwatch again;
    SHOW(ppoll(&entry, 1, &limit, nullptr));
    SHOW_BOOL(again.ms() >= 95);
    fd_set set;
    FD_ZERO(&set);
    FD_SET(pair.server, &set);
    timeval left{0, 100000};
    SHOW(select(pair.server + 1, &set, nullptr, nullptr, &left));
    say("left %ld.%06ld, set %d", static_cast<long>(left.tv_sec), static_cast<long>(left.tv_usec),
        FD_ISSET(pair.server, &set) != 0);
    // select says how much of the time was left.
    send_all(pair.client, "x");
    wait_for(pair.server, POLLIN);
    FD_SET(pair.server, &set);
    left = {10, 0};
    SHOW(select(pair.server + 1, &set, nullptr, nullptr, &left));
    SHOW_BOOL(left.tv_sec >= 5 && left.tv_sec <= 10);
    limit = {10, 0};
    SHOW(pselect(pair.server + 1, &set, nullptr, nullptr, &limit, nullptr));
    SHOW_BOOL(limit.tv_sec == 10);
    SHOW(poll(nullptr, 0, 10));
    left = {0, 10000};
    SHOW(select(0, nullptr, nullptr, nullptr, &left));
}

BEHAVIOUR("sets of select", select_sets, accelerated) {
    const Pair one = make_pair(), two = make_pair();
    send_all(one.client, "x");
    wait_for(one.server, POLLIN);
    fd_set readable, writable;
    FD_ZERO(&readable);
    FD_ZERO(&writable);
    for (const int fd : {one.server, two.server}) {
        FD_SET(fd, &readable);
        FD_SET(fd, &writable);
    }
    timeval none{0, 0};
    SHOW(select(FD_SETSIZE, &readable, &writable, nullptr, &none));
    say("r %d %d w %d %d", FD_ISSET(one.server, &readable) != 0, FD_ISSET(two.server, &readable) != 0,
        FD_ISSET(one.server, &writable) != 0, FD_ISSET(two.server, &writable) != 0);
    FD_ZERO(&readable);
    const int closed = MUST(dup(0));
    close(closed);
    FD_SET(closed, &readable);
    SHOW(select(closed + 1, &readable, nullptr, nullptr, &none));
    SHOW(select(-1, nullptr, nullptr, nullptr, &none));
    timeval bad{-1, 0};
    SHOW(select(0, nullptr, nullptr, nullptr, &bad));
    // A number above the limit given is not looked at.
    FD_ZERO(&readable);
    FD_SET(one.server, &readable);
    SHOW(select(one.server, &readable, nullptr, nullptr, &none));
    const int high = MUST(fcntl(one.server, F_DUPFD, 1000));
    FD_ZERO(&readable);
    FD_SET(high, &readable);
    SHOW(select(high + 1, &readable, nullptr, nullptr, nullptr));
}

BEHAVIOUR("the same descriptor twice", same_descriptor_twice, accelerated) {
    const Pair pair = make_pair();
    send_all(pair.client, "x");
    wait_for(pair.server, POLLIN);
    say("%s", poll_many({{pair.server, POLLIN, 0}, {pair.server, POLLOUT, 0}, {pair.server, 0, 0}}, 0).c_str());
}

BEHAVIOUR("200 connections", many, accelerated) {
    const int listener = make_listener("127.0.0.1", 256);
    std::vector<Pair> pairs;
    std::vector<pollfd> entries;
    for (int i = 0; i < 200; ++i) {
        pairs.push_back(connect_through(listener));
        entries.push_back({pairs.back().server, POLLIN, 0});
    }
    SHOW(poll(entries.data(), entries.size(), 0));
    for (size_t i = 0; i < pairs.size(); i += 7)
        send_all(pairs[i].client, "x");
    for (size_t i = 0; i < pairs.size(); i += 7)
        wait_for(pairs[i].server, POLLIN);
    SHOW(poll(entries.data(), entries.size(), 1000));
    int right = 0;
    for (size_t i = 0; i < pairs.size(); ++i)
        right += (entries[i].revents == POLLIN) == (i % 7 == 0);
    say("%d of 200 right", right);
}

BEHAVIOUR("bad arguments", bad_arguments, accelerated) {
    timespec bad{0, 2000000000};
    pollfd entry{0, 0, 0};
    SHOW(ppoll(&entry, 1, &bad, nullptr));
    SHOW(poll(&entry, opaque(static_cast<nfds_t>(100000000)), 0));
    const Pair pair = make_pair();
    close(pair.server);
    say("%s", poll_many({{pair.server, POLLIN | POLLOUT, 0}, {pair.listener, POLLIN, 0}}, 0).c_str());
}

// The mask of ppoll and pselect is in force during the wait only.
BEHAVIOUR("signal masks", signal_masks, accelerated) {
    const Pair pair = make_pair();
    signal(SIGUSR1, [](int) { alarms = alarms + 1; });
    sigset_t blocked, open;
    sigemptyset(&open);
    sigemptyset(&blocked);
    sigaddset(&blocked, SIGUSR1);
    MUST(sigprocmask(SIG_BLOCK, &blocked, nullptr));
    raise(SIGUSR1);
    pollfd entry{pair.server, POLLIN, 0};
    timespec limit{5, 0};
    SHOW(poll(&entry, 1, 50));
    say("handled %d", static_cast<int>(alarms));
    SHOW(ppoll(&entry, 1, &limit, &open));
    say("handled %d", static_cast<int>(alarms));
    raise(SIGUSR1);
    fd_set set;
    FD_ZERO(&set);
    FD_SET(pair.server, &set);
    SHOW(pselect(pair.server + 1, &set, nullptr, nullptr, &limit, &open));
    say("handled %d", static_cast<int>(alarms));
    raise(SIGUSR1);
    SHOW(ppoll(&entry, 1, nullptr, &open));
    say("handled %d", static_cast<int>(alarms));
}

BEHAVIOUR("the peer closes meanwhile", closed_while_waiting_elsewhere, accelerated) {
    const Pair pair = make_pair();
    std::thread closer([&] {
        sleep_ms(60);
        close(pair.client);
    });
    say("%s", poll_many({{pair.server, POLLIN | POLLRDHUP, 0}}, kPatience).c_str());
    closer.join();
}

int main(int argc, char **argv) { return run_behaviour(argc, argv); }
