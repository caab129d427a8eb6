// In which order epoll reports what came over several connections.
#include "tests/programs/cases.hpp"
#include "tests/programs/process.hpp"

#include <sys/epoll.h>

using namespace sdtest;

namespace {

constexpr int kConnections = 5;

struct Server {
    int listener = make_listener();
    int set = MUST(epoll_create1(EPOLL_CLOEXEC));
    int client[kConnections], server[kConnections];

    explicit Server(uint32_t events) {
        for (int i = 0; i < kConnections; ++i) {
            const Pair pair = connect_through(listener);
            client[i] = pair.client;
            server[i] = pair.server;
            set_nonblocking(server[i]);
            epoll_event e{};
            e.events = events;
            e.data.u32 = static_cast<uint32_t>(i);
            MUST(epoll_ctl(set, EPOLL_CTL_ADD, server[i], &e));
        }
    }

    /// What is reported now; everything is read.
    std::string report() const {
        epoll_event events[kConnections];
        std::string order;
        const int n = MUST(epoll_wait(set, events, kConnections, kPatience));
        for (int k = 0; k < n; ++k) {
            char buffer[64];
            const unsigned i = events[k].data.u32;
            order += std::to_string(i) + " ";
            while (read(server[i], buffer, sizeof buffer) > 0) {
            }
        }
        // Level-triggered members keep their place in the kernel's list until a look finds them idle.
        epoll_wait(set, events, kConnections, 0);
        return order;
    }
};

void send_in_turn(const Server &s, std::initializer_list<int> order) {
    for (const int i : order)
        send_all(s.client[i], "x", 1);
    sleep_ms(20);
    say("%s", s.report().c_str());
}

void several_rounds(const Server &s) {
    for (int round = 0; round < 3; ++round) {
        send_in_turn(s, {4, 1});
        send_in_turn(s, {0, 1, 2, 3, 4});
        send_in_turn(s, {4, 3, 2, 1, 0});
        send_in_turn(s, {2, 0, 4, 1, 3});
        send_in_turn(s, {3, 0, 3, 0}); // where it stands in the list is decided by what made it ready
    }
}

} // namespace

BEHAVIOUR("epoll reports in order of arrival, level-triggered", level_triggered, accelerated) {
    several_rounds(Server(EPOLLIN));
}

BEHAVIOUR("epoll reports in order of arrival, edge-triggered", edge_triggered, accelerated) {
    several_rounds(Server(EPOLLIN | EPOLLET | EPOLLRDHUP));
}

BEHAVIOUR("epoll reports in order of arrival, with EPOLLOUT", with_interest_in_writing, accelerated) {
    const Server s(EPOLLIN | EPOLLOUT | EPOLLET);
    s.report();
    several_rounds(s);
}

// The end of a connection has its place among what is sent over others.
BEHAVIOUR("epoll reports ends in order of arrival", ends, accelerated) {
    for (const bool both_ways : {false, true})
        for (const uint32_t events :
             {EPOLLIN | EPOLLET, EPOLLIN | EPOLLET | EPOLLRDHUP, EPOLLIN | EPOLLOUT | EPOLLET}) {
            const Server s(events);
            if (events & EPOLLOUT)
                s.report();
            close(s.client[4]);
            send_in_turn(s, {1});
            send_all(s.client[3], "x", 1);
            MUST(shutdown(s.client[2], SHUT_WR));
            send_in_turn(s, {0, 1});
            const linger abort{1, 0};
            MUST(setsockopt(s.client[3], SOL_SOCKET, SO_LINGER, &abort, sizeof abort));
            if (both_ways)
                MUST(shutdown(s.client[3], SHUT_RDWR));
            else
                close(s.client[3]);
            send_in_turn(s, {1, 0});
        }
}

// A program that is client and server at once, as a proxy that talks to itself: both ends of different
// connections in one set.
BEHAVIOUR("epoll reports in order what comes to a program that is client and server",
          client_and_server_in_one_set, accelerated) {
    for (const bool client_first : {false, true})
        for (const bool close_first : {false, true}) {
            const int outside = make_listener(), inside = make_listener();
            const Pair request = connect_through(outside), forwarded = connect_through(inside);
            const int set = MUST(epoll_create1(EPOLL_CLOEXEC));
            auto add = [&](int fd, uint32_t mark) {
                epoll_event e{};
                e.events = EPOLLIN | EPOLLET;
                e.data.u32 = mark;
                MUST(epoll_ctl(set, EPOLL_CTL_ADD, fd, &e));
            };
            if (client_first)
                add(forwarded.client, 'f');
            add(request.server, 'r');
            if (!client_first)
                add(forwarded.client, 'f');
            if (close_first)
                close(request.client);
            send_all(forwarded.server, "answer", 6);
            if (!close_first)
                close(request.client);
            close(forwarded.server);
            close(inside);
            sleep_ms(20);
            epoll_event events[2];
            const int n = MUST(epoll_wait(set, events, 2, kPatience));
            for (int k = 0; k < n; ++k)
                say("%c", static_cast<char>(events[k].data.u32));
        }
}

// A program that connects to itself: the listener was ready before a client could be, wherever the last look
// ended. Servers that stop with their first client rely on it.
BEHAVIOUR("epoll reports a listener before the clients that wait for it", listener_before_its_clients,
          accelerated) {
    constexpr int kClients = 4, kBusy = 3;
    for (int looks = 0; looks < 6; ++looks) {
        const int listener = make_listener(), set = MUST(epoll_create1(EPOLL_CLOEXEC));
        epoll_event events[kBusy + kClients + 1];
        auto add = [&](int fd, uint32_t interest, char mark) {
            epoll_event e{};
            e.events = interest;
            e.data.u32 = static_cast<unsigned char>(mark);
            MUST(epoll_ctl(set, EPOLL_CTL_ADD, fd, &e));
        };
        Pair busy[kBusy];
        add(listener, EPOLLIN, 'L');
        for (auto &pair : busy) {
            pair = make_pair();
            add(pair.client, EPOLLOUT, 'b');
        }
        for (int i = 0; i < looks; ++i)
            MUST(epoll_wait(set, events, 1, kPatience));
        int client[kClients];
        for (int &fd : client) {
            fd = connect_to(local_address(listener));
            add(fd, EPOLLOUT, 'c');
        }
        const int n = MUST(epoll_wait(set, events, kBusy + kClients + 1, kPatience));
        std::string order;
        for (int k = 0; k < n; ++k)
            if (const char mark = static_cast<char>(events[k].data.u32); mark != 'b')
                order += mark;
        say("%s", order.c_str());
        close(MUST(accept(listener, nullptr, nullptr)));
        close(listener);
        for (int i = 1; i < kClients; ++i)
            say("%d", get_option(client[i], SOL_SOCKET, SO_ERROR));
        close(set);
    }
}

// What is said over one connection comes before what is said over the other because of it.
BEHAVIOUR("epoll reports the cause before the effect", cause_before_effect, accelerated) {
    const Server s(EPOLLIN | EPOLLET);
    int wrong = 0;
    std::thread writer([&] {
        for (int i = 0; i < 2000; ++i) {
            send_all(s.client[3], "a", 1);
            send_all(s.client[0], "b", 1);
            char answer;
            MUST(recv(s.client[0], &answer, 1, 0));
        }
        MUST(shutdown(s.client[0], SHUT_WR));
    });
    int first = 0, second = 0;
    for (bool end = false; !end;) {
        epoll_event events[kConnections];
        const int n = MUST(epoll_wait(s.set, events, kConnections, kPatience));
        for (int k = 0; k < n; ++k) {
            char byte;
            const unsigned i = events[k].data.u32;
            const ssize_t got = read(s.server[i], &byte, 1); // there is never more than one
            if (i == 3 && got == 1)
                ++first;
            if (i == 0 && got == 1) {
                wrong += first <= second;
                ++second;
                send_all(s.server[0], "c", 1);
            }
            end = end || (i == 0 && got == 0);
        }
    }
    writer.join();
    say("%d of 2000 effects before their cause", wrong);
}

// Requests that come in two writes, to an edge-triggered server that reads until there is nothing: no arrival
// may be overlooked.
BEHAVIOUR("edge-triggered epoll overlooks no arrival", no_edge_is_lost, accelerated) {
    constexpr int kClients = 8, kRounds = 1000;
    const int listener = make_listener();
    const pid_t server = spawn([&] {
        const int set = MUST(epoll_create1(0));
        std::string seen[kClients];
        int fd[kClients], left = kClients;
        for (int i = 0; i < kClients; ++i) {
            fd[i] = MUST(accept4(listener, nullptr, nullptr, SOCK_NONBLOCK));
            epoll_event e{};
            e.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET;
            e.data.u32 = static_cast<uint32_t>(i);
            MUST(epoll_ctl(set, EPOLL_CTL_ADD, fd[i], &e));
        }
        while (left > 0) {
            epoll_event events[kClients];
            const int n = MUST(epoll_wait(set, events, kClients, kPatience));
            if (n == 0) {
                say("the server waits for %d clients in vain", left);
                break;
            }
            for (int k = 0; k < n; ++k) {
                const unsigned i = events[k].data.u32;
                char buffer[4096];
                ssize_t got;
                while ((got = read(fd[i], buffer, sizeof buffer)) > 0) {
                    seen[i].append(buffer, static_cast<size_t>(got));
                    for (; seen[i].size() >= 340; seen[i].erase(0, 340))
                        MUST(write(fd[i], seen[i].data(), 32));
                }
                left -= got == 0;
                if (got == 0)
                    close(fd[i]);
            }
        }
    });
    const Address to = local_address(listener);
    std::vector<std::thread> clients;
    std::atomic<int> right{0};
    for (int c = 0; c < kClients; ++c)
        clients.emplace_back([&, c] {
            const int fd = connect_to(to);
            set_timeout(fd, SO_RCVTIMEO, kPatience);
            set_option(fd, IPPROTO_TCP, TCP_NODELAY, 1);
            const std::string request = pattern(340, static_cast<uint64_t>(c));
            for (int round = 0; round < kRounds; ++round) {
                send_all(fd, request.data(), 40);
                send_all(fd, request.data() + 40, 300);
                if (receive(fd, 32) != request.substr(0, 32))
                    break;
                ++right;
            }
            close(fd);
        });
    for (std::thread &client : clients)
        client.join();
    say("%d of %d answers", right.load(), kClients * kRounds);
    reap("server", server);
}

// ab has more connections under way than it has requests left: a server that takes one at a time waits for
// the silent ones if they are not the last.
BEHAVIOUR("clients are writable in the order of their connecting", clients_are_writable_as_they_connected,
          accelerated) {
    const int listener = make_listener(), set = MUST(epoll_create1(0));
    constexpr int kClients = 12;
    int client[kClients];
    for (int i = 0; i < kClients; ++i) {
        client[i] = connect_to(local_address(listener));
        epoll_event event{};
        event.events = EPOLLOUT;
        event.data.u32 = static_cast<uint32_t>(i);
        MUST(epoll_ctl(set, EPOLL_CTL_ADD, client[i], &event));
    }
    MUST(epoll_ctl(set, EPOLL_CTL_DEL, client[1], nullptr));
    MUST(epoll_ctl(set, EPOLL_CTL_DEL, client[4], nullptr));
    epoll_event events[kClients];
    const int n = MUST(epoll_wait(set, events, kClients, kPatience));
    for (int i = 0; i < n; ++i)
        say("%u", events[i].data.u32);
}

int main(int argc, char **argv) { return run_behaviour(argc, argv); }
