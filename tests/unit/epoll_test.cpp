// epoll instances over connections inside the test's own process: where members are kept, and edge triggering
// against the kernel's.
#include "tests/unit/stream_pair.hpp"

#include "libsd/vfs/readiness/epoll/epoll_set.hpp"
#include <algorithm>
#include <linux/tcp.h>
#include <memory>
#include <random>
#include <string>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <thread>
#include <vector>

using namespace sd;
using namespace sd::test;

namespace {

constexpr unsigned kId = 9; ///< what the monitor would have given the instance

int make_set() {
    test_link(0);
    int fd = static_cast<int>(sys::epoll_create1(EPOLL_CLOEXEC));
    vfs::epoll_created(fd);
    REQUIRE(file_of(fd) != nullptr);
    return fd;
}

Epoll &set_of(int fd) { return *file_of(fd)->epoll; }

/// Stands in for the monitor: the server side's waiter can be armed and rung.
void give_id(int set) {
    Bell *b = set_of(set).bell;
    REQUIRE(b != nullptr);
    b->id[test_link(1)->index] = kId;
    auto &peer = test_link(0)->peer_bell[kId];
    peer.generation = test_link(0)->view.header().bell_generation[1][kId].load();
    peer.fd = b->efd;
}

long set_control(int set, int op, int fd, uint32_t events, uint64_t data) {
    epoll_event e{};
    e.events = events;
    e.data.u64 = data;
    return vfs::epoll_ctl(set, op, fd, &e);
}

/// Data words of what the set reports now.
std::vector<uint64_t> ready(int set, int room = 256) {
    std::vector<epoll_event> e(static_cast<size_t>(room));
    timespec none{0, 0};
    long n = vfs::epoll_wait(set, e.data(), room, &none, nullptr);
    REQUIRE(n >= 0);
    std::vector<uint64_t> data;
    for (long i = 0; i < n; ++i)
        data.push_back(uint64_t{e[static_cast<size_t>(i)].data.u64}); // which is not aligned
    return data;
}

long give(const StreamPair &p, size_t n) {
    std::string bytes(n, 'x');
    return vfs::send(p.fd[0], p.file(0), bytes.data(), n, MSG_DONTWAIT | MSG_NOSIGNAL);
}
long take(const StreamPair &p, size_t n) {
    std::string room(n, 0);
    return vfs::recv(p.fd[1], p.file(1), room.data(), n, MSG_DONTWAIT);
}

using Pairs = std::vector<std::unique_ptr<StreamPair>>;

Pairs members(int set, unsigned count, uint32_t events) {
    Pairs pairs;
    for (unsigned i = 0; i < count; ++i) {
        pairs.push_back(std::make_unique<StreamPair>());
        REQUIRE(set_control(set, EPOLL_CTL_ADD, pairs[i]->fd[1], events, i) == 0);
    }
    give_id(set);
    return pairs;
}

} // namespace

TEST_CASE("members beyond the hot ones are armed, and found again through the ready bitmap") {
    const int set = make_set();
    Pairs pairs = members(set, 200, EPOLLIN);
    Epoll &x = set_of(set);
    for (unsigned looks = 0; looks < kVainLooks; ++looks)
        CHECK(ready(set).empty());
    CHECK(x.hot.size() == 200); // arming them would cost as much as these looks
    CHECK(ready(set).empty());
    CHECK(x.hot.size() <= kHotItems);
    for (unsigned round = 0; round < 3; ++round)
        for (unsigned i : {0u, 63u, 64u, 131u, 199u}) {
            REQUIRE(give(*pairs[i], 5) == 5);
            CHECK(ready(set) == std::vector<uint64_t>{i});
            CHECK(ready(set) == std::vector<uint64_t>{i}); // level-triggered: still there
            REQUIRE(take(*pairs[i], 5) == 5);
            CHECK(ready(set).empty());
        }
    // All at once, with room for fewer: every one gets its turn.
    for (auto &p : pairs)
        REQUIRE(give(*p, 1) == 1);
    std::vector<bool> seen(pairs.size());
    for (size_t k = 0; k < pairs.size(); k += 8)
        for (uint64_t d : ready(set, 8))
            seen[d] = true;
    CHECK(std::count(seen.begin(), seen.end(), true) == static_cast<long>(pairs.size()));
    pairs.clear();
    CHECK(ready(set).empty());
    CHECK(x.ours == 0);
    CHECK(x.links.size() == 0);
    vfs::close(set);
}

TEST_CASE("a member that is idle while another is busy is armed, and costs nothing until its peer sends") {
    const int set = make_set();
    Pairs pairs = members(set, 2, EPOLLIN);
    for (unsigned i = 0; i < 2 * kIdleReports; ++i) {
        REQUIRE(give(*pairs[0], 3) == 3);
        REQUIRE(ready(set) == std::vector<uint64_t>{0});
        REQUIRE(take(*pairs[0], 3) == 3);
    }
    Epoll &x = set_of(set);
    CHECK(x.hot.size() == 1);
    REQUIRE(give(*pairs[1], 3) == 3);
    CHECK(ready(set) == std::vector<uint64_t>{1});
    CHECK(x.hot.size() == 2);
    vfs::close(set);
}

TEST_CASE("the end of the peer is reported for armed members") {
    const int set = make_set();
    Pairs pairs = members(set, 100, EPOLLIN | EPOLLRDHUP | EPOLLET);
    CHECK(ready(set).empty());
    for (unsigned i : {1u, 50u, 99u}) {
        vfs::close(pairs[i]->fd[0]);
        CHECK(ready(set) == std::vector<uint64_t>{i});
        CHECK(ready(set).empty());
    }
    vfs::close(set);
}

TEST_CASE("a full ring of an armed edge-triggered member is reported once it is drained") {
    const int set = make_set();
    Pairs pairs = members(set, 100, EPOLLIN | EPOLLOUT | EPOLLET);
    CHECK(ready(set).size() == pairs.size());
    CHECK(ready(set).empty());
    const StreamPair &p = *pairs[80];
    std::string chunk(60000, 'y');
    size_t sent = 0;
    for (long r; (r = vfs::send(p.fd[1], p.file(1), chunk.data(), chunk.size(), MSG_DONTWAIT)) > 0;)
        sent += static_cast<size_t>(r);
    CHECK(ready(set).empty());
    while (sent > 0) {
        long r = vfs::recv(p.fd[0], p.file(0), chunk.data(), chunk.size(), MSG_DONTWAIT);
        REQUIRE(r > 0);
        sent -= static_cast<size_t>(r);
    }
    CHECK(ready(set) == std::vector<uint64_t>{80});
    CHECK(ready(set).empty());
    vfs::close(set);
}

TEST_CASE("edge triggering reports arrivals exactly as the kernel's does") {
    const int set = make_set(), kernels = static_cast<int>(sys::epoll_create1(EPOLL_CLOEXEC));
    StreamPair ours;
    KernelPair plain;
    const int one =
        1; // so that the kernel delivers each send at once, as we do; the same reason bounds what is unread
    REQUIRE(sys::setsockopt(plain.fd[0], IPPROTO_TCP, TCP_NODELAY, &one, sizeof one) == 0);
    epoll_event e{};
    e.events = EPOLLIN | EPOLLET;
    REQUIRE(vfs::epoll_ctl(set, EPOLL_CTL_ADD, ours.fd[1], &e) == 0);
    REQUIRE(sys::epoll_ctl(kernels, EPOLL_CTL_ADD, plain.fd[1], &e) == 0);
    give_id(set);
    std::mt19937 random(20);
    std::string buffer(70000, 'z');
    size_t pending = 0;
    for (unsigned step = 0; step < 20000; ++step) {
        INFO("step " << step);
        switch (random() % 4) {
        case 0: {
            size_t n = 1 + random() % (random() % 16 == 0 ? 4000 : 300);
            if (pending + n > 8000)
                break;
            REQUIRE(give(ours, n) == static_cast<long>(n));
            REQUIRE(sys::call(SYS_sendto, plain.fd[0], sys::arg(buffer.data()), static_cast<long>(n)) ==
                    static_cast<long>(n));
            pending += n;
            for (int there = 0; static_cast<size_t>(there) < pending;) // it may be on its way
                REQUIRE(sys::ioctl(plain.fd[1], FIONREAD, &there) == 0);
            break;
        }
        case 1: {
            size_t n = 1 + random() % 2000;
            n = n < pending ? n : pending;
            if (n == 0)
                break;
            REQUIRE(take(ours, n) == static_cast<long>(n));
            REQUIRE(sys::call(SYS_recvfrom, plain.fd[1], sys::arg(buffer.data()), static_cast<long>(n)) ==
                    static_cast<long>(n));
            pending -= n;
            break;
        }
        case 2:
            if (random() % 4 == 0) {
                REQUIRE(vfs::epoll_ctl(set, EPOLL_CTL_MOD, ours.fd[1], &e) == 0);
                REQUIRE(sys::epoll_ctl(kernels, EPOLL_CTL_MOD, plain.fd[1], &e) == 0);
            }
            break;
        default: {
            epoll_event k{};
            long expected = sys::epoll_pwait(kernels, &k, 1, 0, nullptr);
            REQUIRE(static_cast<long>(ready(set).size()) == expected);
        }
        }
    }
    vfs::close(set);
    sys::close(kernels);
}

TEST_CASE("one-shot members wake one of several threads for each message") {
    const int set = make_set();
    constexpr unsigned kMembers = 8, kThreads = 4, kMessages = 4000;
    Pairs pairs = members(set, kMembers, EPOLLIN | EPOLLONESHOT);
    std::atomic<unsigned> taken{0};
    std::vector<std::thread> threads;
    for (unsigned t = 0; t < kThreads; ++t)
        threads.emplace_back([&] {
            while (taken < kMessages) {
                epoll_event e;
                timespec limit{0, 5'000'000};
                if (vfs::epoll_wait(set, &e, 1, &limit, nullptr) != 1)
                    continue;
                char byte;
                const StreamPair &p = *pairs[e.data.u64];
                long got = 0;
                while (vfs::recv(p.fd[1], p.file(1), &byte, 1, MSG_DONTWAIT) == 1)
                    ++got;
                taken += static_cast<unsigned>(got);
                set_control(set, EPOLL_CTL_MOD, p.fd[1], EPOLLIN | EPOLLONESHOT, e.data.u64);
            }
        });
    for (unsigned i = 0; i < kMessages; ++i) {
        REQUIRE(give(*pairs[i % kMembers], 1) == 1);
        if (i % 64 == 0)
            std::this_thread::sleep_for(std::chrono::microseconds(200));
    }
    for (auto &t : threads)
        t.join();
    CHECK(taken == kMessages);
    vfs::close(set);
}

TEST_CASE("members of all kinds come and go while others wait") {
    const int set = make_set();
    Pairs pairs = members(set, 4, EPOLLIN);
    std::atomic<bool> stop{false}, failed{false};
    std::vector<std::thread> waiters;
    for (int t = 0; t < 2; ++t)
        waiters.emplace_back([&] {
            while (!stop) {
                epoll_event e[8];
                timespec limit{0, 1'000'000};
                if (vfs::epoll_wait(set, e, 8, &limit, nullptr) < 0)
                    failed = true;
            }
        });
    const int counter = static_cast<int>(sys::eventfd(1, 0));
    for (int i = 0; i < 3000; ++i) {
        StreamPair p;
        REQUIRE(set_control(set, EPOLL_CTL_ADD, p.fd[1],
                            EPOLLIN | (i % 2 ? static_cast<uint32_t>(EPOLLET) : 0u), 7) == 0);
        give(p, 1);
        int inner = i % 16 == 0 ? make_set() : -1;
        if (inner >= 0) {
            REQUIRE(set_control(set, EPOLL_CTL_ADD, inner, EPOLLIN, 8) == 0);
            REQUIRE(set_control(inner, EPOLL_CTL_ADD, p.fd[0], EPOLLOUT, 9) == 0);
        }
        REQUIRE(set_control(set, EPOLL_CTL_ADD, counter, EPOLLIN, 10) == 0);
        REQUIRE(set_control(set, EPOLL_CTL_DEL, counter, 0, 0) == 0);
        if (i % 3 == 0)
            REQUIRE(set_control(set, EPOLL_CTL_DEL, p.fd[1], 0, 0) == 0);
        if (inner >= 0)
            vfs::close(inner);
    }
    stop = true;
    for (auto &t : waiters)
        t.join();
    CHECK_FALSE(failed);
    CHECK(set_of(set).ours == pairs.size());
    sys::close(counter);
    vfs::close(set);
}

namespace {

/// A socket that is bound to slots of the test's link and taken off again, as by a connect() that does not
/// get through.
struct Connecting {
    int fd = static_cast<int>(vfs::socket(AF_INET, SOCK_STREAM, 0));
    uint32_t slot = 0;

    File &file() const { return *file_of(fd); }
    void bind() {
        slot = static_cast<uint32_t>(take_slot(*test_link(0))); // nobody else has the link: no lock
        REQUIRE(bind_stream(file(), *test_link(1), slot, AF_INET));
    }
};

} // namespace

TEST_CASE("a connection that is undone leaves its sets, and they find the socket's next one") {
    const int set = make_set();
    Connecting socket;
    socket.bind();
    const uint32_t first = socket.slot;
    REQUIRE(set_control(set, EPOLL_CTL_ADD, socket.fd, EPOLLIN, 7) == 0);
    give_id(set);
    Epoll &x = set_of(set);
    REQUIRE(x.links.size() == 1);
    REQUIRE(unbind_stream(socket.file()));
    CHECK(socket.file().kind == FileKind::fresh);
    CHECK(x.links.size() == 0);
    CHECK(x.streams == 0);
    CHECK(x.items[0]->link == nullptr);
    socket.bind();
    REQUIRE(socket.slot != first);
    epoll_file_became_stream(socket.file());
    CHECK(x.items[0]->link == test_link(1));
    CHECK(x.items[0]->slot == socket.slot);
    vfs::close(socket.fd);
    CHECK(x.links.size() == 0);
    vfs::close(set);
}

// Who adds it has seen what it was, and its registration is in no list yet.
TEST_CASE("a socket that becomes another kind waits for who is adding it to a set") {
    Connecting socket;
    const auto waits = [&](void (*became)(File &)) {
        std::atomic<int> state{0};
        std::thread other;
        {
            const BiasedGuard adding(ctl_lock(socket.file()));
            other = std::thread([&] {
                state = 1;
                became(socket.file());
                state = 2;
            });
            while (state == 0)
                std::this_thread::yield();
            for (int i = 0; i < 1000 && state != 2; ++i)
                usleep(10);
            CHECK(state == 1);
        }
        other.join();
    };
    waits(epoll_file_became_stream);
    waits(epoll_file_became_listener);
    waits([](File &f) { epoll_file_became_kernel(f); });
    vfs::close(socket.fd);
}
