// sd-bridge on its own, between pairs of kernel TCP connections: what happens at one far end must show at the
// other.
#include "monitor/bridge/bridge_packet.hpp"
#include "monitor/kernel/unique_fd.hpp"
#include "tests/e2e/runner.hpp"

#include <catch2/catch.hpp>

#include <csignal>
#include <cstring>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <vector>

using sd::monitor::BridgePacket;
using sd::monitor::UniqueFd;

namespace {

constexpr int kPatience = 10000; // ms

struct Connection {
    UniqueFd near, far;
    Connection() {
        const UniqueFd listener(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
        sockaddr_in name{};
        name.sin_family = AF_INET;
        name.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        socklen_t n = sizeof name;
        REQUIRE(bind(listener.get(), reinterpret_cast<sockaddr *>(&name), n) == 0);
        REQUIRE(listen(listener.get(), 1) == 0);
        REQUIRE(getsockname(listener.get(), reinterpret_cast<sockaddr *>(&name), &n) == 0);
        far.reset(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
        REQUIRE(connect(far.get(), reinterpret_cast<sockaddr *>(&name), n) == 0);
        near.reset(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
        REQUIRE(near);
    }
};

class BridgeProgram {
  public:
    BridgeProgram() {
        int ends[2];
        REQUIRE(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) == 0);
        channel_.reset(ends[0]);
        const UniqueFd theirs(ends[1]);
        const std::string path = sd::e2e::build_file("sd-bridge");
        pid_ = fork();
        REQUIRE(pid_ >= 0);
        if (pid_ == 0) {
            if (theirs.get() == 3) {
                fcntl(3, F_SETFD, 0);
            } else {
                dup2(theirs.get(), 3);
            }
            execl(path.c_str(), path.c_str(), nullptr);
            _exit(127);
        }
    }
    ~BridgeProgram() {
        if (pid_ > 0) {
            kill(pid_, SIGKILL);
            waitpid(pid_, nullptr, 0);
        }
    }

    void join(UniqueFd accelerated, UniqueFd kernel) const {
        const int fds[2] = {accelerated.get(), kernel.get()};
        send(BridgePacket{}, fds, 2);
    }
    void send(BridgePacket packet, const int *fds, size_t count) const {
        iovec part{&packet, sizeof packet};
        alignas(cmsghdr) char control[CMSG_SPACE(2 * sizeof(int))] = {};
        msghdr message{};
        message.msg_iov = &part;
        message.msg_iovlen = 1;
        message.msg_control = control;
        message.msg_controllen = CMSG_SPACE(count * sizeof(int));
        cmsghdr *c = CMSG_FIRSTHDR(&message);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(count * sizeof(int));
        memcpy(CMSG_DATA(c), fds, count * sizeof(int));
        REQUIRE(sendmsg(channel_.get(), &message, 0) == sizeof packet);
    }
    void hang_up() { channel_.reset(); }
    int wait() {
        int status = -1;
        REQUIRE(waitpid(pid_, &status, 0) == pid_);
        pid_ = -1;
        return status;
    }
    /// Processor time used so far, in ms.
    long processor_ms() const {
        clockid_t clock;
        timespec t{};
        REQUIRE(clock_getcpuclockid(pid_, &clock) == 0);
        REQUIRE(clock_gettime(clock, &t) == 0);
        return t.tv_sec * 1000 + t.tv_nsec / 1'000'000;
    }

  private:
    UniqueFd channel_;
    pid_t pid_ = -1;
};

/// Two far ends with the bridge in between.
struct Ends {
    UniqueFd client;  ///< beyond the accelerated connection
    UniqueFd program; ///< the kernel socket that a program has
    explicit Ends(const BridgeProgram &bridge) {
        Connection a, b;
        client = std::move(a.far);
        program = std::move(b.far);
        bridge.join(std::move(a.near), std::move(b.near));
    }
};

uint64_t hash(const char *data, size_t n, uint64_t h) {
    for (size_t i = 0; i < n; ++i) {
        h = (h ^ static_cast<unsigned char>(data[i])) * 1099511628211ull;
    }
    return h;
}

/// Sends `total` bytes that depend on the seed, then ends the stream. Returns their hash.
uint64_t send_stream(int fd, size_t total, uint64_t seed) {
    std::vector<char> chunk(100'000);
    uint64_t h = 0, state = seed;
    while (total > 0) {
        for (size_t i = 0; i + 8 <= chunk.size(); i += 8) {
            state = state * 6364136223846793005ull + 1442695040888963407ull;
            memcpy(&chunk[i], &state, 8);
        }
        const size_t n = std::min(total, chunk.size());
        h = hash(chunk.data(), n, h);
        for (size_t done = 0; done < n;) {
            const ssize_t r = send(fd, chunk.data() + done, n - done, MSG_NOSIGNAL);
            if (r <= 0) {
                return 0;
            }
            done += static_cast<size_t>(r);
        }
        total -= n;
    }
    shutdown(fd, SHUT_WR);
    return h;
}

uint64_t receive_stream(int fd, size_t *total) {
    std::vector<char> chunk(65536);
    uint64_t h = 0;
    *total = 0;
    for (ssize_t n; (n = recv(fd, chunk.data(), chunk.size(), 0)) > 0; *total += static_cast<size_t>(n)) {
        h = hash(chunk.data(), static_cast<size_t>(n), h);
    }
    return h;
}

std::string receive(int fd, size_t n) {
    std::string text(n, '\0');
    const ssize_t r = recv(fd, text.data(), n, MSG_WAITALL);
    text.resize(r > 0 ? static_cast<size_t>(r) : 0);
    return text;
}

bool comes(int fd, short events) {
    pollfd p{fd, events, 0};
    return poll(&p, 1, kPatience) == 1 && (p.revents & events) != 0;
}

void abort_connection(UniqueFd &fd) {
    const linger hard{1, 0};
    setsockopt(fd.get(), SOL_SOCKET, SO_LINGER, &hard, sizeof hard);
    fd.reset();
}

} // namespace

TEST_CASE("bridge: much data both ways at once") {
    BridgeProgram bridge;
    Ends ends(bridge);
    constexpr size_t kTotal = 100u << 20;
    uint64_t sent[2], got[2];
    size_t size[2];
    std::thread a([&] { sent[0] = send_stream(ends.client.get(), kTotal, 1); });
    std::thread b([&] { sent[1] = send_stream(ends.program.get(), kTotal, 2); });
    std::thread c([&] { got[0] = receive_stream(ends.program.get(), &size[0]); });
    got[1] = receive_stream(ends.client.get(), &size[1]);
    a.join();
    b.join();
    c.join();
    CHECK(size[0] == kTotal);
    CHECK(size[1] == kTotal);
    CHECK(sent[0] == got[0]);
    CHECK(sent[1] == got[1]);
    bridge.hang_up();
    CHECK(bridge.wait() == 0);
}

TEST_CASE("bridge: each direction ends by itself") {
    BridgeProgram bridge;
    for (const bool from_client : {true, false}) {
        Ends ends(bridge);
        const int x = (from_client ? ends.client : ends.program).get();
        const int y = (from_client ? ends.program : ends.client).get();
        REQUIRE(send(x, "question", 8, 0) == 8);
        REQUIRE(shutdown(x, SHUT_WR) == 0);
        CHECK(receive(y, 100) == "question");
        CHECK(send(y, "answer", 6, 0) == 6);
        CHECK(receive(x, 6) == "answer");
        CHECK(send(y, " goes on", 8, 0) == 8);
        REQUIRE(shutdown(y, SHUT_WR) == 0);
        CHECK(receive(x, 100) == " goes on");
    }
}

TEST_CASE("bridge: a reset at one end is one at the other") {
    BridgeProgram bridge;
    for (const bool from_client : {true, false}) {
        for (const bool after_end : {false, true}) {
            CAPTURE(from_client, after_end);
            Ends ends(bridge);
            UniqueFd &x = from_client ? ends.client : ends.program;
            UniqueFd &y = from_client ? ends.program : ends.client;
            REQUIRE(send(x.get(), "last words", 10, 0) == 10);
            if (after_end) {
                REQUIRE(shutdown(x.get(), SHUT_WR) == 0);
                CHECK(receive(y.get(), 100) == "last words");
            } else {
                CHECK(receive(y.get(), 10) == "last words");
            }
            abort_connection(x);
            CHECK(comes(y.get(), POLLERR | POLLHUP));
            int error = 0;
            socklen_t n = sizeof error;
            REQUIRE(getsockopt(y.get(), SOL_SOCKET, SO_ERROR, &error, &n) == 0);
            CHECK(error == (after_end ? EPIPE : ECONNRESET));
        }
    }
}

TEST_CASE("bridge: back pressure, and data on its way when the sender closes") {
    BridgeProgram bridge;
    Ends ends(bridge);
    // The program reads nothing for the time being: the client must be held up at some point.
    fcntl(ends.client.get(), F_SETFL, O_NONBLOCK);
    std::vector<char> chunk(65536, 'x');
    size_t sent = 0;
    for (int full = 0; full < 3;) {
        const ssize_t n = send(ends.client.get(), chunk.data(), chunk.size(), MSG_NOSIGNAL);
        if (n > 0) {
            sent += static_cast<size_t>(n);
            full = 0;
        } else {
            pollfd p{ends.client.get(), POLLOUT, 0};
            full += poll(&p, 1, 100) == 0;
        }
        REQUIRE(sent < (1u << 30));
    }
    const long before = bridge.processor_ms();
    usleep(300'000);
    CHECK(bridge.processor_ms() - before < 50); // it waits, it does not spin
    ends.client.reset();
    size_t got = 0;
    receive_stream(ends.program.get(), &got);
    CHECK(got == sent);
}

TEST_CASE("bridge: a program that closes its socket is gone for both directions") {
    BridgeProgram bridge;
    Ends ends(bridge);
    REQUIRE(send(ends.program.get(), "bye", 3, 0) == 3);
    ends.program.reset();
    CHECK(receive(ends.client.get(), 100) == "bye");
    // Not half closed: the connection's last holder has gone, which only writing to it can show.
    bridge.hang_up();
    CHECK(bridge.wait() == 0);
}

TEST_CASE("bridge: a program that only ends its stream is still there") {
    BridgeProgram bridge;
    Ends ends(bridge);
    REQUIRE(shutdown(ends.program.get(), SHUT_WR) == 0);
    CHECK(receive(ends.client.get(), 1).empty());
    const long before = bridge.processor_ms();
    usleep(300'000);
    CHECK(bridge.processor_ms() - before < 50);
    REQUIRE(send(ends.client.get(), "still there?", 12, MSG_NOSIGNAL) == 12);
    CHECK(receive(ends.program.get(), 12) == "still there?");
    bridge.hang_up();
    ends.client.reset();
    CHECK(receive(ends.program.get(), 1).empty());
    CHECK(bridge.wait() == 0);
}

TEST_CASE("bridge: urgent data keeps its place") {
    BridgeProgram bridge;
    Ends ends(bridge);
    REQUIRE(send(ends.client.get(), "before", 6, 0) == 6);
    REQUIRE(send(ends.client.get(), "!", 1, MSG_OOB) == 1);
    REQUIRE(comes(ends.program.get(), POLLPRI));
    REQUIRE(send(ends.client.get(), "behind", 6, 0) == 6);
    char mark = 0;
    CHECK(recv(ends.program.get(), &mark, 1, MSG_OOB) == 1);
    CHECK(mark == '!');
    CHECK(receive(ends.program.get(), 6) == "before");
    CHECK(sockatmark(ends.program.get()) == 1);
    CHECK(receive(ends.program.get(), 6) == "behind");
}

TEST_CASE("bridge: two hundred at once") {
    BridgeProgram bridge;
    std::vector<Ends> all;
    for (int i = 0; i < 200; ++i) {
        all.emplace_back(bridge);
    }
    for (size_t i = 0; i < all.size(); ++i) {
        const std::string text = "client " + std::to_string(i + 1000);
        REQUIRE(send(all[i].client.get(), text.data(), text.size(), 0) == static_cast<ssize_t>(text.size()));
        REQUIRE(send(all[i].program.get(), text.data(), text.size(), 0) == static_cast<ssize_t>(text.size()));
    }
    for (size_t i = 0; i < all.size(); ++i) {
        const std::string text = "client " + std::to_string(i + 1000);
        REQUIRE(receive(all[i].client.get(), text.size()) == text);
        REQUIRE(receive(all[i].program.get(), text.size()) == text);
    }
    bridge.hang_up();
    for (size_t i = 0; i < all.size(); ++i) {
        (i % 2 ? all[i].client : all[i].program).reset();
        REQUIRE(receive((i % 2 ? all[i].program : all[i].client).get(), 1).empty());
        (i % 2 ? all[i].program : all[i].client).reset();
    }
    CHECK(bridge.wait() == 0);
}

TEST_CASE("bridge: packets that make no sense are dropped") {
    BridgeProgram bridge;
    Connection one;
    int fd = one.near.get();
    bridge.send(BridgePacket{}, &fd, 1);
    const int twice[2] = {fd, fd};
    bridge.send(BridgePacket{.magic = 7, .exclusive = 0}, twice, 2);
    Ends ends(bridge);
    REQUIRE(send(ends.client.get(), "works", 5, 0) == 5);
    CHECK(receive(ends.program.get(), 5) == "works");
    one.near.reset();
    CHECK(receive(one.far.get(), 1).empty()); // nobody else has kept it
}
