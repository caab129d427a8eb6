// Threads of several processes use each other's sockets without agreement: they close, replace, pass on and
// inherit what others are just about to use. Nothing may crash or hang, and whoever has connected from
// outside is told of the end when all is closed, whether it was ever accepted or not. Arguments: a seed, and
// how many seconds. Works on kernel sockets as well; what it demands is what the kernel does.
#include "tests/e2e/storm/wrecker.hpp"

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>
#include <poll.h>
#include <random>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

using namespace storm;

namespace {

constexpr int kPatience = 60'000; ///< ms

/// Has the connection ended, within the time? Throws away what was sent on it.
bool ends(int fd) {
    char buffer[4096];
    pollfd p{fd, POLLIN, 0};
    while (poll(&p, 1, kPatience) > 0) {
        const ssize_t n = recv(fd, buffer, sizeof buffer, MSG_DONTWAIT);
        if (n == 0 || (n < 0 && errno != EAGAIN))
            return true;
    }
    return false;
}

/// A well-behaved client of whatever listens.
int observe(Board &board, uint64_t seed) {
    std::mt19937_64 random(seed);
    std::vector<int> mine;
    char buffer[256];
    while (!board.stop) {
        if (mine.size() < 60)
            if (const int fd = connect_somewhere(board, random()); fd >= 0)
                mine.push_back(fd);
        if (mine.empty())
            continue;
        const size_t i = random() % mine.size();
        send(mine[i], "ping", 4, MSG_DONTWAIT | MSG_NOSIGNAL);
        const ssize_t n = recv(mine[i], buffer, sizeof buffer, MSG_DONTWAIT);
        board.served += n > 0;
        if (n == 0 || (n < 0 && errno != EAGAIN) || random() % 40 == 0) {
            close(mine[i]);
            mine.erase(mine.begin() + static_cast<std::ptrdiff_t>(i));
        }
        if (random() % 4 == 0)
            usleep(static_cast<useconds_t>(random() % 300));
    }
    while (board.closed < 2 * kWreckers)
        usleep(1000);
    int waiting = 0;
    for (const int fd : mine) {
        waiting += !ends(fd);
        close(fd);
    }
    if (waiting)
        fprintf(stderr, "storm: %d clients were not told of the end\n", waiting);
    board.over = true;
    return waiting != 0;
}

} // namespace

int main(int argc, char **argv) {
    signal(SIGPIPE, SIG_IGN);
    if (argc == 3 && strcmp(argv[1], "inherit") == 0)
        return inherit(atoi(argv[2]));
    if (argc != 3) {
        fprintf(stderr, "usage: storm SEED SECONDS\n");
        return 2;
    }
    const uint64_t seed = strtoull(argv[1], nullptr, 0);
    void *memory = mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    Board &board = *new (memory) Board{};
    int channel[kWreckers];
    socketpair(AF_UNIX, SOCK_STREAM, 0, channel);
    pid_t pids[kWreckers + 1];
    for (int i = 0; i <= kWreckers; ++i) {
        pids[i] = fork();
        if (pids[i] != 0)
            continue;
        for (int other = 0; other < kWreckers; ++other)
            if (other != i)
                close(channel[other]);
        _exit(i < kWreckers ? wreck(board, i, seed, channel[i], argv[0]) : observe(board, seed));
    }
    for (const int fd : channel)
        close(fd);
    usleep(static_cast<useconds_t>(atof(argv[2]) * 1e6));
    board.stop = true;
    int failed = 0;
    for (int ended = 0, ms = 0; ended <= kWreckers; ++ms) {
        int status = 0;
        if (const pid_t pid = waitpid(-1, &status, WNOHANG); pid > 0) {
            ++ended;
            if (status == 0)
                continue;
            fprintf(stderr, "storm: %s ended with status %x\n",
                    pid == pids[kWreckers] ? "the observer" : "a wrecker", static_cast<unsigned>(status));
            failed = 1;
        }
        if (failed || ms > 2 * kPatience) {
            if (!failed)
                fprintf(stderr, "storm: hangs\n");
            for (const pid_t pid : pids)
                kill(pid, SIGKILL);
            failed = 1;
            break;
        }
        usleep(1000);
    }
    printf("seed %s: %lu accepted, %lu transfers, %lu answers%s\n", argv[1], board.accepted.load(),
           board.moved.load(), board.served.load(), failed ? ", FAILED" : "");
    return failed;
}
