// Connections that end with a reset: what each call and each kind of readiness then shows, step by step.
#include "tests/programs/cases.hpp"
#include "tests/programs/process.hpp"

using namespace sdtest;

namespace {

// The server closes with unread data in its queue, which resets the connection.
Pair reset_by_unread_data() {
    const Pair pair = make_pair();
    send_all(pair.client, "never read");
    wait_for(pair.server, POLLIN);
    SHOW(close(pair.server));
    wait_for(pair.client, POLLHUP);
    return pair;
}

Pair reset_by_linger() {
    const Pair pair = make_pair();
    abort_connection(pair.server);
    wait_for(pair.client, POLLHUP);
    return pair;
}

void read_first(const Pair &pair) {
    char byte;
    show_ready("before", pair.client);
    SHOW(recv(pair.client, &byte, 1, 0));
    show_ready("after", pair.client);
    SHOW(recv(pair.client, &byte, 1, 0));
    say("SO_ERROR %s", socket_error(pair.client).c_str());
    SHOW(send(pair.client, "x", 1, MSG_NOSIGNAL));
}

void write_first(const Pair &pair) {
    char byte;
    SHOW(send(pair.client, "x", 1, MSG_NOSIGNAL));
    show_ready("after", pair.client);
    SHOW(send(pair.client, "x", 1, MSG_NOSIGNAL));
    SHOW(recv(pair.client, &byte, 1, 0));
    say("SO_ERROR %s", socket_error(pair.client).c_str());
}

void option_first(const Pair &pair) {
    char byte;
    say("SO_ERROR %s", socket_error(pair.client).c_str());
    show_ready("after", pair.client);
    say("SO_ERROR %s", socket_error(pair.client).c_str());
    SHOW(recv(pair.client, &byte, 1, 0));
    SHOW(send(pair.client, "x", 1, MSG_NOSIGNAL));
    SHOW(shutdown(pair.client, SHUT_RDWR));
}

} // namespace

BEHAVIOUR("close with unread data, then recv", unread_data_read_first, accelerated) {
    read_first(reset_by_unread_data());
}

BEHAVIOUR("close with unread data, then send", unread_data_write_first, accelerated) {
    write_first(reset_by_unread_data());
}

BEHAVIOUR("close with unread data, then SO_ERROR", unread_data_option_first, accelerated) {
    option_first(reset_by_unread_data());
}

BEHAVIOUR("SO_LINGER 0, then recv", linger_read_first, accelerated) { read_first(reset_by_linger()); }

BEHAVIOUR("SO_LINGER 0, then send", linger_write_first, accelerated) { write_first(reset_by_linger()); }

BEHAVIOUR("SO_LINGER 0, then SO_ERROR", linger_option_first, accelerated) { option_first(reset_by_linger()); }

BEHAVIOUR("SIGPIPE only after the error was told", sigpipe_only_after_the_error, accelerated) {
    const Pair pair = reset_by_unread_data();
    static volatile sig_atomic_t signals = 0;
    signal(SIGPIPE, [](int) { signals = signals + 1; });
    SHOW(write(pair.client, "x", 1));
    say("SIGPIPE %d", static_cast<int>(signals));
    SHOW(write(pair.client, "x", 1));
    say("SIGPIPE %d", static_cast<int>(signals));
}

BEHAVIOUR("MSG_PEEK and the error", peek_keeps_or_takes_the_error, accelerated) {
    const Pair pair = reset_by_unread_data();
    char byte;
    SHOW(recv(pair.client, &byte, 1, MSG_PEEK));
    SHOW(recv(pair.client, &byte, 1, MSG_PEEK));
    SHOW(recv(pair.client, &byte, 1, 0));
}

// Data that had arrived before the reset can still be read.
BEHAVIOUR("data that came before the reset", data_before_reset, accelerated) {
    const Pair pair = make_pair();
    send_all(pair.server, "already here");
    wait_for(pair.client, POLLIN);
    abort_connection(pair.server);
    wait_for(pair.client, POLLHUP);
    show_ready("client", pair.client);
    char buffer[32];
    SHOW(recv(pair.client, buffer, 7, 0));
    SHOW(recv(pair.client, buffer, sizeof buffer, 0));
    SHOW(recv(pair.client, buffer, sizeof buffer, 0));
    SHOW(recv(pair.client, buffer, sizeof buffer, 0));
}

// A half closed connection that is then reset.
BEHAVIOUR("reset after end of file", reset_after_end_of_file, accelerated) {
    const Pair pair = make_pair();
    send_all(pair.client, "unread");
    wait_for(pair.server, POLLIN);
    SHOW(shutdown(pair.server, SHUT_WR));
    wait_for(pair.client, POLLRDHUP);
    char byte;
    SHOW(recv(pair.client, &byte, 1, 0));
    SHOW(close(pair.server));
    wait_for(pair.client, POLLHUP);
    show_ready("client", pair.client);
    SHOW(recv(pair.client, &byte, 1, 0));
    SHOW(send(pair.client, "x", 1, MSG_NOSIGNAL));
    SHOW(send(pair.client, "x", 1, MSG_NOSIGNAL));
    say("SO_ERROR %s", socket_error(pair.client).c_str());
}

BEHAVIOUR("edge-triggered epoll and a reset", epoll_sees_reset, accelerated) {
    const Pair pair = make_pair();
    const int set = MUST(epoll_create1(0));
    epoll_event event{};
    event.events = EPOLLIN | EPOLLRDHUP | EPOLLET;
    event.data.u32 = 5;
    MUST(epoll_ctl(set, EPOLL_CTL_ADD, pair.client, &event));
    SHOW(epoll_wait(set, &event, 1, 0));
    send_all(pair.client, "unread");
    wait_for(pair.server, POLLIN);
    close(pair.server);
    SHOW(epoll_wait(set, &event, 1, kPatience));
    say("%s", event_names(event.events).c_str());
    SHOW(epoll_wait(set, &event, 1, 0));
    char byte;
    SHOW(recv(pair.client, &byte, 1, 0));
    SHOW(epoll_wait(set, &event, 1, 0));
}

BEHAVIOUR("a blocked reader", blocked_reader_sees_reset, accelerated) {
    const Pair pair = make_pair();
    send_all(pair.client, "unread");
    wait_for(pair.server, POLLIN);
    std::thread closer([&] {
        sleep_ms(50);
        close(pair.server);
    });
    char byte;
    SHOW(recv(pair.client, &byte, 1, 0));
    SHOW(recv(pair.client, &byte, 1, 0));
    closer.join();
}

BEHAVIOUR("a blocked writer", blocked_writer_sees_reset, accelerated) {
    const Pair pair = make_pair();
    std::thread closer([&] {
        wait_for(pair.server, POLLIN);
        sleep_ms(100);
        close(pair.server);
    });
    const std::string data = pattern(1 << 20);
    ssize_t result;
    do {
        result = send(pair.client, data.data(), data.size(), MSG_NOSIGNAL);
    } while (result == static_cast<ssize_t>(data.size()));
    // The call that was blocked had moved a part, and says so; the next shows why it ended.
    if (result >= 0)
        result = send(pair.client, data.data(), data.size(), MSG_NOSIGNAL);
    say("%zd %s", result, strerrorname_np(errno));
    closer.join();
    SHOW(send(pair.client, "x", 1, MSG_NOSIGNAL));
}

BEHAVIOUR("a blocked poll", blocked_poll_sees_reset, accelerated) {
    const Pair pair = make_pair();
    send_all(pair.client, "unread");
    wait_for(pair.server, POLLIN);
    std::thread closer([&] {
        sleep_ms(50);
        close(pair.server);
    });
    pollfd entry{pair.client, POLLIN, 0};
    SHOW(poll(&entry, 1, kPatience));
    say("%s", event_names(static_cast<uint32_t>(entry.revents)).c_str());
    closer.join();
}

// Closing while the other side still writes: the writer's data is what makes it a reset.
BEHAVIOUR("data sent to a closed peer", data_after_close, accelerated) {
    const Pair pair = make_pair();
    close(pair.server);
    wait_for(pair.client, POLLRDHUP);
    show_ready("closed", pair.client);
    SHOW(send(pair.client, "too late", 8, MSG_NOSIGNAL));
    wait_for(pair.client, POLLERR);
    show_ready("reset", pair.client);
    say("SO_ERROR %s", socket_error(pair.client).c_str());
    show_ready("cleared", pair.client);
}

BEHAVIOUR("SO_LINGER 0 with data on its way", linger_zero_discards, accelerated) {
    const Pair pair = make_pair();
    set_nonblocking(pair.client);
    const std::string data = pattern(65536);
    while (send(pair.client, data.data(), data.size(), 0) > 0) {
    }
    abort_connection(pair.client);
    wait_for(pair.server, POLLHUP);
    // Some of it had arrived and is readable; then comes the error, never an orderly end.
    char buffer[65536];
    ssize_t got;
    while ((got = recv(pair.server, buffer, sizeof buffer, 0)) > 0) {
    }
    say("%zd %s", got, strerrorname_np(errno));
    SHOW(recv(pair.server, buffer, sizeof buffer, 0));
}

BEHAVIOUR("a reset behind data that is spliced", splice_leaves_the_error, accelerated) {
    const Pair pair = make_pair();
    int pipe_ends[2];
    SHOW(pipe(pipe_ends));
    send_all(pair.client, "before the reset");
    wait_for(pair.server, POLLIN);
    abort_connection(pair.client);
    wait_for(pair.server, POLLHUP);
    SHOW(splice(pair.server, nullptr, pipe_ends[1], nullptr, 4096, 0));
    show_ready("after the data", pair.server);
    SHOW(splice(pair.server, nullptr, pipe_ends[1], nullptr, 4096, 0));
    SHOW(splice(pair.server, nullptr, pipe_ends[1], nullptr, 4096, 0));
}

BEHAVIOUR("both ends abort", both_abort, accelerated) {
    const Pair pair = make_pair();
    abort_connection(pair.client);
    wait_for(pair.server, POLLHUP);
    SHOW(shutdown(pair.server, SHUT_WR));
    abort_connection(pair.server);
}

// Nobody has asked the socket anything since: the state of the connection comes before what the message says.
BEHAVIOUR("a wrong control message after a reset", wrong_control_message_after_reset, accelerated) {
    const Pair pair = make_pair();
    char byte = 'x', control[CMSG_SPACE(sizeof(int))] = {};
    iovec part{&byte, 1};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    CMSG_FIRSTHDR(&message)->cmsg_len = 1;
    SHOW(sendmsg(pair.client, &message, MSG_NOSIGNAL));
    abort_connection(pair.server);
    sleep_ms(20);
    SHOW(sendmsg(pair.client, &message, MSG_NOSIGNAL));
    SHOW(sendmsg(pair.client, &message, MSG_NOSIGNAL));
}

// With paths that change, the bytes may lie where the reader has not looked since: it has read the ring to
// its end, which its sender has left, or the socket up to where its sender went over to the ring.
BEHAVIOUR("close with unread data, after exchanges of any number", unread_data_wherever, accelerated) {
    constexpr int kRounds = 60;
    int told = 0;
    for (int exchanges = 0; exchanges < kRounds; ++exchanges) {
        const Pair pair = make_pair();
        for (int i = 0; i < exchanges; ++i) {
            char byte;
            send_all(pair.client, "a");
            if (recv(pair.server, &byte, 1, 0) != 1 || send(pair.server, "b", 1, 0) != 1 ||
                recv(pair.client, &byte, 1, 0) != 1) {
                say("an exchange fails");
            }
        }
        send_all(pair.client, "never read");
        close(pair.server);
        wait_for(pair.client, POLLRDHUP);
        told += send(pair.client, "x", 1, MSG_NOSIGNAL) == -1 && errno == ECONNRESET ? 1 : 0;
        close(pair.client);
    }
    say("%d of %d were reset", told, kRounds);
}

int main(int argc, char **argv) { return run_behaviour(argc, argv); }
