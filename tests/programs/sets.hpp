// Epoll sets in the behaviour programs.
#pragma once
#include "tests/programs/cases.hpp"

#include <algorithm>
#include <string>
#include <sys/epoll.h>
#include <vector>

namespace sdtest {

// epoll_ctl(EPOLL_CTL_ADD), with its result.
inline int add(int set, int fd, uint32_t events, uint64_t data) {
    epoll_event event{};
    event.events = events;
    event.data.u64 = data;
    return epoll_ctl(set, EPOLL_CTL_ADD, fd, &event);
}

// What the set reports, in the order of the data words.
inline std::string wait_set(int set, int timeout, int room = 16) {
    std::vector<epoll_event> events(static_cast<size_t>(room));
    const int count = epoll_wait(set, events.data(), room, timeout);
    std::vector<std::string> lines;
    for (int i = 0; i < count; ++i) {
        const epoll_event event = events[static_cast<size_t>(i)];
        const uint64_t data = event.data.u64;
        lines.push_back(std::to_string(data) + " " + event_names(event.events));
    }
    std::sort(lines.begin(), lines.end());
    std::string text = std::to_string(count);
    for (const std::string &line : lines)
        text += " [" + line + "]";
    return text;
}

} // namespace sdtest
