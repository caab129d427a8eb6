// Large transfers: seeded random bytes in random sizes over several connections, compared at the other end.
// SD_TEST_TRANSFER_MIB sets the size of each connection (default 32).
#include "tests/programs/cases.hpp"
#include "tests/programs/process.hpp"

#include <random>
#include <sys/uio.h>

using namespace sdtest;

namespace {

constexpr int kConnections = 8;

uint64_t bytes_per_connection() {
    const char *text = getenv("SD_TEST_TRANSFER_MIB");
    return (text ? strtoull(text, nullptr, 10) : 32) << 20;
}

// The byte at each position depends on the seed and the position only.
class Stream {
  public:
    explicit Stream(uint64_t seed) : seed_(seed) {}

    void fill(char *to, uint64_t position, size_t size) const {
        size_t done = 0;
        while (done < size) {
            const uint64_t at = position + done;
            const uint64_t word = mix(seed_ + at / 8);
            const size_t skip = at % 8, take = std::min(size - done, 8 - skip);
            memcpy(to + done, reinterpret_cast<const char *>(&word) + skip, take);
            done += take;
        }
    }

  private:
    static uint64_t mix(uint64_t value) {
        value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9ull;
        value = (value ^ (value >> 27)) * 0x94d049bb133111ebull;
        return value ^ (value >> 31);
    }

    uint64_t seed_;
};

// Sizes from one byte to 256 KiB, the small ones as often as the large.
size_t random_size(std::mt19937_64 &random) { return 1 + random() % (size_t(1) << (1 + random() % 18)); }

// One direction of one connection; step() moves some bytes.
class Sender {
  public:
    Sender(int fd, uint64_t seed, uint64_t total)
        : fd_(fd), total_(total), stream_(seed << 40), random_(seed), buffer_(1 << 18, '\0') {}

    // False when all has been sent or nothing more fits now.
    bool step() {
        if (pending_ == 0) {
            pending_ = static_cast<size_t>(std::min<uint64_t>(random_size(random_), total_ - sent_));
            start_ = 0;
            stream_.fill(buffer_.data(), sent_, pending_);
        }
        if (pending_ == 0)
            return false;
        const ssize_t result = put();
        if (result < 0) {
            if (errno != EAGAIN)
                give_up("send");
            return false;
        }
        start_ += static_cast<size_t>(result);
        pending_ -= static_cast<size_t>(result);
        sent_ += static_cast<size_t>(result);
        return true;
    }

    bool done() const { return sent_ == total_; }

  private:
    ssize_t put() {
        char *const from = buffer_.data() + start_;
        if (random_() % 4 != 0)
            return send(fd_, from, pending_, MSG_NOSIGNAL);
        const size_t half = pending_ / 2;
        const iovec parts[] = {{from, half}, {from + half, pending_ - half}};
        return writev(fd_, parts, 2);
    }

    int fd_;
    uint64_t sent_ = 0, total_;
    Stream stream_;
    std::mt19937_64 random_;
    std::string buffer_;
    size_t start_ = 0, pending_ = 0;
};

class Receiver {
  public:
    Receiver(int fd, uint64_t seed, uint64_t total)
        : fd_(fd), total_(total), stream_(seed << 40), random_(seed + 1000), buffer_(1 << 18, '\0'),
          expected_(1 << 18, '\0') {}

    // False when nothing more is there now, or all has come.
    bool step() {
        if (done())
            return false;
        const size_t room = random_size(random_);
        const ssize_t got = recv(fd_, buffer_.data(), room, 0);
        if (got < 0) {
            if (errno != EAGAIN)
                give_up("recv");
            return false;
        }
        if (got == 0)
            give_up("early end");
        stream_.fill(expected_.data(), received_, static_cast<size_t>(got));
        if (memcmp(buffer_.data(), expected_.data(), static_cast<size_t>(got)) != 0) {
            say("wrong bytes near %llu", static_cast<unsigned long long>(received_));
            exit(1);
        }
        received_ += static_cast<size_t>(got);
        return true;
    }

    bool done() const { return received_ == total_; }

  private:
    int fd_;
    uint64_t received_ = 0, total_;
    Stream stream_;
    std::mt19937_64 random_;
    std::string buffer_, expected_;
};

uint64_t upward(int index) { return static_cast<uint64_t>(index) + 1; }

uint64_t downward(int index) { return static_cast<uint64_t>(index) + 101; }

// Both directions of all connections at once, from one thread, behind epoll.
void event_loop(const std::vector<int> &fds, bool is_client) {
    const uint64_t total = bytes_per_connection();
    const int set = MUST(epoll_create1(0));
    std::vector<Sender> senders;
    std::vector<Receiver> receivers;
    for (int i = 0; i < static_cast<int>(fds.size()); ++i) {
        const int fd = fds[static_cast<size_t>(i)];
        set_nonblocking(fd);
        // Answers are a quarter of the requests.
        senders.emplace_back(fd, is_client ? upward(i) : downward(i), is_client ? total : total / 4);
        receivers.emplace_back(fd, is_client ? downward(i) : upward(i), is_client ? total / 4 : total);
        epoll_event event{};
        event.events = EPOLLIN | EPOLLOUT | (i % 2 ? EPOLLET : 0u);
        event.data.u32 = static_cast<uint32_t>(i);
        MUST(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event));
    }
    size_t finished = 0;
    std::vector<bool> done(fds.size());
    while (finished < fds.size()) {
        epoll_event events[kConnections];
        const int count = epoll_wait(set, events, kConnections, 15000);
        if (count <= 0) {
            say("stuck");
            exit(1);
        }
        for (int i = 0; i < count; ++i) {
            const uint32_t index = events[i].data.u32;
            Sender &sender = senders[index];
            Receiver &receiver = receivers[index];
            while (receiver.step()) {
            }
            while (sender.step()) {
            }
            if (!done[index] && sender.done()) {
                epoll_event event{};
                event.events = EPOLLIN | (index % 2 ? EPOLLET : 0u);
                event.data.u32 = index;
                MUST(epoll_ctl(set, EPOLL_CTL_MOD, fds[index], &event));
            }
            if (!done[index] && sender.done() && receiver.done()) {
                done[index] = true;
                ++finished;
                MUST(epoll_ctl(set, EPOLL_CTL_DEL, fds[index], nullptr));
            }
        }
    }
}

std::vector<int> accept_all(int listener) {
    std::vector<int> fds;
    for (int i = 0; i < kConnections; ++i)
        fds.push_back(MUST(accept(listener, nullptr, nullptr)));
    return fds;
}

std::vector<int> connect_all(int listener) {
    std::vector<int> fds;
    for (int i = 0; i < kConnections; ++i)
        fds.push_back(connect_to(listener));
    return fds;
}

} // namespace

// A thread for each connection, requests only, blocking calls on both sides.
BEHAVIOUR("random sizes, blocking", blocking, accelerated) {
    const int listener = make_listener();
    const uint64_t total = bytes_per_connection();
    const pid_t child = spawn([&] {
        std::vector<std::thread> threads;
        const std::vector<int> fds = connect_all(listener);
        for (int i = 0; i < kConnections; ++i)
            threads.emplace_back([fd = fds[static_cast<size_t>(i)], i, total] {
                Sender sender(fd, upward(i), total);
                while (!sender.done())
                    sender.step();
                close(fd);
            });
        for (std::thread &thread : threads)
            thread.join();
    });
    std::vector<std::thread> threads;
    const std::vector<int> fds = accept_all(listener);
    for (int i = 0; i < kConnections; ++i)
        threads.emplace_back([fd = fds[static_cast<size_t>(i)], i, total] {
            Receiver receiver(fd, upward(i), total);
            while (!receiver.done())
                receiver.step();
            char byte;
            if (recv(fd, &byte, 1, 0) != 0)
                say("no end after connection %d", i);
        });
    for (std::thread &thread : threads)
        thread.join();
    reap("client", child);
    say("all bytes right");
}

BEHAVIOUR("random sizes both ways, epoll", non_blocking, accelerated) {
    const int listener = make_listener();
    const pid_t child = spawn([&] { event_loop(connect_all(listener), true); });
    event_loop(accept_all(listener), false);
    reap("client", child);
    say("all bytes right");
}

// One end blocks, the other does not.
BEHAVIOUR("blocking against non-blocking", mixed, accelerated) {
    const int listener = make_listener();
    const uint64_t total = bytes_per_connection();
    const pid_t child = spawn([&] {
        const int fd = connect_to(listener);
        Sender sender(fd, upward(0), total);
        std::thread writer([&] {
            while (!sender.done())
                sender.step();
        });
        Receiver receiver(fd, downward(0), total / 4);
        while (!receiver.done())
            receiver.step();
        writer.join();
    });
    event_loop({MUST(accept(listener, nullptr, nullptr))}, false);
    reap("client", child);
    say("all bytes right");
}

// A connection that has been idle gives memory back; what is sent next comes before the other side has looked
// again.
BEHAVIOUR("a burst after silence", burst_after_silence, accelerated) {
    for (const bool blocking : {true, false}) {
        const Pair pair = make_pair();
        set_nonblocking(pair.client, !blocking);
        const Gate go;
        std::thread writer([&] {
            for (int burst = 0; burst < 3; ++burst) {
                go.pass();
                const std::string data =
                    pattern(200000 + 20000 * static_cast<size_t>(burst), static_cast<uint64_t>(burst));
                for (size_t at = 0; at < data.size();) {
                    const ssize_t n = write(pair.client, data.data() + at, data.size() - at);
                    if (n > 0)
                        at += static_cast<size_t>(n);
                    else if (n < 0 && errno == EAGAIN)
                        wait_for(pair.client, POLLOUT);
                    else
                        give_up("write");
                }
                poll_now(pair.client, POLLIN, 1000); // asleep for long enough
            }
        });
        for (int burst = 0; burst < 3; ++burst) {
            go.open();
            sleep_ms(burst == 0 ? 0 : 100); // lets the writer get ahead
            const std::string data =
                pattern(200000 + 20000 * static_cast<size_t>(burst), static_cast<uint64_t>(burst));
            SHOW_BOOL(receive(pair.server, data.size()) == data);
            sleep_ms(1100);
        }
        writer.join();
    }
}

int main(int argc, char **argv) { return run_behaviour(argc, argv); }
