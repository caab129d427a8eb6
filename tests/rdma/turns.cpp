// Two processes that know nothing of libsd take turns with messages of 8 bytes over one TCP connection, for a
// measurement between two hosts: who calls prints what a round trip takes, the least, the median and the
// mean, in microseconds. Before that it takes turns long enough for the connection to move, where it moves.
//
//   turns serve PORT ADDRESS
//   turns call PORT ADDRESS COUNT
#include "tests/rdma/tcp_connection.hpp"

#include <algorithm>
#include <cstring>
#include <ctime>
#include <numeric>
#include <vector>

namespace {

constexpr size_t kBytes = 8;

void receive(int fd) {
    char bytes[kBytes];
    if (recv(fd, bytes, sizeof bytes, MSG_WAITALL) != sizeof bytes)
        fail("recv");
}

void send(int fd) {
    const char bytes[kBytes] = {};
    if (send(fd, bytes, sizeof bytes, MSG_NOSIGNAL) != sizeof bytes)
        fail("send");
}

double now_us() {
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return static_cast<double>(t.tv_sec) * 1e6 + static_cast<double>(t.tv_nsec) / 1e3;
}

} // namespace

int main(int argc, char **argv) {
    const bool serves = argc == 4 && strcmp(argv[1], "serve") == 0;
    if (!serves && (argc != 5 || strcmp(argv[1], "call") != 0))
        return 2;
    const int fd = connection(serves, static_cast<uint16_t>(atoi(argv[2])), argv[3]);
    take_turns(fd, serves);
    if (serves) {
        char bytes[kBytes];
        while (recv(fd, bytes, sizeof bytes, MSG_WAITALL) == sizeof bytes)
            send(fd);
        return 0;
    }
    std::vector<double> took(static_cast<size_t>(atoi(argv[4])));
    if (took.empty())
        return 2;
    for (double &one : took) {
        const double start = now_us();
        send(fd);
        receive(fd);
        one = now_us() - start;
    }
    std::sort(took.begin(), took.end());
    printf("8 bytes there and back: at least %.0f, median %.0f, mean %.0f us\n", took.front(),
           took[took.size() / 2],
           std::accumulate(took.begin(), took.end(), 0.0) / static_cast<double>(took.size()));
}
