// What threads wait for while the connection goes over to the kernel, because a program without the library
// comes to hold it.
#include "tests/programs/sets.hpp"
#include "tests/programs/stranger.hpp"

#include <sys/select.h>

using namespace sdtest;

BEHAVIOUR("a thread blocked in recv", blocked_in_recv, accelerated) {
    const Pair pair = make_pair();
    std::string got;
    std::thread reader([&] { got = receive(pair.server, 4); });
    sleep_ms(50);
    const pid_t child = start_that_stays(pair);
    sleep_ms(50);
    send_all(pair.client, "data");
    reader.join();
    say("%s", got.c_str());
    end(child);
    exchange(pair, "afterwards");
}

BEHAVIOUR("a thread blocked in a large send", blocked_in_send, accelerated) {
    const Pair pair = make_pair();
    constexpr size_t kSize = 24 << 20;
    const std::string data = pattern(kSize);
    ssize_t sent = 0;
    std::thread writer([&] { sent = send(pair.server, data.data(), data.size(), 0); });
    sleep_ms(200);
    const pid_t child = start_that_stays(pair);
    const std::string got = receive(pair.client, kSize);
    writer.join();
    SHOW_BOOL(sent == kSize);
    SHOW_BOOL(got == data);
    end(child);
    exchange(pair, "afterwards");
}

BEHAVIOUR("a thread that wants it all", blocked_in_waitall, accelerated) {
    const Pair pair = make_pair();
    char text[12] = {};
    ssize_t got = 0;
    std::thread reader([&] { got = recv(pair.server, text, 10, MSG_WAITALL); });
    send_all(pair.client, "01234");
    sleep_ms(50);
    const pid_t child = start_that_stays(pair);
    send_all(pair.client, "56789");
    reader.join();
    say("%zd %s", got, text);
    end(child);
}

BEHAVIOUR("a thread in poll and one in select", blocked_in_poll, accelerated) {
    const Pair pair = make_pair(), other = make_pair();
    int polled = -1, selected = -1;
    std::thread poller([&] {
        pollfd list[2] = {{pair.server, POLLIN, 0}, {other.server, POLLIN, 0}};
        polled = poll(list, 2, kPatience) * 10 + (list[0].revents == POLLIN);
    });
    std::thread selector([&] {
        fd_set set;
        FD_ZERO(&set);
        FD_SET(pair.server, &set);
        timeval patience{kPatience / 1000, 0};
        selected = select(pair.server + 1, &set, nullptr, nullptr, &patience);
    });
    sleep_ms(50);
    const pid_t child = start_that_stays(pair);
    sleep_ms(50);
    send_all(pair.client, "data");
    poller.join();
    selector.join();
    say("%d %d", polled, selected);
    show_ready("now", pair.server);
    say("%s", receive(pair.server, 4).c_str());
    show_ready("now", pair.server);
    end(child);
}

// Threads whose calls begin just as the connection goes over. Others keep the processors busy, so that they
// are stopped between any two steps.
BEHAVIOUR("threads that begin to poll", begin_to_poll, accelerated) {
    constexpr int kThreads = 24;
    std::atomic<bool> over = false;
    std::vector<std::thread> busy;
    for (int i = 0; i < 4; ++i)
        busy.emplace_back([&] {
            while (!over) {
            }
        });
    for (int round = 0; round < 10; ++round) {
        const Pair pair = make_pair();
        std::atomic<int> told = 0;
        std::vector<std::thread> threads;
        for (int i = 0; i < kThreads; ++i)
            threads.emplace_back([&, i] {
                usleep(static_cast<useconds_t>(i * 400));
                pollfd one{pair.server, POLLIN, 0};
                told += poll(&one, 1, kPatience);
            });
        const pid_t child = start_that_stays(pair);
        sleep_ms(50);
        send_all(pair.client, "data");
        for (std::thread &thread : threads)
            thread.join();
        say("%d %s", told.load(), receive(pair.server, 4).c_str());
        end(child);
    }
    over = true;
    for (std::thread &thread : busy)
        thread.join();
}

BEHAVIOUR("a thread in epoll_wait", blocked_in_epoll, accelerated) {
    for (const uint32_t mode : {uint32_t{0}, uint32_t{EPOLLET}, uint32_t{EPOLLONESHOT}}) {
        const Pair pair = make_pair(), other = make_pair();
        const int set = MUST(epoll_create1(EPOLL_CLOEXEC));
        SHOW(add(set, pair.server, EPOLLIN | mode, 1));
        SHOW(add(set, other.server, EPOLLIN | mode, 2));
        std::string told;
        std::thread waiter([&] { told = wait_set(set, kPatience); });
        sleep_ms(50);
        const pid_t child = start_that_stays(pair);
        sleep_ms(50);
        send_all(pair.client, "data");
        waiter.join();
        say("%s", told.c_str());
        say("%s", receive(pair.server, 4).c_str());
        send_all(other.client, "data");
        say("%s", wait_set(set, kPatience).c_str());
        end(child);
        close(set);
    }
}

// The connection of one member moves between two waits.
BEHAVIOUR("members of a set", members_of_a_set, accelerated) {
    const Pair pair = make_pair(), other = make_pair();
    const int set = MUST(epoll_create1(EPOLL_CLOEXEC));
    SHOW(add(set, pair.server, EPOLLIN | EPOLLONESHOT, 1));
    SHOW(add(set, other.server, EPOLLIN, 2));
    send_all(pair.client, "1");
    say("%s", wait_set(set, kPatience).c_str());
    say("%s", receive(pair.server, 1).c_str());
    const pid_t child = start_that_stays(pair);
    say("%s", wait_set(set, 0).c_str());
    send_all(pair.client, "2");
    send_all(other.client, "3");
    say("%s", wait_set(set, kPatience).c_str());
    epoll_event again{};
    again.events = EPOLLIN;
    again.data.u64 = 4;
    SHOW(epoll_ctl(set, EPOLL_CTL_MOD, pair.server, &again));
    SHOW_BOOL(wait_for(pair.server, POLLIN));
    say("%s", wait_set(set, kPatience).c_str());
    say("%s", receive(other.server, 1).c_str());
    // A busy set must not forget the kernel's.
    for (int i = 0; i < 200; ++i) {
        send_all(other.client, "x");
        wait_set(set, kPatience);
        receive(other.server, 1);
    }
    say("%s", wait_set(set, kPatience).c_str());
    say("%s", receive(pair.server, 1).c_str());
    SHOW(epoll_ctl(set, EPOLL_CTL_DEL, pair.server, nullptr));
    SHOW(epoll_ctl(set, EPOLL_CTL_DEL, pair.server, nullptr));
    end(child);
}

BEHAVIOUR("a set in a set", a_set_in_a_set, accelerated) {
    const Pair pair = make_pair();
    const int inner = MUST(epoll_create1(EPOLL_CLOEXEC)), outer = MUST(epoll_create1(EPOLL_CLOEXEC));
    SHOW(add(inner, pair.server, EPOLLIN, 1));
    SHOW(add(outer, inner, EPOLLIN, 2));
    std::string told;
    std::thread waiter([&] { told = wait_set(outer, kPatience); });
    sleep_ms(50);
    const pid_t child = start_that_stays(pair);
    sleep_ms(50);
    send_all(pair.client, "data");
    waiter.join();
    say("%s", told.c_str());
    say("%s", wait_set(inner, kPatience).c_str());
    say("%s", receive(pair.server, 4).c_str());
    say("%s", wait_set(outer, 0).c_str());
    end(child);
}

BEHAVIOUR("options go along", options_go_along, accelerated) {
    const Pair pair = make_pair();
    set_nonblocking(pair.server);
    set_option(pair.server, SOL_SOCKET, SO_KEEPALIVE, 1);
    set_option(pair.server, SOL_SOCKET, SO_RCVLOWAT, 3);
    set_option(pair.server, IPPROTO_TCP, TCP_NODELAY, 1);
    set_option(pair.server, IPPROTO_TCP, TCP_KEEPCNT, 5);
    set_timeout(pair.server, SO_RCVTIMEO, 200);
    const pid_t child = start_that_stays(pair);
    char bytes[4];
    SHOW(recv(pair.server, bytes, 1, 0));
    SHOW(fcntl(pair.server, F_GETFL) & O_NONBLOCK);
    SHOW(get_option(pair.server, SOL_SOCKET, SO_KEEPALIVE));
    SHOW(get_option(pair.server, SOL_SOCKET, SO_RCVLOWAT));
    SHOW(get_option(pair.server, IPPROTO_TCP, TCP_NODELAY));
    SHOW(get_option(pair.server, IPPROTO_TCP, TCP_KEEPCNT));
    SHOW(get_option(pair.server, SOL_SOCKET, SO_ERROR));
    set_nonblocking(pair.server, false);
    SHOW(recv(pair.server, bytes, 1, 0)); // ends by its timeout
    send_all(pair.client, "ab");
    SHOW_BOOL(!wait_for(pair.server, POLLIN, 100));
    send_all(pair.client, "c");
    SHOW_BOOL(wait_for(pair.server, POLLIN));
    say("%s", receive(pair.server, 3).c_str());
    end(child);
}

BEHAVIOUR("urgent data", urgent_data, accelerated) {
    for (const int is_inline : {0, 1}) {
        const Pair pair = make_pair();
        set_option(pair.server, SOL_SOCKET, SO_OOBINLINE, is_inline);
        const pid_t child = start_that_stays(pair);
        send_all(pair.client, "ab");
        MUST(send(pair.client, "c", 1, MSG_OOB));
        send_all(pair.client, "de");
        SHOW_BOOL(wait_for(pair.server, POLLPRI));
        sleep_ms(50);
        char bytes[8] = {};
        SHOW(recv(pair.server, bytes, sizeof bytes, 0));
        if (!is_inline)
            SHOW(recv(pair.server, bytes + 3, 1, MSG_OOB));
        say("%s", receive(pair.server, is_inline ? 3 : 2).c_str());
        MUST(send(pair.server, "!", 1, MSG_OOB));
        SHOW_BOOL(wait_for(pair.client, POLLPRI));
        SHOW(recv(pair.client, bytes, 1, MSG_OOB));
        end(child);
    }
}

// Children come and go meanwhile.
BEHAVIOUR("much data in both directions", much_data, accelerated) {
    const Pair pair = make_pair();
    constexpr size_t kSize = 8 << 20;
    const std::string there = pattern(kSize, 1), back = pattern(kSize, 2);
    std::string got_there, got_back;
    std::thread a([&] { send_all(pair.client, there); });
    std::thread b([&] { send_all(pair.server, back); });
    std::thread c([&] { got_there = receive(pair.server, kSize); });
    std::thread d([&] { got_back = receive(pair.client, kSize); });
    for (int i = 0; i < 3; ++i)
        end(start_that_stays(pair));
    a.join();
    b.join();
    c.join();
    d.join();
    SHOW_BOOL(got_there == there);
    SHOW_BOOL(got_back == back);
    exchange(pair, "afterwards");
}

// Whoever sends or receives a little is met at any point of it.
BEHAVIOUR("traffic goes on meanwhile", in_the_middle_of_traffic, accelerated) {
    int right = 0;
    for (int i = 0; i < 25; ++i) {
        const Pair pair = make_pair();
        constexpr size_t kSize = 150000;
        const std::string there = pattern(kSize, static_cast<uint64_t>(i)),
                          back = pattern(kSize, static_cast<uint64_t>(i) + 100);
        const auto send_pieces = [](int fd, const std::string &data, size_t step) {
            for (size_t at = 0; at < data.size(); at += step)
                send_all(fd, data.data() + at, std::min(step, data.size() - at));
        };
        const auto take_pieces = [](int fd, size_t size, size_t step) {
            std::string got;
            while (got.size() < size)
                got += receive(fd, std::min(step, size - got.size()));
            return got;
        };
        std::string got_there, got_back;
        std::thread a([&] { send_pieces(pair.client, there, 37); });
        std::thread b([&] { send_pieces(pair.server, back, 91); });
        std::thread c([&] { got_there = take_pieces(pair.server, kSize, 50); });
        std::thread d([&] { got_back = take_pieces(pair.client, kSize, 113); });
        const pid_t one = start("stays", pair), two = start("stays", pair);
        for (std::thread *t : {&a, &b, &c, &d})
            t->join();
        for (const pid_t child : {one, two}) {
            MUST(kill(child, SIGKILL));
            MUST(waitpid(child, nullptr, 0));
        }
        right += got_there == there && got_back == back;
    }
    say("%d", right);
}

namespace {
std::atomic<int> signals_seen{0};
}

BEHAVIOUR("SIGIO of a shared connection", signals_of_a_shared_connection, accelerated) {
    const Pair pair = make_pair();
    const Gate over;
    const pid_t sibling = spawn([&] { over.pass(); });
    signal(SIGIO, [](int) { ++signals_seen; });
    MUST(fcntl(pair.server, F_SETOWN, getpid()));
    MUST(fcntl(pair.server, F_SETFL, O_ASYNC));
    send_all(pair.client, "data");
    for (int i = 0; i < 100 && signals_seen == 0; ++i)
        sleep_ms(10);
    SHOW_BOOL(signals_seen > 0);
    say("%s", receive(pair.server, 4).c_str());
    over.open();
    reap("sibling", sibling);
}

int main(int argc, char **argv) { return run_behaviour(argc, argv); }
