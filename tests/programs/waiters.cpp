// Several threads that wait on the same sets, change them, and look at their members otherwise: everything
// sent is answered.
#include "tests/programs/process.hpp"
#include "tests/programs/sets.hpp"

#include <functional>
#include <sys/eventfd.h>

using namespace sdtest;

namespace {

constexpr uint32_t kEdge = static_cast<uint32_t>(EPOLLET);
constexpr int kConnections = 4, kWorkers = 3;

void change(int set, int op, int fd, uint32_t events) {
    epoll_event event{};
    event.events = events;
    event.data.fd = fd;
    MUST(epoll_ctl(set, op, fd, &event));
}

/// What a worker does with a member that its set has reported.
using Serve = std::function<void(int set, int fd)>;

/// Answers all that is there, of messages of one byte.
void answer(int fd) {
    char byte;
    while (recv(fd, &byte, 1, MSG_DONTWAIT) == 1)
        // Closed meanwhile by who uses its number again, perhaps for a socket that is not connected yet.
        if (send(fd, &byte, 1, MSG_NOSIGNAL) != 1 && errno != EBADF && errno != EPIPE)
            MUST(-1);
}

struct Answered {
    std::atomic<int> answers{0}, lost{0};
};

/// A client that asks, and waits for the answer; in between it gives the workers time to fall asleep, or does
/// not.
void ask(int fd, int times, unsigned seed, Answered &result) {
    set_timeout(fd, SO_RCVTIMEO, kPatience);
    for (int i = 0; i < times && result.lost == 0; ++i) {
        char byte = static_cast<char>(i), reply = 0;
        send_all(fd, &byte, 1);
        if (recv(fd, &reply, 1, 0) != 1 || reply != byte)
            ++result.lost;
        else
            ++result.answers;
        seed = seed * 1103515245 + 12345;
        if (seed >> 16 & 1)
            usleep(seed >> 17 & 255);
    }
}

/// Connections whose server ends are in `set`; `workers` threads wait on `waited`, one event at a time, and
/// serve; meanwhile `beside` runs again and again.
void serve_all(int set, int waited, uint32_t events, const Serve &serve,
               const std::function<void(int)> &beside, int times = 400, int workers = kWorkers) {
    const int listener = make_listener(), stop = MUST(eventfd(0, 0));
    std::vector<Pair> pairs;
    for (int i = 0; i < kConnections; ++i) {
        pairs.push_back(connect_through(listener));
        change(set, EPOLL_CTL_ADD, pairs.back().server, events);
    }
    change(waited, EPOLL_CTL_ADD, stop, EPOLLIN);
    std::vector<std::thread> threads;
    for (int i = 0; i < workers; ++i)
        threads.emplace_back([&] {
            for (;;) {
                epoll_event event{};
                if (MUST(epoll_wait(waited, &event, 1, -1)) != 1 || event.data.fd == stop)
                    return;
                serve(set, event.data.fd);
            }
        });
    std::atomic<bool> over{false};
    std::thread other([&] {
        for (unsigned i = 0; !over && beside; ++i) {
            beside(pairs[i % kConnections].server);
            usleep(i * 37 % 200);
        }
    });
    Answered result;
    std::vector<std::thread> clients;
    for (int i = 0; i < kConnections; ++i)
        clients.emplace_back(
            [&, i] { ask(pairs[static_cast<size_t>(i)].client, times, static_cast<unsigned>(i), result); });
    for (std::thread &client : clients)
        client.join();
    over = true;
    other.join();
    eventfd_write(stop, 1);
    if (result.lost == 0)
        for (std::thread &thread : threads)
            thread.join();
    say("%d answers, %d lost", result.answers.load(), result.lost.load());
    if (result.lost != 0)
        _exit(1); // a worker may sleep for ever
}

/// Two threads wait for one event each, on a set of one-shot members; the first to get one does not come back
/// before the second has got the other.
struct TwoWaiters {
    explicit TwoWaiters(int set) {
        for (std::thread &thread : threads_)
            thread = std::thread([this, set] {
                epoll_event event{};
                MUST(epoll_wait(set, &event, 1, -1)); // a limit would end in a look
                ++told;
            });
    }
    /// Have so many been told, in time?
    bool await(int count) const {
        for (Stopwatch watch; told < count && watch.ms() < kPatience;)
            usleep(50);
        return told == count;
    }
    void join() {
        for (std::thread &thread : threads_)
            thread.join();
    }
    std::atomic<int> told{0};

  private:
    std::thread threads_[2];
};

} // namespace

BEHAVIOUR("workers arm one-shot members", one_shot_armed_by_workers, accelerated) {
    const int set = MUST(epoll_create1(0));
    serve_all(
        set, set, EPOLLIN | EPOLLONESHOT,
        [](int s, int fd) {
            answer(fd);
            change(s, EPOLL_CTL_MOD, fd, EPOLLIN | EPOLLONESHOT);
        },
        nullptr);
}

BEHAVIOUR("many waiters on a level-triggered set", level_triggered_with_many_waiters, accelerated) {
    const int set = MUST(epoll_create1(0));
    serve_all(
        set, set, EPOLLIN, [](int, int fd) { answer(fd); }, nullptr);
}

BEHAVIOUR("many waiters on an edge-triggered set", edge_triggered_with_many_waiters, accelerated) {
    const int set = MUST(epoll_create1(0));
    serve_all(
        set, set, EPOLLIN | EPOLLOUT | kEdge, [](int, int fd) { answer(fd); }, nullptr);
}

BEHAVIOUR("workers take members out and put them back", members_taken_out_and_put_back, accelerated) {
    const int set = MUST(epoll_create1(0));
    serve_all(
        set, set, EPOLLIN | EPOLLONESHOT,
        [](int s, int fd) {
            change(s, EPOLL_CTL_DEL, fd, 0);
            answer(fd);
            change(s, EPOLL_CTL_ADD, fd, EPOLLIN | EPOLLONESHOT);
        },
        nullptr);
}

// Another thread changes what members are asked for, while the workers are told of them.
BEHAVIOUR("members that another thread changes", changed_by_a_thread_beside, accelerated) {
    const int set = MUST(epoll_create1(0));
    serve_all(
        set, set, EPOLLIN, [](int, int fd) { answer(fd); },
        [&](int fd) {
            change(set, EPOLL_CTL_MOD, fd, EPOLLIN | EPOLLRDHUP);
            change(set, EPOLL_CTL_MOD, fd, EPOLLIN | kEdge);
            change(set, EPOLL_CTL_MOD, fd, EPOLLIN);
        });
}

BEHAVIOUR("members and a set that another thread polls", polled_beside, accelerated) {
    const int set = MUST(epoll_create1(0));
    serve_all(
        set, set, EPOLLIN | kEdge, [](int, int fd) { answer(fd); },
        [&](int fd) {
            pollfd both[2] = {{fd, POLLIN | POLLOUT, 0}, {set, POLLIN, 0}};
            MUST(poll(both, 2, 0));
            both[0].events = POLLIN;
            MUST(poll(both, 2, 1));
            MUST(poll(both + 1, 1, 1));
        });
}

BEHAVIOUR("members of two sets", members_of_two_sets, accelerated) {
    const int set = MUST(epoll_create1(0)), second = MUST(epoll_create1(0));
    serve_all(
        set, set, EPOLLIN | kEdge, [](int, int fd) { answer(fd); },
        [&](int fd) {
            epoll_event event{};
            change(second, EPOLL_CTL_ADD, fd, EPOLLIN | EPOLLOUT | kEdge);
            MUST(epoll_wait(second, &event, 1, 1));
            MUST(epoll_wait(second, &event, 1, 1));
            change(second, EPOLL_CTL_DEL, fd, 0);
        });
}

// The set is waited for through another one, and directly by the thread beside.
BEHAVIOUR("many waiters on a nested set", nested_set_with_many_waiters, accelerated) {
    const int inner = MUST(epoll_create1(0)), outer = MUST(epoll_create1(0));
    const auto serve = [](int s, int) {
        epoll_event event{};
        while (MUST(epoll_wait(s, &event, 1, 0)) == 1)
            answer(event.data.fd);
    };
    change(outer, EPOLL_CTL_ADD, inner, EPOLLIN);
    serve_all(inner, outer, EPOLLIN, serve, [&](int) {
        epoll_event event{};
        if (MUST(epoll_wait(inner, &event, 1, 1)) == 1)
            answer(event.data.fd);
    });
}

// One waiter: with several, the kernel's edge may go to one that has just found the set empty.
BEHAVIOUR("an edge-triggered nested set", edge_triggered_nested_set, accelerated) {
    const int inner = MUST(epoll_create1(0)), outer = MUST(epoll_create1(0));
    const auto serve = [](int s, int) {
        epoll_event event{};
        while (MUST(epoll_wait(s, &event, 1, 0)) == 1)
            answer(event.data.fd);
    };
    change(outer, EPOLL_CTL_ADD, inner, EPOLLIN | kEdge);
    serve_all(inner, outer, EPOLLIN | kEdge, serve, nullptr, 400, 1);
}

// Members are closed, and their numbers are used again at once for other connections, which are members, too.
BEHAVIOUR("numbers of members are used again", numbers_used_again, accelerated) {
    const int set = MUST(epoll_create1(0));
    const int listener = make_listener();
    serve_all(
        set, set, EPOLLIN, [](int, int fd) { answer(fd); },
        [&](int) {
            const Pair pair = connect_through(listener);
            change(set, EPOLL_CTL_ADD, pair.server, EPOLLOUT | EPOLLONESHOT);
            send_all(pair.client, "x");
            close(pair.server);
            close(pair.client);
        },
        300);
}

// Both are in the kernel when the set gets its first members.
BEHAVIOUR("two wait before there is a member", waiters_before_the_first_member, accelerated) {
    const int listener = make_listener();
    int told = 0;
    for (int i = 0; i < 20; ++i) {
        const Pair pairs[2] = {connect_through(listener), connect_through(listener)};
        const int set = MUST(epoll_create1(0));
        TwoWaiters waiters(set);
        sleep_ms(10);
        for (const Pair &pair : pairs)
            change(set, EPOLL_CTL_ADD, pair.server, EPOLLIN | EPOLLONESHOT);
        sleep_ms(i % 2 * 10);
        for (int k = 0; k < 2; ++k) {
            send_all(pairs[k].client, "x");
            if (!waiters.await(k + 1)) {
                say("round %d: only %d told", i, waiters.told.load());
                _exit(1);
            }
            ++told;
        }
        waiters.join();
        close(set);
        for (const Pair &pair : pairs) {
            close(pair.client);
            close(pair.server);
        }
    }
    say("%d told", told);
}

// It is the first that is not the kernel's alone, and ready at once.
BEHAVIOUR("a set is nested while another thread waits", nested_while_another_waits, accelerated) {
    const Pair pair = make_pair();
    const int inner = MUST(epoll_create1(0));
    change(inner, EPOLL_CTL_ADD, pair.server, EPOLLIN);
    send_all(pair.client, "x");
    int told = 0;
    for (int i = 0; i < 200; ++i) {
        const int outer = MUST(epoll_create1(0));
        std::thread waiter([&] {
            epoll_event event{};
            told += MUST(epoll_wait(outer, &event, 1, kPatience)) == 1 && event.data.fd == inner;
        });
        usleep(static_cast<useconds_t>(i % 10 * 50));
        change(outer, EPOLL_CTL_ADD, inner, EPOLLIN);
        waiter.join();
        close(outer);
    }
    say("%d told", told);
}

// One of two that sleep is just being told of something when a member comes through another listener, for
// which nobody has waited yet.
BEHAVIOUR("a member through a new listener while others sleep", new_listener_while_others_sleep, accelerated) {
    const int first_listener = make_listener();
    int told = 0;
    for (int i = 0; i < 150; ++i) {
        const int second_listener = make_listener();
        const Pair pairs[2] = {connect_through(first_listener), connect_through(second_listener)};
        const int set = MUST(epoll_create1(0));
        change(set, EPOLL_CTL_ADD, pairs[0].server, EPOLLIN | EPOLLONESHOT);
        TwoWaiters waiters(set);
        sleep_ms(3);
        send_all(pairs[0].client, "x");
        for (const auto until = std::chrono::steady_clock::now() + std::chrono::microseconds(i % 75);
             std::chrono::steady_clock::now() < until;) {
        }
        change(set, EPOLL_CTL_ADD, pairs[1].server, EPOLLIN | EPOLLONESHOT);
        for (int k = 0; k < 2; ++k) {
            if (!waiters.await(k + 1)) {
                say("round %d: only %d told", i, waiters.told.load());
                _exit(1);
            }
            ++told;
            if (k == 0) {
                sleep_ms(1);
                send_all(pairs[1].client, "x");
            }
        }
        waiters.join();
        close(set);
        close(second_listener);
        for (const Pair &pair : pairs) {
            close(pair.client);
            close(pair.server);
        }
    }
    say("%d told", told);
}

namespace {

/// What Rust's async-io and Erlang's runtime do: one thread polls, the others try, and arm a one-shot member
/// when they would block.
class Reactor {
  public:
    Reactor() : poller_([this] { run(); }) {}
    ~Reactor() {
        change(set_, EPOLL_CTL_ADD, stop_, EPOLLIN);
        eventfd_write(stop_, 1);
        poller_.join();
    }
    Reactor(const Reactor &) = delete;
    Reactor &operator=(const Reactor &) = delete;

    void take(int fd) { change(set_, EPOLL_CTL_ADD, fd, EPOLLONESHOT); }
    /// Until the poller has told of it. False: it has not in time.
    bool wait_for(int fd, uint32_t events) {
        std::atomic<uint32_t> &seen = seen_[fd];
        seen = 0;
        change(set_, EPOLL_CTL_MOD, fd, events | EPOLLONESHOT);
        for (Stopwatch watch; seen == 0;) {
            if (watch.ms() > kPatience)
                return false;
            usleep(20);
        }
        return true;
    }

  private:
    void run() {
        for (;;) {
            epoll_event events[8];
            const int n = MUST(epoll_wait(set_, events, 8, -1));
            for (int i = 0; i < n; ++i) {
                if (events[i].data.fd == stop_)
                    return;
                seen_[events[i].data.fd] = events[i].events;
            }
        }
    }
    const int set_ = MUST(epoll_create1(0)), stop_ = MUST(eventfd(0, 0));
    std::atomic<uint32_t> seen_[256]{};
    std::thread poller_;
};

} // namespace

// SD_BULK_MB for more than the usual size.
BEHAVIOUR("a long transfer with a thread that polls for others", bulk_with_a_polling_thread, accelerated) {
    const char *asked = getenv("SD_BULK_MB");
    const size_t total = static_cast<size_t>(asked ? atol(asked) : 512) << 20;
    const Pair pair = make_pair();
    set_nonblocking(pair.client);
    set_nonblocking(pair.server);
    Reactor reactor;
    reactor.take(pair.client);
    reactor.take(pair.server);
    std::atomic<bool> lost{false};
    std::thread sender([&] {
        static char data[65536];
        for (size_t sent = 0; sent < total && !lost;) {
            const ssize_t n = send(pair.client, data, std::min(sizeof data, total - sent), MSG_NOSIGNAL);
            if (n > 0)
                sent += static_cast<size_t>(n);
            else if (!reactor.wait_for(pair.client, EPOLLOUT))
                lost = true;
        }
    });
    static char data[65536];
    size_t got = 0;
    while (got < total && !lost) {
        const ssize_t n = recv(pair.server, data, sizeof data, 0);
        if (n > 0)
            got += static_cast<size_t>(n);
        else if (!reactor.wait_for(pair.server, EPOLLIN | EPOLLRDHUP))
            lost = true;
    }
    sender.join();
    say("all there: %s, wake-ups lost: %s", yes_no(got == total), yes_no(lost));
}

int main(int argc, char **argv) { return run_behaviour(argc, argv); }
