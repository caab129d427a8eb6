// A hostile program that is joined to honest servers by libsd as any other, and writes over what it shares
// with them, with its own family and with the monitor, while its connections go on.
#include "tests/e2e/hostile/hostile.hpp"

#include <arpa/inet.h>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

namespace sd::hostile {

namespace {

/// At a time; a server has room for many clients, but not for any number.
constexpr size_t kConnections = 4;

struct Region {
    char *begin;
    size_t size;
};

/// Everything that is shared with others and can be written.
std::vector<Region> regions() {
    std::vector<Region> found;
    FILE *maps = fopen("/proc/self/maps", "re");
    char line[512];
    while (maps != nullptr && fgets(line, sizeof line, maps) != nullptr) {
        unsigned long from, to;
        if (strstr(line, "memfd:sd-") != nullptr && strstr(line, "rw-s") != nullptr &&
            sscanf(line, "%lx-%lx", &from, &to) == 2)
            found.push_back({reinterpret_cast<char *>(from), to - from});
    }
    if (maps != nullptr)
        fclose(maps);
    return found;
}

// Most of what matters stands in the first pages of each; the rest now and then.
void write_over(const std::vector<Region> &where, Random &random) {
    if (where.empty())
        return;
    const Region &region = where[below(random, where.size())];
    static constexpr size_t kSpans[] = {4096, 64 << 10, 1 << 20, 8 << 20};
    const size_t span = std::min(region.size, kSpans[below(random, 4)]);
    for (int i = 0; i < 500; ++i) {
        const size_t at = below(random, span / 8) * 8;
        const uint64_t word = chance(random, 50) ? random() : chance(random, 50) ? below(random, 64) : 0;
        memcpy(region.begin + at, &word, sizeof word);
    }
    board().scribbles.fetch_add(500, std::memory_order_relaxed);
}

int dial(uint16_t port) {
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in name{};
    name.sin_family = AF_INET;
    name.sin_port = htons(port);
    name.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (connect(fd, reinterpret_cast<sockaddr *>(&name), sizeof name) != 0) {
        close(fd);
        return -1;
    }
    fcntl(fd, F_SETFL, O_NONBLOCK);
    board().connections.fetch_add(1, std::memory_order_relaxed);
    return fd;
}

// Requests of several protocols, whole or broken off, and bytes of none.
void say_something(int fd, Random &random) {
    static constexpr const char *kTexts[] = {"GET / HTTP/1.1\r\nHost: h\r\n\r\n", "PING\r\n",
                                             "SSH-2.0-hostile\r\n",
                                             "POST / HTTP/1.0\r\nContent-Length: 100000\r\n\r\n"};
    char bytes[16384];
    size_t length;
    if (chance(random, 60)) {
        const char *text = kTexts[below(random, 4)];
        length = chance(random, 70) ? strlen(text) : below(random, strlen(text));
        memcpy(bytes, text, length);
    } else {
        length = below(random, sizeof bytes);
        memset(bytes, static_cast<int>(random()), length);
    }
    send(fd, bytes, length, MSG_NOSIGNAL | MSG_DONTWAIT);
}

void disturb(int fd, Random &random) {
    const linger at_once{1, 0};
    switch (below(random, 4)) {
    case 0:
        shutdown(fd, static_cast<int>(below(random, 3)));
        break;
    case 1:
        setsockopt(fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
        break;
    case 2:
        send(fd, "!", 1, MSG_OOB | MSG_NOSIGNAL | MSG_DONTWAIT);
        break;
    default: // several processes have it, and one of them dies
        if (const pid_t child = fork(); child == 0) {
            board().forks.fetch_add(1, std::memory_order_relaxed);
            say_something(fd, random);
            kill(getpid(), SIGKILL);
        } else if (child > 0) {
            waitpid(child, nullptr, 0);
        }
    }
}

} // namespace

void scribble(const Target &target, Random random) {
    std::atomic<bool> going{true};
    std::vector<int> connections;
    std::thread writer; // beside the calls of the other thread
    for (int round = 0; round < 400; ++round) {
        if (connections.size() < kConnections && chance(random, 40)) {
            const int fd = dial(target.servers[below(random, target.servers.size())]);
            if (fd >= 0)
                connections.push_back(fd);
            if (!writer.joinable() && chance(random, 60))
                writer = std::thread([&going, own = Random(random())]() mutable {
                    while (going) {
                        write_over(regions(), own);
                        usleep(static_cast<useconds_t>(below(own, 3000)));
                    }
                });
        }
        if (connections.empty())
            continue;
        const size_t which = below(random, connections.size());
        const int fd = connections[which];
        const uint64_t mood = below(random, 100);
        char bytes[4096];
        if (mood < 40) {
            say_something(fd, random);
        } else if (mood < 70) {
            recv(fd, bytes, sizeof bytes, MSG_DONTWAIT);
        } else if (mood < 78) {
            pollfd entry{fd, POLLIN, 0};
            poll(&entry, 1, static_cast<int>(below(random, 20)));
        } else if (mood < 84) {
            write_over(regions(), random);
        } else if (mood < 90) {
            disturb(fd, random);
        } else if (mood < 97) {
            close(fd);
            connections.erase(connections.begin() + static_cast<long>(which));
        }
        usleep(static_cast<useconds_t>(below(random, 2000)));
    }
    going = false;
    if (writer.joinable())
        writer.join();
}

} // namespace sd::hostile
