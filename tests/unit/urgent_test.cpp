// Urgent data: the same seeded sequences of calls on a connection of ours and on a kernel connection.
#include "tests/unit/stream_pair.hpp"

#include "libsd/vfs/readiness/stream_readiness.hpp"
#include "libsd/vfs/streams/urgent.hpp"
#include <linux/sockios.h>
#include <random>
#include <string>
#include <sys/ioctl.h>

using namespace sd;
using namespace sd::test;

namespace {

/// What one call answered, as text.
std::string seen(long r, const char *data) {
    std::string s = std::to_string(r);
    if (r > 0)
        s.append(" ").append(data, static_cast<size_t>(r));
    return s;
}

struct Ours {
    StreamPair p;
    std::string send(const char *d, size_t n, int flags) {
        return std::to_string(vfs::send(p.fd[0], p.file(0), d, n, flags));
    }
    std::string recv(size_t n, int flags) {
        char room[64];
        return seen(vfs::recv(p.fd[1], p.file(1), room, n, flags | MSG_DONTWAIT), room);
    }
    int ioctl(unsigned long request) {
        int v = -1;
        return vfs::ioctl(p.fd[1], request, &v) < 0 ? -1 : v;
    }
    uint32_t events() { return stream_events(*p.file(1)) & (EPOLLIN | EPOLLPRI | EPOLLRDHUP); }
    void set_inline() {
        const int one = 1;
        CHECK(set_option(p.fd[1], SOL_SOCKET, SO_OOBINLINE, &one, sizeof one) == 0);
    }
};

struct Kernels {
    KernelPair p;
    std::string send(const char *d, size_t n, int flags) {
        std::string r =
            std::to_string(sys::call(SYS_sendto, p.fd[0], sys::arg(d), static_cast<long>(n), flags, 0, 0));
        int v = 1; // until it has arrived
        while (sys::ioctl(p.fd[0], SIOCOUTQ, &v) == 0 && v > 0)
            sys::sched_yield();
        return r;
    }
    std::string recv(size_t n, int flags) {
        char room[64];
        return seen(sys::call(SYS_recvfrom, p.fd[1], sys::arg(room), static_cast<long>(n),
                              flags | MSG_DONTWAIT, 0, 0),
                    room);
    }
    int ioctl(unsigned long request) {
        int v = -1;
        return sys::ioctl(p.fd[1], request, &v) < 0 ? -1 : v;
    }
    uint32_t events() {
        pollfd q{p.fd[1], POLLIN | POLLPRI | POLLRDHUP, 0};
        timespec now{0, 0};
        sys::ppoll(&q, 1, &now, nullptr);
        return static_cast<uint32_t>(q.revents);
    }
    void set_inline() {
        const int one = 1;
        CHECK(sys::setsockopt(p.fd[1], SOL_SOCKET, SO_OOBINLINE, &one, sizeof one) == 0);
    }
};

} // namespace

TEST_CASE("urgent data is seen as with the kernel") {
    for (unsigned seed = 0; seed < 60; ++seed) {
        std::mt19937 random(seed);
        Ours ours;
        Kernels kernels;
        if (seed % 3 == 2) {
            ours.set_inline();
            kernels.set_inline();
        }
        std::string history;
        bool urgent_pending = false;
        char next = 'a';
        for (int step = 0; step < 60; ++step) {
            char data[8];
            const size_t n = 1 + random() % 5;
            for (size_t i = 0; i < n; ++i) {
                data[i] = next;
                next = next == 'z' ? 'a' : static_cast<char>(next + 1);
            }
            std::string a, b;
            const unsigned what = random() % 10;
            switch (what) {
            case 0:
            case 1:
                history += " send" + std::to_string(n);
                a = ours.send(data, n, 0);
                b = kernels.send(data, n, 0);
                break;
            case 2:
                // Linux has a special treatment of a second urgent byte that meets the first one unread; not
                // imitated.
                if (urgent_pending)
                    continue;
                history += " urgent" + std::to_string(n);
                a = ours.send(data, n, MSG_OOB);
                b = kernels.send(data, n, MSG_OOB);
                urgent_pending = true;
                break;
            case 3:
            case 4:
                history += " recv" + std::to_string(n * 2);
                a = ours.recv(n * 2, 0);
                b = kernels.recv(n * 2, 0);
                break;
            case 5:
                history += " peek";
                a = ours.recv(n * 2, MSG_PEEK);
                b = kernels.recv(n * 2, MSG_PEEK);
                break;
            case 6:
                history += " recv-urgent";
                a = ours.recv(1, MSG_OOB);
                b = kernels.recv(1, MSG_OOB);
                break;
            case 7:
                history += " peek-urgent";
                a = ours.recv(1, MSG_OOB | MSG_PEEK);
                b = kernels.recv(1, MSG_OOB | MSG_PEEK);
                break;
            case 8:
                history += " drain";
                for (int i = 0; i < 40; ++i) {
                    a += ours.recv(60, 0) + ";";
                    b += kernels.recv(60, 0) + ";";
                }
                urgent_pending = false;
                break;
            default:
                break;
            }
            a += " at mark " + std::to_string(ours.ioctl(SIOCATMARK)) + " bytes " +
                 std::to_string(ours.ioctl(FIONREAD)) + " events " + std::to_string(ours.events());
            b += " at mark " + std::to_string(kernels.ioctl(SIOCATMARK)) + " bytes " +
                 std::to_string(kernels.ioctl(FIONREAD)) + " events " + std::to_string(kernels.events());
            INFO("seed " << seed << ":" << history);
            REQUIRE(a == b);
        }
    }
}

TEST_CASE("an urgent byte finds room in a full ring, or the send says so") {
    StreamPair p;
    CHECK(vfs::fcntl(p.fd[0], F_SETFL, O_NONBLOCK) == 0);
    char chunk[4096] = {};
    while (vfs::send(p.fd[0], p.file(0), chunk, sizeof chunk, 0) > 0) {
    }
    const long r = vfs::send(p.fd[0], p.file(0), "!", 1, MSG_OOB);
    CHECK((r == 1 || r == -EAGAIN));
    CHECK(urgent_unread(*p.file(1)) == (r == 1));
}
