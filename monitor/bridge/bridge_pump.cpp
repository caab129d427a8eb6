// One bridge between two stream sockets.
//
// Neither socket is made non-blocking: the accelerated one may be shared with a program that would notice.
// Idle bridges have no buffers.
#include "monitor/bridge/bridge_pump.hpp"

#include "monitor/bridge/bridge_peer.hpp"

#include <cerrno>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>

namespace sd::monitor {

namespace {

constexpr size_t kBuffer = 65536;
constexpr int kStepsAtOnce = 16; ///< then it is the next bridge's turn

bool later() { return errno == EAGAIN || errno == EWOULDBLOCK; }

} // namespace

Bridge::Bridge(UniqueFd accelerated, UniqueFd kernel, bool exclusive)
    : ends_{{.bridge = this, .fd = std::move(accelerated), .kernel = false, .waiting = {}},
            {.bridge = this, .fd = std::move(kernel), .kernel = true, .waiting = {}}} {
    if (exclusive) {
        // The kernel socket has these now. Here urgent data is to be found apart, and a close is a reset when
        // the program makes it one.
        const int off = 0;
        const linger none{0, 0};
        setsockopt(ends_[0].fd.get(), SOL_SOCKET, SO_OOBINLINE, &off, sizeof off);
        setsockopt(ends_[0].fd.get(), SOL_SOCKET, SO_LINGER, &none, sizeof none);
    }
    for (const End &e : ends_) {
        const int on = 1, off = 0; // what a program sent in pieces comes here in pieces, and is not to wait
        setsockopt(e.fd.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
        setsockopt(e.fd.get(), IPPROTO_TCP, TCP_CORK, &off, sizeof off); // the program's end has it now
    }
}

bool Bridge::watch(int epoll) {
    epoll_ = epoll;
    for (End &e : ends_) {
        epoll_event event{};
        event.events = EPOLLIN | EPOLLOUT | EPOLLPRI | EPOLLRDHUP | EPOLLET;
        event.data.ptr = &e;
        if (epoll_ctl(epoll, EPOLL_CTL_ADD, e.fd.get(), &event) < 0) {
            const int why = errno;
            close(); // the other end is in the set already, with a pointer to this bridge
            errno = why;
            return false;
        }
    }
    return true;
}

void Bridge::note(End &end, uint32_t events) {
    if (events & (EPOLLIN | EPOLLRDHUP | EPOLLHUP | EPOLLERR)) {
        end.readable = true;
    }
    if (events & (EPOLLOUT | EPOLLHUP | EPOLLERR)) {
        end.writable = true;
    }
    if (events & EPOLLPRI) {
        end.urgent = end.readable = true;
    }
    if ((events & EPOLLERR) && end.ended) {
        // Reading tells no more.
        int error = 0;
        socklen_t n = sizeof error;
        if (getsockopt(end.fd.get(), SOL_SOCKET, SO_ERROR, &error, &n) < 0 || error != 0) {
            reset();
        }
    }
}

bool Bridge::pump() {
    bool finished = true;
    for (int i : {0, 1}) {
        if (!done_) {
            finished &= pump(ends_[i], ends_[1 - i]);
        }
    }
    return finished || done_;
}

bool Bridge::pump(End &from, End &to) {
    for (int i = 0; i < kStepsAtOnce; ++i) {
        if (done_ || step(from, to) == Step::nothing) {
            return true;
        }
    }
    return false;
}

Bridge::Step Bridge::step(End &from, End &to) {
    if (to.broken && from.broken) {
        reset();
        return Step::nothing;
    }
    if (!to.waiting.empty()) {
        if (!to.writable) {
            return Step::nothing;
        }
        const std::vector<char> data = std::move(to.waiting);
        to.waiting = {};
        return give(to, data) && to.waiting.empty() ? Step::moved : Step::nothing;
    }
    if (from.urgent || to.has_mark) {
        if (const Step s = pass_mark(from, to); s == Step::moved || to.has_mark || done_) {
            return s;
        }
    }
    if (from.ended) {
        return pass_end(from, to);
    }
    if (!from.readable || to.broken) {
        return Step::nothing;
    }
    static char buffer[kBuffer]; // all bridges are pumped by one thread
    const ssize_t n = recv(from.fd.get(), buffer, sizeof buffer, MSG_DONTWAIT);
    if (n > 0) {
        // Read stops in front of urgent data; the next one would step over it.
        from.urgent |= sockatmark(from.fd.get()) == 1;
        return give(to, {buffer, static_cast<size_t>(n)}) ? Step::moved : Step::nothing;
    }
    if (n == 0 && !from.broken) {
        from.ended = true;
        return Step::moved;
    }
    if (n < 0 && errno == EINTR) {
        return Step::moved;
    }
    if (n < 0 && later()) {
        from.readable = false;
    } else {
        reset();
    }
    return Step::nothing;
}

/// Urgent data: one byte, which stays where it was in the stream. A read stops in front of it.
Bridge::Step Bridge::pass_mark(End &from, End &to) {
    if (!to.has_mark) {
        if (sockatmark(from.fd.get()) != 1) {
            return Step::nothing;
        }
        from.urgent = false;
        if (recv(from.fd.get(), &to.mark, 1, MSG_OOB | MSG_DONTWAIT) != 1) {
            return Step::nothing;
        }
        to.has_mark = true;
    }
    if (!to.writable) {
        return Step::nothing;
    }
    const ssize_t n = send(to.fd.get(), &to.mark, 1, MSG_OOB | MSG_DONTWAIT | MSG_NOSIGNAL);
    if (n < 0 && later()) {
        to.writable = false;
        return Step::nothing;
    }
    to.has_mark = false;
    if (n < 0) {
        reset();
        return Step::nothing;
    }
    return Step::moved;
}

Bridge::Step Bridge::pass_end(End &from, End &to) {
    if (to.shut) {
        return Step::nothing;
    }
    if (from.kernel && peer_hung_up(from.fd.get())) {
        // No shutdown: other processes may have the connection, too.
        close();
        return Step::nothing;
    }
    if (shutdown(to.fd.get(), SHUT_WR) < 0 && errno != ENOTCONN) { // both its ends have been shut before
        reset();
        return Step::nothing;
    }
    to.shut = true;
    if (from.shut) {
        close(); // the other direction had ended before
        return Step::nothing;
    }
    return Step::moved;
}

bool Bridge::give(End &to, std::span<const char> data) {
    while (!data.empty()) {
        const ssize_t n = send(to.fd.get(), data.data(), data.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
        if (n >= 0) {
            data = data.subspan(static_cast<size_t>(n));
        } else if (later()) {
            to.writable = false;
            to.waiting.assign(data.begin(), data.end());
            return true;
        } else if (errno != EINTR) {
            // What it sent before it broke can still be read, and goes on its way as far as there is room.
            to.broken = true;
            End &other = &to == &ends_[0] ? ends_[1] : ends_[0];
            while (!done_ && other.waiting.empty() && !to.ended && step(to, other) == Step::moved) {
            }
            reset();
            return false;
        }
    }
    return true;
}

void Bridge::reset() {
    if (done_) {
        return;
    }
    for (const End &e : ends_) {
        const linger hard{1, 0};
        setsockopt(e.fd.get(), SOL_SOCKET, SO_LINGER, &hard, sizeof hard);
    }
    close();
}

void Bridge::close() {
    done_ = true;
    for (End &e : ends_) {
        // Somebody else may have the open file, too, which would then stay in the set.
        epoll_ctl(epoll_, EPOLL_CTL_DEL, e.fd.get(), nullptr);
        e.fd.reset();
        e.waiting = {};
    }
}

} // namespace sd::monitor
