// Connections in the hands of a program without the library: it inherits them over exec, or gets them by
// SCM_RIGHTS.
#include "tests/programs/stranger.hpp"

#include <spawn.h>
#include <sys/syscall.h>

using namespace sdtest;

namespace {

pid_t hand_to(const char *what, const Pair &pair) {
    const pid_t child = spawn([&] {
        close(pair.client);
        become(what, pair.server);
    });
    close(pair.server);
    return child;
}

} // namespace

BEHAVIOUR("inherited", inherited, accelerated) {
    const Pair pair = make_pair();
    send_all(pair.client, "before ");
    const pid_t child = hand_to("echo", pair);
    send_all(pair.client, "after");
    say("%s", receive(pair.client, 12).c_str());
    MUST(shutdown(pair.client, SHUT_WR));
    say("rest %zu", receive_to_end(pair.client).size());
    reap("child", child);
}

BEHAVIOUR("as standard input and output", as_standard_input_and_output, accelerated) {
    const Pair pair = make_pair();
    const pid_t child = spawn([&] {
        close(pair.client);
        MUST(dup2(pair.server, 0));
        MUST(dup2(pair.server, 1));
        close(pair.server);
        become("standard", 0);
    });
    close(pair.server);
    send_all(pair.client, "to and fro");
    MUST(shutdown(pair.client, SHUT_WR));
    say("%s", receive_to_end(pair.client).c_str());
    reap("child", child);
}

// Ten megabytes there and back.
BEHAVIOUR("ten megabytes", a_lot, accelerated) {
    const Pair pair = make_pair();
    const pid_t child = hand_to("echo", pair);
    constexpr size_t kSize = 10 << 20;
    const pid_t writer = spawn([&] {
        std::string data(kSize, '\0');
        for (size_t i = 0; i < kSize; ++i)
            data[i] = static_cast<char>(i * 2654435761u >> 13);
        send_all(pair.client, data);
        MUST(shutdown(pair.client, SHUT_WR));
    });
    const std::string back = receive_to_end(pair.client);
    bool right = back.size() == kSize;
    for (size_t i = 0; right && i < kSize; ++i)
        right = back[i] == static_cast<char>(i * 2654435761u >> 13);
    SHOW_BOOL(right);
    reap("writer", writer);
    reap("child", child);
}

BEHAVIOUR("names", names_of_the_ends, accelerated) {
    const Pair pair = make_pair();
    const pid_t child = hand_to("names", pair);
    say("%s", receive_to_end(pair.client).c_str());
    reap("child", child);
}

BEHAVIOUR("the program ends", it_ends, accelerated) {
    const Pair pair = make_pair();
    const pid_t child = hand_to("writes", pair);
    say("%s", receive_to_end(pair.client).c_str());
    reap("child", child);
}

BEHAVIOUR("the program is killed", it_is_killed, accelerated) {
    const Pair pair = make_pair();
    const pid_t child = hand_to("echo", pair);
    send_all(pair.client, "ping");
    say("%s", receive(pair.client, 4).c_str());
    MUST(kill(child, SIGKILL));
    reap("child", child);
    SHOW_BOOL(peer_is_gone(pair.client));
}

BEHAVIOUR("the peer ends", the_peer_ends, accelerated) {
    const Pair pair = make_pair();
    const pid_t child = hand_to("waits", pair);
    close(pair.client);
    reap("child", child);
}

BEHAVIOUR("the peer resets", the_peer_resets, accelerated) {
    const Pair pair = make_pair();
    const pid_t child = hand_to("waits", pair);
    const linger now{1, 0};
    MUST(setsockopt(pair.client, SOL_SOCKET, SO_LINGER, &now, sizeof now));
    sleep_ms(50);
    close(pair.client);
    reap("child", child);
}

// An exec that fails gives the connection back.
BEHAVIOUR("an exec that fails", not_executable, accelerated) {
    const Pair pair = make_pair();
    char name[] = "/tmp/sd-bridged-XXXXXX";
    const int file = MUST(mkstemp(name));
    close(file);
    SHOW(execl(name, name, nullptr));
    unlink(name);
    send_all(pair.client, "still here");
    say("%s", receive(pair.server, 10).c_str());
    send_all(pair.server, "yes");
    say("%s", receive(pair.client, 3).c_str());
}

BEHAVIOUR("posix_spawn", spawned, accelerated) {
    const Pair pair = make_pair();
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, pair.server, 0);
    posix_spawn_file_actions_adddup2(&actions, pair.server, 1);
    posix_spawn_file_actions_addclose(&actions, pair.server);
    posix_spawn_file_actions_addclose(&actions, pair.client);
    std::string path = stranger();
    char what[] = "standard", number[] = "0";
    char *arguments[] = {path.data(), what, number, nullptr};
    pid_t child = 0;
    SHOW(posix_spawn(&child, path.c_str(), &actions, nullptr, arguments, environ));
    close(pair.server);
    send_all(pair.client, "spawned");
    MUST(shutdown(pair.client, SHUT_WR));
    say("%s", receive_to_end(pair.client).c_str());
    reap("child", child);
}

// The connection goes on after one of its holders has ended, however that came to it.
BEHAVIOUR("the parent keeps it", the_parent_keeps_it, accelerated) {
    const Pair pair = make_pair();
    for (int i = 0; i < 3; ++i) {
        const pid_t child = spawn([&] { become("writes", pair.server); });
        say("%s", receive(pair.client, 15).c_str());
        reap("child", child);
        SHOW_BOOL((poll_now(pair.client, POLLIN | POLLRDHUP, 100) & POLLRDHUP) == 0);
        send_all(pair.server, "from the parent");
        say("%s", receive(pair.client, 15).c_str());
        send_all(pair.client, "to the parent");
        say("%s", receive(pair.server, 13).c_str());
    }
    close(pair.server);
    SHOW_BOOL(peer_is_gone(pair.client));
}

BEHAVIOUR("a listener", a_listener, any) {
    const int listener = make_listener();
    const Address address = local_address(listener);
    int executed[2];
    MUST(pipe2(executed, O_CLOEXEC));
    const pid_t child = spawn([&] { become("accept", listener); });
    close(listener);
    close(executed[1]);
    char byte;
    SHOW(read(executed[0], &byte, 1));
    const int client = connect_to(address);
    send_all(client, "accepted?");
    MUST(shutdown(client, SHUT_WR));
    say("%s", receive_to_end(client).c_str());
    reap("child", child);
}

// As inetd starts a server: the first client waits already when the program is executed.
BEHAVIOUR("a listener on which clients wait", a_listener_with_clients, accelerated) {
    const int listener = make_listener();
    const Address address = local_address(listener);
    const int early = connect_to(address), silent = connect_to(address);
    send_all(early, "sent before");
    const pid_t child = spawn([&] {
        close(early);
        close(silent);
        become("accept", listener);
    });
    close(listener);
    MUST(shutdown(early, SHUT_WR));
    say("%s", receive_to_end(early).c_str());
    reap("child", child);
    SHOW_BOOL(peer_is_gone(silent)); // was never accepted
}

namespace {

/// A client that no library knows of: the system calls themselves.
long bare(long number, long a, long b, long c) {
    long result;
    asm volatile("syscall" : "=a"(result) : "a"(number), "D"(a), "S"(b), "d"(c) : "rcx", "r11", "memory");
    return result;
}

bool plain_client(const Address &to, char what) {
    const auto fd = static_cast<int>(bare(SYS_socket, AF_INET, SOCK_STREAM, 0));
    char answer = 0;
    const bool right = bare(SYS_connect, fd, reinterpret_cast<long>(to.raw()), to.length) == 0 &&
                       bare(SYS_write, fd, reinterpret_cast<long>(&what), 1) == 1 &&
                       bare(SYS_read, fd, reinterpret_cast<long>(&answer), 1) == 1 && answer == what;
    bare(SYS_close, fd, 0, 0);
    return right;
}

void serve_until_q(int listener) {
    int failed = 0;
    for (std::string what; what != "q";) {
        const int fd = accept(listener, nullptr, nullptr);
        if (fd < 0) {
            ++failed;
            continue;
        }
        what = receive(fd, 1);
        send_all(fd, what);
        close(fd);
    }
    if (failed != 0) // not said: who of the two ends first is open
        _exit(12);
}

} // namespace

// Who of the two gets a client is open, but each gets an answer, and whoever waits is told of each kind of
// client: also when the other one was faster to take what both had seen.
BEHAVIOUR("a listener that a stranger accepts on, too", a_listener_that_a_stranger_accepts_on_too, accelerated) {
    const int listener = make_listener();
    const Address address = local_address(listener);
    int channel[2];
    MUST(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, channel));
    const pid_t other = spawn([&] {
        MUST(fcntl(channel[1], F_SETFD, 0));
        MUST(fcntl(listener, F_SETFD, FD_CLOEXEC));
        become("pool", channel[1]);
    });
    pass_descriptor(channel[0], listener);
    const pid_t own = spawn([&] { serve_until_q(listener); });
    int plain = 0, any = 0;
    for (int i = 0; i < 150; ++i) {
        plain += plain_client(address, 'x');
        const int fd = connect_to(address);
        send_all(fd, "x");
        any += receive(fd, 1) == "x";
        close(fd);
    }
    say("%d of 150 plain clients, %d of 150 others", plain, any);
    // Either of them may take the first; the second goes to who is left, which ours is told of as well.
    plain_client(address, 'q');
    plain_client(address, 'q');
    reap("stranger", other);
    reap("own", own);
}

BEHAVIOUR("passed by SCM_RIGHTS", passed, accelerated) {
    int channel[2];
    MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, channel));
    const pid_t child = spawn([&] {
        close(channel[0]);
        become("worker", channel[1]);
    });
    close(channel[1]);
    for (int i = 0; i < 3; ++i) {
        const Pair pair = make_pair();
        pass_descriptor(channel[0], pair.server);
        close(pair.server);
        send_all(pair.client, "worker?");
        MUST(shutdown(pair.client, SHUT_WR));
        say("%s", receive_to_end(pair.client).c_str());
        close(pair.client);
        close(pair.listener);
    }
    close(channel[0]);
    reap("worker", child);
}

// A program that inherited a connection by accident takes nothing from those who use it.
BEHAVIOUR("inherited by accident", inherited_by_accident, accelerated) {
    const Pair pair = make_pair();
    int done[2];
    MUST(pipe(done)); // the program lives until the write end is closed
    const pid_t child = spawn([&] {
        close(done[1]);
        MUST(dup2(done[0], 0));
        become("standard", 0);
    });
    close(done[0]);
    for (int i = 0; i < 5; ++i) {
        send_all(pair.client, "for the parent");
        sleep_ms(30); // long enough for somebody else to take it
        say("%s", receive(pair.server, 14).c_str());
        send_all(pair.server, "back");
        say("%s", receive(pair.client, 4).c_str());
    }
    close(done[1]);
    reap("child", child);
    send_all(pair.client, "afterwards");
    say("%s", receive(pair.server, 10).c_str());
}

// It writes while the parent waits, and the parent goes on afterwards.
BEHAVIOUR("only written to", as_standard_output_only, accelerated) {
    const Pair pair = make_pair();
    const pid_t child = spawn([&] {
        close(pair.client);
        become("writes", pair.server);
    });
    reap("child", child);
    say("%s", receive(pair.client, 15).c_str());
    send_all(pair.client, "next request");
    say("%s", receive(pair.server, 12).c_str());
    send_all(pair.server, "answer");
    close(pair.server);
    say("%s", receive_to_end(pair.client).c_str());
}

int main(int argc, char **argv) { return run_behaviour(argc, argv); }
