// Work that libsd must not slow down: no TCP at all, or TCP with a peer that is not accelerated.
#include "bench/common/measure.hpp"
#include "bench/common/net.hpp"
#include "bench/common/options.hpp"
#include "bench/common/process.hpp"
#include "bench/common/turns.hpp"

#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <functional>
#include <vector>

using namespace sd::bench;

namespace {

constexpr int kBatch = 16;

// A write and a read of 64 bytes through a pipe within one process.
void pipe_once(const int (&ends)[2], std::vector<char> &buffer) {
    if (write(ends[1], buffer.data(), 64) != 64 || read(ends[0], buffer.data(), 64) != 64) {
        die("pipe");
    }
}

int temporary_file() {
    char name[] = "/tmp/sd-bench.XXXXXX";
    const int fd = mkstemp(name);
    if (fd < 0) {
        die(name);
    }
    unlink(name);
    return fd;
}

[[noreturn]] void serve(const std::string &address, std::uint16_t port) {
    const int listener = listen_tcp(address, port);
    std::vector<char> buffer(65536);
    for (;;) {
        const int fd = accept_tcp(listener);
        for (ssize_t got; (got = read(fd, buffer.data(), buffer.size())) > 0;) {
            if (write(fd, buffer.data(), static_cast<std::size_t>(got)) != got) {
                break;
            }
        }
        close(fd);
    }
}

} // namespace

int main(int argc, char **argv) {
    const Options options(
        argc, argv, "programs that have nothing to gain, in nanoseconds per operation",
        {{"what", "pipe", "pipe, file, open, tcp (needs a server, see below) or serve (that server)"},
         {"port", "9999", "TCP port of the server"},
         {"size", "64", "bytes of a message of tcp"},
         {"seconds", "1", "time measured"},
         {"warmup", "0.2", "seconds before that"},
         kWindowsOption,
         kTurnsOption,
         {"cpu", "0", "processor"}});
    Windows windows(options);
    pin_to_cpu(options.cpu(0));
    const std::string &what = options.text("what");
    const auto port = static_cast<std::uint16_t>(options.integer("port"));
    std::vector<char> buffer(65536, 'x');
    std::function<void()> once;
    int ends[2] = {-1, -1};
    if (what == "serve") {
        serve("127.0.0.1", port);
    } else if (what == "pipe") {
        if (pipe2(ends, O_CLOEXEC) != 0) {
            die("pipe2");
        }
        once = [&] { pipe_once(ends, buffer); };
    } else if (what == "file") {
        ends[0] = temporary_file();
        once = [&] {
            if (pwrite(ends[0], buffer.data(), 4096, 0) != 4096 || lseek(ends[0], 0, SEEK_SET) != 0 ||
                read(ends[0], buffer.data(), 4096) != 4096) {
                die("file");
            }
        };
    } else if (what == "open") {
        once = [&] {
            const int fd = open("/dev/null", O_RDWR | O_CLOEXEC);
            const int copy = fd < 0 ? -1 : dup(fd);
            if (copy < 0 || write(copy, buffer.data(), 1) != 1 || close(copy) != 0 || close(fd) != 0) {
                die("open");
            }
        };
    } else if (what == "tcp") {
        ends[0] = connect_tcp("127.0.0.1", port);
        set_nodelay(ends[0]);
        const auto size = static_cast<std::size_t>(options.integer("size"));
        once = [&, size] {
            if (send(ends[0], buffer.data(), size, MSG_NOSIGNAL) != static_cast<ssize_t>(size) ||
                recv(ends[0], buffer.data(), size, MSG_WAITALL) != static_cast<ssize_t>(size)) {
                die("tcp");
            }
        };
    } else {
        errno = 0;
        die("--what must be pipe, file, open, tcp or serve");
    }

    // Two percent are asked for, so what is told is the median of short batches: being scheduled away is not
    // our doing.
    const auto run_for = [&](double seconds) {
        Histogram batches;
        const auto batch = [&] {
            for (int i = 0; i < kBatch; ++i) {
                once();
            }
        };
        return latency_over(
                   seconds, batches, [] { return false; }, batch) /
               kBatch;
    };
    windows.run(run_for, run_for);
    Report report("passthrough");
    report.add("what", what);
    report.add("ns_per_operation", windows.median());
    report.add("windows", windows.figures());
    report.print();
    return 0;
}
