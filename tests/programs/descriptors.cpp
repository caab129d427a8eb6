// Descriptor numbers: duplicates and what they share, lowest number first, close in all its forms, file
// status.
#include "tests/programs/cases.hpp"

#include <dirent.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/timerfd.h>
#include <sys/wait.h>

using namespace sdtest;

namespace {

bool non_blocking(int fd) { return (MUST(fcntl(fd, F_GETFL)) & O_NONBLOCK) != 0; }

bool is_open(int fd) { return fcntl(fd, F_GETFD) >= 0; }

// True when the peer of this end has closed; the wait is for a kernel that needs a moment.
bool peer_is_gone(int fd) { return (poll_now(fd, POLLRDHUP, 1000) & POLLRDHUP) != 0; }

bool peer_is_there(int fd) { return (poll_now(fd, POLLRDHUP, 50) & POLLRDHUP) == 0; }

} // namespace

BEHAVIOUR("duplicates share O_NONBLOCK and the stream", duplicates_share_status, accelerated) {
    const Pair pair = make_pair();
    const int copies[] = {MUST(dup(pair.client)), MUST(dup2(pair.client, 100)),
                          MUST(dup3(pair.client, 101, O_CLOEXEC)), MUST(fcntl(pair.client, F_DUPFD, 102)),
                          MUST(fcntl(pair.client, F_DUPFD_CLOEXEC, 103))};
    for (const int copy : copies)
        say("non-blocking %d, close on exec %d", non_blocking(copy), fcntl(copy, F_GETFD));
    set_nonblocking(copies[1]);
    say("original %d", non_blocking(pair.client));
    for (const int copy : copies)
        say("non-blocking %d", non_blocking(copy));
    char byte;
    SHOW(recv(pair.client, &byte, 1, 0));
    set_nonblocking(pair.client, false);
    for (const int copy : copies)
        say("non-blocking %d", non_blocking(copy));
    // Any of them reads the one stream.
    send_all(pair.server, "abcdef");
    for (const int copy : copies) {
        SHOW(read(copy, &byte, 1));
        say("%c", byte);
    }
    SHOW(write(copies[3], "back", 4));
    say("%s", receive(pair.server, 4).c_str());
}

BEHAVIOUR("status flags", status_flags, accelerated) {
    const Pair pair = make_pair();
    const int flagged = MUST(socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    say("%o %d", static_cast<unsigned>(fcntl(flagged, F_GETFL)), fcntl(flagged, F_GETFD));
    say("%o %d", static_cast<unsigned>(fcntl(pair.client, F_GETFL)), fcntl(pair.client, F_GETFD));
    SHOW(fcntl(pair.client, F_SETFL, O_NONBLOCK | O_APPEND));
    say("%o", static_cast<unsigned>(fcntl(pair.client, F_GETFL)));
    SHOW(fcntl(pair.client, F_SETFL, 0));
    say("%o", static_cast<unsigned>(fcntl(pair.client, F_GETFL)));
    SHOW(fcntl(pair.client, F_SETFD, FD_CLOEXEC));
    SHOW(fcntl(pair.client, F_GETFD));
    SHOW(fcntl(pair.client, F_GETOWN));
    SHOW(fcntl(pair.client, 9999));
    SHOW(fcntl(pair.client, F_DUPFD, -1));
    SHOW(fcntl(pair.client, F_DUPFD, 100000000));
}

BEHAVIOUR("the last close ends the connection", last_close_ends, accelerated) {
    const Pair pair = make_pair();
    const int copy = MUST(dup(pair.client));
    SHOW(close(pair.client));
    SHOW_BOOL(peer_is_there(pair.server));
    SHOW(send(copy, "still", 5, 0));
    say("%s", receive(pair.server, 5).c_str());
    SHOW(close(copy));
    SHOW_BOOL(peer_is_gone(pair.server));
}

BEHAVIOUR("dup2 over a connection", dup2_replaces, accelerated) {
    const Pair one = make_pair(), two = make_pair();
    // The connection that held the number is closed by it.
    SHOW_BOOL(dup2(one.client, two.client) == two.client);
    SHOW_BOOL(peer_is_gone(two.server));
    SHOW(send(two.client, "one", 3, 0));
    say("%s", receive(one.server, 3).c_str());
    SHOW_BOOL(dup2(one.client, one.client) == one.client);
    SHOW(dup3(one.client, one.client, 0));
    SHOW(dup2(one.client, -1));
    SHOW(dup2(one.client, 100000000));
    SHOW(dup3(one.client, 50, 0x1234));
    SHOW_BOOL(peer_is_there(one.server));
    // Another kind of file takes the number over.
    int ends[2];
    MUST(pipe(ends));
    SHOW_BOOL(dup2(ends[1], one.client) == one.client);
    SHOW_BOOL(peer_is_there(one.server)); // two.client is a duplicate
    SHOW_BOOL(dup2(ends[1], two.client) == two.client);
    SHOW_BOOL(peer_is_gone(one.server));
    SHOW(write(one.client, "to the pipe", 11));
    char buffer[16];
    SHOW(read(ends[0], buffer, sizeof buffer));
    // And a socket takes over the number of another kind.
    const Pair three = make_pair();
    SHOW_BOOL(dup2(three.client, ends[1]) == ends[1]);
    SHOW(write(ends[1], "to the socket", 13));
    say("%s", receive(three.server, 13).c_str());
}

BEHAVIOUR("lowest number first", lowest_number_first, accelerated) {
    const int base = MUST(dup(0));
    close(base);
    const auto number = [base](const char *what, int fd) {
        say("%s %s%d", what, fd < 0 ? strerrorname_np(errno) : "", fd < 0 ? 0 : fd - base);
        return fd;
    };
    const int listener = number("socket", socket(AF_INET, SOCK_STREAM, 0));
    MUST(listen(listener, 8));
    const Address to = make_address("127.0.0.1", local_address(listener).port());
    const int client = number("socket", socket(AF_INET, SOCK_STREAM, 0));
    MUST(connect(client, to.raw(), to.length));
    const int server = number("accept", accept(listener, nullptr, nullptr));
    int ends[2];
    MUST(pipe(ends));
    number("pipe", ends[0]);
    number("pipe", ends[1]);
    close(client);
    const int file = number("open", open("/dev/null", O_RDONLY));
    const int second = number("socket", socket(AF_INET, SOCK_STREAM, 0));
    MUST(connect(second, to.raw(), to.length));
    close(ends[0]);
    number("accept", accept(listener, nullptr, nullptr));
    close(file);
    close(server);
    number("eventfd", eventfd(0, 0));
    number("epoll", epoll_create1(0));
    number("dup", dup(second));
    number("timerfd", timerfd_create(CLOCK_MONOTONIC, 0));
    close(second);
    number("socketpair", socketpair(AF_UNIX, SOCK_STREAM, 0, ends) < 0 ? -1 : ends[0]);
    number("F_DUPFD", fcntl(listener, F_DUPFD, base + 40));
    number("socket", socket(AF_INET, SOCK_STREAM, 0));
    // Short connections one after the other keep using the same two numbers.
    for (int i = 0; i < 20; ++i) {
        const Pair pair = connect_through(listener);
        if (i < 3 || i == 19) {
            number("client", pair.client);
            number("server", pair.server);
        }
        close(pair.client);
        close(pair.server);
    }
    number("open", open("/dev/null", O_RDONLY));
}

BEHAVIOUR("numbers of short connections", numbers_of_short_connections, accelerated) {
    const int base = MUST(dup(0));
    close(base);
    const auto number = [base](const char *what, int fd) {
        say("%s %s%d", what, fd < 0 ? strerrorname_np(errno) : "", fd < 0 ? 0 : fd - base);
        return fd;
    };
    const int listener = number("socket", socket(AF_INET, SOCK_STREAM, 0));
    MUST(listen(listener, 8));
    const Address to = make_address("127.0.0.1", local_address(listener).port());
    const auto connection = [&](int flags) {
        const int client = number("socket", socket(AF_INET, SOCK_STREAM | flags, 0));
        MUST(connect(client, to.raw(), to.length));
        const int server = number("accept", accept4(listener, nullptr, nullptr, flags));
        return std::pair{client, server};
    };
    const auto end = [](std::pair<int, int> pair) {
        SHOW(close(pair.first));
        SHOW(close(pair.second));
    };
    for (const int flags : {0, int{SOCK_CLOEXEC}, int{SOCK_CLOEXEC}, 0, 0}) {
        const auto pair = connection(flags);
        SHOW(fcntl(pair.first, F_GETFD));
        SHOW(fcntl(pair.second, F_GETFD));
        end(pair);
    }
    // A number that was closed is closed, whatever asks.
    char byte = 'x';
    const auto closed = [&](int fd) {
        SHOW(close(fd));
        SHOW(read(fd, &byte, 1));
        pollfd one{fd, POLLIN, 0};
        SHOW(poll(&one, 1, 0));
        say("%x", static_cast<unsigned>(one.revents));
    };
    struct stat status;
    int value = 0;
    socklen_t size = sizeof value;
    for (int which = 0; which < 9; ++which) {
        const auto pair = connection(0);
        end(pair);
        const int fd = pair.second;
        switch (which) {
        case 0:
            closed(fd);
            break;
        case 1:
            SHOW(write(fd, &byte, 1));
            break;
        case 2:
            SHOW(fstat(fd, &status));
            break;
        case 3:
            SHOW(getsockopt(fd, SOL_SOCKET, SO_TYPE, &value, &size));
            break;
        case 4:
            SHOW(dup(fd));
            break;
        case 5:
            SHOW(fcntl(fd, F_GETFD));
            break;
        case 6:
            SHOW(dup2(listener, fd) == fd ? close(fd) : -1);
            break;
        case 7:
            SHOW(connect(fd, to.raw(), to.length));
            break;
        default:
            SHOW(close_range(static_cast<unsigned>(fd), static_cast<unsigned>(fd), 0));
            break;
        }
    }
    // The flag of the number last closed is not the next one's.
    auto pair = connection(0);
    SHOW(fcntl(pair.first, F_SETFD, FD_CLOEXEC));
    SHOW(ioctl(pair.second, FIOCLEX));
    end(pair);
    pair = connection(0);
    SHOW(fcntl(pair.first, F_GETFD));
    SHOW(fcntl(pair.second, F_GETFD));
    // Other kinds of file get the lowest number too, and leave it again.
    end(pair);
    number("open", open("/dev/null", O_RDONLY));
    DIR *directory = opendir("/");
    number("opendir", dirfd(directory));
    pair = connection(0);
    SHOW(closedir(directory));
    const int lower = number("socket", socket(AF_INET, SOCK_STREAM, 0));
    end(pair);
    FILE *stream = fopen("/dev/null", "r");
    number("fopen", fileno(stream));
    SHOW(close(lower));
    pair = connection(0);
    SHOW(fclose(stream));
    end(pair);
    pair = connection(0);
    int ends[2];
    MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, ends));
    number("socketpair", ends[0]);
    end(pair);
    union {
        cmsghdr header;
        char room[CMSG_SPACE(sizeof(int))];
    } control{};
    iovec part{&byte, 1};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = &control;
    message.msg_controllen = sizeof control;
    control.header = {CMSG_LEN(sizeof(int)), SOL_SOCKET, SCM_RIGHTS};
    memcpy(CMSG_DATA(&control.header), &ends[0], sizeof(int));
    SHOW(sendmsg(ends[0], &message, 0));
    SHOW(recvmsg(ends[1], &message, 0));
    int received;
    memcpy(&received, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof received);
    number("received", received);
    // A program that is started finds none of it open.
    pair = connection(0);
    end(pair);
    const std::string look = "test ! -e /proc/self/fd/" + std::to_string(pair.first) +
                             " -a ! -e /proc/self/fd/" + std::to_string(pair.second);
    SHOW(system(look.c_str()));
    // Parent and child count on their own.
    pair = connection(0);
    end(pair);
    const pid_t child = MUST(fork());
    if (child == 0) {
        const auto own = connection(0);
        SHOW(close(own.first));
        number("child", dup(0));
        fflush(nullptr);
        _exit(0);
    }
    int ended = 0;
    MUST(waitpid(child, &ended, 0));
    say("%d", ended);
    end(connection(0));
}

BEHAVIOUR("connections on 0, 1 and 2", standard_numbers, accelerated) {
    output_fd = MUST(fcntl(STDOUT_FILENO, F_DUPFD, 20));
    const int listener = MUST(fcntl(make_listener(), F_DUPFD, 30));
    for (int fd = 0; fd < 10; ++fd)
        close(fd);
    const Pair pair = connect_through(listener);
    say("client %d server %d", pair.client, pair.server);
    SHOW(send(0, "zero", 4, 0));
    say("%s", receive(1, 4).c_str());
    SHOW(close(0));
    SHOW(open("/dev/null", O_RDONLY));
    SHOW(socket(AF_INET, SOCK_STREAM, 0));
}

BEHAVIOUR("close_range and closefrom", close_ranges, accelerated) {
    const Pair one = make_pair(), two = make_pair(), three = make_pair();
    MUST(dup2(one.client, 200));
    MUST(dup2(two.client, 201));
    MUST(dup2(three.client, 300));
    close(one.client);
    close(two.client);
    close(three.client);
    SHOW(close_range(200, 250, 0));
    SHOW_BOOL(peer_is_gone(one.server) && peer_is_gone(two.server));
    SHOW_BOOL(peer_is_there(three.server));
    SHOW(close_range(300, 301, CLOSE_RANGE_CLOEXEC));
    SHOW(fcntl(300, F_GETFD));
    SHOW(send(300, "alive", 5, 0));
    say("%s", receive(three.server, 5).c_str());
    SHOW(close_range(310, 300, 0));
    SHOW(close_range(300, 300, 0x100));
    closefrom(250);
    SHOW_BOOL(peer_is_gone(three.server));
    SHOW_BOOL(is_open(three.server) && is_open(one.server));
    SHOW_BOOL(!is_open(300));
    // What closes everything leaves a program able to make new connections.
    SHOW(close_range(3, ~0u, 0));
    const Pair four = make_pair();
    SHOW(send(four.client, "new", 3, 0));
    say("%s", receive(four.server, 3).c_str());
}

BEHAVIOUR("closing everything in a loop", close_everything_loop, accelerated) {
    make_pair();
    rlimit limit{};
    MUST(getrlimit(RLIMIT_NOFILE, &limit));
    const int top = limit.rlim_cur > 4096 ? 4096 : static_cast<int>(limit.rlim_cur);
    int closed = 0;
    for (int fd = 3; fd < top; ++fd)
        closed += close(fd) == 0;
    say("closed %d", closed);
    const Pair pair = make_pair();
    SHOW(send(pair.client, "new", 3, 0));
    say("%s", receive(pair.server, 3).c_str());
}

BEHAVIOUR("EMFILE", no_numbers_left, accelerated) {
    const int listener = make_listener();
    const int waiting = connect_to(listener);
    const int client = MUST(socket(AF_INET, SOCK_STREAM, 0));
    rlimit limit{};
    MUST(getrlimit(RLIMIT_NOFILE, &limit));
    const rlim_t before = limit.rlim_cur;
    limit.rlim_cur = static_cast<rlim_t>(client) + 1;
    MUST(setrlimit(RLIMIT_NOFILE, &limit));
    SHOW(socket(AF_INET, SOCK_STREAM, 0));
    SHOW(accept(listener, nullptr, nullptr));
    SHOW(dup(listener));
    // The connection has not been lost.
    close(client);
    SHOW_BOOL(accept(listener, nullptr, nullptr) == client);
    SHOW(send(waiting, "kept", 4, 0));
    say("%s", receive(client, 4).c_str());
    limit.rlim_cur = before;
    MUST(setrlimit(RLIMIT_NOFILE, &limit));
}

BEHAVIOUR("fstat and /proc/self/fd", file_status, accelerated) {
    const Pair pair = make_pair();
    const int fresh = MUST(socket(AF_INET, SOCK_STREAM, 0));
    std::vector<ino_t> inodes;
    for (const int fd : {fresh, pair.listener, pair.client, pair.server}) {
        struct stat status {};
        SHOW(fstat(fd, &status));
        say("mode %o size %ld links %ld", status.st_mode, static_cast<long>(status.st_size),
            static_cast<long>(status.st_nlink));
        struct statx extended {};
        SHOW(statx(fd, "", AT_EMPTY_PATH, STATX_ALL, &extended));
        say("mode %o", extended.stx_mode);
        SHOW(fstatat(fd, "", &status, AT_EMPTY_PATH));
        say("mode %o", status.st_mode);
        inodes.push_back(status.st_ino);
        char link[64] = {};
        const std::string path = "/proc/self/fd/" + std::to_string(fd);
        SHOW_BOOL(readlink(path.c_str(), link, sizeof link - 1) > 0 && strncmp(link, "socket:[", 8) == 0);
        SHOW(open(path.c_str(), O_RDWR));
    }
    bool distinct = true;
    for (size_t i = 0; i < inodes.size(); ++i)
        for (size_t j = 0; j < i; ++j)
            distinct = distinct && inodes[i] != inodes[j];
    SHOW_BOOL(distinct);
    struct stat original {
    }, copy{};
    MUST(fstat(pair.client, &original));
    MUST(fstat(MUST(dup(pair.client)), &copy));
    SHOW_BOOL(original.st_ino == copy.st_ino && original.st_dev == copy.st_dev);
}

BEHAVIOUR("a reused number knows nothing of before", reused_number_is_a_stranger, accelerated) {
    const Pair pair = make_pair();
    set_nonblocking(pair.client);
    set_option(pair.client, IPPROTO_TCP, TCP_NODELAY, 1);
    const int number = pair.client;
    close(pair.client);
    const int fresh = MUST(socket(AF_INET, SOCK_STREAM, 0));
    SHOW_BOOL(fresh == number);
    SHOW_BOOL(!non_blocking(fresh));
    SHOW(get_option(fresh, IPPROTO_TCP, TCP_NODELAY));
    char byte;
    SHOW(recv(fresh, &byte, 1, 0));
    close(fresh);
    int ends[2];
    MUST(pipe(ends));
    SHOW_BOOL(ends[0] == number);
    MUST(write(ends[1], "p", 1));
    SHOW(read(ends[0], &byte, 1));
    SHOW(recv(ends[0], &byte, 1, 0));
}

// The number of a closed socket, taken over by dup2 or dup3, belongs to the copy from then on.
BEHAVIOUR("a copy under the number of a closed socket", duplicate_onto_a_closed_number, accelerated) {
    const int listener = make_listener();
    for (const bool newer : {false, true}) {
        const Pair old = connect_through(listener), pair = connect_through(listener);
        close(old.server);
        SHOW_BOOL((newer ? dup3(pair.server, old.server, O_CLOEXEC) : dup2(pair.server, old.server)) ==
                  old.server);
        close(pair.server);
        int ends[2];
        MUST(pipe(ends));
        SHOW_BOOL(ends[0] != old.server && ends[1] != old.server);
        SHOW(send(pair.client, "over", 4, 0));
        SHOW_BOOL((poll_now(old.server, POLLIN, 1000) & POLLIN) != 0);
        say("%s", receive(old.server, 4).c_str());
        close(old.server);
        say("rest %zu", receive_to_end(pair.client).size());
        close(ends[0]);
        close(ends[1]);
        close(pair.client);
        close(old.client);
    }
}

// close_range marks what is open: what a later socket gets under a number that was free then is not marked,
// and what it marks stays marked.
BEHAVIOUR("close_range with CLOSE_RANGE_CLOEXEC", marked_by_range, any) {
    const auto marked = [](int fd) { return (MUST(fcntl(fd, F_GETFD)) & FD_CLOEXEC) != 0; };
    const int open_one = MUST(socket(AF_INET, SOCK_STREAM, 0));
    const int closed_one = MUST(socket(AF_INET, SOCK_STREAM, 0));
    close(closed_one);
    SHOW(close_range(3, 400, CLOSE_RANGE_CLOEXEC));
    SHOW_BOOL(marked(open_one));
    const int next = MUST(socket(AF_INET, SOCK_STREAM, 0));
    SHOW_BOOL(next == closed_one);
    SHOW_BOOL(marked(next));
    close(next);
    close(open_one);
    const int again = MUST(socket(AF_INET, SOCK_STREAM, 0));
    SHOW_BOOL(again == open_one);
    SHOW_BOOL(marked(again));
    close(again);
    const int third = MUST(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    SHOW_BOOL(marked(third));
}

int main(int argc, char **argv) { return run_behaviour(argc, argv); }
