// How a client finds a server that was started separately: the port travels through a file that appears
// complete.
#pragma once

#include "tests/programs/common.hpp"

namespace sdtest {

inline void publish_port(const std::string &path, uint16_t port) {
    const std::string temporary = path + ".new";
    const int fd = MUST(open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
    MUST(write(fd, &port, sizeof port));
    MUST(close(fd));
    MUST(rename(temporary.c_str(), path.c_str()));
}

inline uint16_t learn_port(const std::string &path) {
    for (Stopwatch watch; watch.ms() < 2 * kPatience; sleep_ms(5)) {
        const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
        if (fd < 0)
            continue;
        uint16_t port = 0;
        MUST(read(fd, &port, sizeof port));
        MUST(close(fd));
        return port;
    }
    give_up("no server");
}

} // namespace sdtest
