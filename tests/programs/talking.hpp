// A conversation that goes to sleep and wakes up, grows its buffers, and ends in order.
#pragma once
#include "tests/programs/cases.hpp"

#include <thread>

namespace sdtest {

inline void echo(int fd) {
    char buffer[4096];
    for (ssize_t got; (got = read(fd, buffer, sizeof buffer)) > 0;)
        send_all(fd, buffer, static_cast<size_t>(got));
    close(fd);
}

/// To one that echoes. With pauses, so that each has to wake the other.
inline void talk(int fd) {
    for (const size_t size : {size_t{1}, size_t{5000}, size_t{300000}, size_t{2}}) {
        sleep_ms(50);
        const std::string data = pattern(size, size);
        std::thread writer([&] { send_all(fd, data); });
        SHOW_BOOL(receive(fd, size) == data);
        writer.join();
    }
}

inline void end(int fd) {
    MUST(shutdown(fd, SHUT_WR));
    SHOW_BOOL(receive_to_end(fd).empty());
    close(fd);
}

} // namespace sdtest
