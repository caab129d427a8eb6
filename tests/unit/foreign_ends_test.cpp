// A waiter that one process of another trust domain can ring.
#include "libsd/control/sys.hpp"
#include "libsd/queue/bell.hpp"

#include <catch2/catch.hpp>
#include <memory>
#include <poll.h>
#include <sys/socket.h>

using namespace sd;

namespace {

/// A bell with one end in its set; the peer's end is the test's.
struct Rung {
    std::unique_ptr<Bell> bell = std::make_unique<Bell>();
    int own, theirs;

    Rung() {
        int pair[2];
        REQUIRE(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair) == 0);
        own = pair[0], theirs = pair[1];
        bell->foreign.set = static_cast<int>(sys::epoll_create1(EPOLL_CLOEXEC));
        epoll_event e{EPOLLIN | EPOLLET, {.u32 = 0}};
        REQUIRE(sys::epoll_ctl(bell->foreign.set, EPOLL_CTL_ADD, own, &e) == 0);
        bell->foreign.end[0] = own;
        bell->foreign.used = 1;
    }
    ~Rung() {
        for (const int fd : {own, theirs, bell->foreign.set.load()})
            sys::close(fd);
    }
    Rung(const Rung &) = delete;
    Rung &operator=(const Rung &) = delete;
    void ring() const { REQUIRE(send(theirs, "x", 1, MSG_DONTWAIT) == 1); }
    bool is_readable() const {
        pollfd p{own, POLLIN, 0};
        return poll(&p, 1, 0) == 1;
    }
};

} // namespace

TEST_CASE("the only other who rings is heard until all that he sent has been taken") {
    const Rung r;
    REQUIRE(only_end(*r.bell) == r.own);
    r.ring();
    r.ring();
    take_from_only_end(*r.bell);
    CHECK(r.is_readable());
    take_from_only_end(*r.bell);
    CHECK_FALSE(r.is_readable());
    take_from_only_end(*r.bell); // nothing
    CHECK(only_end(*r.bell) == r.own);
}

TEST_CASE("one who has ended his end is not asked again, whatever the set had told before") {
    Rung r;
    r.ring();
    const bool is_told_before = GENERATE(false, true);
    shutdown(r.theirs, SHUT_RDWR);
    if (is_told_before) {
        epoll_event e{};
        REQUIRE(sys::epoll_pwait(r.bell->foreign.set, &e, 1, 0, nullptr) == 1);
    }
    for (int i = 0; i < 3 && only_end(*r.bell) >= 0; ++i)
        take_from_only_end(*r.bell);
    CHECK(only_end(*r.bell) == -1);
    CHECK(r.bell->foreign.ended == 1);
}

TEST_CASE("where there are several, the set is asked") {
    Rung r, second;
    r.bell->foreign.end[1] = second.own;
    r.bell->foreign.used = 3;
    CHECK(only_end(*r.bell) == -1);
    r.bell->foreign.used = 1;
    r.bell->foreign.other = 5;
    CHECK(only_end(*r.bell) == -1);
    r.bell->foreign.used = 0;
    r.bell->foreign.other = -1;
    CHECK(only_end(*r.bell) == -1);
}
