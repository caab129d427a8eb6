// A server that forks for each connection: accept, fork, three exchanges of 5 bytes in the child, its end.
#include "bench/common/measure.hpp"
#include "bench/common/net.hpp"
#include "bench/common/options.hpp"
#include "bench/common/process.hpp"

#include <sys/socket.h>
#include <unistd.h>

#include <csignal>

using namespace sd::bench;

namespace {

constexpr std::size_t kSize = 5;

void serve(int listener, long exchanges) {
    std::signal(SIGCHLD, SIG_IGN); // nobody waits for the children
    for (;;) {
        const int fd = accept(listener, nullptr, nullptr);
        if (fd < 0) {
            die("accept");
        }
        const pid_t child = fork();
        if (child < 0) {
            die("fork");
        }
        if (child == 0) {
            close(listener);
            Mover mover(Duplex{fd, fd}, Waiting::blocking);
            char buffer[kSize];
            for (long i = 0; i < exchanges; ++i) {
                if (!mover.receive(buffer, kSize) || !mover.send(buffer, kSize)) {
                    _exit(1);
                }
            }
            _exit(0);
        }
        close(fd);
    }
}

} // namespace

int main(int argc, char **argv) {
    const Options options(argc, argv, "connections to a server that forks for each",
                          {{"exchanges", "3", "requests and answers of a connection"},
                           {"seconds", "1", "time measured"},
                           {"warmup", "0.2", "seconds before that"},
                           {"cpu", "0,1", "processors of server and client; -1: any"}});
    std::uint16_t port = 0;
    const long exchanges = options.integer("exchanges");
    const int listener = listen_tcp("127.0.0.1", port);
    const pid_t server = start_child(options.cpu(0), [&] { serve(listener, exchanges); });
    close(listener);
    pin_to_cpu(options.cpu(1));

    Histogram whole, first;
    const auto connection = [&](bool counts) {
        const std::uint64_t start = ticks();
        const int fd = connect_tcp("127.0.0.1", port);
        Mover mover(Duplex{fd, fd}, Waiting::blocking);
        char buffer[kSize] = "ping";
        for (long i = 0; i < exchanges; ++i) {
            if (!mover.send(buffer, kSize) || !mover.receive(buffer, kSize)) {
                errno = 0;
                die("the server's child went away");
            }
            if (counts && i == 0) {
                first.add(ticks() - start);
            }
        }
        char byte = 0;
        if (read(fd, &byte, 1) != 0) {
            die("no end");
        }
        mover.close();
        if (counts) {
            whole.add(ticks() - start);
        }
    };
    repeat_for(options.number("warmup"), [&] { connection(false); });
    repeat_for(options.number("seconds"), [&] { connection(true); });
    end_child(server);

    Report report("forkserver");
    report.add("first_answer_ns", first.quantile(0.5, tick_step()) / ticks_per_ns());
    report.add_latency(whole);
    report.print();
    return 0;
}
