// Two processes exchange bytes from and into large memory, which both overwrite at random moments, and look
// at each byte: pages_exchange [FIRST_SEED [SEEDS]]. To be run with libsd and libsd-pages.so, and without:
// what is expected is what the kernel's TCP does. Also children that go on with a connection, and some that
// are killed.
//
// A byte of a stream follows from the stream's number and its position: nobody tells the other what he sends.
#include "tests/pages/torture.hpp"

#include <arpa/inet.h>
#include <csignal>
#include <dlfcn.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <vector>

using namespace torture;

namespace {

constexpr uint64_t kStep = 0x9e3779b97f4a7c15u;

/// A stream, whose word number i is (i + 1) * kStep ^ mix.
struct Stream {
    uint64_t mix;
    uint64_t word(uint64_t i) const { return ((i + 1) * kStep) ^ mix; }
    void put(void *to, size_t n, uint64_t at) const {
        auto *bytes = static_cast<unsigned char *>(to);
        for (; n != 0 && at % 8 != 0; --n, ++at)
            *bytes++ = static_cast<unsigned char>(word(at / 8) >> at % 8 * 8);
        for (; n >= 8; n -= 8, at += 8, bytes += 8) {
            const uint64_t w = word(at / 8);
            memcpy(bytes, &w, 8);
        }
        for (; n != 0; --n, ++at)
            *bytes++ = static_cast<unsigned char>(word(at / 8) >> at % 8 * 8);
    }
    /// How many of the bytes are those of the stream.
    size_t same(const void *from, size_t n, uint64_t at) const {
        const auto *bytes = static_cast<const unsigned char *>(from);
        size_t i = 0;
        while (i < n) {
            if ((at + i) % 8 == 0 && n - i >= 8) {
                const uint64_t w = word((at + i) / 8);
                if (memcmp(bytes + i, &w, 8) == 0) {
                    i += 8;
                    continue;
                }
            }
            if (bytes[i] != static_cast<unsigned char>(word((at + i) / 8) >> (at + i) % 8 * 8))
                break;
            ++i;
        }
        return i;
    }
};

/// Large memory of a process: some blocks that are used again and again.
class Blocks {
  public:
    static constexpr size_t kSize = 3 << 20;
    explicit Blocks(Random &r) : random_(r) {
        for (auto &b : at_)
            b = static_cast<char *>(malloc(kSize));
    }
    ~Blocks() {
        for (char *b : at_)
            free(b);
    }
    Blocks(const Blocks &) = delete;
    char *any() {
        char *&b = at_[random_.below(3)];
        if (random_.below(16) == 0) {
            free(b);
            b = static_cast<char *>(malloc(kSize));
        }
        if (random_.below(16) == 0 && device_there)
            REQUIRE(madvise(b, 1 << 20, MADV_DONTNEED) == 0);
        return b;
    }

  private:
    Random &random_;
    char *at_[3];
};

/// Writes something else over a part, or all, or nothing.
void spoil(Random &random, char *at, size_t n) {
    if (n == 0 || random.below(4) == 0)
        return;
    const size_t from = random.below(2) ? 0 : random.below(n);
    memset(at + from, static_cast<int>(random()), random.below(2) ? n - from : random.below(n - from) + 1);
}

size_t a_size(Random &random) {
    switch (random.below(4)) {
    case 0:
        return random.below(6000) + 1;
    case 1:
        return (random.below(500) + 1) * kPage;
    default:
        return random.below(2 << 20) + 1;
    }
}
size_t an_offset(Random &random) {
    return random.below(3) ? 0 : random.below(2) ? kPage * random.below(8) : random.below(9000);
}

/// One call that sends. Bytes; waits until there is room.
size_t send_once(Random &random, int fd, char *at, size_t n) {
    for (;;) {
        ssize_t r = -1;
        const size_t cut = random.below(2) ? (n / 2) & ~(kPage - 1) : random.below(n + 1);
        iovec two[2] = {{at, cut}, {at + cut, n - cut}};
        msghdr m{};
        m.msg_iov = two;
        m.msg_iovlen = 2;
        switch (random.below(5)) {
        case 0:
            r = send(fd, at, n, MSG_DONTWAIT);
            break;
        case 1:
            r = write(fd, at, n);
            break;
        case 2:
            r = writev(fd, two, 2);
            break;
        case 3:
            r = sendmsg(fd, &m, MSG_DONTWAIT);
            break;
        default:
            r = send(fd, at, n, random.below(8) ? 0 : MSG_MORE);
        }
        if (r >= 0)
            return static_cast<size_t>(r);
        REQUIRE(errno == EAGAIN);
        pollfd p{fd, POLLOUT, 0};
        REQUIRE(poll(&p, 1, 20000) == 1);
    }
}

/// `f` in a child, which has to come to its end.
template <class Act> void in_child(Act act) {
    const pid_t child = fork();
    if (child == 0) {
        act();
        fflush(stdout);
        _exit(0);
    }
    int status = -1;
    REQUIRE(waitpid(child, &status, 0) == child && status == 0);
}

void send_piece(Random &random, Blocks &blocks, int fd, const Stream &stream, uint64_t at, size_t n) {
    char *const block = blocks.any();
    const size_t offset = an_offset(random);
    stream.put(block + offset, n, at);
    size_t done = 0;
    while (done < n) {
        const size_t r = send_once(random, fd, block + offset + done, n - done);
        // What was sent is the sender's as before.
        if (random.below(3) == 0)
            REQUIRE(stream.same(block + offset + done, r, at + done) == r);
        spoil(random, block + offset + done, r);
        done += r;
    }
}

void send_all(Random &random, Blocks &blocks, int fd, const Stream &stream, uint64_t total) {
    for (uint64_t at = 0; at < total;) {
        size_t n = a_size(random);
        n = n < total - at ? n : total - at;
        const unsigned who = static_cast<unsigned>(random.below(24));
        if (who == 0)
            in_child([&] { send_piece(random, blocks, fd, stream, at, n); });
        else
            send_piece(random, blocks, fd, stream, at, n);
        if (who == 1) // a copy of all memory, which is written to
            in_child([&] { memset(blocks.any(), 77, Blocks::kSize); });
        at += n;
    }
}

size_t receive_once(Random &random, int fd, char *to, size_t n) {
    for (;;) {
        ssize_t r = -1;
        const size_t cut = random.below(2) ? (n / 2) & ~(kPage - 1) : random.below(n + 1);
        iovec two[2] = {{to, cut}, {to + cut, n - cut}};
        switch (random.below(4)) {
        case 0:
            r = recv(fd, to, n, MSG_DONTWAIT);
            break;
        case 1:
            r = readv(fd, two, 2);
            break;
        case 2:
            r = recv(fd, to, n, MSG_WAITALL);
            break;
        default:
            r = read(fd, to, n);
        }
        if (r >= 0)
            return static_cast<size_t>(r);
        REQUIRE(errno == EAGAIN);
        pollfd p{fd, POLLIN, 0};
        REQUIRE(poll(&p, 1, 20000) == 1);
    }
}

/// Up to `n` bytes: how many. 0: the end.
size_t receive_piece(Random &random, Blocks &blocks, int fd, const Stream &stream, uint64_t at, size_t n) {
    char *const block = blocks.any();
    const size_t offset = an_offset(random);
    if (random.below(8) == 0) {
        const ssize_t r = recv(fd, block + offset, n, MSG_PEEK);
        REQUIRE(r > 0 && stream.same(block + offset, static_cast<size_t>(r), at) == static_cast<size_t>(r));
        spoil(random, block + offset, static_cast<size_t>(r));
    }
    const size_t r = receive_once(random, fd, block + offset, n);
    REQUIRE(stream.same(block + offset, r, at) == r);
    spoil(random, block + offset, r);
    return r;
}

void receive_all(Random &random, Blocks &blocks, int fd, const Stream &stream, uint64_t total) {
    for (uint64_t at = 0; at < total;) {
        size_t n = a_size(random);
        n = n < total - at ? n : total - at;
        size_t r = 0;
        if (random.below(24) == 0) {
            int tell[2];
            REQUIRE(pipe(tell) == 0);
            in_child([&] {
                r = receive_piece(random, blocks, fd, stream, at, n);
                REQUIRE(write(tell[1], &r, sizeof r) == sizeof r);
            });
            REQUIRE(read(tell[0], &r, sizeof r) == sizeof r);
            close(tell[0]);
            close(tell[1]);
        } else {
            r = receive_piece(random, blocks, fd, stream, at, n);
        }
        REQUIRE(r != 0);
        at += r;
    }
}

/// A child sends and is killed; what of its stream has arrived is a beginning of it, and what its parent
/// sends then follows at once.
void killed_sender(Random &random, Blocks &blocks, int fd, const Stream &first, const Stream &second) {
    const pid_t child = fork();
    if (child == 0) // alone: a child of its own would outlive it
        for (uint64_t at = 0;;) {
            const size_t n = a_size(random);
            send_piece(random, blocks, fd, first, at, n);
            at += n;
        }
    usleep(static_cast<useconds_t>(random.below(6000)));
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
    send_all(random, blocks, fd, second, 300000);
}
void receive_from_killed(Random &random, int fd, const Stream &first, const Stream &second) {
    std::vector<char> all;
    auto *block = static_cast<char *>(malloc(Blocks::kSize));
    uint64_t at = 0, of_second = 0;
    while (of_second < 300000) {
        const size_t r = receive_once(random, fd, block, a_size(random));
        REQUIRE(r != 0);
        size_t good = of_second ? 0 : first.same(block, r, at);
        at += good;
        // What the two begin with alike belongs to one or the other.
        for (; good < r; of_second += r - good, good = r)
            REQUIRE(second.same(block + good, r - good, of_second) == r - good);
    }
    free(block);
}

/// A child receives and is killed; it has had what its parent does not get, and that follows at once.
void killed_receiver(Random &random, Blocks &blocks, int fd, const Stream &stream, uint64_t total) {
    const pid_t child = fork();
    if (child == 0) {
        for (uint64_t at = 0; at < total;)
            at += receive_piece(random, blocks, fd, stream, at, a_size(random));
        _exit(0);
    }
    usleep(static_cast<useconds_t>(random.below(6000)));
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
    auto *block = static_cast<char *>(malloc(Blocks::kSize));
    uint64_t at = 0;
    size_t had = 0;
    while (had < 16 && at == 0) { // enough to tell where it is
        const size_t r = receive_once(random, fd, block + had, Blocks::kSize - had);
        if (r == 0)
            break;
        had += r;
    }
    if (had >= 16) {
        bool found = false;
        for (unsigned shift = 0; shift < 8 && !found; ++shift) {
            uint64_t w = 0;
            memcpy(&w, block + shift, 8);
            // The multiplier's inverse modulo 2^64, by Newton's rule
            uint64_t inverse = kStep;
            for (int i = 0; i < 6; ++i)
                inverse *= 2 - kStep * inverse;
            const uint64_t i = (w ^ stream.mix) * inverse - 1;
            at = i * 8 - shift;
            found = i < total / 8 && stream.same(block, had, at) == had;
        }
        REQUIRE(found);
        at += had;
        for (size_t r = 0; at < total; at += r) {
            r = receive_once(random, fd, block, a_size(random));
            REQUIRE(r != 0 && stream.same(block, r, at) == r);
        }
        REQUIRE(recv(fd, block, 1, 0) == 0);
    }
    free(block);
}

void talk(uint64_t seed, unsigned side, int fd) {
    Random random{seed * 2 + side + 1};
    for (int i = 0; i < 5; ++i)
        random();
    Random plan{seed};
    for (int i = 0; i < 5; ++i)
        plan();
    Blocks blocks(random);
    const unsigned rounds = static_cast<unsigned>(plan.below(5)) + 1;
    for (unsigned i = 0; i < rounds; ++i) {
        const bool sends = plan.below(2) == side;
        const uint64_t total = plan.below(4) ? plan.below(6 << 20) + 1 : plan.below(20000) + 1;
        const Stream stream{seed * 1000 + i};
        if (sends)
            send_all(random, blocks, fd, stream, total);
        else
            receive_all(random, blocks, fd, stream, total);
    }
    const Stream first{seed * 1000 + 900}, second{~(seed * 1000)};
    switch (plan.below(6)) {
    case 0:
        if (side == 0)
            killed_sender(random, blocks, fd, first, second);
        else
            receive_from_killed(random, fd, first, second);
        break;
    case 1:
        if (side == 0) {
            send_all(random, blocks, fd, first, 8 << 20);
            shutdown(fd, SHUT_WR);
            char c;
            REQUIRE(read(fd, &c, 1) == 0);
        } else {
            killed_receiver(random, blocks, fd, first, 8 << 20);
        }
        break;
    default:
        break;
    }
    close(fd);
}

bool run(uint64_t seed) {
    const int listener = socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in a{};
    a.sin_family = AF_INET;
    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t n = sizeof a;
    REQUIRE(bind(listener, reinterpret_cast<sockaddr *>(&a), n) == 0 && listen(listener, 1) == 0 &&
            getsockname(listener, reinterpret_cast<sockaddr *>(&a), &n) == 0);
    pid_t child[2];
    for (unsigned side = 0; side < 2; ++side) {
        child[side] = fork();
        if (child[side] == 0) {
            alarm(100);
            int fd = -1;
            if (side == 1) {
                close(listener);
                fd = socket(AF_INET, SOCK_STREAM, 0);
                REQUIRE(connect(fd, reinterpret_cast<sockaddr *>(&a), sizeof a) == 0);
            } else {
                fd = accept(listener, nullptr, nullptr);
                REQUIRE(fd >= 0);
            }
            talk(seed, side, fd);
            fflush(stdout);
            _exit(0);
        }
    }
    close(listener);
    bool good = true;
    for (unsigned i = 0; i < 2; ++i) {
        int status = -1;
        const pid_t ended = waitpid(-1, &status, 0);
        if (status != 0) {
            printf("seed %lu, side %d: status %#x\n", seed, ended == child[1], static_cast<unsigned>(status));
            fflush(stdout);
            if (good) { // the other waits for it
                kill(child[ended == child[0]], SIGTERM);
            }
            good = false;
        }
    }
    return good;
}

} // namespace

int main(int argc, char **argv) {
    const char *said = getenv("PAGES_DEVICE");
    device_there = !said || strcmp(said, "no") != 0;
    const uint64_t first = argc > 1 ? strtoull(argv[1], nullptr, 10) : 1,
                   count = argc > 2 ? strtoull(argv[2], nullptr, 10) : 50;
    unsigned failed = 0;
    for (uint64_t seed = first; seed < first + count; ++seed)
        failed += !run(seed);
    printf("%s pages: %lu seeds, %u failed\n", failed ? "failed" : "passed", count, failed);
    return failed != 0;
}

// What torture.hpp needs
namespace torture {
bool device_there = true;
}
