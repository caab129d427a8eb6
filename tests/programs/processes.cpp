// Connections and listeners across fork, daemonising, exec, exit and sudden death.
#include "tests/programs/cases.hpp"
#include "tests/programs/process.hpp"

#include <linux/sockios.h>
#include <sched.h>
#include <sys/ioctl.h>

using namespace sdtest;

namespace {

bool ends_within(int fd, long ms) {
    return (poll_now(fd, POLLIN | POLLRDHUP, static_cast<int>(ms)) & (POLLRDHUP | POLLHUP)) != 0;
}

// Echoes until the end of the stream.
void echo(int fd) {
    char buffer[4096];
    ssize_t got;
    while ((got = read(fd, buffer, sizeof buffer)) > 0)
        send_all(fd, buffer, static_cast<size_t>(got));
}

} // namespace

BEHAVIOUR("a child connects", child_connects, accelerated) {
    const int listener = make_listener();
    const pid_t child = spawn([&] {
        const int client = connect_to(listener);
        send_all(client, "from the child");
        say("child got %s", receive(client, 8).c_str());
    });
    const int server = MUST(accept(listener, nullptr, nullptr));
    say("parent got %s", receive(server, 14).c_str());
    send_all(server, "answered");
    reap("child", child);
    SHOW_BOOL(ends_within(server, kPatience));
}

BEHAVIOUR("a child accepts", child_accepts, accelerated) {
    const int listener = make_listener();
    const pid_t child = spawn([&] { echo(MUST(accept(listener, nullptr, nullptr))); });
    const int client = connect_to(listener);
    const std::string data = pattern(30000);
    send_all(client, data);
    SHOW_BOOL(receive(client, data.size()) == data);
    close(client);
    reap("child", child);
}

// The server forks for each connection and the parent closes its copy.
BEHAVIOUR("a child serves an inherited connection", child_serves_inherited_connection, accelerated) {
    const int listener = make_listener();
    const Gate served;
    const pid_t server = spawn([&] {
        for (int i = 0; i < 3; ++i) {
            const int fd = MUST(accept(listener, nullptr, nullptr));
            const pid_t worker = spawn([&] {
                close(listener);
                echo(fd);
            });
            close(fd);
            reap("worker", worker);
            served.open();
        }
    });
    for (int i = 0; i < 3; ++i) {
        const int client = connect_to(listener);
        const std::string data = pattern(10000, static_cast<uint64_t>(i));
        send_all(client, data);
        SHOW_BOOL(receive(client, data.size()) == data);
        MUST(shutdown(client, SHUT_WR));
        const size_t rest = receive_to_end(client).size();
        served.pass();
        say("rest %zu", rest);
        close(client);
    }
    reap("server", server);
}

// Parent and child take turns on one connection, each reading what is meant for it.
BEHAVIOUR("parent and child use one connection", both_use_one_connection, accelerated) {
    const Pair pair = make_pair();
    const Gate to_child, to_parent;
    const pid_t child = spawn([&] {
        for (int i = 0; i < 5; ++i) {
            to_child.pass();
            say("child read %s", receive(pair.server, 3).c_str());
            send_all(pair.server, "kid");
            to_parent.open();
        }
    });
    for (int i = 0; i < 5; ++i) {
        send_all(pair.client, "abcdef");
        say("parent read %s", receive(pair.server, 3).c_str());
        to_child.open();
        to_parent.pass();
        say("client got %s", receive(pair.client, 3).c_str());
    }
    reap("child", child);
    send_all(pair.server, "after");
    say("client got %s", receive(pair.client, 5).c_str());
}

// The end comes when the last holder has gone, not the first.
BEHAVIOUR("the last holder ends it", last_holder_ends_it, accelerated) {
    const Pair pair = make_pair();
    const Gate gate;
    const pid_t child = spawn([&] {
        close(pair.client);
        gate.pass();
        send_all(pair.server, "from the child");
    });
    close(pair.server);
    SHOW_BOOL(!ends_within(pair.client, 100));
    gate.open();
    say("got %s", receive(pair.client, 14).c_str());
    reap("child", child);
    SHOW_BOOL(ends_within(pair.client, kPatience));
    say("rest %zu", receive_to_end(pair.client).size());
}

BEHAVIOUR("a child's exit leaves the parent's copy", child_exit_leaves_parents_copy, accelerated) {
    const Pair pair = make_pair();
    const pid_t child = spawn([] {});
    reap("child", child);
    SHOW_BOOL(!ends_within(pair.client, 50));
    send_all(pair.client, "still here");
    say("got %s", receive(pair.server, 10).c_str());
}

BEHAVIOUR("status flags are shared with a child", status_flags_shared_with_child, accelerated) {
    const Pair pair = make_pair();
    const pid_t child = spawn([&] { set_nonblocking(pair.client); });
    reap("child", child);
    SHOW_BOOL((fcntl(pair.client, F_GETFL) & O_NONBLOCK) != 0);
    char byte;
    SHOW(recv(pair.client, &byte, 1, 0));
    const pid_t second = spawn([&] { MUST(shutdown(pair.client, SHUT_WR)); });
    reap("second", second);
    SHOW(send(pair.client, "x", 1, MSG_NOSIGNAL));
    wait_for(pair.server, POLLRDHUP);
    SHOW(recv(pair.server, &byte, 1, 0));
}

BEHAVIOUR("exit without close", exit_without_close, accelerated) {
    const int listener = make_listener();
    const std::string data = pattern(100000, 5);
    const pid_t child = spawn([&] { send_all(connect_to(listener), data); });
    const int server = MUST(accept(listener, nullptr, nullptr));
    reap("child", child);
    SHOW_BOOL(receive_to_end(server) == data);
}

BEHAVIOUR("_exit without close", immediate_exit_without_close, accelerated) {
    const int listener = make_listener();
    const std::string data = pattern(100000, 6);
    const pid_t child = spawn([&] {
        send_all(connect_to(listener), data);
        _exit(7);
    });
    const int server = MUST(accept(listener, nullptr, nullptr));
    reap("child", child);
    SHOW_BOOL(receive_to_end(server) == data);
}

namespace {

int on_a_new_stack(const std::function<int()> &body, int flags) {
    static char stack[256 << 10];
    auto *copy = new std::function<int()>(body);
    return MUST(clone([](void *f) { return (*static_cast<std::function<int()> *>(f))(); },
                      stack + sizeof stack, flags, copy));
}

} // namespace

BEHAVIOUR("a child made with clone", cloned_child, accelerated) {
    const Pair pair = make_pair();
    const pid_t child = on_a_new_stack(
        [&] {
            close(pair.client);
            say("child got %s", receive(pair.server, 4).c_str());
            send_all(pair.server, "child");
            return 7;
        },
        SIGCHLD);
    send_all(pair.client, "ping");
    say("%s", receive(pair.client, 5).c_str());
    reap("child", child);
    close(pair.server);
    SHOW_BOOL((poll_now(pair.client, POLLRDHUP, kPatience) & POLLRDHUP) != 0);
    const Pair other = make_pair();
    // Borrowing the memory, as vfork does: what it closes stays open here.
    const pid_t quick = on_a_new_stack(
        [&] {
            close(other.client);
            close(other.server);
            execl("/bin/true", "true", nullptr);
            return 9;
        },
        CLONE_VM | CLONE_VFORK | SIGCHLD);
    reap("quick", quick);
    send_all(other.client, "open");
    say("%s", receive(other.server, 4).c_str());
}

BEHAVIOUR("a daemon", daemon_serves, accelerated) {
    const int listener = make_listener();
    const pid_t launcher = spawn([&] {
        if (fork() != 0)
            _exit(0);
        setsid();
        if (fork() != 0)
            _exit(0);
        alarm(15);
        MUST(chdir("/"));
        for (int i = 0; i < 3; ++i) {
            const int fd = MUST(accept(listener, nullptr, nullptr));
            echo(fd);
            close(fd);
        }
        exit(0);
    });
    reap("launcher", launcher);
    for (int i = 0; i < 3; ++i) {
        const int client = connect_to(listener);
        send_all(client, "to the daemon");
        say("%s", receive(client, 13).c_str());
        close(client);
    }
}

BEHAVIOUR("preforked workers", prefork, accelerated) {
    const int listener = make_listener();
    pid_t workers[3];
    for (pid_t &worker : workers)
        worker = spawn([&] {
            for (;;) {
                const int fd = MUST(accept(listener, nullptr, nullptr));
                std::string request = receive(fd, 1);
                while (!request.empty() && request[0] != 'q') {
                    send_all(fd, request);
                    request = receive(fd, 1);
                }
                close(fd);
                if (!request.empty())
                    return;
            }
        });
    std::vector<int> clients;
    for (int i = 0; i < 3; ++i)
        clients.push_back(connect_to(listener));
    // Each worker holds one connection; all three answer, interleaved.
    int right = 0;
    for (int round = 0; round < 200; ++round)
        for (const int client : clients) {
            const std::string byte(1, static_cast<char>('A' + round % 10));
            send_all(client, byte);
            right += receive(client, 1) == byte;
        }
    say("%d right", right);
    for (const int client : clients)
        send_all(client, "q");
    for (const pid_t worker : workers)
        reap("worker", worker);
}

namespace {

// Kills one end and says what the other sees.
void kill_while(const char *what, bool unread, bool kill_server) {
    const int listener = make_listener();
    const Gate ready;
    const auto meet = [listener](bool as_server) {
        return as_server ? MUST(accept(listener, nullptr, nullptr)) : connect_to(listener);
    };
    const pid_t victim = spawn([&] {
        const int fd = meet(kill_server);
        if (unread)
            wait_for(fd, POLLIN);
        ready.open();
        pause();
    });
    const int survivor = meet(!kill_server);
    if (unread)
        send_all(survivor, "never read");
    ready.pass();
    kill(victim, SIGKILL);
    SHOW_BOOL(ends_within(survivor, 1000));
    say("%s: %s", what, event_names(static_cast<uint32_t>(poll_now(survivor))).c_str());
    char byte;
    SHOW(recv(survivor, &byte, 1, 0));
    reap("victim", victim);
}

} // namespace

BEHAVIOUR("SIGKILL of the server", killed_server, accelerated) {
    kill_while("idle", false, true);
    kill_while("with unread data", true, true);
}

BEHAVIOUR("SIGKILL of the client", killed_client, accelerated) {
    kill_while("idle", false, false);
    kill_while("with unread data", true, false);
}

BEHAVIOUR("SIGKILL while the peer is blocked", killed_while_peer_is_blocked, accelerated) {
    const int listener = make_listener();
    const Gate ready;
    const pid_t victim = spawn([&] {
        const int fd = connect_to(listener);
        send_all(fd, "last words");
        ready.open();
        pause();
    });
    const int server = MUST(accept(listener, nullptr, nullptr));
    ready.pass();
    std::thread killer([&] {
        sleep_ms(80);
        kill(victim, SIGKILL);
    });
    say("%s", receive_to_end(server).c_str());
    killer.join();
    reap("victim", victim);
}

BEHAVIOUR("SIGKILL while writing", killed_while_writing, accelerated) {
    const int listener = make_listener();
    const pid_t victim = spawn([&] {
        const int fd = connect_to(listener);
        const std::string data = pattern(100000);
        while (send_all(fd, data)) {
        }
    });
    const int server = MUST(accept(listener, nullptr, nullptr));
    receive(server, 1000000);
    kill(victim, SIGKILL);
    Stopwatch watch;
    char buffer[65536];
    ssize_t got;
    while ((got = recv(server, buffer, sizeof buffer, 0)) > 0) {
    }
    say("end %zd", got);
    SHOW_BOOL(watch.ms() < 2000);
    reap("victim", victim);
}

BEHAVIOUR("SIGKILL of a listener", killed_listener, accelerated) {
    const Gate ready;
    int ends[2];
    MUST(pipe(ends));
    const pid_t victim = spawn([&] {
        const int listener = make_listener();
        const uint16_t port = local_address(listener).port();
        MUST(write(ends[1], &port, sizeof port));
        pause();
    });
    uint16_t port;
    MUST(read(ends[0], &port, sizeof port));
    const Address to = make_address("127.0.0.1", port);
    const int waiting = connect_to(to);
    kill(victim, SIGKILL);
    SHOW_BOOL(wait_for(waiting, POLLHUP, 1000));
    reap("victim", victim);
    const int late = MUST(socket(AF_INET, SOCK_STREAM, 0));
    SHOW(connect(late, to.raw(), to.length));
}

BEHAVIOUR("many short-lived children", many_short_lived_children, accelerated) {
    const int listener = make_listener();
    int right = 0;
    for (int i = 0; i < 30; ++i) {
        const pid_t child = spawn([&] {
            const int client = connect_to(listener);
            send_all(client, std::to_string(i));
            receive_to_end(client);
        });
        const int server = MUST(accept(listener, nullptr, nullptr));
        right += receive(server, std::to_string(i).size()) == std::to_string(i);
        close(server);
        int status;
        MUST(waitpid(child, &status, 0));
        right += status == 0;
    }
    say("%d of 60 right", right);
}

// Everything was read long ago.
BEHAVIOUR("killed after it was idle", killed_after_being_idle, accelerated) {
    const int listener = make_listener();
    const Address address = local_address(listener);
    const std::string data = pattern(300000);
    const pid_t child = spawn([&] {
        const int client = connect_to(address);
        say("child got %zu bytes", receive(client, data.size()).size());
        send_all(client, "all");
        pause();
    });
    const int fd = MUST(accept(listener, nullptr, nullptr));
    send_all(fd, data);
    say("%s", receive(fd, 3).c_str());
    for (int i = 0; i < 3; ++i)
        SHOW_BOOL(poll_now(fd, POLLIN, 250) == 0);
    int queued = -1;
    MUST(ioctl(fd, SIOCOUTQ, &queued));
    SHOW_BOOL(queued == 0);
    kill(child, SIGKILL);
    reap("child", child);
    char byte;
    SHOW(recv(fd, &byte, 1, 0));
    close(fd);
}

int main(int argc, char **argv) { return run_behaviour(argc, argv); }
