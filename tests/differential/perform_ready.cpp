// Steps that ask which descriptors are ready: poll, select, epoll.
#include "tests/differential/actor.hpp"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <ctime>
#include <poll.h>
#include <string>
#include <sys/epoll.h>
#include <sys/select.h>
#include <unistd.h>

namespace sd::differential {

namespace {

std::string names(unsigned events) {
    static constexpr struct {
        unsigned bit;
        const char *name;
    } kNames[] = {{POLLIN, "IN"},       {POLLPRI, "PRI"},       {POLLOUT, "OUT"},
                  {POLLRDHUP, "RDHUP"}, {POLLERR, "ERR"},       {POLLHUP, "HUP"},
                  {POLLNVAL, "NVAL"},   {POLLRDNORM, "RDNORM"}, {POLLWRNORM, "WRNORM"}};
    std::string text;
    for (const auto &entry : kNames) {
        if ((events & entry.bit) != 0) {
            if (!text.empty()) {
                text += '|';
            }
            text += entry.name;
            events &= ~entry.bit;
        }
    }
    if (events != 0) {
        text += "|more";
    }
    return text.empty() ? "-" : text;
}

timespec milliseconds(int ms) { return {ms / 1000, ms % 1000 * 1000000}; }

// Entries of a descriptor and events each; `kNoFd` is a place not used.
void wait_poll(Arguments a, Observation &o) {
    pollfd entries[3];
    nfds_t count = 0;
    for (int i = 0; i < 6; i += 2) {
        if (a[i] != kNoFd) {
            entries[count++] = {a[i], static_cast<short>(a[i + 1] & 0xffff), 0};
        }
    }
    if ((a[1] & 1) != 0) {
        const timespec limit = milliseconds(a[6]);
        sigset_t none;
        sigemptyset(&none);
        o.result(ppoll(entries, count, a[6] < 0 ? nullptr : &limit, &none));
    } else {
        o.result(poll(entries, count, a[6]));
    }
    for (nfds_t i = 0; i < count; ++i) {
        o.say(" %s", names(static_cast<unsigned>(entries[i].revents)).c_str());
    }
}

void wait_select(Arguments a, Observation &o) {
    fd_set sets[3];
    for (fd_set &set : sets) {
        FD_ZERO(&set);
    }
    int top = 0;
    for (int i = 0; i < 6; i += 2) {
        for (int kind = 0; kind < 3; ++kind) {
            if (a[i] >= 0 && a[i] < FD_SETSIZE && (a[i + 1] & (1 << kind)) != 0) {
                FD_SET(a[i], &sets[kind]);
                top = std::max(top, a[i] + 1);
            }
        }
    }
    int r;
    if ((a[1] & 8) != 0) {
        const timespec limit = milliseconds(a[6]);
        r = pselect(top, &sets[0], &sets[1], &sets[2], a[6] < 0 ? nullptr : &limit, nullptr);
    } else {
        timeval limit{a[6] / 1000, a[6] % 1000 * 1000};
        r = select(top, &sets[0], &sets[1], &sets[2], a[6] < 0 ? nullptr : &limit);
    }
    o.result(r);
    for (int i = 0; r >= 0 && i < 6; i += 2) {
        if (a[i] >= 0 && a[i] < FD_SETSIZE) {
            o.say(" %c%c%c", FD_ISSET(a[i], &sets[0]) ? 'r' : '-', FD_ISSET(a[i], &sets[1]) ? 'w' : '-',
                  FD_ISSET(a[i], &sets[2]) ? 'x' : '-');
        }
    }
}

// 0 epoll_wait, 1 epoll_pwait, 2 epoll_pwait2, 3 a bad pointer, 4 no room
void wait_epoll(int set, int most, int timeout, int variant, Observation &o) {
    epoll_event events[16];
    most = std::clamp(most, 0, 16);
    const timespec limit = milliseconds(timeout);
    int r;
    if (variant == 1) {
        sigset_t none;
        sigemptyset(&none);
        r = epoll_pwait(set, events, most, timeout, &none);
    } else if (variant == 2) {
        r = epoll_pwait2(set, events, most, timeout < 0 ? nullptr : &limit, nullptr);
    } else if (variant == 3) {
        r = epoll_wait(set, static_cast<epoll_event *>(forbidden_page()), most, timeout);
    } else {
        r = epoll_wait(set, events, variant == 4 ? 0 : most, timeout);
    }
    o.result(r);
    if (r <= 0 || variant == 3) {
        return;
    }
    // In which order ready members are told is not promised.
    std::sort(events, events + r,
              [](const epoll_event &x, const epoll_event &y) { return x.data.u64 < y.data.u64; });
    for (int i = 0; i < r; ++i) {
        o.say(" %llu:%s", static_cast<unsigned long long>(events[i].data.u64), names(events[i].events).c_str());
    }
}

// What poll, select and a fresh set say at this moment.
void ready(int fd, Observation &o) {
    pollfd entry{fd, POLLIN | POLLPRI | POLLOUT | POLLRDHUP, 0};
    o.result(poll(&entry, 1, 0));
    o.say(" poll %s", names(static_cast<unsigned>(entry.revents)).c_str());
    fd_set sets[3];
    for (fd_set &set : sets) {
        FD_ZERO(&set);
        if (fd >= 0 && fd < FD_SETSIZE) {
            FD_SET(fd, &set);
        }
    }
    timeval none{0, 0};
    const int count = select(fd + 1, &sets[0], &sets[1], &sets[2], &none);
    o.say(" select %d", count);
    for (int i = 0; i < 3 && count > 0; ++i) {
        o.say("%c", FD_ISSET(fd, &sets[i]) ? "rwx"[i] : '-');
    }
    const int set = epoll_create1(EPOLL_CLOEXEC);
    epoll_event event{};
    event.events = EPOLLIN | EPOLLOUT | EPOLLPRI | EPOLLRDHUP;
    if (epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) != 0) {
        o.result(-1);
    } else {
        o.say(" epoll %s", names(epoll_wait(set, &event, 1, 0) > 0 ? event.events : 0).c_str());
    }
    close(set);
}

} // namespace

bool perform_ready(Op op, int step, Arguments a, Observation &o) {
    switch (op) {
    case Op::poll:
        wait_poll(a, o);
        return true;
    case Op::select:
        wait_select(a, o);
        return true;
    case Op::epoll_create:
        o.made(epoll_create1(a[0]));
        return true;
    case Op::epoll_ctl: {
        epoll_event event{};
        event.events = static_cast<uint32_t>(a[3]);
        event.data.u64 = static_cast<uint64_t>(step);
        o.result(epoll_ctl(a[0], a[1], a[2], &event));
        return true;
    }
    case Op::epoll_wait:
        wait_epoll(a[0], a[1], a[2], a[3], o);
        return true;
    case Op::ready:
        ready(a[0], o);
        return true;
    default:
        return false;
    }
}

} // namespace sd::differential
