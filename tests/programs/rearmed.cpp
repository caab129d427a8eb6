// Members of a set that one thread changes, fills or drains at the moment at which another goes to sleep on
// the set: no event may be lost.
//
// One thread waits. Another gives it the word and, a moment later that is a little longer each time, does
// what takes the member from ready to not ready; then the peer reads, and the waiter has to be told.
#include "tests/programs/sets.hpp"

#include <atomic>
#include <thread>

using namespace sdtest;

namespace {

constexpr int kTurns = 10000, kEnough = 20;
constexpr long kLongest = 6000; // ms
constexpr uint32_t kEdge = static_cast<uint32_t>(EPOLLET);

void pass_ns(long ns) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::nanoseconds(ns);
    while (std::chrono::steady_clock::now() < end) {
    }
}

/// Waits for `word` to become `value`, and lets others have the core if that takes long.
void await(const std::atomic<int> &word, int value) {
    for (int n = 0; word < value; ++n)
        if (n > 1000)
            sched_yield();
}

/// A connection whose sender soon finds no room.
Pair small_pair(int listener) {
    const int client = MUST(socket(AF_INET, SOCK_STREAM, 0));
    set_option(client, SOL_SOCKET, SO_SNDBUF, 4096);
    const Address to = local_address(listener);
    MUST(connect(client, to.raw(), to.length));
    const int server = MUST(accept(listener, nullptr, nullptr));
    set_nonblocking(client);
    set_nonblocking(server);
    return {client, server, listener};
}

/// Sends until something was not taken whole, or so many bytes; the bytes that were taken.
size_t fill(int fd, size_t most = ~size_t{0}) {
    static char junk[65536];
    for (size_t sum = 0;;) {
        const size_t more = std::min(most - sum, sizeof junk);
        const ssize_t n = send(fd, junk, more, MSG_NOSIGNAL);
        sum += n > 0 ? static_cast<size_t>(n) : 0;
        if (n < static_cast<ssize_t>(more) || sum == most)
            return sum;
    }
}

void drain(int fd, size_t bytes) {
    static char junk[65536];
    for (Stopwatch watch; bytes != 0 && watch.ms() < kPatience;)
        if (const ssize_t n = recv(fd, junk, sizeof junk, 0); n > 0)
            bytes -= static_cast<size_t>(n);
}

enum class Filled { before, during };

/// One thread waits on `set`, once for each turn. The last of the room is filled before it is told to go, or
/// a little after that, when `change()` is called.
template <class Change> void take_turns(int set, const Pair &pair, Filled filled, Change change) {
    size_t capacity = 0;
    for (int n = 0; n < 2; ++n) { // buffers grow
        capacity = fill(pair.client);
        drain(pair.server, capacity);
    }
    std::atomic<int> go{0}, told{0}, lost{0}, wrong{0}, over{0};
    std::thread waiter([&] {
        for (int turn = 1; lost == 0; ++turn) {
            await(go, turn);
            if (over)
                return;
            pass_ns(filled == Filled::during ? 10000 : 0); // about as long as that takes
            epoll_event event{};
            const int n = epoll_wait(set, &event, 1, kPatience);
            lost += n == 0;
            wrong += n == 1 && (event.events != EPOLLOUT || event.data.fd != pair.client);
            told = turn;
        }
    });
    int turns = 0;
    const Stopwatch watch;
    size_t least = ~size_t{0};
    for (int turn = 1; turn <= kTurns && watch.ms() < kLongest && lost == 0; turns = turn++) {
        size_t bytes = filled == Filled::before ? fill(pair.client) : fill(pair.client, capacity / 2);
        go = turn;
        // It takes some 2 us to get from the last look to sleep.
        pass_ns(filled == Filled::before ? turn * 7 % 4000 : 2000 + turn * 7 % 9000);
        bytes += filled == Filled::before ? 0 : fill(pair.client);
        change();
        least = std::min(least, bytes);
        pass_ns(200'000); // so that the waiter learns to sleep at once
        drain(pair.server, bytes);
        await(told, turn);
    }
    over = 1;
    go = kTurns + 1;
    waiter.join();
    say("enough turns: %s, %d lost, %d wrong; something was sent each time: %s",
        yes_no(turns >= kEnough || lost != 0), lost.load(), wrong.load(), yes_no(least > 0));
}

void modify(int set, int fd, uint32_t events) {
    epoll_event event{};
    event.events = events;
    event.data.fd = fd;
    MUST(epoll_ctl(set, EPOLL_CTL_MOD, fd, &event));
}

/// A set that reports the client's end, which is writable, and has reported it.
int set_of(const Pair &pair, uint32_t events) {
    const int set = MUST(epoll_create1(0));
    epoll_event event{};
    event.events = events;
    event.data.fd = pair.client;
    MUST(epoll_ctl(set, EPOLL_CTL_ADD, pair.client, &event));
    say("%s", event_names(epoll_wait(set, &event, 1, kPatience) == 1 ? event.events : 0).c_str());
    return set;
}

} // namespace

BEHAVIOUR("a full one-shot member is armed again while somebody waits", full_one_shot_armed_again, accelerated) {
    const Pair pair = small_pair(make_listener());
    const int set = set_of(pair, EPOLLOUT | EPOLLONESHOT);
    take_turns(set, pair, Filled::before, [&] { modify(set, pair.client, EPOLLOUT | EPOLLONESHOT); });
}

BEHAVIOUR("a one-shot member is filled and armed again while somebody waits", one_shot_filled_and_armed_again,
          accelerated) {
    const Pair pair = small_pair(make_listener());
    const int set = set_of(pair, EPOLLOUT | EPOLLONESHOT);
    take_turns(set, pair, Filled::during, [&] { modify(set, pair.client, EPOLLOUT | EPOLLONESHOT); });
}

BEHAVIOUR("an edge-triggered member is filled while somebody waits", edge_triggered_and_filled, accelerated) {
    const Pair pair = small_pair(make_listener());
    const int set = set_of(pair, EPOLLOUT | kEdge);
    take_turns(set, pair, Filled::during, [] {});
}

int main(int argc, char **argv) { return run_behaviour(argc, argv); }
