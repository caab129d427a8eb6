// Sockets that are in several hands before they are connected.
#include "tests/programs/cases.hpp"
#include "tests/programs/process.hpp"

#include <spawn.h>

using namespace sdtest;

namespace {

int new_socket(int flags = 0) { return MUST(socket(AF_INET, SOCK_STREAM | flags, 0)); }

void connect_it(int fd, const Address &to) { MUST(connect(fd, to.raw(), to.length)); }

/// Both holders write, then the other end; `step` is called in the other process, one letter each.
void both_use(int fd, int server, int channel) {
    send_all(channel, "w"); // it writes
    say("from the child: %s", receive(server, 5).c_str());
    send_all(fd, "parent");
    say("from the parent: %s", receive(server, 6).c_str());
    send_all(server, "first");
    say("to the parent: %s", receive(fd, 5).c_str());
    send_all(server, "again");
    send_all(channel, "r"); // it reads
    say("to the child: %s", receive(channel, 5).c_str());
    send_all(channel, "c"); // it closes
    receive(channel, 1);
    send_all(fd, "still");
    say("after the child's close: %s", receive(server, 5).c_str());
    MUST(close(fd));
    say("at the end: %zu", receive_to_end(server).size());
}

/// The child's part of that.
void obey(int fd, int channel) {
    for (;;) {
        const std::string order = receive(channel, 1);
        if (order == "w") {
            send_all(fd, "child");
        } else if (order == "r") {
            send_all(channel, receive(fd, 5));
        } else {
            close(fd);
            send_all(channel, "c");
            return;
        }
    }
}

struct Channel {
    int end[2];
    Channel() { MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, end)); }
};

} // namespace

BEHAVIOUR("the parent connects after a fork", the_parent_connects, any) {
    const int listener = make_listener(), fd = new_socket();
    const Channel channel;
    const pid_t child = spawn([&] { obey(fd, channel.end[1]); });
    connect_it(fd, local_address(listener));
    both_use(fd, MUST(accept(listener, nullptr, nullptr)), channel.end[0]);
    reap("child", child);
}

BEHAVIOUR("the child connects", the_child_connects, any) {
    const int listener = make_listener(), fd = new_socket();
    const Channel channel;
    const pid_t child = spawn([&] {
        connect_it(fd, local_address(listener));
        obey(fd, channel.end[1]);
    });
    both_use(fd, MUST(accept(listener, nullptr, nullptr)), channel.end[0]);
    reap("child", child);
}

BEHAVIOUR("a bound one", a_bound_one, any) {
    const int listener = make_listener(), fd = new_socket();
    const Address any = make_address("127.0.0.1", 0);
    MUST(bind(fd, any.raw(), any.length));
    const Channel channel;
    const pid_t child = spawn([&] {
        connect_it(fd, local_address(listener));
        obey(fd, channel.end[1]);
    });
    both_use(fd, MUST(accept(listener, nullptr, nullptr)), channel.end[0]);
    reap("child", child);
}

BEHAVIOUR("a duplicate", by_another_number, any) {
    const int listener = make_listener(), first = new_socket();
    const int fd = MUST(dup(first));
    MUST(close(first));
    const Channel channel;
    const pid_t child = spawn([&] {
        connect_it(fd, local_address(listener));
        obey(fd, channel.end[1]);
    });
    both_use(fd, MUST(accept(listener, nullptr, nullptr)), channel.end[0]);
    reap("child", child);
}

BEHAVIOUR("SCM_RIGHTS", the_one_who_was_passed_it, any) {
    const Address any = make_address("127.0.0.1", 0);
    for (const bool bound : {false, true}) {
        const int listener = make_listener();
        const Channel channel;
        const pid_t child = spawn([&] {
            const int passed = receive_descriptor(channel.end[1]);
            connect_it(passed, local_address(listener));
            obey(passed, channel.end[1]);
        });
        const int fd = new_socket();
        if (bound)
            MUST(bind(fd, any.raw(), any.length));
        pass_descriptor(channel.end[0], fd);
        both_use(fd, MUST(accept(listener, nullptr, nullptr)), channel.end[0]);
        reap("child", child);
    }
}

BEHAVIOUR("SCM_RIGHTS, and the sender connects", the_one_who_passed_it, any) {
    const Address any = make_address("127.0.0.1", 0);
    for (const bool bound : {false, true}) {
        const int listener = make_listener();
        const Channel channel;
        const pid_t child = spawn([&] { obey(receive_descriptor(channel.end[1]), channel.end[1]); });
        const int fd = new_socket();
        if (bound)
            MUST(bind(fd, any.raw(), any.length));
        pass_descriptor(channel.end[0], fd);
        connect_it(fd, local_address(listener));
        both_use(fd, MUST(accept(listener, nullptr, nullptr)), channel.end[0]);
        reap("child", child);
    }
}

// After an exec of the child, with the same library.
BEHAVIOUR("an image that inherited it", an_image_that_inherited_it, any) {
    const int listener = make_listener(), fd = new_socket();
    const Channel channel;
    const pid_t child = spawn([&] {
        execl("/proc/self/exe", "shared_early", "--obey", std::to_string(fd).c_str(),
              std::to_string(channel.end[1]).c_str(), nullptr);
        give_up("exec");
    });
    connect_it(fd, local_address(listener));
    both_use(fd, MUST(accept(listener, nullptr, nullptr)), channel.end[0]);
    reap("child", child);
}

// What another process does to the socket is seen by who waits on it.
BEHAVIOUR("in an epoll instance", seen_by_epoll, any) {
    const int listener = make_listener(), fd = new_socket();
    const int set = MUST(epoll_create1(0));
    epoll_event event{};
    event.events = EPOLLIN;
    MUST(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event));
    SHOW(epoll_wait(set, &event, 1, 0)); // not connected: EPOLLHUP
    const pid_t child = spawn([&] { connect_it(fd, local_address(listener)); });
    const int server = MUST(accept(listener, nullptr, nullptr));
    reap("child", child);
    SHOW(epoll_wait(set, &event, 1, 0));
    send_all(server, "data");
    SHOW(epoll_wait(set, &event, 1, kPatience));
    say("%s, %s", event_names(event.events).c_str(), receive(fd, 4).c_str());
    SHOW_BOOL(peer_address(fd).port() == local_address(listener).port());
}

BEHAVIOUR("flags and options", flags_and_options_are_shared, any) {
    const int fd = new_socket();
    const Channel channel;
    set_option(fd, IPPROTO_TCP, TCP_NODELAY, 1);
    const pid_t child = spawn([&] {
        set_nonblocking(fd);
        set_option(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
        send_all(channel.end[1], "x");
    });
    receive(channel.end[0], 1);
    reap("child", child);
    SHOW_BOOL((fcntl(fd, F_GETFL) & O_NONBLOCK) != 0);
    SHOW(get_option(fd, SOL_SOCKET, SO_KEEPALIVE));
    SHOW(get_option(fd, IPPROTO_TCP, TCP_NODELAY));
}

// A fork does not cost an accelerated listener, nor does a program that is started meanwhile cost a client
// that is not handed on to it.
BEHAVIOUR("what is accelerated all the same", those_that_stay_accelerated, accelerated) {
    const int bound = new_socket(), client = new_socket(SOCK_CLOEXEC);
    const Address any = make_address("127.0.0.1", 0);
    MUST(bind(bound, any.raw(), any.length));
    reap("child", spawn([] {}));
    MUST(listen(bound, 8));
    const int later = new_socket(SOCK_CLOEXEC);
    char path[] = "/bin/true";
    char *const arguments[] = {path, nullptr};
    pid_t program = 0;
    MUST(posix_spawn(&program, path, nullptr, nullptr, arguments, environ));
    reap("program", program);
    connect_it(later, local_address(bound));
    const int server = MUST(accept(bound, nullptr, nullptr));
    send_all(later, "hello");
    say("%s", receive(server, 5).c_str());
    close(client);
}

// Threads connect while another one forks all the time.
BEHAVIOUR("forks while threads connect", forks_while_threads_connect, accelerated) {
    const int listener = make_listener();
    std::atomic<bool> over{false};
    std::atomic<int> right{0};
    std::vector<std::thread> clients;
    for (int i = 0; i < 2; ++i)
        clients.emplace_back([&] {
            for (int n = 0; n < 150; ++n) {
                const int fd = new_socket();
                connect_it(fd, local_address(listener));
                right += send_all(fd, "ping") && receive(fd, 4) == "ping";
                MUST(close(fd));
            }
        });
    std::thread server([&] {
        for (int n = 0; n < 300; ++n) {
            const int fd = MUST(accept(listener, nullptr, nullptr));
            send_all(fd, receive(fd, 4));
            MUST(close(fd));
        }
    });
    std::thread forks([&] {
        while (!over) {
            const pid_t child = MUST(fork());
            if (child == 0)
                _exit(0);
            MUST(waitpid(child, nullptr, 0));
        }
    });
    for (std::thread &client : clients)
        client.join();
    server.join();
    over = true;
    forks.join();
    SHOW(right.load());
}

int main(int argc, char **argv) {
    if (argc == 4 && strcmp(argv[1], "--obey") == 0) {
        obey(atoi(argv[2]), atoi(argv[3]));
        return 0;
    }
    return run_behaviour(argc, argv);
}
