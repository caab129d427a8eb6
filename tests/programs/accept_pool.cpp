// Several acceptors on one blocking listener, as processes or threads, and clients that may be ordinary
// programs:
//   accept_pool server processes|threads FILE     listens, writes the port into FILE, serves until it ends
//   accept_pool client SCENE FILE                 clients, several at a time
// Both print what they see; the lines must be the same whoever is accelerated.
#include "tests/programs/meeting.hpp"
#include "tests/programs/process.hpp"

#include <atomic>
#include <sys/mman.h>
#include <thread>

using namespace sdtest;

namespace {

constexpr int kWorkers = 4, kRounds = 120, kClients = kRounds / 2 * 5;

/// What all workers count, in memory that they share.
struct Board {
    std::atomic<int> served, failed, nonblocking;
};

void work(int listener, Board &board) {
    for (;;) {
        const int fd = accept(listener, nullptr, nullptr);
        if (fd < 0) {
            ++board.failed;
            fprintf(stderr, "accept: %s\n", strerror(errno));
            continue;
        }
        // It is the program's own flag, and the program has not set it.
        board.nonblocking += (fcntl(listener, F_GETFL) & O_NONBLOCK) != 0;
        const std::string request = receive(fd, 1);
        if (request == "q") {
            close(fd);
            return;
        }
        board.served += send_all(fd, request);
        close(fd);
    }
}

void serve(const char *scene, int listener) {
    auto *board = static_cast<Board *>(
        mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
    if (strcmp(scene, "threads") == 0) {
        std::vector<std::thread> workers;
        for (int i = 0; i < kWorkers; ++i)
            workers.emplace_back(work, listener, std::ref(*board));
        for (std::thread &worker : workers)
            worker.join();
    } else {
        std::vector<pid_t> workers;
        for (int i = 0; i < kWorkers; ++i)
            workers.push_back(spawn([&] { work(listener, *board); }));
        for (const pid_t worker : workers)
            reap("worker", worker);
    }
    say("served %d, failed %d, non-blocking %d", board->served.load(), board->failed.load(),
        board->nonblocking.load());
}

void ask(const Address &to) {
    int right = 0;
    // Half of them come when all workers wait, half of them several at a time.
    for (int round = 0; round < kRounds; ++round) {
        int fds[4];
        const int together = round < kRounds / 2 ? 1 : 4;
        for (int i = 0; i < together; ++i)
            fds[i] = connect_to(to);
        for (int i = 0; i < together; ++i)
            send_all(fds[i], "x");
        for (int i = 0; i < together; ++i) {
            right += receive(fds[i], 1) == "x";
            close(fds[i]);
        }
        if (together == 1)
            sleep_ms(1);
    }
    say("%d of %d answered", right, kClients);
    for (int i = 0; i < kWorkers; ++i) {
        const int fd = connect_to(to);
        send_all(fd, "q");
        receive_to_end(fd);
        close(fd);
    }
}

} // namespace

int main(int argc, char **argv) {
    if (argc != 4) {
        fprintf(stderr, "usage: %s server|client processes|threads FILE\n", argv[0]);
        return 2;
    }
    if (strcmp(argv[1], "server") == 0) {
        const int listener = make_listener();
        publish_port(argv[3], local_address(listener).port());
        serve(argv[2], listener);
    } else {
        ask(make_address("127.0.0.1", learn_port(argv[3])));
    }
    say("done");
    return 0;
}
