// Looking at what a sender holds back, before the time is up after which it goes by itself.
#pragma once
#include "tests/programs/cases.hpp"

#include <cstdarg>
#include <functional>
#include <string>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/select.h>
#include <vector>

namespace sdtest {

inline constexpr long kHeld = 120; // ms: what is held back for longer may have gone by itself

// One try of an observation on a connection of its own. The kernel lets go of what it holds back after 200
// ms, so what a try on a busy machine has taken too long for is tried again.
class Attempt {
  public:
    const int client, server;

    Attempt(int from, int to) : client(from), server(to), set_(MUST(epoll_create1(0))) {
        epoll_event event{};
        event.events = EPOLLIN;
        MUST(epoll_ctl(set_, EPOLL_CTL_ADD, server, &event));
    }
    Attempt(const Attempt &) = delete;
    Attempt &operator=(const Attempt &) = delete;

    void cork(bool on) const { set_option(client, IPPROTO_TCP, TCP_CORK, on); }
    void write(const char *text, int flags = 0) {
        note("send \"%s\"%s", text, flags & MSG_MORE ? " and more" : "");
        if (send(client, text, strlen(text), flags) != static_cast<ssize_t>(strlen(text)))
            note("send failed: %s", strerrorname_np(errno));
    }
    // How much the receiver can have now, by all who can say so.
    void look(const char *when) {
        int waiting = 0;
        MUST(ioctl(server, FIONREAD, &waiting));
        fd_set readable;
        FD_ZERO(&readable);
        FD_SET(server, &readable);
        timeval none{0, 0};
        epoll_event event{};
        note("%s: %d, poll %d, select %d, epoll %d", when, waiting, poll_now(server, POLLIN) & POLLIN,
             select(server + 1, &readable, nullptr, nullptr, &none), epoll_wait(set_, &event, 1, 0));
    }
    // What is there now.
    void take() {
        char buffer[64] = {};
        const ssize_t got = recv(server, buffer, sizeof buffer - 1, MSG_DONTWAIT);
        note("received %s", got < 0 ? strerrorname_np(errno) : got == 0 ? "the end" : buffer);
    }
    [[gnu::format(printf, 2, 3)]] void note(const char *format, ...) {
        char line[200];
        va_list args;
        va_start(args, format);
        vsnprintf(line, sizeof line, format, args);
        va_end(args);
        lines_.emplace_back(line);
    }
    bool in_time() const { return watch_.ms() < kHeld; }
    void tell() const {
        for (const std::string &line : lines_)
            say("%s", line.c_str());
    }

  private:
    int set_;
    Stopwatch watch_;
    std::vector<std::string> lines_;
};

inline void in_time(const std::function<void(Attempt &)> &body, int family = AF_INET) {
    for (int tries = 0; tries < 40; ++tries) {
        const Pair pair = make_pair(family);
        Attempt attempt(pair.client, pair.server);
        body(attempt);
        if (attempt.in_time()) {
            attempt.tell();
            return;
        }
    }
    say("the machine is too slow");
}

} // namespace sdtest
