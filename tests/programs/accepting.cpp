// Listeners: order, backlog, flags, several acceptors, and connections that changed before they were
// accepted.
#include "tests/programs/cases.hpp"
#include "tests/programs/process.hpp"

using namespace sdtest;

BEHAVIOUR("readiness and EAGAIN", readiness, accelerated) {
    const int listener = make_listener();
    set_nonblocking(listener);
    SHOW(accept(listener, nullptr, nullptr));
    const int one = connect_to(listener), two = connect_to(listener);
    wait_for(listener, POLLIN);
    show_ready("two wait", listener);
    SHOW_FD(accept(listener, nullptr, nullptr));
    show_ready("one waits", listener);
    SHOW_FD(accept(listener, nullptr, nullptr));
    show_ready("none waits", listener);
    SHOW(accept(listener, nullptr, nullptr));
    close(one);
    close(two);
}

BEHAVIOUR("edge-triggered listener", edge_triggered, accelerated) {
    const int listener = make_listener();
    set_nonblocking(listener);
    const int set = MUST(epoll_create1(0));
    epoll_event event{};
    event.events = EPOLLIN | EPOLLET;
    MUST(epoll_ctl(set, EPOLL_CTL_ADD, listener, &event));
    SHOW(epoll_wait(set, &event, 1, 0));
    connect_to(listener);
    SHOW(epoll_wait(set, &event, 1, kPatience));
    SHOW(epoll_wait(set, &event, 1, 0));
    connect_to(listener);
    SHOW(epoll_wait(set, &event, 1, kPatience));
    SHOW_FD(accept(listener, nullptr, nullptr));
    SHOW_FD(accept(listener, nullptr, nullptr));
    SHOW(accept(listener, nullptr, nullptr));
    SHOW(epoll_wait(set, &event, 1, 0));
}

BEHAVIOUR("flags of accept4", flags, accelerated) {
    const int listener = make_listener();
    for (const int flags : {0, +SOCK_NONBLOCK, +SOCK_CLOEXEC, SOCK_NONBLOCK | SOCK_CLOEXEC}) {
        const int client = connect_to(listener);
        const int server = MUST(accept4(listener, nullptr, nullptr, flags));
        say("flags %o: status %o, close on exec %d", static_cast<unsigned>(flags),
            static_cast<unsigned>(fcntl(server, F_GETFL)), fcntl(server, F_GETFD));
        close(client);
    }
    SHOW(accept4(listener, nullptr, nullptr, SOCK_STREAM));
}

BEHAVIOUR("a timeout that is no wait at all", does_not_wait, accelerated) {
    const timeval none{-1, 0}, forever{};
    const int early = MUST(socket(AF_INET, SOCK_STREAM, 0));
    MUST(setsockopt(early, SOL_SOCKET, SO_RCVTIMEO, &none, sizeof none));
    MUST(listen(early, 8));
    SHOW(accept(early, nullptr, nullptr));
    const int late = make_listener();
    MUST(setsockopt(late, SOL_SOCKET, SO_RCVTIMEO, &none, sizeof none));
    SHOW(accept(late, nullptr, nullptr));
    const int client = connect_to(late);
    const int server = MUST(accept(late, nullptr, nullptr));
    char byte;
    SHOW(read(server, &byte, 1)); // it has its listener's timeout
    MUST(setsockopt(late, SOL_SOCKET, SO_RCVTIMEO, &forever, sizeof forever));
    const pid_t child = spawn([&] {
        usleep(20'000);
        connect_to(late);
    });
    SHOW_FD(accept(late, nullptr, nullptr));
    reap("client", child);
    close(client);
}

BEHAVIOUR("first come, first served", first_come_first_served, accelerated) {
    const int listener = make_listener();
    std::vector<int> clients;
    for (int i = 0; i < 20; ++i)
        clients.push_back(connect_to(listener));
    bool in_order = true;
    for (int i = 0; i < 20; ++i) {
        Address from;
        MUST(accept(listener, from.raw(), &from.length));
        in_order = in_order && from.port() == local_address(clients[static_cast<size_t>(i)]).port();
    }
    SHOW_BOOL(in_order);
}

// The kernel's order over all of them would be the first; a wait for many others is what nobody expects.
BEHAVIOUR("a client of the kernel's queue among many", kernel_client_among_many, accelerated) {
    const int listener = make_listener();
    const Address to = local_address(listener);
    connect_to(listener);
    MUST(accept(listener, nullptr, nullptr)); // in the first turn the kernel's queue is asked anyway
    const int late = MUST(socket(AF_INET, SOCK_STREAM, 0));
    keep_in_kernel(late);
    MUST(connect(late, to.raw(), to.length));
    for (int i = 0; i < 12; ++i)
        connect_to(listener);
    const in_port_t own = local_address(late).port();
    int before = 0;
    for (int i = 0; i < 13; ++i) {
        sleep_ms(10); // as a server that forks for each
        Address from;
        MUST(accept(listener, from.raw(), &from.length));
        if (from.port() == own)
            before = i;
    }
    SHOW_BOOL(before <= 1);
}

BEHAVIOUR("data before accept", data_before_accept, accelerated) {
    const int listener = make_listener();
    const int client = connect_to(listener);
    SHOW(send(client, "early", 5, 0));
    const std::string large = pattern(60000, 3);
    SHOW_BOOL(send_all(client, large));
    const int server = MUST(accept(listener, nullptr, nullptr));
    say("%s", receive(server, 5).c_str());
    SHOW_BOOL(receive(server, large.size()) == large);
    SHOW(send(server, "reply", 5, 0));
    say("%s", receive(client, 5).c_str());
}

BEHAVIOUR("closed before accept", closed_before_accept, accelerated) {
    const int listener = make_listener();
    const int client = connect_to(listener);
    SHOW(send(client, "bye", 3, 0));
    SHOW(close(client));
    wait_for(listener, POLLIN);
    const int server = MUST(accept(listener, nullptr, nullptr));
    wait_for(server, POLLRDHUP);
    show_ready("server", server);
    say("%s", receive_to_end(server).c_str());
    SHOW(send(server, "x", 1, MSG_NOSIGNAL));
}

BEHAVIOUR("half-closed before accept", shut_before_accept, accelerated) {
    const int listener = make_listener();
    const int client = connect_to(listener);
    SHOW(send(client, "request", 7, 0));
    SHOW(shutdown(client, SHUT_WR));
    const int server = MUST(accept(listener, nullptr, nullptr));
    say("%s", receive_to_end(server).c_str());
    SHOW(send(server, "answer", 6, 0));
    close(server);
    say("%s", receive_to_end(client).c_str());
}

BEHAVIOUR("reset before accept", reset_before_accept, accelerated) {
    const int listener = make_listener();
    const int client = connect_to(listener);
    wait_for(listener, POLLIN);
    abort_connection(client);
    sleep_ms(50);
    show_ready("listener", listener);
    const int server = MUST(accept(listener, nullptr, nullptr));
    show_ready("server", server);
    char byte;
    SHOW(recv(server, &byte, 1, 0));
    SHOW(recv(server, &byte, 1, 0));
}

// Closing the listener resets those who were not accepted.
BEHAVIOUR("listener closed with connections waiting", listener_closed, accelerated) {
    const int listener = make_listener();
    const int accepted = connect_to(listener);
    const int server = MUST(accept(listener, nullptr, nullptr));
    const int waiting = connect_to(listener);
    const Address to = local_address(listener);
    SHOW(close(listener));
    wait_for(waiting, POLLHUP);
    show_ready("waiting", waiting);
    char byte;
    SHOW(recv(waiting, &byte, 1, 0));
    SHOW(send(waiting, "x", 1, MSG_NOSIGNAL));
    const int late = MUST(socket(AF_INET, SOCK_STREAM, 0));
    SHOW(connect(late, to.raw(), to.length));
    // Those who were accepted do not notice.
    SHOW(send(accepted, "still", 5, 0));
    say("%s", receive(server, 5).c_str());
}

// The same address can be listened on again at once, and old connections live on.
BEHAVIOUR("the address used again", listen_again, accelerated) {
    const int listener = MUST(socket(AF_INET, SOCK_STREAM, 0));
    set_option(listener, SOL_SOCKET, SO_REUSEADDR, 1);
    const Address any = make_address("127.0.0.1", 0);
    MUST(bind(listener, any.raw(), any.length));
    MUST(listen(listener, 8));
    const Address name = local_address(listener);
    const Pair old = connect_through(listener);
    close(listener);
    const int again = MUST(socket(AF_INET, SOCK_STREAM, 0));
    set_option(again, SOL_SOCKET, SO_REUSEADDR, 1);
    SHOW(bind(again, name.raw(), name.length));
    SHOW(listen(again, 8));
    const Pair fresh = connect_through(again);
    SHOW(send(old.client, "old", 3, 0));
    SHOW(send(fresh.client, "new", 3, 0));
    say("%s %s", receive(old.server, 3).c_str(), receive(fresh.server, 3).c_str());
}

BEHAVIOUR("a filled backlog", backlog, accelerated) {
    const int listener = make_listener("127.0.0.1", 50);
    std::vector<int> clients;
    for (int i = 0; i < 50; ++i) {
        clients.push_back(connect_to(listener));
        send_all(clients.back(), std::to_string(i));
    }
    int right = 0;
    for (int i = 0; i < 50; ++i) {
        const int server = MUST(accept(listener, nullptr, nullptr));
        right += receive(server, std::to_string(i).size()) == std::to_string(i);
    }
    say("%d of 50 right", right);
}

// The client has filled the backlog before the server accepts anything.
BEHAVIOUR("a client that is quicker than accept", quick_client, all_accelerated) {
    const int listener = make_listener("127.0.0.1", 32);
    std::thread server([&] {
        sleep_ms(1);
        for (int i = 0; i < 100; ++i) {
            const int fd = MUST(accept(listener, nullptr, nullptr));
            send_all(fd, "x");
            close(fd);
        }
    });
    std::vector<int> clients;
    for (int i = 0; i < 100; ++i)
        clients.push_back(connect_to(listener));
    int served = 0;
    for (const int fd : clients)
        served += receive(fd, 1) == "x";
    server.join();
    say("%d served", served);
}

BEHAVIOUR("woken by a connection", woken_by_connection, accelerated) {
    const int listener = make_listener();
    std::thread caller([&] {
        sleep_ms(60);
        connect_to(listener);
    });
    SHOW_FD(accept(listener, nullptr, nullptr));
    caller.join();
}

BEHAVIOUR("woken by shutdown", woken_by_shutdown, any) {
    const int listener = make_listener();
    std::thread stopper([&] {
        sleep_ms(60);
        shutdown(listener, SHUT_RD);
    });
    SHOW(accept(listener, nullptr, nullptr));
    stopper.join();
}

BEHAVIOUR("poll woken by shutdown", poll_woken_by_listener_shutdown, any) {
    const int listener = make_listener();
    std::thread stopper([&] {
        sleep_ms(60);
        shutdown(listener, SHUT_RDWR);
    });
    pollfd entry{listener, POLLIN, 0};
    SHOW(poll(&entry, 1, kPatience));
    say("%s", event_names(static_cast<uint32_t>(entry.revents)).c_str());
    stopper.join();
}

// Children that inherited the listener and block in accept: all get work when there is enough of it.
BEHAVIOUR("several processes share a listener", several_processes, accelerated) {
    const int listener = make_listener();
    constexpr int kChildren = 4, kCalls = 200;
    pid_t children[kChildren];
    int counts[2];
    MUST(pipe(counts));
    for (int child = 0; child < kChildren; ++child)
        children[child] = spawn([&] {
            for (;;) {
                const int fd = MUST(accept(listener, nullptr, nullptr));
                char order;
                if (recv(fd, &order, 1, 0) != 1)
                    give_up("order");
                const char name = static_cast<char>('0' + child);
                MUST(write(counts[1], &name, 1));
                if (order == 'q')
                    return;
                sleep_ms(2); // busy, so that the next connection goes to another
                send_all(fd, "done");
                close(fd);
            }
        });
    std::vector<int> open;
    for (int i = 0; i < kCalls; ++i) {
        open.push_back(connect_to(listener));
        send_all(open.back(), "w");
        if (open.size() == 8) {
            for (const int fd : open) {
                if (receive(fd, 4) != "done")
                    say("wrong answer");
                close(fd);
            }
            open.clear();
        }
    }
    for (int child = 0; child < kChildren; ++child)
        send_all(connect_to(listener), "q");
    for (const pid_t child : children)
        reap("child", child);
    int served[kChildren] = {};
    for (int i = 0; i < kCalls + kChildren; ++i) {
        char name;
        MUST(read(counts[0], &name, 1));
        ++served[name - '0'];
    }
    int busy = 0;
    for (const int count : served)
        busy += count > 1;
    say("%d of %d children served", busy, kChildren);
}

// The same with non-blocking accept behind epoll, as event-driven servers do it.
BEHAVIOUR("several processes with epoll share a listener", several_processes_epoll, accelerated) {
    const int listener = make_listener();
    set_nonblocking(listener);
    constexpr int kChildren = 3, kCalls = 150;
    pid_t children[kChildren];
    for (pid_t &child : children)
        child = spawn([&] {
            const int set = MUST(epoll_create1(0));
            epoll_event event{};
            event.events = EPOLLIN;
            MUST(epoll_ctl(set, EPOLL_CTL_ADD, listener, &event));
            for (;;) {
                MUST(epoll_wait(set, &event, 1, -1));
                const int fd = accept4(listener, nullptr, nullptr, 0);
                if (fd < 0)
                    continue; // another was faster
                const std::string order = receive(fd, 1);
                if (order == "q")
                    return;
                send_all(fd, order);
                close(fd);
            }
        });
    int right = 0;
    for (int i = 0; i < kCalls; ++i) {
        const int fd = connect_to(listener);
        send_all(fd, "w");
        right += receive(fd, 1) == "w";
        close(fd);
    }
    say("%d right", right);
    for (int i = 0; i < kChildren; ++i)
        send_all(connect_to(listener), "q");
    for (const pid_t child : children)
        reap("child", child);
}

// Each acceptor takes one connection and is gone. One that was woken for a connection that another took must
// be woken for the next.
BEHAVIOUR("acceptors that take one connection each are all woken", acceptors_that_take_one_each, accelerated) {
    const int listener = make_listener();
    set_nonblocking(listener);
    constexpr int kChildren = 3, kRounds = 40;
    int served = 0;
    for (int round = 0; round < kRounds; ++round) {
        pid_t children[kChildren];
        for (pid_t &child : children)
            child = spawn([&] {
                const int set = MUST(epoll_create1(0));
                epoll_event event{};
                event.events = EPOLLIN;
                MUST(epoll_ctl(set, EPOLL_CTL_ADD, listener, &event));
                int fd = -1;
                while (fd < 0) {
                    if (round % 2) {
                        MUST(epoll_wait(set, &event, 1, -1));
                    } else {
                        pollfd p{listener, POLLIN, 0};
                        MUST(poll(&p, 1, -1));
                    }
                    fd = accept4(listener, nullptr, nullptr, 0);
                }
                send_all(fd, "x");
            });
        sleep_ms(round % 4); // some find them asleep, some on the way there
        int open[kChildren];
        for (int &fd : open)
            fd = connect_to(listener);
        for (const int fd : open) {
            served += receive(fd, 1) == "x";
            close(fd);
        }
        for (const pid_t child : children)
            reap("child", child);
    }
    say("%d served", served);
}

BEHAVIOUR("several threads share a listener", several_threads, accelerated) {
    const int listener = make_listener();
    std::atomic<int> served{0};
    std::vector<std::thread> workers;
    for (int i = 0; i < 4; ++i)
        workers.emplace_back([&] {
            for (;;) {
                const int fd = MUST(accept(listener, nullptr, nullptr));
                const std::string order = receive(fd, 1);
                send_all(fd, order);
                close(fd);
                if (order == "q")
                    return;
                ++served;
            }
        });
    for (int i = 0; i < 100; ++i) {
        const int fd = connect_to(listener);
        send_all(fd, "w");
        if (receive(fd, 1) != "w")
            say("wrong answer");
        close(fd);
    }
    for (int i = 0; i < 4; ++i)
        send_all(connect_to(listener), "q");
    for (std::thread &worker : workers)
        worker.join();
    say("served %d", served.load());
}

// Two sockets on one port: every connection reaches one of them.
BEHAVIOUR("SO_REUSEPORT", reuse_port, any) {
    const Address any = make_address("127.0.0.1", 0);
    const int one = MUST(socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0));
    set_option(one, SOL_SOCKET, SO_REUSEPORT, 1);
    MUST(bind(one, any.raw(), any.length));
    const Address name = local_address(one);
    const int two = MUST(socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0));
    SHOW(bind(two, name.raw(), name.length));
    set_option(two, SOL_SOCKET, SO_REUSEPORT, 1);
    SHOW(bind(two, name.raw(), name.length));
    SHOW(listen(one, 64));
    SHOW(listen(two, 64));
    for (int i = 0; i < 60; ++i)
        connect_to(name);
    wait_for(one, POLLIN);
    wait_for(two, POLLIN);
    int total = 0;
    for (const int listener : {one, two})
        while (accept(listener, nullptr, nullptr) >= 0)
            ++total;
    say("accepted %d", total);
}

int main(int argc, char **argv) { return run_behaviour(argc, argv); }
