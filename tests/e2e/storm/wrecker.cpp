// One pool of numbers, several threads, no locks: each takes any number from the pool and does something with
// it, while others close it, replace it, or pass it on. Only who has taken a number out of the pool closes or
// replaces it: no other socket is destroyed under its owner, which libraries that have descriptors of their
// own could not survive. What a call returns is nobody's business here, as long as it returns, and nothing
// breaks.
#include "tests/e2e/storm/wrecker.hpp"

#include <algorithm>
#include <arpa/inet.h>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <random>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <vector>

namespace storm {

namespace {

constexpr int kPool = 40, kChannel = 900;     // numbers from kChannel on are no part of the storm
constexpr int kTick = 5'000;                  ///< us after which a blocked call is interrupted
constexpr int kPatience = 60'000'000 / kTick; ///< ticks after which a process counts as hung

Board *board;
const char *self;
std::atomic<int> pool[kPool];
constexpr int kSets = 3;
int sets[kSets] = {
    /// Of the process: all threads change them and wait on them; the second is a member of the first
    -1, -1, -1};
char bytes[4096];

volatile sig_atomic_t ticks;

void tick(int) {
    ticks = ticks + 1;
    if (ticks > kPatience)
        _exit(9);
}

/// No call blocks for longer: with numbers that mean something else at any moment, a time limit may be set on
/// the wrong socket.
void interrupt_calls() {
    struct sigaction action {};
    action.sa_handler = tick; // without SA_RESTART
    sigaction(SIGALRM, &action, nullptr);
    ticks = 0;
    const itimerval every{{0, kTick}, {0, kTick}};
    setitimer(ITIMER_REAL, &every, nullptr);
}

class Thread {
  public:
    Thread(uint64_t seed, bool child) : random_(seed), child_(child) {}
    void act();

  private:
    unsigned below(unsigned n) { return static_cast<unsigned>(random_() % n); }
    int any() { return pool[below(kPool)].load(); }
    void keep(int fd) {
        if (fd < 0)
            return;
        if (const int old = pool[below(kPool)].exchange(fd); old >= 3)
            close(old);
    }
    static void count(ssize_t n) { board->moved += n > 0; }

    void make_listener();
    void accept_some();
    void move_data();
    void copy_number();
    void use_epoll();
    void wait_for_some();
    void pass();
    void fork_child();
    void change_options();
    void execute();
    void block();
    void splice_some();

    std::mt19937_64 random_;
    const bool child_;
    int set_ = -1;
};

void limit_waiting(int fd, int microseconds) {
    const timeval limit{0, microseconds};
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
}

sockaddr_in loopback(uint32_t port) {
    sockaddr_in a{};
    a.sin_family = AF_INET;
    a.sin_port = htons(static_cast<uint16_t>(port));
    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return a;
}

struct Mail {
    char byte = 'd';
    iovec part{&byte, 1};
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
    msghdr message{};
    Mail() {
        message.msg_iov = &part;
        message.msg_iovlen = 1;
        message.msg_control = control;
        message.msg_controllen = sizeof control;
    }
};

void send_number(int fd) {
    Mail mail;
    cmsghdr *header = CMSG_FIRSTHDR(&mail.message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof fd);
    memcpy(CMSG_DATA(header), &fd, sizeof fd);
    sendmsg(kChannel, &mail.message, MSG_DONTWAIT | MSG_NOSIGNAL);
}

int take_number() {
    Mail mail;
    if (recvmsg(kChannel, &mail.message, MSG_DONTWAIT) <= 0)
        return -1;
    const cmsghdr *header = CMSG_FIRSTHDR(&mail.message);
    int fd = -1;
    if (header && header->cmsg_type == SCM_RIGHTS)
        memcpy(&fd, CMSG_DATA(header), sizeof fd);
    return fd;
}

void must_end_well(pid_t child, const char *what) {
    int status = 0;
    if (child < 0)
        return;
    while (waitpid(child, &status, 0) < 0)
        if (errno != EINTR)
            return;
    if (status == 0)
        return;
    fprintf(stderr, "storm: %s ended with status %x\n", what, static_cast<unsigned>(status));
    abort();
}

void Thread::make_listener() {
    const int fd = socket(AF_INET, SOCK_STREAM | (below(3) ? SOCK_NONBLOCK : 0), 0);
    sockaddr_in address = loopback(0);
    socklen_t size = sizeof address;
    auto *raw = reinterpret_cast<sockaddr *>(&address);
    limit_waiting(fd, 3000); // before anybody can accept there: who has a stale number may
    if (fd >= 0 && bind(fd, raw, size) == 0 && listen(fd, static_cast<int>(below(64))) == 0 &&
        getsockname(fd, raw, &size) == 0)
        board->port[below(kAddresses)] = ntohs(address.sin_port);
    keep(fd);
}

void Thread::accept_some() {
    for (int i = 0; i < 6; ++i) {
        const int fd = accept4(any(), nullptr, nullptr, SOCK_NONBLOCK);
        if (fd < 0)
            continue;
        ++board->accepted;
        if (below(4))
            if (const ssize_t n = recv(fd, bytes, 100, MSG_DONTWAIT); n > 0)
                count(send(fd, bytes, static_cast<size_t>(n), MSG_DONTWAIT | MSG_NOSIGNAL));
        if (below(3))
            keep(fd);
        else
            close(fd);
        return;
    }
}

void Thread::move_data() {
    const int fd = any();
    const size_t n = below(sizeof bytes);
    iovec parts[2]{{bytes, 100}, {bytes + 200, 30}};
    msghdr message{};
    message.msg_iov = parts;
    message.msg_iovlen = 2;
    constexpr int kNow = MSG_DONTWAIT | MSG_NOSIGNAL;
    switch (below(6)) {
    case 0:
        return count(send(fd, bytes, n, kNow));
    case 1:
        return count(recv(fd, bytes, n, kNow));
    case 2:
        return count(recv(fd, bytes, n, kNow | MSG_PEEK));
    case 3:
        return count(sendmsg(fd, &message, kNow));
    case 4:
        return count(recvmsg(fd, &message, kNow));
    default:
        return count(send(fd, bytes, 8, kNow | MSG_OOB));
    }
}

void Thread::copy_number() {
    const int fd = any();
    switch (below(3)) {
    case 0:
        return keep(dup(fd));
    case 1:
        return keep(fcntl(fd, F_DUPFD_CLOEXEC, 3));
    default: {
        std::atomic<int> &place = pool[below(kPool)];
        const int replaced = place.exchange(-1);
        if (fd >= 3 && replaced >= 3)
            dup2(fd, replaced);
        if (const int old = place.exchange(replaced); old >= 3)
            close(old);
    }
    }
}

void Thread::use_epoll() {
    if (set_ < 0 || below(50) == 0) {
        set_ = below(2) ? sets[below(kSets)] : any();
        if (below(3) == 0)
            keep(set_ = epoll_create1(0));
    }
    epoll_event event{};
    for (const uint32_t flag : {uint32_t{EPOLLIN}, uint32_t{EPOLLOUT}, static_cast<uint32_t>(EPOLLET)})
        event.events |= below(3) ? flag : 0;
    event.events |= below(6) ? 0 : static_cast<uint32_t>(EPOLLONESHOT);
    for (int i = 0; i < 3; ++i) {
        static constexpr int kOperation[] = {EPOLL_CTL_ADD, EPOLL_CTL_ADD, EPOLL_CTL_MOD, EPOLL_CTL_DEL};
        epoll_ctl(set_, kOperation[below(4)], event.data.fd = any(), &event);
    }
    epoll_event ready[8];
    const int got = epoll_wait(set_, ready, below(2) ? 1 : 8, below(4) ? 0 : below(8) ? 2 : 20);
    event.events |= EPOLLONESHOT;
    for (int i = 0; i < got; ++i) { // one-shot members are armed again, by whoever was told of one
        event.data.fd = ready[i].data.fd;
        epoll_ctl(set_, EPOLL_CTL_MOD, event.data.fd, &event);
    }
    if (below(8) == 0) {
        event.events = below(2) ? uint32_t{EPOLLIN} : EPOLLIN | static_cast<uint32_t>(EPOLLET);
        epoll_ctl(sets[0], below(2) ? EPOLL_CTL_ADD : EPOLL_CTL_DEL, sets[1], &event);
    }
}

void Thread::wait_for_some() {
    pollfd list[6];
    const unsigned n = 1 + below(6);
    for (unsigned i = 0; i < n; ++i)
        list[i] = {any(), static_cast<short>(POLLIN | (below(3) ? 0 : POLLOUT)), 0};
    if (below(4)) {
        poll(list, n, below(4) ? 0 : 2);
        return;
    }
    fd_set set;
    FD_ZERO(&set);
    int high = 0;
    for (unsigned i = 0; i < n; ++i)
        if (const int fd = list[i].fd; fd >= 0 && fd < FD_SETSIZE) {
            FD_SET(fd, &set);
            high = std::max(high, fd + 1);
        }
    timeval limit{0, 1000};
    select(high, &set, nullptr, nullptr, &limit);
}

void Thread::pass() {
    if (below(2))
        keep(take_number());
    else if (const int fd = any(); fd >= 3)
        send_number(fd);
}

void Thread::fork_child() {
    const uint64_t seed = random_();
    const pid_t child = fork();
    if (child == 0) {
        interrupt_calls();
        Thread thread(seed, true);
        for (int i = 0; i < 8; ++i)
            thread.act();
        _exit(0);
    }
    must_end_well(child, "a forked child");
}

void Thread::execute() {
    char number[16];
    snprintf(number, sizeof number, "%d", any());
    const pid_t child = fork();
    if (child == 0) {
        execl(self, self, "inherit", number, nullptr);
        _exit(0);
    }
    must_end_well(child, "an executed program");
}

void Thread::change_options() {
    const int fd = any();
    int value = below(2) ? 1 : 4096;
    socklen_t size = sizeof value;
    sockaddr_storage address{};
    socklen_t address_size = sizeof address;
    constexpr linger kReset{1, 0};
    switch (below(6)) {
    case 0:
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &value, size);
        break;
    case 1:
        setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &value, size);
        break;
    case 2:
        getsockopt(fd, SOL_SOCKET, SO_ERROR, &value, &size);
        break;
    case 3:
        getpeername(fd, reinterpret_cast<sockaddr *>(&address), &address_size);
        break;
    case 4:
        getsockname(fd, reinterpret_cast<sockaddr *>(&address), &address_size);
        break;
    default:
        setsockopt(fd, SOL_SOCKET, SO_LINGER, &kReset, sizeof kReset);
    }
}

void Thread::block() {
    const int fd = any();
    limit_waiting(fd, 2000);
    count(recv(fd, bytes, 64, below(2) ? 0 : MSG_WAITALL));
    if (below(3) == 0)
        count(send(fd, bytes, sizeof bytes, MSG_NOSIGNAL));
}

void Thread::splice_some() {
    int ends[2];
    if (pipe2(ends, O_NONBLOCK) != 0)
        return;
    count(splice(any(), nullptr, ends[1], nullptr, 1000, SPLICE_F_NONBLOCK));
    if (write(ends[1], bytes, 100) > 0)
        count(splice(ends[0], nullptr, any(), nullptr, 100, SPLICE_F_NONBLOCK));
    close(ends[0]);
    close(ends[1]);
}

void Thread::act() {
    switch (below(child_ ? 174 : 176)) { // a child makes no children
    case 0 ... 2:
        return make_listener();
    case 3 ... 32:
        return accept_some();
    case 33 ... 52:
        return keep(connect_somewhere(*board, random_()));
    case 53 ... 92:
        return move_data();
    case 93 ... 104:
        if (const int fd = pool[below(kPool)].exchange(-1); fd >= 3)
            close(fd);
        return;
    case 105 ... 110:
        return copy_number();
    case 111 ... 130:
        return use_epoll();
    case 131 ... 145:
        return wait_for_some();
    case 146 ... 151:
        return pass();
    case 152:
        shutdown(any(), static_cast<int>(below(3)));
        return;
    case 153 ... 158:
        return change_options();
    case 159 ... 166:
        return block();
    case 167 ... 171:
        return splice_some();
    case 172 ... 173:
        listen(any(), 10);
        return;
    case 174:
        return fork_child();
    default:
        return execute();
    }
}

} // namespace

int connect_somewhere(const Board &all, uint64_t random) {
    const uint32_t port = all.port[random % kAddresses];
    const int fd = port == 0 ? -1 : socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return -1;
    const sockaddr_in address = loopback(port);
    if (connect(fd, reinterpret_cast<const sockaddr *>(&address), sizeof address) == 0 || errno == EINPROGRESS)
        return fd;
    close(fd);
    return -1;
}

int inherit(int fd) {
    interrupt_calls();
    pollfd one{fd, POLLIN, 0};
    if (poll(&one, 1, 1) > 0) {
        if (const int accepted = accept4(fd, nullptr, nullptr, SOCK_NONBLOCK); accepted >= 0)
            send(accepted, bytes, 4, MSG_DONTWAIT | MSG_NOSIGNAL);
        recv(fd, bytes, 64, MSG_DONTWAIT);
    }
    send(fd, bytes, 4, MSG_DONTWAIT | MSG_NOSIGNAL);
    return 0;
}

int wreck(Board &shared, int index, uint64_t seed, int channel, const char *program) {
    board = &shared;
    self = program;
    struct sigaction action {};
    action.sa_handler = [](int) {}; // without SA_RESTART, as above
    sigaction(SIGUSR1, &action, nullptr);
    dup3(channel, kChannel, O_CLOEXEC);
    close(channel);
    for (auto &fd : pool)
        fd = -1;
    for (int &set : sets)
        set = epoll_create1(EPOLL_CLOEXEC);
    std::vector<std::thread> threads;
    threads.reserve(kThreads);
    for (int t = 0; t < kThreads; ++t)
        threads.emplace_back([=] {
            Thread thread(seed * 1000 + static_cast<uint64_t>(index * kThreads + t), false);
            while (!board->stop)
                thread.act();
            ++board->ended[index];
        });
    // A thread that has ended keeps its handle until it is joined.
    for (int ended = 0; ended < kThreads;) {
        usleep(kTick);
        ended = board->ended[index];
        for (std::thread &thread : threads)
            pthread_kill(thread.native_handle(), SIGUSR1);
    }
    for (std::thread &thread : threads)
        thread.join();
    // Everything goes, also what nobody has a number of any more, and what is in the mail.
    for (int fd = 3; fd < kChannel; ++fd)
        close(fd);
    ++board->closed;
    while (board->closed < kWreckers)
        usleep(1000);
    for (int fd; (fd = take_number()) >= 0;)
        close(fd);
    ++board->closed;
    while (!board->over)
        usleep(1000);
    int left = 0;
    for (int fd = 3; fd < kChannel; ++fd)
        left += fcntl(fd, F_GETFD) >= 0;
    if (left)
        fprintf(stderr, "storm: %d numbers are still open\n", left);
    return left != 0;
}

} // namespace storm
