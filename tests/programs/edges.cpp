// Corners of the socket calls that random sequences (tests/differential) brought to light.
#include "tests/programs/blocking.hpp"
#include "tests/programs/cases.hpp"
#include "tests/programs/process.hpp"

#include <memory>

using namespace sdtest;

namespace {

void undo_connection(int fd) {
    sockaddr none{};
    none.sa_family = AF_UNSPEC;
    SHOW(connect(fd, &none, sizeof none));
}

void show_events(int set) {
    epoll_event event{};
    const int count = epoll_wait(set, &event, 1, 0);
    say("epoll: %d %s", count, event_names(count > 0 ? event.events : 0).c_str());
}

int watch(int fd, uint32_t events) {
    const int set = MUST(epoll_create1(0));
    epoll_event event{};
    event.events = events;
    MUST(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event));
    return set;
}

} // namespace

BEHAVIOUR("a reset after the peer's end of file", reset_after_half_close, accelerated) {
    const Pair pair = make_pair();
    char buffer[8];
    MUST(shutdown(pair.client, SHUT_WR));
    SHOW(send(pair.server, "unread", 6, 0));
    MUST(close(pair.client));
    SHOW(recv(pair.server, buffer, 8, 0)); // the end came before the reset
    say("%s", socket_error(pair.server).c_str());
}

BEHAVIOUR("data for a peer that shut both directions", data_for_a_peer_that_shut_both, accelerated) {
    const Pair pair = make_pair();
    char buffer[8];
    MUST(shutdown(pair.client, SHUT_RDWR));
    SHOW(send(pair.server, "data", 4, MSG_NOSIGNAL));
    show_ready("sender", pair.server);
    show_ready("peer", pair.client);
    SHOW(send(pair.server, "data", 4, MSG_NOSIGNAL));
    SHOW(recv(pair.client, buffer, 8, 0));
    SHOW(recv(pair.client, buffer, 8, 0));
}

BEHAVIOUR("close after a reset", close_after_a_reset, accelerated) {
    const Pair pair = make_pair();
    char buffer[8];
    MUST(shutdown(pair.client, SHUT_RDWR));
    MUST(send(pair.server, "data", 4, MSG_NOSIGNAL));
    MUST(close(pair.server));
    SHOW(recv(pair.client, buffer, 8, 0));
}

BEHAVIOUR("nothing sent to a closed peer resets nothing", nothing_sent_to_a_closed_peer, accelerated) {
    const Pair pair = make_pair();
    MUST(close(pair.client));
    SHOW(send(pair.server, "", 0, MSG_NOSIGNAL));
    SHOW(send(pair.server, bad_pointer<char>(), 5, MSG_NOSIGNAL));
    SHOW(send(pair.server, "data", 4, MSG_NOSIGNAL));
    SHOW(send(pair.server, "data", 4, MSG_NOSIGNAL));
}

// Wholly, and in part: the end of the buffer lies on a page that may not be touched. What was not received is
// still there.
BEHAVIOUR("small messages at bad addresses", small_messages_at_bad_addresses, accelerated) {
    const Pair pair = make_pair();
    const size_t page = 4096;
    char *two =
        static_cast<char *>(mmap(nullptr, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    MUST(mprotect(two + page, page, PROT_NONE));
    for (const size_t size : {1, 3, 7, 8, 9, 12, 16, 17, 33, 100}) {
        for (const size_t inside : {size_t{0}, size / 2, size - 1}) {
            char *from = two + page - inside;
            SHOW(send(pair.client, from, size, 0));
            SHOW(write(pair.client, from, size));
            const std::string message = pattern(size);
            send_all(pair.client, message);
            wait_for(pair.server, POLLIN);
            SHOW(recv(pair.server, from, size, 0));
            SHOW(read(pair.server, from, size));
            say("%s", receive(pair.server, size) == message ? "the message" : "another");
        }
    }
}

// What a buffer cannot hold is refused after the reset, so a program that sends much learns of it.
BEHAVIOUR("much sent to a closed peer", much_sent_to_a_closed_peer, accelerated) {
    signal(SIGPIPE, SIG_IGN);
    const std::string data(10 << 20, 'x');
    for (const bool wait : {false, true}) {
        const Pair pair = make_pair();
        set_nonblocking(pair.server, !wait);
        close(pair.client);
        wait_for(pair.server, POLLRDHUP);
        const ssize_t first = send(pair.server, data.data(), data.size(), 0);
        SHOW_BOOL(first > 0 && first < static_cast<ssize_t>(data.size()));
        wait_for(pair.server, POLLHUP);
        SHOW(send(pair.server, data.data(), data.size(), 0));
        SHOW(send(pair.server, data.data(), data.size(), 0));
        char byte;
        SHOW(recv(pair.server, &byte, 1, 0));
    }
}

BEHAVIOUR("a connection undone with AF_UNSPEC", undone_connection, accelerated) {
    const Pair pair = make_pair();
    char buffer[8];
    const uint16_t port = local_address(pair.client).port();
    const int set = watch(pair.client, EPOLLOUT | EPOLLET);
    show_events(set);
    undo_connection(pair.client);
    show_events(set);
    const Address after = local_address(pair.client);
    say("%s, same port: %s", after.host().c_str(), yes_no(after.port() == port));
    show_ready("undone", pair.client);
    SHOW(recv(pair.client, buffer, 8, MSG_DONTWAIT));
    SHOW(recv(pair.client, buffer, 8, MSG_DONTWAIT));
    MUST(close(pair.listener));
    show_events(set);
}

BEHAVIOUR("a listener undone with AF_UNSPEC", undone_listener, any) {
    const int listener = make_listener();
    const Address there = local_address(listener);
    undo_connection(listener);
    const int client = MUST(socket(AF_INET, SOCK_STREAM, 0));
    SHOW(connect(client, there.raw(), there.length));
}

BEHAVIOUR("bind of a connection looks at the address first", bind_looks_at_the_address_first, accelerated) {
    const Pair pair = make_pair();
    const Address foreign = make_address("203.0.113.77", 0), six = make_address("::1", 0),
                  any = make_address("127.0.0.1", 0);
    SHOW(bind(pair.client, foreign.raw(), foreign.length));
    SHOW(bind(pair.client, six.raw(), six.length));
    SHOW(bind(pair.client, any.raw(), 4));
    SHOW(bind(pair.client, any.raw(), any.length));
    SHOW(connect(pair.client, any.raw(), 0));
}

BEHAVIOUR("shutdown before connecting", shutdown_before_connecting, any) {
    const int fd = MUST(socket(AF_INET, SOCK_STREAM, 0));
    const int copy = MUST(dup(fd));
    const int set = watch(fd, EPOLLIN | EPOLLET);
    show_events(set);
    SHOW(shutdown(copy, SHUT_RDWR));
    show_events(set);
    show_ready("shut", fd);
}

BEHAVIOUR("accept takes clients in the order of arrival", accept_in_order_of_arrival, accelerated) {
    const int listener = make_listener();
    uint16_t ports[3];
    int ends[2];
    MUST(pipe(ends));
    std::vector<pid_t> children;
    Gate leave;
    for (uint16_t &port : ports) {
        children.push_back(spawn([&] {
            const int client = connect_to(listener);
            const uint16_t own = local_address(client).port();
            MUST(write(ends[1], &own, sizeof own));
            leave.pass();
        }));
        MUST(read(ends[0], &port, sizeof port));
    }
    for (const uint16_t port : ports) {
        const int server = MUST(accept(listener, nullptr, nullptr));
        say("in turn: %s", yes_no(peer_address(server).port() == port));
    }
    for (size_t i = 0; i < children.size(); ++i) {
        leave.open(); // whoever of them reads it
    }
    for (const pid_t child : children) {
        reap("client", child);
    }
}

BEHAVIOUR("no edge at a close that sends nothing", no_edge_at_a_close_that_sends_nothing, accelerated) {
    const Pair pair = make_pair();
    const int set = watch(pair.client, EPOLLIN | EPOLLRDHUP | EPOLLET);
    show_events(set);
    MUST(shutdown(pair.server, SHUT_RDWR));
    show_events(set);
    show_events(set);
    MUST(close(pair.server));
    show_events(set);
}

// The call has been interrupted before the handler does what it waited for.
BEHAVIOUR("a handler that sends to the call it interrupts", handler_sends_to_the_call_it_interrupts, accelerated) {
    static Pair pair;
    pair = make_pair();
    struct sigaction action {};
    action.sa_handler = [](int) { send(pair.server, "late", 4, 0); };
    MUST(sigaction(SIGUSR1, &action, nullptr));
    std::thread signaller([main = thread_id()] {
        while (!is_blocked(main))
            sleep_ms(1);
        syscall(SYS_tgkill, getpid(), main, SIGUSR1);
    });
    char buffer[8];
    SHOW(recv(pair.client, buffer, sizeof buffer, 0));
    SHOW(recv(pair.client, buffer, sizeof buffer, 0));
    signaller.join();
}

namespace {

/// A call on the connection's client end that is about to sleep may have to ask the monitor before it does.
/// The monitor is stopped then, and a handler sends to the call, which is made once more.
template <class Call> void interrupt_while_the_monitor_is_stopped(Call call) {
    static Pair pair;
    pair = make_pair();
    struct sigaction action {};
    action.sa_handler = [](int) { send(pair.server, "late", 4, 0); };
    MUST(sigaction(SIGUSR1, &action, nullptr));
    std::thread signaller([main = thread_id(), stopped = std::make_unique<StoppedMonitor>()]() mutable {
        while (!is_blocked(main))
            sleep_ms(1);
        syscall(SYS_tgkill, getpid(), main, SIGUSR1);
        stopped.reset();
    });
    call(pair.client);
    call(pair.client);
    signaller.join();
}

} // namespace

BEHAVIOUR("a handler that sends to the call it interrupts, while the monitor does not answer",
          handler_sends_while_the_monitor_is_stopped, accelerated) {
    interrupt_while_the_monitor_is_stopped([](int client) {
        char buffer[8];
        SHOW(recv(client, buffer, sizeof buffer, 0));
    });
}

BEHAVIOUR("the same, where poll and epoll_wait wait", handler_sends_to_waits, accelerated) {
    interrupt_while_the_monitor_is_stopped([](int client) {
        pollfd asked{client, POLLIN, 0};
        SHOW(poll(&asked, 1, kPatience));
    });
    interrupt_while_the_monitor_is_stopped([set = -1](int client) mutable {
        if (set < 0)
            set = watch(client, EPOLLIN);
        epoll_event event;
        SHOW(epoll_wait(set, &event, 1, kPatience));
    });
}

BEHAVIOUR("each shutdown is an edge", edge_at_each_shutdown, accelerated) {
    const Pair pair = make_pair();
    const int set = watch(pair.client, EPOLLIN | EPOLLET);
    SHOW(shutdown(pair.client, SHUT_RDWR));
    show_events(set);
    show_events(set);
    SHOW(shutdown(pair.client, SHUT_RD));
    show_events(set);
}

BEHAVIOUR("data is an edge also when read meanwhile", edge_of_data_read_meanwhile, accelerated) {
    const Pair pair = make_pair();
    char buffer[8];
    const int set = watch(pair.client, EPOLLIN | EPOLLOUT | EPOLLET);
    show_events(set);
    show_events(set);
    MUST(send(pair.server, "data", 4, 0));
    SHOW(recv(pair.client, buffer, 8, 0));
    show_events(set);
    show_events(set);
}

BEHAVIOUR("select that cannot end is interrupted", select_that_cannot_end_is_interrupted, accelerated) {
    const Pair pair = make_pair();
    struct sigaction action {};
    action.sa_handler = [](int) {};
    MUST(sigaction(SIGALRM, &action, nullptr));
    abort_connection(pair.client);
    fd_set exceptions;
    FD_ZERO(&exceptions);
    FD_SET(pair.server, &exceptions);
    alarm(1);
    SHOW(select(pair.server + 1, nullptr, nullptr, &exceptions, nullptr));
}

BEHAVIOUR("MSG_PEEK with MSG_WAITALL is interrupted", peek_for_all_is_interrupted, accelerated) {
    const Pair pair = make_pair();
    struct sigaction action {};
    action.sa_handler = [](int) {};
    action.sa_flags = SA_RESTART;
    MUST(sigaction(SIGALRM, &action, nullptr));
    char buffer[8];
    MUST(send(pair.client, "data", 4, 0));
    alarm(1);
    SHOW(recv(pair.server, buffer, 8, MSG_PEEK | MSG_WAITALL));
}

BEHAVIOUR("MSG_PEEK with MSG_WAITALL ends with the data", peek_for_all_ends_with_the_data, accelerated) {
    const Pair pair = make_pair();
    char buffer[8];
    MUST(send(pair.client, "data", 4, 0));
    MUST(close(pair.client));
    SHOW(recv(pair.server, buffer, 8, MSG_PEEK | MSG_WAITALL));
}

BEHAVIOUR("a part sent is told at a signal", a_part_sent_is_told_at_a_restarting_signal, accelerated) {
    const Pair pair = make_pair();
    struct sigaction action {};
    action.sa_handler = [](int) {};
    action.sa_flags = SA_RESTART;
    MUST(sigaction(SIGALRM, &action, nullptr));
    const std::string much = pattern(32 << 20);
    alarm(1);
    const ssize_t sent = send(pair.client, much.data(), much.size(), 0);
    SHOW_BOOL(sent > 0 && sent < static_cast<ssize_t>(much.size()));
}

BEHAVIOUR("connect again after SO_ERROR", connecting_again_after_asking_for_the_error, accelerated) {
    const int listener = make_listener();
    const Address there = local_address(listener);
    const int client = MUST(socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0));
    SHOW(connect(client, there.raw(), there.length));
    wait_for(client, POLLOUT);
    say("%s", socket_error(client).c_str());
    SHOW(connect(client, there.raw(), there.length));
    SHOW(connect(client, there.raw(), there.length));
}

BEHAVIOUR("MSG_WAITALL ends at urgent data", waiting_for_all_ends_at_urgent_data, accelerated) {
    const Pair pair = make_pair();
    char buffer[8];
    MUST(send(pair.client, "ab", 2, MSG_OOB));
    SHOW(recv(pair.server, buffer, 2, MSG_WAITALL));
    MUST(close(pair.client));
    const Pair other = make_pair();
    MUST(close(other.client));
    SHOW(send(other.server, "abcde", 5, MSG_OOB | MSG_NOSIGNAL));
}

BEHAVIOUR("shutdown wakes readers in other processes", shutdown_wakes_readers_elsewhere, accelerated) {
    const Pair pair = make_pair();
    const pid_t child = spawn([&] {
        char buffer[8];
        SHOW(recv(pair.server, buffer, 8, 0));
    });
    sleep_ms(300);
    MUST(shutdown(pair.server, SHUT_RD));
    reap("reader", child);
}

BEHAVIOUR("recvmmsg tells a waiting error first", errors_told_by_recvmmsg, accelerated) {
    const Pair pair = make_pair();
    char buffer[8];
    iovec part{buffer, 8};
    mmsghdr message{};
    message.msg_hdr.msg_iov = &part;
    message.msg_hdr.msg_iovlen = 1;
    MUST(shutdown(pair.client, SHUT_WR));
    MUST(send(pair.server, "unread", 6, 0));
    MUST(close(pair.client));
    SHOW(recvmmsg(pair.server, &message, 1, 0, nullptr)); // before what was received
    SHOW(recvmmsg(pair.server, &message, 1, 0, nullptr));
}

BEHAVIOUR("messages that cannot be read", unreadable_messages, untouched) {
    int ends[2];
    MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, ends));
    SHOW(sendmsg(ends[0], bad_pointer<msghdr>(), 0));
    SHOW(sendmsg(-1, bad_pointer<msghdr>(), 0));
    const int set = MUST(epoll_create1(0));
    SHOW(connect(set, bad_pointer<sockaddr>(), 16));
}

BEHAVIOUR("how a dead process ends its connections", how_a_dead_process_ends_connections, accelerated) {
    const int listener = make_listener();
    for (const bool abrupt : {false, true}) {
        Gate go;
        const pid_t child = spawn([&] {
            const int client = connect_to(listener);
            if (abrupt) {
                const linger hard{1, 0};
                MUST(setsockopt(client, SOL_SOCKET, SO_LINGER, &hard, sizeof hard));
            } else {
                MUST(shutdown(client, SHUT_WR));
            }
            go.pass();
            _exit(0);
        });
        const int server = MUST(accept(listener, nullptr, nullptr));
        wait_for(server, POLLOUT);
        if (!abrupt) {
            MUST(send(server, "unread", 6, 0));
        }
        sleep_ms(100);
        go.open();
        reap("client", child);
        wait_for(server, POLLHUP);
        char buffer[8];
        SHOW(recv(server, buffer, 8, 0));
    }
}

int main(int argc, char **argv) { return run_behaviour(argc, argv); }
