// Every call that can block on a socket, and a socket on which it does.
#pragma once

#include "tests/programs/process.hpp"

#include <sys/sendfile.h>
#include <sys/syscall.h>
#include <sys/uio.h>

namespace sdtest {

enum class Blocked { data, room, connection, answer };

// A connection whose client's end has nothing to read, and, for calls that wait for room, none to write; a
// listener to which nobody connects.
class Scene {
  public:
    explicit Scene(Blocked why) : why(why) {
        if (why == Blocked::answer) {
            // A queue that is full: further connects get no answer.
            listener = make_listener("127.0.0.1", 0);
            const Address address = local_address(listener);
            for (int i = 0; i < 3; ++i) {
                const int filler = MUST(socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0));
                connect(filler, address.raw(), address.length);
                fillers_.push_back(filler);
                poll_now(filler, POLLOUT, 20);
            }
            fd = MUST(socket(AF_INET, SOCK_STREAM, 0));
            return;
        }
        listener = make_listener();
        // Buffers of a fixed size, so that what is full stays full.
        set_option(listener, SOL_SOCKET, SO_RCVBUF, 65536);
        client = MUST(socket(AF_INET, SOCK_STREAM, 0));
        set_option(client, SOL_SOCKET, SO_SNDBUF, 65536);
        address_ = local_address(listener);
        MUST(connect(client, address_.raw(), address_.length));
        server = MUST(accept(listener, nullptr, nullptr));
        fd = why == Blocked::connection ? listener : client;
        if (why == Blocked::room)
            fill();
        MUST(pipe2(pipe_, O_CLOEXEC));
        file_ = MUST(memfd_create("data", MFD_CLOEXEC));
        MUST(ftruncate(file_, kLarge));
        set_ = MUST(epoll_create1(EPOLL_CLOEXEC));
        epoll_event event{};
        event.events = why == Blocked::room ? EPOLLOUT : EPOLLIN;
        MUST(epoll_ctl(set_, EPOLL_CTL_ADD, fd, &event));
    }

    ~Scene() {
        for (const int number : {client, server, listener, pipe_[0], pipe_[1], file_, set_})
            if (number >= 0)
                close(number);
        if (why == Blocked::answer)
            close(fd);
        for (const int number : fillers_)
            close(number);
    }
    Scene(const Scene &) = delete;
    Scene &operator=(const Scene &) = delete;

    // Ends what the calls wait for.
    void satisfy() {
        switch (why) {
        case Blocked::data:
            send_all(server, "data");
            break;
        case Blocked::room:
            drain();
            break;
        case Blocked::connection:
            // By name: the number may be gone.
            late_ = MUST(socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0));
            connect(late_, address_.raw(), address_.length);
            fillers_.push_back(late_);
            break;
        case Blocked::answer:
            close(listener); // the next attempt, a second later, is refused
            listener = -1;
            break;
        }
    }

    // Sends until nothing fits any more for a while: the kernel goes on moving things for a moment.
    void fill() {
        const std::string data = pattern(65536);
        for (int quiet = 0; quiet < 10; ++quiet) {
            const ssize_t n = send(client, data.data(), data.size(), MSG_DONTWAIT);
            if (n > 0) {
                in_flight += static_cast<size_t>(n);
                quiet = -1;
            } else {
                sleep_ms(5);
            }
        }
    }

    // Reads at the other end what was sent so far, and counts it.
    void drain() {
        static char buffer[65536];
        while (poll_now(server, POLLIN, 30) != 0) {
            const ssize_t n = recv(server, buffer, sizeof buffer, MSG_DONTWAIT);
            if (n > 0)
                arrived += static_cast<size_t>(n);
            else if (n == 0)
                break;
        }
    }

    int set() const { return set_; }
    int pipe_end(int which) const { return pipe_[which]; }
    int file() const { return file_; }

    static constexpr size_t kLarge = 1 << 20;

    const Blocked why;
    int fd = -1, client = -1, server = -1, listener = -1;
    size_t in_flight = 0, arrived = 0;

  private:
    int pipe_[2] = {-1, -1}, file_ = -1, set_ = -1, late_ = -1;
    Address address_{};
    std::vector<int> fillers_;
};

struct BlockingCall {
    const char *name;
    Blocked why;
    long (*make)(Scene &);
    bool polls = false; // waits for readiness and transfers nothing
};

namespace calls {

inline thread_local char small[64];
inline const std::string &large() {
    static const std::string data = pattern(Scene::kLarge);
    return data;
}

inline iovec part_of(void *data, size_t size) { return {data, size}; }

inline long receive_message(Scene &s, bool many, int flags = 0) {
    iovec part = part_of(small, sizeof small);
    mmsghdr message[2]{};
    for (mmsghdr &m : message) {
        m.msg_hdr.msg_iov = &part;
        m.msg_hdr.msg_iovlen = 1;
    }
    return many ? recvmmsg(s.fd, message, 2, flags, nullptr) : recvmsg(s.fd, &message[0].msg_hdr, flags);
}

inline long send_message(Scene &s, bool many) {
    iovec part = part_of(const_cast<char *>(large().data()), large().size());
    mmsghdr message[2]{};
    for (mmsghdr &m : message) {
        m.msg_hdr.msg_iov = &part;
        m.msg_hdr.msg_iovlen = 1;
    }
    return many ? sendmmsg(s.fd, message, 2, 0) : sendmsg(s.fd, &message[0].msg_hdr, 0);
}

inline long choose(Scene &s, bool exact) {
    fd_set set;
    FD_ZERO(&set);
    FD_SET(s.fd, &set);
    const bool out = s.why == Blocked::room;
    const timespec limit{60, 0};
    return exact ? pselect(s.fd + 1, out ? nullptr : &set, out ? &set : nullptr, nullptr, &limit, nullptr)
                 : select(s.fd + 1, out ? nullptr : &set, out ? &set : nullptr, nullptr, nullptr);
}

inline long look(Scene &s, bool exact) {
    pollfd entry{s.fd, static_cast<short>(s.why == Blocked::room ? POLLOUT : POLLIN), 0};
    const timespec limit{60, 0};
    return exact ? ppoll(&entry, 1, &limit, nullptr) : poll(&entry, 1, -1);
}

inline long wait_set(Scene &s, int how) {
    epoll_event event;
    const timespec limit{60, 0};
    return how == 0   ? epoll_wait(s.set(), &event, 1, -1)
           : how == 1 ? epoll_pwait(s.set(), &event, 1, 60000, nullptr)
                      : epoll_pwait2(s.set(), &event, 1, &limit, nullptr);
}

} // namespace calls

inline const std::vector<BlockingCall> &blocking_calls() {
    using namespace calls;
    constexpr Blocked data = Blocked::data, room = Blocked::room, connection = Blocked::connection;
    static const std::vector<BlockingCall> all = {
        {"read", data, [](Scene &s) -> long { return read(s.fd, small, sizeof small); }},
        {"readv", data,
         [](Scene &s) -> long {
             const iovec part = part_of(small, sizeof small);
             return readv(s.fd, &part, 1);
         }},
        {"recv", data, [](Scene &s) -> long { return recv(s.fd, small, sizeof small, 0); }},
        {"recv MSG_WAITALL", data, [](Scene &s) -> long { return recv(s.fd, small, 4, MSG_WAITALL); }},
        {"recv MSG_PEEK", data, [](Scene &s) -> long { return recv(s.fd, small, sizeof small, MSG_PEEK); }},
        {"recvfrom", data,
         [](Scene &s) -> long { return recvfrom(s.fd, small, sizeof small, 0, nullptr, nullptr); }},
        {"recvmsg", data, [](Scene &s) -> long { return receive_message(s, false); }},
        {"recvmmsg", data, [](Scene &s) -> long { return receive_message(s, true, MSG_WAITFORONE); }},
        {"splice from the socket", data,
         [](Scene &s) -> long { return splice(s.fd, nullptr, s.pipe_end(1), nullptr, 64, 0); }},
        {"write", room, [](Scene &s) -> long { return write(s.fd, large().data(), large().size()); }},
        {"writev", room,
         [](Scene &s) -> long {
             const iovec part = part_of(const_cast<char *>(large().data()), large().size());
             return writev(s.fd, &part, 1);
         }},
        {"send", room, [](Scene &s) -> long { return send(s.fd, large().data(), large().size(), 0); }},
        {"send of a few bytes", room, [](Scene &s) -> long { return send(s.fd, large().data(), 2000, 0); }},
        {"sendto", room,
         [](Scene &s) -> long { return sendto(s.fd, large().data(), large().size(), 0, nullptr, 0); }},
        {"sendmsg", room, [](Scene &s) -> long { return send_message(s, false); }},
        {"sendmmsg", room, [](Scene &s) -> long { return send_message(s, true); }},
        {"sendfile", room,
         [](Scene &s) -> long {
             off_t from = 0;
             return sendfile(s.fd, s.file(), &from, Scene::kLarge);
         }},
        {"splice to the socket", room,
         [](Scene &s) -> long {
             MUST(write(s.pipe_end(1), large().data(), 4096));
             return splice(s.pipe_end(0), nullptr, s.fd, nullptr, 4096, 0);
         }},
        {"accept", connection, [](Scene &s) -> long { return accept(s.fd, nullptr, nullptr); }},
        {"accept4", connection, [](Scene &s) -> long { return accept4(s.fd, nullptr, nullptr, SOCK_CLOEXEC); }},
        {"connect", Blocked::answer,
         [](Scene &s) -> long {
             const Address address = local_address(s.listener);
             return connect(s.fd, address.raw(), address.length);
         }},
        {"poll for data", data, [](Scene &s) { return look(s, false); }, true},
        {"poll for room", room, [](Scene &s) { return look(s, false); }, true},
        {"poll for a connection", connection, [](Scene &s) { return look(s, false); }, true},
        {"ppoll", data, [](Scene &s) { return look(s, true); }, true},
        {"select for data", data, [](Scene &s) { return choose(s, false); }, true},
        {"select for room", room, [](Scene &s) { return choose(s, false); }, true},
        {"select for a connection", connection, [](Scene &s) { return choose(s, false); }, true},
        {"pselect", data, [](Scene &s) { return choose(s, true); }, true},
        {"epoll_wait for data", data, [](Scene &s) { return wait_set(s, 0); }, true},
        {"epoll_wait for room", room, [](Scene &s) { return wait_set(s, 0); }, true},
        {"epoll_wait for a connection", connection, [](Scene &s) { return wait_set(s, 0); }, true},
        {"epoll_pwait", data, [](Scene &s) { return wait_set(s, 1); }, true},
        {"epoll_pwait2", data, [](Scene &s) { return wait_set(s, 2); }, true},
    };
    return all;
}

// Whether a thread of this process sleeps in the kernel, looked at twice.
inline bool is_blocked(pid_t tid) {
    for (int i = 0; i < 2; ++i) {
        char text[512] = {};
        const std::string path = "/proc/self/task/" + std::to_string(tid) + "/stat";
        const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
        if (fd < 0)
            return false;
        const ssize_t n = read(fd, text, sizeof text - 1);
        close(fd);
        const char *after = n > 0 ? strrchr(text, ')') : nullptr;
        if (!after || (after[2] != 'S' && after[2] != 'D')) // D: splice waits like that
            return false;
        if (i == 0)
            sleep_ms(3);
    }
    return true;
}

// Waits until a thread that has set `entered` blocks. False: it does not.
inline bool wait_until_blocked(const std::atomic<pid_t> &entered, const std::atomic<bool> &returned) {
    for (Stopwatch watch; watch.ms() < kPatience; sleep_ms(1)) {
        if (returned)
            return false;
        if (entered && is_blocked(entered))
            return true;
    }
    return false;
}

// Counted by the handlers of SIGUSR1.
inline std::atomic<int> runs{0};

inline pid_t thread_id() { return static_cast<pid_t>(syscall(SYS_gettid)); }

// A thread that makes one blocking call.
class Caller {
  public:
    Caller(Scene &scene, const BlockingCall &call)
        : thread_([this, &scene, &call] {
              entered_ = thread_id();
              result_ = call.make(scene);
              error_ = errno;
              returned_ = true;
          }) {}
    ~Caller() { thread_.join(); }

    // Interrupts it where it sleeps, once. False: it has returned.
    bool interrupt() {
        if (!wait_until_blocked(entered_, returned_))
            return false;
        const int before = runs;
        pthread_kill(thread_.native_handle(), SIGUSR1);
        for (Stopwatch watch; runs == before && !returned_ && watch.ms() < kPatience;)
            usleep(200);
        return true;
    }
    bool blocked() { return wait_until_blocked(entered_, returned_); }
    bool returned() const { return returned_; }

    // What came of it; amounts that the kernel may choose are not told.
    std::string outcome(const Scene &scene, const BlockingCall &call) {
        for (Stopwatch watch; !returned_ && watch.ms() < kPatience;)
            usleep(200);
        if (!returned_)
            give_up("the call does not return");
        if (result_ < 0)
            return strerrorname_np(error_);
        if (scene.why != Blocked::room || call.polls)
            return scene.why == Blocked::connection && !call.polls ? "a descriptor" : std::to_string(result_);
        return result_ == 0 ? "nothing" : "some";
    }
    long result() const { return result_; }

  private:
    std::atomic<pid_t> entered_{0};
    std::atomic<bool> returned_{false};
    long result_ = 0;
    int error_ = 0;
    std::thread thread_;
};

} // namespace sdtest
