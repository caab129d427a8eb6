// A connection goes to another process while bytes of it are unread: by SCM_RIGHTS, or to a program without
// the library. With SD_TEST_PATHS they may lie in shared memory, and its peer has to give them back.
#include "tests/programs/passing.hpp"
#include "tests/programs/stranger.hpp"

#include <csignal>

using namespace sdtest;

namespace {

std::string bytes_of(size_t n) {
    std::string bytes(n, '\0');
    for (size_t i = 0; i < n; ++i)
        bytes[i] = static_cast<char>('a' + i * 2654435761u % 26);
    return bytes;
}

/// Sends so often, with an answer each time, that what follows has gone over; then what nobody has read.
void converse(int end, int messages, size_t unread) {
    for (int i = 0; i < messages; ++i) {
        send_all(end, "question");
        receive(end, 6);
    }
    send_all(end, bytes_of(unread));
}

/// The end of a peer that has conversed so.
int converse_with(int listener, int messages, size_t unread) {
    const int end = connect_to(listener);
    close(listener);
    converse(end, messages, unread);
    return end;
}

void answer(int end, int messages) {
    for (int i = 0; i < messages; ++i) {
        receive(end, 8);
        send_all(end, "answer");
    }
}

/// As many as have come, without taking them.
void wait_for_bytes(int end, size_t n) {
    std::string room(n, '\0');
    MUST(recv(end, room.data(), n, MSG_PEEK | MSG_WAITALL));
}

void pass_on(int channel, int end) {
    MUST(pass(channel, {end}));
    close(end);
}

/// By a process that has both ends of the channel, and the listener, from its parent.
int take_alone(const Channel &channel, int listener) {
    close(listener);
    close(channel.parent);
    return take(channel.child)[0];
}

void wait_for_all(const std::vector<pid_t> &children) {
    for (const pid_t child : children)
        MUST(waitpid(child, nullptr, 0));
}

constexpr int kMessages[] = {0, 1, 2, 5, 12};
constexpr size_t kUnread[] = {12, 3000, 40000};

} // namespace

BEHAVIOUR("passed on with unread bytes", passed_on_unread, any) {
    for (const int messages : kMessages) {
        for (const size_t unread : kUnread) {
            const int listener = make_listener();
            const pid_t peer = spawn([&] {
                const int end = converse_with(listener, messages, unread);
                say("%s", receive(end, 6).c_str());
                send_all(end, "after");
                say("%zu", receive_to_end(end).size());
            });
            const Channel channel;
            const pid_t taker = spawn([&] {
                const int end = take_alone(channel, listener);
                const std::string got = receive(end, unread);
                say("%d messages, %zu bytes: %s", messages, unread, got == bytes_of(unread) ? "right" : "wrong");
                send_all(end, "thanks");
                say("%s", receive(end, 5).c_str());
            });
            const int end = MUST(accept(listener, nullptr, nullptr));
            answer(end, messages);
            wait_for_bytes(end, unread);
            pass_on(channel.parent, end);
            wait_for_all({taker, peer});
            close(listener); // without it the ends are not joined
        }
    }
}

BEHAVIOUR("read in part, and passed to a process that passes it back", passed_back, any) {
    for (const int messages : kMessages) {
        const int listener = make_listener();
        const pid_t peer = spawn([&] {
            const int end = connect_to(listener);
            converse(end, messages, 5000);
            say("%s", receive(end, 6).c_str());
        });
        const Channel channel;
        const pid_t taker = spawn([&] {
            close(listener);
            const int end = take(channel.child)[0];
            say("%s", receive(end, 1000) == bytes_of(5000).substr(777, 1000) ? "right" : "wrong");
            MUST(pass(channel.child, {end}));
        });
        const int end = MUST(accept(listener, nullptr, nullptr));
        answer(end, messages);
        wait_for_bytes(end, 5000);
        say("%s", receive(end, 777) == bytes_of(777) ? "right" : "wrong");
        MUST(pass(channel.parent, {end}));
        const int back = take(channel.parent)[0];
        wait_for_all({taker});
        say("%s", receive(end, 100) == bytes_of(5000).substr(1777, 100) ? "right" : "wrong");
        say("%s", receive(back, 3123) == bytes_of(5000).substr(1877) ? "right" : "wrong");
        send_all(end, "thanks");
        wait_for_all({peer});
        close(listener);
    }
}

BEHAVIOUR("inherited by a program without the library, with unread bytes", executed_unread, any) {
    for (const int messages : kMessages) {
        for (const size_t unread : kUnread) {
            const int listener = make_listener();
            const pid_t peer = spawn([&] {
                const int end = converse_with(listener, messages, unread);
                const std::string got = receive(end, unread);
                say("%d messages, %zu bytes: %s", messages, unread, got == bytes_of(unread) ? "right" : "wrong");
                MUST(shutdown(end, SHUT_WR));
                say("rest %zu", receive_to_end(end).size());
            });
            const int end = MUST(accept(listener, nullptr, nullptr));
            answer(end, messages);
            wait_for_bytes(end, unread);
            const pid_t child = spawn([&] { become("echo", end); });
            close(end);
            wait_for_all({peer, child});
            close(listener);
        }
    }
}

BEHAVIOUR("the peer has ended its direction, and waits for the end", half_closed_unread, any) {
    for (const int messages : kMessages) {
        const int listener = make_listener();
        const pid_t peer = spawn([&] {
            const int end = converse_with(listener, messages, 3000);
            MUST(shutdown(end, SHUT_WR));
            say("%s", receive_to_end(end).c_str());
        });
        const Channel channel;
        const pid_t taker = spawn([&] {
            const int end = take_alone(channel, listener);
            say("%s", receive_to_end(end) == bytes_of(3000) ? "right" : "wrong");
            send_all(end, "thanks");
        });
        const int end = MUST(accept(listener, nullptr, nullptr));
        answer(end, messages);
        wait_for_bytes(end, 3000);
        pass_on(channel.parent, end);
        wait_for_all({taker, peer});
        close(listener);
    }
}

// It may be refused then; whoever has the connection, every byte that was sent comes.
BEHAVIOUR("the peer is killed meanwhile", peer_is_killed, any) {
    int whole = 0;
    constexpr int kTimes = 60;
    for (int i = 0; i < kTimes; ++i) {
        const int listener = make_listener();
        const pid_t peer = spawn([&] {
            const int end = connect_to(listener);
            converse(end, 12, 3000);
            receive(end, 6);
        });
        const int end = MUST(accept(listener, nullptr, nullptr));
        answer(end, 12);
        wait_for_bytes(end, 3000);
        const pid_t killer = spawn([&] {
            close(end);
            usleep(static_cast<unsigned>(i * 37 % 400));
            kill(peer, SIGKILL);
        });
        const Channel channel;
        int mine = end;
        if (pass(channel.parent, {end}) > 0) {
            mine = take(channel.child)[0];
            close(end);
        }
        whole += receive_to_end(mine) == bytes_of(3000);
        close(mine);
        close(channel.parent);
        close(channel.child);
        wait_for_all({peer, killer});
        close(listener);
    }
    say("%d of %d", whole, kTimes);
}

int main(int argc, char **argv) { return run_behaviour(argc, argv); }
