// A server and a client as separate programs, so that either can run with or without acceleration:
//   dialogue server SCENE FILE     listens, writes the port into FILE, plays the server's part
//   dialogue client SCENE FILE     waits for FILE, plays the client's part
// Both print what they see; the lines must be the same whoever is accelerated.
#include "tests/programs/cases.hpp"
#include "tests/programs/meeting.hpp"
#include "tests/programs/process.hpp"

#include <sys/stat.h>
#include <sys/uio.h>

using namespace sdtest;

namespace {

struct Scene {
    const char *name;
    void (*server)(int listener);
    void (*client)(const Address &to);
};

// --- echo: small messages there and back

void echo_server(int listener) {
    const int fd = MUST(accept(listener, nullptr, nullptr));
    char buffer[4096];
    ssize_t got;
    while ((got = recv(fd, buffer, sizeof buffer, 0)) > 0)
        send_all(fd, buffer, static_cast<size_t>(got));
    say("end %zd", got);
}

void echo_client(const Address &to) {
    const int fd = connect_to(to);
    int right = 0;
    for (unsigned i = 0; i < 500; ++i) {
        const std::string message = pattern(1 + i % 100, i);
        send_all(fd, message);
        right += receive(fd, message.size()) == message;
    }
    say("%d of 500 right", right);
    SHOW(close(fd));
}

// --- bulk: a large request, half-close, a large answer

void bulk_server(int listener) {
    const int fd = MUST(accept(listener, nullptr, nullptr));
    show_data("request", receive_to_end(fd));
    SHOW_BOOL(send_all(fd, pattern(3000000, 2)));
}

void bulk_client(const Address &to) {
    const int fd = connect_to(to);
    SHOW_BOOL(send_all(fd, pattern(2000000, 1)));
    SHOW(shutdown(fd, SHUT_WR));
    show_data("answer", receive_to_end(fd));
}

// --- events: an event-driven server with many clients at once

void events_server(int listener) {
    set_nonblocking(listener);
    const int set = MUST(epoll_create1(0));
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.fd = listener;
    MUST(epoll_ctl(set, EPOLL_CTL_ADD, listener, &event));
    int finished = 0, requests = 0;
    while (finished < 20) {
        MUST(epoll_wait(set, &event, 1, 10000) == 1 ? 0 : -1);
        const int fd = event.data.fd;
        if (fd == listener) {
            event.data.fd = MUST(accept4(listener, nullptr, nullptr, SOCK_NONBLOCK));
            event.events = EPOLLIN | EPOLLRDHUP;
            MUST(epoll_ctl(set, EPOLL_CTL_ADD, event.data.fd, &event));
            continue;
        }
        char buffer[64];
        const ssize_t got = recv(fd, buffer, 10, 0);
        if (got > 0) {
            ++requests;
            send_all(fd, buffer, static_cast<size_t>(got));
        } else if (got == 0) {
            ++finished;
            close(fd);
        }
    }
    say("%d requests from %d clients", requests, finished);
}

void events_client(const Address &to) {
    std::vector<int> fds;
    for (int i = 0; i < 20; ++i)
        fds.push_back(connect_to(to));
    int right = 0;
    for (int round = 0; round < 10; ++round) {
        for (const int fd : fds)
            send_all(fd, "0123456789");
        for (const int fd : fds)
            right += receive(fd, 10) == "0123456789";
    }
    say("%d of 200 right", right);
}

// --- resets: the server goes away in each of the ways there are

void resets_server(int listener) {
    const int orderly = MUST(accept(listener, nullptr, nullptr));
    const int unread = MUST(accept(listener, nullptr, nullptr));
    const int aborted = MUST(accept(listener, nullptr, nullptr));
    wait_for(unread, POLLIN);
    SHOW(close(orderly));
    SHOW(close(unread));
    abort_connection(aborted);
}

void resets_client(const Address &to) {
    const int orderly = connect_to(to), unread = connect_to(to), aborted = connect_to(to);
    send_all(unread, "never read");
    char byte;
    wait_for(orderly, POLLRDHUP);
    show_ready("orderly", orderly);
    SHOW(recv(orderly, &byte, 1, 0));
    SHOW(send(orderly, "x", 1, MSG_NOSIGNAL));
    for (const int fd : {unread, aborted}) {
        wait_for(fd, POLLHUP);
        show_ready("reset", fd);
        SHOW(recv(fd, &byte, 1, 0));
        SHOW(recv(fd, &byte, 1, 0));
        SHOW(send(fd, "x", 1, MSG_NOSIGNAL));
    }
}

// --- names: what both ends say about the connection

void names_server(int listener) {
    Address from;
    const int fd = MUST(accept(listener, from.raw(), &from.length));
    say("from %s, here %s", from.host().c_str(), local_address(fd).host().c_str());
    SHOW_BOOL(from.port() == peer_address(fd).port());
    uint16_t port = 0;
    SHOW(recv(fd, &port, sizeof port, MSG_WAITALL));
    SHOW_BOOL(port == from.port());
    say("nodelay %d keepalive %d type %d", get_option(fd, IPPROTO_TCP, TCP_NODELAY),
        get_option(fd, SOL_SOCKET, SO_KEEPALIVE), get_option(fd, SOL_SOCKET, SO_TYPE));
}

void names_client(const Address &to) {
    const int fd = MUST(socket(AF_INET, SOCK_STREAM, 0));
    set_option(fd, IPPROTO_TCP, TCP_NODELAY, 1);
    SHOW(connect(fd, to.raw(), to.length));
    say("here %s, there %s", local_address(fd).host().c_str(), peer_address(fd).host().c_str());
    const uint16_t port = local_address(fd).port();
    SHOW(send(fd, &port, sizeof port, 0));
    say("nodelay %d", get_option(fd, IPPROTO_TCP, TCP_NODELAY));
    SHOW_BOOL(receive_to_end(fd).empty());
}

// --- short: many short connections, one after the other

void short_server(int listener) {
    int served = 0;
    for (int i = 0; i < 200; ++i) {
        const int fd = MUST(accept(listener, nullptr, nullptr));
        served += receive(fd, 5) == "hello";
        send_all(fd, "bye");
        close(fd);
    }
    say("served %d", served);
}

void short_client(const Address &to) {
    int right = 0;
    for (int i = 0; i < 200; ++i) {
        const int fd = connect_to(to);
        send_all(fd, "hello");
        right += receive_to_end(fd) == "bye";
        close(fd);
    }
    say("%d of 200 right", right);
}

// --- forks: the server hands each connection to a child

void forks_server(int listener) {
    for (int i = 0; i < 5; ++i) {
        const int fd = MUST(accept(listener, nullptr, nullptr));
        const pid_t child = spawn([&] {
            close(listener);
            const std::string request = receive(fd, 5);
            send_all(fd, request + " from a child");
        });
        close(fd);
        reap("child", child);
    }
}

void forks_client(const Address &to) {
    for (int i = 0; i < 5; ++i) {
        const int fd = connect_to(to);
        send_all(fd, "hello");
        say("%s", receive_to_end(fd).c_str());
        close(fd);
    }
}

// --- waiting: non-blocking connect, poll with deadlines, data that comes late

void waiting_server(int listener) {
    const int fd = MUST(accept(listener, nullptr, nullptr));
    SHOW_BOOL(receive(fd, 2) == "go");
    sleep_ms(150);
    send_all(fd, "late");
    char byte;
    SHOW(recv(fd, &byte, 1, 0));
}

void waiting_client(const Address &to) {
    const int fd = MUST(socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0));
    const int result = connect(fd, to.raw(), to.length);
    SHOW_BOOL(result == 0 || errno == EINPROGRESS);
    wait_for(fd, POLLOUT);
    say("SO_ERROR %s", socket_error(fd).c_str());
    SHOW(send(fd, "go", 2, 0));
    say("%s", event_names(static_cast<uint32_t>(poll_now(fd, POLLIN, 20))).c_str());
    char buffer[16];
    SHOW(recv(fd, buffer, sizeof buffer, 0));
    say("%s", event_names(static_cast<uint32_t>(poll_now(fd, POLLIN, kPatience))).c_str());
    SHOW(recv(fd, buffer, sizeof buffer, 0));
    SHOW(shutdown(fd, SHUT_WR));
    wait_for(fd, POLLRDHUP);
    SHOW(recv(fd, buffer, sizeof buffer, 0));
}

// --- steady: a server that stays while clients come and go, until one of them ends it

std::string scene_file; // the port's file; others with the same beginning are signs between the programs

void wait_for_sign(const char *sign) {
    const std::string path = scene_file + sign;
    for (Stopwatch watch; access(path.c_str(), F_OK) != 0 && watch.ms() < 4 * kPatience;)
        sleep_ms(5);
}

void give_sign(const char *sign) {
    const std::string path = scene_file + sign;
    close(MUST(open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0644)));
}

void steady_server(int listener) {
    static std::atomic<bool> over{false}; // static: a thread may outlast this function
    while (!over) {
        const int fd = accept(listener, nullptr, nullptr);
        if (fd < 0)
            break;
        std::thread([fd, listener] {
            std::string message;
            while ((message = receive(fd, 4)).size() == 4 && message != "quit")
                send_all(fd, message);
            close(fd);
            if (message == "quit") {
                over = true;
                shutdown(listener, SHUT_RD);
            }
        }).detach();
    }
    say("ended by a client: %s", yes_no(over));
}

void talk(int fd) {
    int right = 0;
    for (int i = 1000; i < 1100; ++i) {
        send_all(fd, std::to_string(i));
        right += receive(fd, 4) == std::to_string(i);
    }
    say("%d of 100 right", right);
}

void steady_client(const Address &to) { talk(connect_to(to)); }

// Holds its connection until the sign is given, then uses it again.
void held_client(const Address &to) {
    const int fd = connect_to(to);
    talk(fd);
    give_sign(".held");
    wait_for_sign(".go");
    talk(fd);
}

void quit_client(const Address &to) { send_all(connect_to(to), "quit"); }

constexpr Scene kScenes[] = {
    {"echo", echo_server, echo_client},       {"bulk", bulk_server, bulk_client},
    {"events", events_server, events_client}, {"resets", resets_server, resets_client},
    {"names", names_server, names_client},    {"short", short_server, short_client},
    {"forks", forks_server, forks_client},    {"waiting", waiting_server, waiting_client},
    {"steady", steady_server, steady_client}, {"held", steady_server, held_client},
    {"quit", steady_server, quit_client},
};

} // namespace

int main(int argc, char **argv) {
    if (argc == 4) {
        for (const Scene &scene : kScenes) {
            if (strcmp(argv[2], scene.name) != 0)
                continue;
            scene_file = argv[3];
            if (strcmp(argv[1], "server") == 0) {
                const int listener = make_listener();
                publish_port(argv[3], local_address(listener).port());
                scene.server(listener);
            } else {
                scene.client(make_address("127.0.0.1", learn_port(argv[3])));
            }
            say("done");
            return 0;
        }
    }
    fprintf(stderr, "usage: %s server|client SCENE FILE\n", argv[0]);
    return 2;
}
