// A program that sends video frames, and one that receives them. Neither knows of the zero-copy device.
//   pages_frames receive FRAMES BUFFERS WHAT     prints "port N", then "seconds S"; 0: all frames were right
//   pages_frames send PORT FRAMES BUFFERS WHAT
//   pages_frames alone FRAMES BUFFERS    how long writing and reading each byte takes where nothing is sent:
//                                        what is left when all copies are taken out
// BUFFERS: of both, or of the sender and of the receiver: 4:1
// WHAT: `all`: each byte of a frame is written before it is sent, overwritten at a random moment after, and
// looked at by the receiver. `stamp`: only one word of each frame. `read`: one word is written, each byte is
// looked at.
#include "tests/pages/torture.hpp"

#include <arpa/inet.h>
#include <ctime>
#include <string>
#include <sys/socket.h>
#include <vector>

using namespace torture;

namespace torture {
bool device_there = true;
}

namespace {

constexpr size_t kFrame = 1920 * 1080 * 3 / 2, kWords = kFrame / 8;

std::vector<uint64_t *> buffers(size_t n) {
    std::vector<uint64_t *> all;
    for (size_t i = 0; i < n; ++i) {
        all.push_back(static_cast<uint64_t *>(malloc(kFrame)));
        REQUIRE(all.back());
        memset(all.back(), 1, kFrame);
    }
    return all;
}

uint64_t hash(const uint64_t *words, size_t n) {
    uint64_t sum = 0;
    for (size_t i = 0; i < n; ++i)
        sum = (sum ^ words[i]) * 0x9e3779b97f4a7c15u;
    return sum;
}
/// Words that differ from frame to frame, and their hash in the last one.
void draw(uint64_t *frame, uint64_t number) {
    uint64_t word = number * 0x9e3779b97f4a7c15u;
    for (size_t i = 0; i + 1 < kWords; ++i)
        frame[i] = word += 0x632be59bd9b4e019u;
    frame[kWords - 1] = hash(frame, kWords - 1);
}
size_t stamped(uint64_t number) { return number * 7919 % (kWords - 1); }

double now() {
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) / 1e9;
}

/// Until counts and mappings were looked at.
void wait_to_be_told() {
    char c;
    if (getenv("PAGES_WAIT"))
        (void)!read(0, &c, 1);
}

void send_frames(int fd, size_t frames, size_t count, const std::string &what) {
    const auto all = buffers(count);
    Random random{frames};
    for (size_t i = 0; i < frames; ++i) {
        uint64_t *const frame = all[i % count];
        if (what == "all")
            draw(frame, i);
        else
            frame[stamped(i)] = i;
        for (size_t done = 0; done < kFrame;) {
            const ssize_t n = send(fd, reinterpret_cast<char *>(frame) + done, kFrame - done, 0);
            REQUIRE(n > 0);
            done += static_cast<size_t>(n);
        }
        if (what == "all" && random.below(2) == 0) {
            const size_t from = random.below(kFrame);
            memset(reinterpret_cast<char *>(frame) + from, 0xee, random.below(kFrame - from) + 1);
        }
    }
    char end;
    REQUIRE(recv(fd, &end, 1, 0) == 1);
    wait_to_be_told();
}

void receive_frames(int fd, size_t frames, size_t count, const std::string &what) {
    const auto all = buffers(count);
    double since = 0;
    uint64_t sum = 0;
    for (size_t i = 0; i < frames; ++i) {
        uint64_t *const frame = all[i % count];
        for (size_t done = 0; done < kFrame;) {
            const ssize_t n = recv(fd, reinterpret_cast<char *>(frame) + done, kFrame - done, MSG_WAITALL);
            REQUIRE(n > 0);
            done += static_cast<size_t>(n);
        }
        if (i == frames / 5) // what is before is for both to get into their stride
            since = now();
        if (what == "all")
            REQUIRE(frame[0] == i * 0x9e3779b97f4a7c15u + 0x632be59bd9b4e019u &&
                    frame[kWords - 1] == hash(frame, kWords - 1));
        else
            REQUIRE(frame[stamped(i)] == i);
        if (what == "read")
            sum += hash(frame, kWords);
        if (what == "all")
            memset(frame, static_cast<int>(i), 20000); // a receiver that changes what it has
    }
    printf("seconds %.6f %lx\n", now() - since, sum & 1);
    REQUIRE(send(fd, "", 1, 0) == 1);
    fflush(stdout);
    wait_to_be_told();
}

void write_and_read_alone(size_t frames, size_t count) {
    const auto all = buffers(count);
    const double since = now();
    for (size_t i = 0; i < frames; ++i)
        draw(all[i % count], i);
    const double written = now();
    uint64_t sum = 0;
    for (size_t i = 0; i < frames; ++i)
        sum += hash(all[i % count], kWords);
    printf("seconds %.6f writing, %.6f reading %lx\n", written - since, now() - written, sum & 1);
}

} // namespace

int main(int argc, char **argv) {
    if (argc == 4 && strcmp(argv[1], "alone") == 0) {
        write_and_read_alone(strtoul(argv[2], nullptr, 10), strtoul(argv[3], nullptr, 10));
        return 0;
    }
    if (argc < 5)
        return 2;
    alarm(300);
    const bool receives = strcmp(argv[1], "receive") == 0;
    char **const rest = argv + (receives ? 2 : 3);
    // BUFFERS of both, or those of the sender and of the receiver: "4:1"
    const char *const own = receives && strchr(rest[1], ':') ? strchr(rest[1], ':') + 1 : rest[1];
    const size_t frames = strtoul(rest[0], nullptr, 10), count = strtoul(own, nullptr, 10);
    const std::string what = rest[2];
    sockaddr_in a{};
    a.sin_family = AF_INET;
    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t n = sizeof a;
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    if (!receives) {
        a.sin_port = htons(static_cast<uint16_t>(strtoul(argv[2], nullptr, 10)));
        REQUIRE(connect(fd, reinterpret_cast<sockaddr *>(&a), n) == 0);
        send_frames(fd, frames, count, what);
        return 0;
    }
    REQUIRE(bind(fd, reinterpret_cast<sockaddr *>(&a), n) == 0 && listen(fd, 1) == 0 &&
            getsockname(fd, reinterpret_cast<sockaddr *>(&a), &n) == 0);
    printf("port %u\n", ntohs(a.sin_port));
    fflush(stdout);
    const int peer = accept(fd, nullptr, nullptr);
    REQUIRE(peer >= 0);
    receive_frames(peer, frames, count, what);
    return 0;
}
