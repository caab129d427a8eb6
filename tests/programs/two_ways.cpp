// Connections whose two directions may go different ways, one by the kernel's socket and one by shared memory
// (SD_TEST_PATHS): the way back and forth, both know of a reset and of an urgent byte, and tell it once.
#include "tests/programs/cases.hpp"

#include <csignal>
#include <sys/wait.h>
#include <unistd.h>

using namespace sdtest;

namespace {

/// The server has sent again and again, and what it sends may have gone over; the client only once.
Pair with_one_that_sends(int messages) {
    const Pair pair = make_pair();
    for (int i = 0; i < messages; ++i) {
        send_all(pair.server, "to the client");
        receive(pair.client, 13);
    }
    return pair;
}

/// The client is reset by that.
void close_with_unread(const Pair &pair) {
    send_all(pair.client, "unread there");
    wait_for(pair.server, POLLIN);
    SHOW(close(pair.server));
    wait_for(pair.client, POLLHUP);
}

void show_end(const Pair &pair) {
    char bytes[64];
    SHOW(send(pair.client, "x", 1, MSG_NOSIGNAL));
    show_ready("after send", pair.client);
    SHOW(send(pair.client, "x", 1, MSG_NOSIGNAL));
    SHOW(recv(pair.client, bytes, sizeof bytes, 0));
    SHOW(recv(pair.client, bytes, sizeof bytes, 0));
    say("SO_ERROR %s", socket_error(pair.client).c_str());
    show_ready("at the end", pair.client);
}

} // namespace

BEHAVIOUR("a reset of one that receives another way than it sends, told by send", sender_is_told_once, any) {
    for (const int messages : {0, 1, 2, 3, 5}) {
        const Pair pair = with_one_that_sends(messages);
        send_all(pair.server, "unread here");
        close_with_unread(pair);
        show_end(pair);
    }
}

BEHAVIOUR("the same, told by recv", receiver_is_told_once, any) {
    for (const int messages : {0, 1, 2, 3, 5}) {
        const Pair pair = with_one_that_sends(messages);
        char byte;
        close_with_unread(pair);
        SHOW(recv(pair.client, &byte, 1, 0));
        show_end(pair);
    }
}

BEHAVIOUR("the same, told by SO_ERROR", option_is_told_once, any) {
    for (const int messages : {0, 1, 2, 3, 5}) {
        const Pair pair = with_one_that_sends(messages);
        close_with_unread(pair);
        say("SO_ERROR %s", socket_error(pair.client).c_str());
        show_end(pair);
    }
}

BEHAVIOUR("the same, told by an urgent byte", urgent_sender_is_told_once, any) {
    for (const int messages : {0, 1, 2, 3, 5}) {
        const Pair pair = with_one_that_sends(messages);
        close_with_unread(pair);
        SHOW(send(pair.client, "x", 1, MSG_OOB | MSG_NOSIGNAL));
        SHOW(send(pair.client, "xyz", 3, MSG_OOB | MSG_NOSIGNAL));
        show_end(pair);
    }
}

BEHAVIOUR("who has ended both directions is told of a reset", ended_is_told, any) {
    for (const int messages : {0, 1, 2, 3, 5}) {
        const Pair pair = with_one_that_sends(messages);
        send_all(pair.client, "a");
        receive(pair.server, 1);
        SHOW(shutdown(pair.server, SHUT_RDWR));
        SHOW(send(pair.client, "too late", 8, MSG_NOSIGNAL));
        wait_for(pair.server, POLLERR);
        SHOW(send(pair.server, "x", 1, MSG_NOSIGNAL));
        SHOW(send(pair.server, "x", 1, MSG_NOSIGNAL));
    }
}

namespace {

struct Served {
    int client;
    pid_t server;
};

/// A client whose server does what `serve` says with its end, then executes another program or is killed.
template <class F> Served served_by_one_that_ends(bool executes, F serve) {
    const int listener = make_listener();
    const pid_t server = fork();
    if (server == 0) {
        serve(accept4(listener, nullptr, nullptr, SOCK_CLOEXEC));
        if (executes) {
            execlp("true", "true", nullptr);
        }
        kill(getpid(), SIGKILL);
    }
    const int client = connect_to(listener);
    close(listener);
    return {client, server};
}

void send_apart(int end, int messages) {
    for (int i = 0; i <= messages; ++i) {
        send_all(end, "to the client");
        sleep_ms(1);
    }
}

} // namespace

BEHAVIOUR("one that executes, or is killed, has not read what it was sent", unread_at_exec, any) {
    for (const bool executes : {true, false}) {
        for (const int messages : {0, 1, 2, 3, 5}) {
            const auto [client, server] = served_by_one_that_ends(executes, [=](int end) {
                for (int i = 0; i <= messages; ++i) {
                    receive(end, 13);
                }
                send_all(end, "all there");
                wait_for(end, POLLIN);
            });
            for (int i = 0; i <= messages; ++i) {
                send_all(client, "to the server");
            }
            say("%s", receive(client, 9).c_str());
            send_all(client, "not read");
            MUST(waitpid(server, nullptr, 0));
            char byte;
            SHOW(recv(client, &byte, 1, 0));
            SHOW(recv(client, &byte, 1, 0));
            SHOW(send(client, "x", 1, MSG_NOSIGNAL));
        }
    }
}

BEHAVIOUR("the same of one that has sent much, and was sent little", unread_in_socket, any) {
    for (const bool executes : {true, false}) {
        for (const bool shuts : {false, true}) {
            for (const int messages : {0, 1, 2, 3, 5}) {
                const auto [client, server] = served_by_one_that_ends(executes, [=](int end) {
                    send_apart(end, messages);
                    wait_for(end, POLLIN);
                    if (shuts) {
                        shutdown(end, SHUT_WR);
                    }
                });
                for (int i = 0; i <= messages; ++i) {
                    receive(client, 13);
                }
                send_all(client, "not read");
                MUST(waitpid(server, nullptr, 0));
                char byte;
                wait_for(client, POLLHUP);
                SHOW(recv(client, &byte, 1, 0));
                SHOW(recv(client, &byte, 1, 0));
                say("SO_ERROR %s", socket_error(client).c_str());
                SHOW(send(client, "x", 1, MSG_NOSIGNAL));
            }
        }
    }
}

BEHAVIOUR("one that executes, or is killed, is sent more", sent_after_the_end, any) {
    for (const bool executes : {true, false}) {
        for (const int messages : {0, 1, 2, 3, 5}) {
            const auto [client, server] =
                served_by_one_that_ends(executes, [=](int end) { send_apart(end, messages); });
            for (int i = 0; i <= messages; ++i) {
                receive(client, 13);
            }
            MUST(waitpid(server, nullptr, 0));
            wait_for(client, POLLRDHUP);
            SHOW(send(client, "not read", 8, MSG_NOSIGNAL));
            char byte;
            SHOW(recv(client, &byte, 1, 0));
            SHOW(recv(client, &byte, 1, 0));
        }
    }
}

BEHAVIOUR("who reads no more, and whose peer has not read all", reading_shut, any) {
    for (const int messages : {0, 1, 2, 3, 5}) {
        const Pair pair = make_pair();
        for (int i = 0; i < messages; ++i) {
            send_all(pair.server, "to the client");
            receive(pair.client, 13);
        }
        send_all(pair.server, "unread");
        SHOW(shutdown(pair.server, SHUT_RD));
        char byte;
        SHOW(recv(pair.server, &byte, 1, 0));
        SHOW(send(pair.server, "more", 4, MSG_NOSIGNAL));
        SHOW(send(pair.client, "x", 1, MSG_NOSIGNAL));
        wait_for(pair.server, POLLIN);
        say("%s", receive(pair.client, 10).c_str());
        show_ready("at the end", pair.server);
    }
}

BEHAVIOUR("an urgent byte is next, and nothing behind it", urgent_is_next, any) {
    for (const int messages : {0, 1, 2, 3, 5}) {
        const Pair pair = with_one_that_sends(messages);
        char bytes[8] = {};
        SHOW(send(pair.server, "stuvw", 5, MSG_OOB));
        wait_for(pair.client, POLLPRI);
        say("%s", receive(pair.client, 4).c_str());
        show_ready("at the mark", pair.client);
        SHOW(send(pair.client, "x", 1, 0)); // for its move
        SHOW(send(pair.server, "", 0, 0));
        SHOW(recv(pair.client, bytes, sizeof bytes, MSG_DONTWAIT));
        SHOW(send(pair.server, "", 0, 0));
        show_ready("still at the mark", pair.client);
        SHOW(recv(pair.client, bytes, sizeof bytes, MSG_OOB));
        say("%c", bytes[0]);
        SHOW(send(pair.server, "end", 3, 0));
        wait_for(pair.client, POLLIN);
        say("%s", receive(pair.client, 3).c_str());
        show_ready("behind it", pair.client);
    }
}

BEHAVIOUR("an urgent byte, and the end behind it", urgent_before_the_end, any) {
    for (const int messages : {0, 1, 2, 3, 5}) {
        const Pair pair = with_one_that_sends(messages);
        char bytes[8] = {};
        SHOW(send(pair.server, "stuvw", 5, MSG_OOB));
        wait_for(pair.client, POLLPRI);
        say("%s", receive(pair.client, 4).c_str());
        SHOW(send(pair.server, "", 0, 0));
        SHOW(recv(pair.client, bytes, sizeof bytes, MSG_DONTWAIT));
        SHOW(send(pair.server, "", 0, 0));
        SHOW(shutdown(pair.server, SHUT_WR));
        wait_for(pair.client, POLLRDHUP);
        SHOW(recv(pair.client, bytes, sizeof bytes, 0));
    }
}

BEHAVIOUR("connect() again, once data has been sent", connected_in_the_background, any) {
    for (const int messages : {0, 1, 3, 9}) {
        const int listener = make_listener();
        const int client = MUST(socket(AF_INET, SOCK_STREAM, 0));
        set_nonblocking(client);
        const Address there = local_address(listener);
        connect(client, there.raw(), there.length);
        const int server = MUST(accept(listener, nullptr, nullptr));
        wait_for(client, POLLOUT);
        for (int i = 0; i < messages; ++i) {
            send_all(client, "to the server");
            receive(server, 13);
            send_all(server, "back");
            wait_for(client, POLLIN);
            receive(client, 4);
        }
        SHOW(connect(client, there.raw(), there.length));
        SHOW(connect(client, there.raw(), there.length));
        send_all(client, "still there");
        say("%s", receive(server, 11).c_str());
    }
}

int main(int argc, char **argv) { return run_behaviour(argc, argv); }
