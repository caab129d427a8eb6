// Two processes with silent connections between them.
#include "bench/common/idle_pair.hpp"

#include "bench/common/net.hpp"
#include "bench/common/process.hpp"

#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>
#include <vector>

namespace sd::bench {

IdlePair::IdlePair(long connections, int server_cpu, int client_cpu)
    : connections_(connections), state_(shared_value<State>()) {
    std::uint16_t port = 0;
    const int listener = listen_tcp("0.0.0.0", port);
    server_ = start_child(server_cpu, [&] { serve(listener); });
    client_ = start_child(client_cpu, [&] {
        close(listener);
        connect_all(port);
    });
    close(listener);
}

IdlePair::~IdlePair() {
    end_child(client_);
    end_child(server_);
}

void IdlePair::open() {
    state_->go.store(true);
    while (!state_->open.load()) {
        int status = 0;
        if (waitpid(client_, &status, WNOHANG) == client_) {
            errno = 0;
            die("the client end");
        }
        usleep(1000);
    }
    usleep(100'000); // the last read to the epoll_wait after it
}

void IdlePair::serve(int listener) const {
    const int epoll = epoll_create1(EPOLL_CLOEXEC);
    set_nonblocking(listener);
    watch(epoll, listener);
    for (;;) {
        epoll_event events[64];
        const int count = epoll_wait(epoll, events, 64, -1);
        for (int i = 0; i < count; ++i) {
            const int fd = events[i].data.fd;
            char byte = 0;
            if (fd == listener) {
                for (int next; (next = accept4(listener, nullptr, nullptr, SOCK_NONBLOCK)) >= 0;) {
                    watch(epoll, next);
                }
            } else if (const ssize_t got = read(fd, &byte, 1); got == 1) {
                if (write(fd, &byte, 1) != 1) {
                    die("write");
                }
            } else if (got == 0) {
                close(fd);
            }
        }
    }
}

void IdlePair::connect_all(std::uint16_t port) const {
    while (!state_->go.load()) {
        usleep(1000);
    }
    const int epoll = epoll_create1(EPOLL_CLOEXEC);
    for (long i = 0; i < connections_; ++i) {
        const int fd = connect_tcp("127.0.0." + std::to_string(1 + i / 20000), port);
        char byte = 'x';
        if (write(fd, &byte, 1) != 1 || read(fd, &byte, 1) != 1) {
            die("first message");
        }
        watch(epoll, fd);
    }
    state_->open.store(true);
    for (;;) {
        epoll_event event{};
        if (epoll_wait(epoll, &event, 1, -1) > 0) {
            errno = 0;
            die("a silent connection became ready");
        }
    }
}

} // namespace sd::bench
