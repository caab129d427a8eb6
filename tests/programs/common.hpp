// Helpers of the behaviour programs: printing what a call did, making connections, waiting for a state.
//
// A behaviour program uses nothing but libc, prints what it observed as lines on standard output, and prints
// the same lines every time. The runner compares the lines of two runs, so nothing that the kernel may choose
// (ports, buffer sizes, process ids, times) is ever printed.
#pragma once

#include <algorithm>
#include <arpa/inet.h>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <linux/filter.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <string>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <unistd.h>
#include <vector>

namespace sdtest {

constexpr int kPatience = 5000; // ms to wait for something that must happen

// Where lines go; a program that plays with descriptor 1 moves it away first.
inline int output_fd = STDOUT_FILENO;

// One line in one write, so that lines of several processes never mix.
__attribute__((format(printf, 1, 2))) inline void say(const char *format, ...) {
    char line[1024];
    va_list args;
    va_start(args, format);
    int length = vsnprintf(line, sizeof line - 1, format, args);
    va_end(args);
    if (length > static_cast<int>(sizeof line) - 2)
        length = static_cast<int>(sizeof line) - 2;
    line[length++] = '\n';
    if (write(output_fd, line, static_cast<size_t>(length)) < 0)
        _exit(98);
}

// Set-up that must work before anything can be observed.
[[noreturn]] inline void give_up(const char *what) {
    say("set-up failed: %s: %s", what, strerrorname_np(errno));
    _exit(99);
}

inline int must(const char *what, long result) {
    if (result < 0)
        give_up(what);
    return static_cast<int>(result);
}
#define MUST(call) ::sdtest::must(#call, (call))

// Prints "call = value" or "call = -1 ENAME" and returns the value; errno survives.
inline long show(const char *what, long result) {
    const int error = errno;
    if (result < 0)
        say("%s = %ld %s", what, result, strerrorname_np(error));
    else
        say("%s = %ld", what, result);
    errno = error;
    return result;
}
#define SHOW(call) ::sdtest::show(#call, (call))

// The same for calls whose value is a descriptor: only whether it worked.
inline int show_fd(const char *what, int result) {
    const int error = errno;
    say("%s = %s", what, result < 0 ? strerrorname_np(error) : "ok");
    errno = error;
    return result;
}
#define SHOW_FD(call) ::sdtest::show_fd(#call, (call))

inline const char *yes_no(bool value) { return value ? "yes" : "no"; }
#define SHOW_BOOL(condition) ::sdtest::say("%s: %s", #condition, ::sdtest::yes_no(condition))

// --- time

class Stopwatch {
  public:
    long ms() const {
        const auto passed = std::chrono::steady_clock::now() - start_;
        return static_cast<long>(std::chrono::duration_cast<std::chrono::milliseconds>(passed).count());
    }

  private:
    std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

inline void sleep_ms(long ms) {
    timespec left{ms / 1000, ms % 1000 * 1000000};
    while (nanosleep(&left, &left) < 0 && errno == EINTR) {
    }
}

// --- arguments that are wrong on purpose

inline char *forbidden_page() {
    static void *const page = mmap(nullptr, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return static_cast<char *>(page);
}

// A value the compiler cannot see, so that it does not warn about a call that is wrong on purpose.
template <class T> T opaque(T value) {
    T volatile hidden = value;
    return hidden;
}

template <class T> T *bad_pointer() { return reinterpret_cast<T *>(opaque(forbidden_page() + 64)); }

// --- addresses

struct Address {
    sockaddr_storage storage{};
    socklen_t length = sizeof(sockaddr_storage);

    sockaddr *raw() { return reinterpret_cast<sockaddr *>(&storage); }
    const sockaddr *raw() const { return reinterpret_cast<const sockaddr *>(&storage); }

    uint16_t port() const {
        if (storage.ss_family == AF_INET6)
            return ntohs(reinterpret_cast<const sockaddr_in6 *>(&storage)->sin6_port);
        return ntohs(reinterpret_cast<const sockaddr_in *>(&storage)->sin_port);
    }

    // The host part only: ports are the kernel's choice.
    std::string host() const {
        char text[INET6_ADDRSTRLEN] = "?";
        if (storage.ss_family == AF_INET6)
            inet_ntop(AF_INET6, &reinterpret_cast<const sockaddr_in6 *>(&storage)->sin6_addr, text, sizeof text);
        else if (storage.ss_family == AF_INET)
            inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in *>(&storage)->sin_addr, text, sizeof text);
        return text;
    }
};

inline Address make_address(const char *host, uint16_t port) {
    Address address;
    auto *four = reinterpret_cast<sockaddr_in *>(&address.storage);
    auto *six = reinterpret_cast<sockaddr_in6 *>(&address.storage);
    if (inet_pton(AF_INET, host, &four->sin_addr) == 1) {
        four->sin_family = AF_INET;
        four->sin_port = htons(port);
        address.length = sizeof(sockaddr_in);
    } else if (inet_pton(AF_INET6, host, &six->sin6_addr) == 1) {
        six->sin6_family = AF_INET6;
        six->sin6_port = htons(port);
        address.length = sizeof(sockaddr_in6);
    } else {
        errno = EINVAL;
        give_up(host);
    }
    return address;
}

inline Address local_address(int fd) {
    Address address;
    MUST(getsockname(fd, address.raw(), &address.length));
    return address;
}

inline Address peer_address(int fd) {
    Address address;
    MUST(getpeername(fd, address.raw(), &address.length));
    return address;
}

// --- sockets

inline const char *loopback(int family) { return family == AF_INET6 ? "::1" : "127.0.0.1"; }

inline int make_listener(const char *host = "127.0.0.1", int backlog = 128, int type_flags = 0) {
    const Address address = make_address(host, 0);
    const int fd = MUST(socket(address.storage.ss_family, SOCK_STREAM | type_flags, 0));
    MUST(bind(fd, address.raw(), address.length));
    MUST(listen(fd, backlog));
    return fd;
}

inline int connect_to(const Address &address) {
    const int fd = MUST(socket(address.storage.ss_family, SOCK_STREAM, 0));
    MUST(connect(fd, address.raw(), address.length));
    return fd;
}

inline int connect_to(int listener) { return connect_to(local_address(listener)); }

struct Pair {
    int client;
    int server;
    int listener;
};

inline Pair connect_through(int listener) {
    const int client = connect_to(listener);
    const int server = MUST(accept(listener, nullptr, nullptr));
    return Pair{client, server, listener};
}

inline Pair make_pair(int family = AF_INET) { return connect_through(make_listener(loopback(family))); }

inline void set_nonblocking(int fd, bool on = true) {
    const int flags = MUST(fcntl(fd, F_GETFL));
    MUST(fcntl(fd, F_SETFL, on ? flags | O_NONBLOCK : flags & ~O_NONBLOCK));
}

inline void set_option(int fd, int level, int option, int value) {
    MUST(setsockopt(fd, level, option, &value, sizeof value));
}

inline int get_option(int fd, int level, int option) {
    int value = 0;
    socklen_t length = sizeof value;
    MUST(getsockopt(fd, level, option, &value, &length));
    return value;
}

inline std::string socket_error(int fd) {
    const int error = get_option(fd, SOL_SOCKET, SO_ERROR);
    return error == 0 ? "0" : strerrorname_np(error);
}

inline void set_timeout(int fd, int option, long ms) {
    const timeval value{ms / 1000, ms % 1000 * 1000};
    MUST(setsockopt(fd, SOL_SOCKET, option, &value, sizeof value));
}

// With a filter, though it lets all in, a socket stays the kernel's for good.
inline void keep_in_kernel(int fd) {
    sock_filter all = BPF_STMT(BPF_RET | BPF_K, 0xffffffff);
    const sock_fprog filter{1, &all};
    MUST(setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &filter, sizeof filter));
}

// Close so that the peer sees a reset.
inline void abort_connection(int fd) {
    const linger hard{1, 0};
    MUST(setsockopt(fd, SOL_SOCKET, SO_LINGER, &hard, sizeof hard));
    MUST(close(fd));
}

// --- readiness

inline std::string event_names(uint32_t events) {
    static constexpr struct {
        uint32_t bit;
        const char *name;
    } kNames[] = {{POLLIN, "IN"},       {POLLPRI, "PRI"},       {POLLOUT, "OUT"},
                  {POLLRDHUP, "RDHUP"}, {POLLERR, "ERR"},       {POLLHUP, "HUP"},
                  {POLLNVAL, "NVAL"},   {POLLRDNORM, "RDNORM"}, {POLLWRNORM, "WRNORM"}};
    std::string text;
    for (const auto &entry : kNames) {
        if (events & entry.bit) {
            text += text.empty() ? "" : "|";
            text += entry.name;
        }
    }
    return text.empty() ? "-" : text;
}

constexpr short kAllEvents = POLLIN | POLLPRI | POLLOUT | POLLRDHUP;

inline short poll_now(int fd, short events = kAllEvents, int timeout = 0) {
    pollfd entry{fd, events, 0};
    MUST(poll(&entry, 1, timeout));
    return entry.revents;
}

// Waits until every one of the events shows; says so when they do not, which makes the run differ.
inline bool wait_for(int fd, short events, int patience = kPatience) {
    Stopwatch watch;
    for (;;) {
        const short seen = poll_now(fd, events, 10);
        if ((seen & events) == events)
            return true;
        if (watch.ms() > patience) {
            say("waited in vain for %s, have %s", event_names(static_cast<uint32_t>(events)).c_str(),
                event_names(static_cast<uint32_t>(seen)).c_str());
            return false;
        }
        if (seen != 0)
            sleep_ms(1);
    }
}

// What poll, select and a fresh epoll set say about a descriptor at this moment.
inline void show_ready(const char *label, int fd) {
    const std::string polled = event_names(static_cast<uint32_t>(poll_now(fd)));
    fd_set sets[3];
    for (auto &set : sets) {
        FD_ZERO(&set);
        FD_SET(fd, &set);
    }
    timeval none{0, 0};
    const int count = select(fd + 1, &sets[0], &sets[1], &sets[2], &none);
    std::string selected;
    for (int i = 0; i < 3; ++i)
        selected += count > 0 && FD_ISSET(fd, &sets[i]) ? "rwx"[i] : '-';
    const int set = MUST(epoll_create1(0));
    epoll_event event{};
    event.events = EPOLLIN | EPOLLOUT | EPOLLPRI | EPOLLRDHUP;
    MUST(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event));
    event.events = 0;
    const int ready = epoll_wait(set, &event, 1, 0);
    close(set);
    say("%s: poll %s, select %s, epoll %s", label, polled.c_str(), selected.c_str(),
        event_names(ready > 0 ? event.events : 0).c_str());
}

// --- data

inline uint64_t hash_of(const void *data, size_t size, uint64_t hash = 1469598103934665603ull) {
    const auto *bytes = static_cast<const unsigned char *>(data);
    for (size_t i = 0; i < size; ++i)
        hash = (hash ^ bytes[i]) * 1099511628211ull;
    return hash;
}

// Bytes that depend on a seed only.
inline std::string pattern(size_t size, uint64_t seed = 1) {
    std::string data(size, '\0');
    uint64_t state = seed * 0x9e3779b97f4a7c15ull + 1;
    for (char &byte : data) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        byte = static_cast<char>(state);
    }
    return data;
}

inline bool send_all(int fd, const void *data, size_t size) {
    const char *from = static_cast<const char *>(data);
    while (size > 0) {
        const ssize_t sent = send(fd, from, size, MSG_NOSIGNAL);
        if (sent < 0) {
            say("send_all: %s", strerrorname_np(errno));
            return false;
        }
        from += sent;
        size -= static_cast<size_t>(sent);
    }
    return true;
}

inline bool send_all(int fd, const std::string &data) { return send_all(fd, data.data(), data.size()); }

// Reads until `size` bytes have come, the stream ended, or an error is printed.
inline std::string receive(int fd, size_t size) {
    std::string data(size, '\0');
    size_t have = 0;
    while (have < size) {
        const ssize_t got = recv(fd, &data[have], size - have, 0);
        if (got < 0)
            say("receive: %s", strerrorname_np(errno));
        if (got <= 0)
            break;
        have += static_cast<size_t>(got);
    }
    data.resize(have);
    return data;
}

inline std::string receive_to_end(int fd) {
    std::string all;
    char chunk[65536];
    for (;;) {
        const ssize_t got = recv(fd, chunk, sizeof chunk, 0);
        if (got < 0)
            say("receive_to_end: %s", strerrorname_np(errno));
        if (got <= 0)
            return all;
        all.append(chunk, static_cast<size_t>(got));
    }
}

inline void show_data(const char *label, const std::string &data) {
    say("%s: %zu bytes, hash %016llx", label, data.size(),
        static_cast<unsigned long long>(hash_of(data.data(), data.size())));
}

} // namespace sdtest
