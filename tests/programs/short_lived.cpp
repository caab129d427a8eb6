// Threads and epoll instances that live for one request, one after another and several at a time.
#include "tests/programs/cases.hpp"
#include "tests/programs/process.hpp"

using namespace sdtest;

namespace {

constexpr int kRounds = 40;

/// Waits for one event of one member, in a set made for that.
bool wait_in_a_set_for(int fd) {
    const int set = MUST(epoll_create1(EPOLL_CLOEXEC));
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.fd = fd;
    MUST(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event));
    event = {};
    const bool told = epoll_wait(set, &event, 1, kPatience) == 1 && event.data.fd == fd;
    close(set);
    return told;
}

/// Answers every byte, later than the other side looks for it before it sleeps.
void answer(int fd) {
    char byte;
    while (recv(fd, &byte, 1, 0) == 1) {
        sleep_ms(1);
        send_all(fd, std::string(1, byte));
    }
}

} // namespace

BEHAVIOUR("a set for each answer", a_set_for_each_answer, accelerated) {
    const Pair pair = make_pair();
    std::thread server([&] { answer(pair.server); });
    int told = 0;
    for (int i = 0; i < kRounds; ++i) {
        send_all(pair.client, "x");
        told += wait_in_a_set_for(pair.client) && receive(pair.client, 1) == "x";
    }
    say("%d of %d", told, kRounds);
    shutdown(pair.client, SHUT_WR);
    server.join();
}

BEHAVIOUR("a set for each client", a_set_for_each_client, accelerated) {
    const int listener = make_listener();
    const Address address = local_address(listener);
    const pid_t child = spawn([&] {
        for (int i = 0; i < kRounds; ++i) {
            sleep_ms(1);
            const int fd = connect_to(address);
            send_all(fd, "x");
            receive_to_end(fd);
            close(fd);
        }
    });
    int told = 0;
    for (int i = 0; i < kRounds; ++i) {
        if (!wait_in_a_set_for(listener))
            break;
        const int fd = MUST(accept(listener, nullptr, nullptr));
        told += wait_in_a_set_for(fd) && receive(fd, 1) == "x";
        close(fd);
    }
    say("%d of %d", told, kRounds);
    reap("clients", child);
}

BEHAVIOUR("a thread for each answer", a_thread_for_each_answer, accelerated) {
    const Pair pair = make_pair();
    std::thread server([&] { answer(pair.server); });
    int told = 0;
    for (int i = 0; i < kRounds; ++i)
        std::thread([&] {
            send_all(pair.client, "x");
            told += receive(pair.client, 1) == "x";
        }).join();
    say("%d of %d", told, kRounds);
    shutdown(pair.client, SHUT_WR);
    server.join();
}

// What one of them slept on the next of the other kind may sleep on; more at a time than are kept for that.
BEHAVIOUR("sets and threads in turn", sets_and_threads_in_turn, accelerated) {
    constexpr int kPairs = 5;
    Pair pairs[kPairs];
    std::vector<std::thread> servers, waiters;
    for (Pair &pair : pairs) {
        pair = make_pair();
        servers.emplace_back([&pair] { answer(pair.server); });
    }
    std::atomic<int> told{0};
    for (int i = 0; i < 10; ++i) {
        waiters.clear();
        for (int k = 0; k < kPairs; ++k)
            waiters.emplace_back([&pairs, &told, k, i] {
                const int fd = pairs[(k + i) % kPairs].client;
                send_all(fd, "x");
                told += ((k + i) % 2 == 0 || wait_in_a_set_for(fd)) && receive(fd, 1) == "x";
            });
        for (std::thread &waiter : waiters)
            waiter.join();
    }
    say("%d of %d", told.load(), 10 * kPairs);
    for (const Pair &pair : pairs)
        shutdown(pair.client, SHUT_WR);
    for (std::thread &server : servers)
        server.join();
}

// A set that both have inherited stays the child's when the parent closes it, and the parent's next one is
// its own.
BEHAVIOUR("a set before a fork and one after", a_set_before_a_fork_and_one_after, accelerated) {
    const Pair one = make_pair(), other = make_pair();
    std::thread server([&] { answer(one.server); });
    const int set = MUST(epoll_create1(0));
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.fd = other.client;
    MUST(epoll_ctl(set, EPOLL_CTL_ADD, other.client, &event));
    SHOW(epoll_wait(set, &event, 1, 2));
    const pid_t child = spawn([&] {
        epoll_event found[4];
        const int n = epoll_wait(set, found, 4, kPatience);
        say("child: %d, of its own: %s", n, yes_no(n == 1 && found[0].data.fd == other.client));
        say("%s", receive(other.client, 4).c_str());
    });
    close(set);
    int told = 0;
    for (int i = 0; i < kRounds; ++i) {
        send_all(one.client, "x");
        told += wait_in_a_set_for(one.client) && receive(one.client, 1) == "x";
    }
    send_all(other.server, "last");
    reap("child", child);
    say("%d of %d", told, kRounds);
    shutdown(one.client, SHUT_WR);
    server.join();
}

int main(int argc, char **argv) { return run_behaviour(argc, argv); }
