// Servers that fork for each connection, parents that end at once, and what calls of other threads hold when
// one forks. Several forks each: from the third on the library has asked for the child's channel in advance.
#include "tests/programs/blocking.hpp"
#include "tests/programs/cases.hpp"
#include "tests/programs/process.hpp"

#include <atomic>
#include <thread>

#include <csignal>
#include <linux/io_uring.h>
#include <sched.h>
#include <sys/syscall.h>
#include <sys/un.h>

using namespace sdtest;

namespace {

void wait_for_child(pid_t pid) {
    while (waitpid(pid, nullptr, 0) < 0 && errno == EINTR) {
    }
}

void echo_until_end(int fd) {
    char buffer[64];
    for (ssize_t n; (n = read(fd, buffer, sizeof buffer)) > 0;)
        send_all(fd, buffer, static_cast<size_t>(n));
}

bool talk(int fd, const std::string &text) { return send_all(fd, text) && receive(fd, text.size()) == text; }

/// Forks a child for each connection, which serves it and ends; until it is killed.
pid_t forking_server(int listener, const std::function<void(int)> &serve) {
    return spawn([&] {
        for (;;) {
            const int fd = accept(listener, nullptr, nullptr);
            if (fd < 0)
                continue;
            if (fork() == 0) {
                serve(fd);
                _exit(0);
            }
            close(fd);
        }
    });
}

} // namespace

BEHAVIOUR("a server forks for each connection", server_forks_for_each, accelerated) {
    const int listener = make_listener();
    signal(SIGCHLD, SIG_IGN);
    const pid_t server = forking_server(listener, [&](int fd) {
        close(listener);
        echo_until_end(fd);
    });
    const Address address = local_address(listener);
    close(listener);
    int right = 0, ended = 0;
    for (int i = 0; i < 200; ++i) {
        const int fd = connect_to(address);
        for (int k = 0; k < 3; ++k)
            right += talk(fd, "message " + std::to_string(i + k));
        MUST(shutdown(fd, SHUT_WR));
        ended += receive_to_end(fd).empty();
        MUST(close(fd));
    }
    say("%d of 600 right, %d of 200 ended", right, ended);
    kill(server, SIGKILL);
}

// Short connections to such a server are the kernel's after a while, and its children begin without a
// channel to the monitor. They may want one all the same.
BEHAVIOUR("children of such a server have connections of their own", children_connect, accelerated) {
    const int listener = make_listener();
    signal(SIGCHLD, SIG_IGN);
    const pid_t server = forking_server(listener, [&](int fd) {
        const std::string asked = receive(fd, 4);
        if (asked == "pair") {
            const int own = make_listener();
            const Pair pair = connect_through(own);
            const bool right = send_all(pair.client, "own") && receive(pair.server, 3) == "own";
            send_all(fd, right ? "good" : "bad.");
        } else {
            send_all(fd, asked);
        }
    });
    const Address address = local_address(listener);
    close(listener);
    int right = 0;
    const auto ask = [&](const char *what, const char *answer) {
        const int fd = connect_to(address);
        send_all(fd, what);
        right += receive(fd, 4) == answer;
        right += receive_to_end(fd).empty();
        close(fd);
    };
    for (int i = 0; i < 100; ++i)
        ask("none", "none");
    for (int i = 0; i < 20; ++i)
        ask("pair", "good");
    say("%d of 240 right", right);
    kill(server, SIGKILL);
}

// Each generation makes the next one and ends without waiting for anything.
BEHAVIOUR("parents that end at once", parents_end_at_once, accelerated) {
    int right = 0;
    for (int i = 0; i < 20; ++i) {
        const int listener = make_listener();
        const Pair pair = connect_through(listener);
        const pid_t first = spawn([&] {
            for (int generation = 0; generation < 6; ++generation) {
                if (generation < 4)
                    wait_for_child(spawn([] {})); // so that the next one is expected
                if (MUST(fork()) > 0)
                    _exit(0);
            }
            close(pair.client);
            echo_until_end(pair.server);
            const int fd = MUST(accept(listener, nullptr, nullptr));
            close(listener);
            echo_until_end(fd);
            _exit(0);
        });
        const Address address = local_address(listener);
        wait_for_child(first);
        close(pair.server);
        close(listener);
        right += talk(pair.client, "to the last");
        close(pair.client);
        const int later = connect_to(address);
        right += talk(later, "to its listener");
        right += shutdown(later, SHUT_WR) == 0 && receive_to_end(later).empty();
        close(later);
    }
    say("%d of 60 right", right);
}

// Whoever closes a listener last, nobody can connect any more when close has returned.
BEHAVIOUR("whoever closes a listener last", last_to_close_a_listener, accelerated) {
    int refused[2] = {};
    for (int i = 0; i < 60; ++i) {
        const bool child_is_last = i % 2 == 0;
        const int listener = make_listener();
        const Address address = local_address(listener);
        close(connect_to(address)); // there is a way to the listener
        int closed[2];
        MUST(pipe(closed));
        char byte = 0;
        const pid_t child = spawn([&] {
            close(closed[1]);
            if (!child_is_last) {
                close(listener);
                _exit(0);
            }
            MUST(read(closed[0], &byte, 1));
            close(listener);
            const int fd = socket(AF_INET, SOCK_STREAM, 0);
            _exit(connect(fd, address.raw(), address.length) < 0 && errno == ECONNREFUSED ? 0 : 1);
        });
        int status = -1;
        if (child_is_last) {
            close(listener);
            MUST(write(closed[1], &byte, 1));
            MUST(waitpid(child, &status, 0));
            refused[1] += status == 0;
        } else {
            MUST(waitpid(child, &status, 0));
            close(listener);
            const int fd = socket(AF_INET, SOCK_STREAM, 0);
            refused[0] += connect(fd, address.raw(), address.length) < 0 && errno == ECONNREFUSED;
            close(fd);
        }
        close(closed[0]);
        close(closed[1]);
    }
    say("refused after the parent's close %d, after the child's %d of 30", refused[0], refused[1]);
}

// The parent closes what it has given its child while a third process that has it, too, is killed.
BEHAVIOUR("a connection is handed on while another holder dies", handed_on_while_another_dies, accelerated) {
    int right = 0;
    for (int i = 0; i < 60; ++i) {
        const Pair pair = make_pair();
        const pid_t other = spawn([] { sleep_ms(kPatience); });
        const pid_t parent = spawn([&] {
            close(pair.client);
            wait_for_child(spawn([] {}));
            wait_for_child(spawn([] {}));
            const pid_t heir = spawn([&] { echo_until_end(pair.server); });
            close(pair.server);
            wait_for_child(heir);
        });
        close(pair.server);
        sleep_ms(i % 4);
        kill(other, SIGKILL);
        right += talk(pair.client, "still there");
        close(pair.client);
        wait_for_child(other);
        wait_for_child(parent);
    }
    say("%d of 60 right", right);
}

// One thread reads, another closes the number and forks, a signal ends the read: the child has nothing of the
// connection, so it ends.
BEHAVIOUR("a connection closed in a blocked call before a fork", closed_in_a_call_before_fork, accelerated) {
    struct sigaction action {};
    action.sa_handler = [](int) {};
    MUST(sigaction(SIGUSR1, &action, nullptr));
    const Pair pair = make_pair();
    std::atomic<pid_t> entered{0};
    std::atomic<bool> returned{false};
    std::thread reader([&] {
        entered = thread_id();
        char byte;
        SHOW(recv(pair.client, &byte, 1, 0));
        returned = true;
    });
    SHOW_BOOL(wait_until_blocked(entered, returned));
    MUST(close(pair.client));
    int release[2];
    MUST(pipe(release));
    const pid_t child = spawn([&] {
        char byte;
        close(release[1]);
        [[maybe_unused]] const ssize_t n = read(release[0], &byte, 1);
        _exit(0);
    });
    while (!returned) {
        pthread_kill(reader.native_handle(), SIGUSR1);
        sleep_ms(1);
    }
    reader.join();
    SHOW_BOOL(wait_for(pair.server, POLLIN));
    say("%s", receive_to_end(pair.server).empty() ? "end" : "data");
    close(release[1]);
    reap("child", child);
}

// A child that has only what it inherited keeps it when the monitor does not answer for a while.
BEHAVIOUR("a monitor that is stopped for a while", monitor_stopped_for_a_while, any) {
    const Pair pair = make_pair();
    const int listener = make_listener();
    const pid_t child = spawn([&] {
        close(pair.client);
        {
            const StoppedMonitor stopped;
            close(connect_to(listener)); // asks it, and does not wait for ever
        }
        sleep_ms(600); // before that it is not asked again
        close(connect_to(listener));
        say("child: %s", receive(pair.server, 4).c_str());
        send_all(pair.server, "pong");
    });
    close(pair.server);
    send_all(pair.client, "ping");
    say("%s", receive(pair.client, 4).c_str());
    reap("child", child);
    SHOW_BOOL(receive_to_end(pair.client).empty());
}

namespace {

/// A server that ends in one of several ways after it has served one connection.
pid_t start_mortal_server(int how, Address *address) {
    int channel[2];
    MUST(pipe2(channel, O_CLOEXEC));
    const pid_t child = spawn([&] {
        const int listener = make_listener();
        const uint16_t port = local_address(listener).port();
        MUST(write(channel[1], &port, sizeof port));
        send_all(MUST(accept(listener, nullptr, nullptr)), "x");
        if (how == 0)
            _exit(0);
        else if (how == 1)
            pause();
        for (;;) {
        }
    });
    uint16_t port = 0;
    MUST(read(channel[0], &port, sizeof port));
    MUST(close(channel[0]));
    MUST(close(channel[1]));
    *address = make_address("127.0.0.1", port);
    return child;
}

bool is_refused(const Address &address) {
    const int fd = MUST(socket(AF_INET, SOCK_STREAM, 0));
    const bool refused = connect(fd, address.raw(), address.length) < 0 && errno == ECONNREFUSED;
    close(fd);
    return refused;
}

} // namespace

// What a server's child does first of all. Nothing depends on the monitor's answer, as the parent goes on
// listening.
BEHAVIOUR("a child closes its parent's listener while the monitor is stopped", monitor_stopped_at_close,
          all_accelerated) {
    const int listener = make_listener(), others = make_listener();
    close(connect_to(others)); // so that the monitor is known
    const pid_t child = spawn([&] {
        {
            const StoppedMonitor stopped;
            close(listener);
        }
        close(connect_to(others)); // through the kernel, if the channel had been given up
    });
    reap("child", child);
    close(connect_to(listener));
}

// Here it is the child's close that has to be answered.
BEHAVIOUR("a child closes a listener that its parent has closed", closed_by_the_child_last, any) {
    int refused = 0;
    for (int i = 0; i < 20; ++i) {
        const int listener = make_listener();
        const Address address = local_address(listener);
        close(connect_to(address));
        const Gate gate;
        const pid_t child = spawn([&] {
            gate.pass();
            close(listener);
            _exit(is_refused(address) ? 0 : 1);
        });
        close(listener);
        gate.open();
        int status = 0;
        MUST(waitpid(child, &status, 0));
        refused += WIFEXITED(status) && WEXITSTATUS(status) == 0;
    }
    SHOW(refused);
}

// The kernel closes what a process held before anybody can have waited for it.
BEHAVIOUR("a connect to a server that was waited for", refused_once_waited_for, accelerated) {
    int by_parent = 0, by_child = 0;
    for (int i = 0; i < 30; ++i) {
        Address address;
        const pid_t server = start_mortal_server(i % 3, &address);
        const int first = connect_to(address);
        receive(first, 1);
        if (i % 3 != 0)
            MUST(kill(server, SIGKILL));
        MUST(waitpid(server, nullptr, 0));
        by_parent += is_refused(address);
        close(first);
    }
    for (int i = 0; i < 10; ++i) {
        Address address;
        const pid_t server = start_mortal_server(1, &address);
        close(connect_to(address));
        MUST(kill(server, SIGKILL));
        siginfo_t info{};
        MUST(waitid(P_PID, static_cast<id_t>(server), &info, WEXITED));
        const pid_t client = spawn([&] { _exit(is_refused(address) ? 0 : 1); });
        int status = 0;
        MUST(waitpid(client, &status, 0));
        by_child += WIFEXITED(status) && WEXITSTATUS(status) == 0;
    }
    SHOW(by_parent);
    SHOW(by_child);
}

// The first contact with the monitor comes while another thread forks.
BEHAVIOUR("forks during the first contact with the monitor", forks_during_the_first_contact, any) {
    constexpr int kRounds = 40, kForks = 20;
    int good = 0;
    for (int round = 0; round < kRounds; ++round) {
        const pid_t process = spawn([] {
            std::atomic<bool> go{false};
            std::thread forks([&] {
                while (!go) {
                }
                for (int i = 0; i < kForks; ++i) {
                    const pid_t child = MUST(fork());
                    if (child == 0)
                        _exit(0);
                    MUST(waitpid(child, nullptr, 0));
                }
            });
            go = true;
            const int listener = make_listener();
            forks.join();
            close(listener);
        });
        int status = 0;
        MUST(waitpid(process, &status, 0));
        good += status == 0;
    }
    SHOW(good);
}

namespace {

/// What a child may do whose parent has other threads, and what those do meanwhile.
bool use_everything() {
    struct sigaction act {};
    const bool ring = syscall(SYS_io_uring_enter, -1, 1, 0, 0, nullptr, 0) < 0;
    const bool handler = sigaction(SIGUSR2, nullptr, &act) == 0;
    const int fd = socket(AF_INET, SOCK_STREAM, 0), on = 1;
    return ring && handler && setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on) == 0 && close(fd) == 0;
}

int in_child(void *) { _exit(use_everything() ? 0 : 1); }

/// Did it end, and well?
bool ends_well(pid_t child) {
    int status = 0;
    for (const Stopwatch time; time.ms() < kPatience; sleep_ms(1))
        if (waitpid(child, &status, WNOHANG) == child)
            return status == 0;
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
    return false;
}

/// Children made one after the other, until one does not end well.
template <class F> int children_that_end(F make) {
    constexpr int kChildren = 60;
    for (int i = 0; i < kChildren; ++i) {
        const pid_t child = MUST(make());
        if (child == 0)
            in_child(nullptr);
        if (!ends_well(child))
            return i;
    }
    return kChildren;
}

} // namespace

// However a child is made, what another thread held at that moment is free in it.
BEHAVIOUR("children made while other threads work", made_while_other_threads_work, accelerated) {
    const int listener = make_listener(), fd = connect_to(local_address(listener));
    io_uring_params params{};
    const long ring = syscall(SYS_io_uring_setup, 8, &params); // one to look for
    std::atomic<bool> over{false};
    std::thread asks([&] {
        while (!over)
            syscall(SYS_io_uring_enter, -1, 1, 0, 0, nullptr, 0);
    });
    std::thread all([&] {
        while (!over)
            use_everything();
    });
    alignas(64) static char stack[64 << 10];
    const int by_fork = children_that_end([] { return fork(); });
    const int by_plain_fork = children_that_end([] { return _Fork(); });
    const int by_number = children_that_end([] { return syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0); });
    const int by_newer_number = children_that_end([] {
        const uint64_t how[8] = {0, 0, 0, 0, SIGCHLD}; // struct clone_args
        return syscall(SYS_clone3, how, sizeof how);
    });
    const int by_clone =
        children_that_end([] { return clone(in_child, stack + sizeof stack, SIGCHLD, nullptr); });
    over = true;
    asks.join();
    all.join();
    SHOW(by_fork);
    SHOW(by_plain_fork);
    SHOW(by_number);
    SHOW(by_newer_number);
    SHOW(by_clone);
    close(fd);
    close(listener);
    if (ring >= 0)
        close(static_cast<int>(ring));
}

int main(int argc, char **argv) { return run_behaviour(argc, argv); }
