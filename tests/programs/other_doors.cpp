// The same calls by other names: syscall(), glibc's aliases, stdio, fortified wrappers, asynchronous I/O.
#include "tests/programs/cases.hpp"
#include "tests/programs/process.hpp"

#include <aio.h>
#include <linux/close_range.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <sys/uio.h>

using namespace sdtest;

extern "C" {
// Public in glibc, declared in no header.
ssize_t __read(int, void *, size_t);
ssize_t __write(int, const void *, size_t);
ssize_t __send(int, const void *, size_t, int);
int __connect(int, const sockaddr *, socklen_t);
int __close(int);
int __poll(pollfd *, nfds_t, int);
int __select(int, fd_set *, fd_set *, fd_set *, timeval *);
int __fcntl(int, int, ...);
int __dup2(int, int);
// What _FORTIFY_SOURCE turns the plain calls into.
ssize_t __read_chk(int, void *, size_t, size_t);
ssize_t __recv_chk(int, void *, size_t, size_t, int);
ssize_t __recvfrom_chk(int, void *, size_t, size_t, int, sockaddr *, socklen_t *);
ssize_t __pread_chk(int, void *, size_t, off_t, size_t);
int __poll_chk(pollfd *, nfds_t, int, size_t);
int __ppoll_chk(pollfd *, nfds_t, const timespec *, const sigset_t *, size_t);
}

BEHAVIOUR("a connection made by syscall()", raw_connection, any) {
    const int listener = static_cast<int>(syscall(SYS_socket, AF_INET, SOCK_STREAM, 0));
    Address name = make_address("127.0.0.1", 0);
    SHOW(syscall(SYS_bind, listener, name.raw(), name.length));
    SHOW(syscall(SYS_listen, listener, 5));
    SHOW(syscall(SYS_getsockname, listener, name.raw(), &name.length));
    const int client = static_cast<int>(syscall(SYS_socket, AF_INET, SOCK_STREAM, 0));
    SHOW(syscall(SYS_connect, client, name.raw(), name.length));
    const int server = static_cast<int>(syscall(SYS_accept4, listener, nullptr, nullptr, SOCK_CLOEXEC));
    SHOW(syscall(SYS_fcntl, server, F_GETFD));
    char buffer[16] = {};
    SHOW(syscall(SYS_write, client, "raw", 3));
    SHOW(syscall(SYS_read, server, buffer, sizeof buffer));
    say("%s", buffer);
    SHOW(syscall(SYS_close, client));
    wait_for(server, POLLRDHUP);
    SHOW(syscall(SYS_read, server, buffer, sizeof buffer));
    SHOW(syscall(SYS_close, server));
    SHOW(syscall(SYS_close, server));
}

// A connection made through libc, used through syscall().
BEHAVIOUR("syscall() with socket numbers", raw_calls, accelerated) {
    const Pair pair = make_pair();
    char buffer[64] = {};
    iovec part{buffer, 5};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    SHOW(syscall(SYS_sendto, pair.client, "hello", 5, 0, nullptr, 0));
    SHOW(syscall(SYS_recvfrom, pair.server, buffer, 64, 0, nullptr, nullptr));
    SHOW(syscall(SYS_sendmsg, pair.client, &message, 0));
    SHOW(syscall(SYS_recvmsg, pair.server, &message, 0));
    SHOW(syscall(SYS_writev, pair.client, &part, 1));
    SHOW(syscall(SYS_readv, pair.server, &part, 1));
    say("%.5s", buffer);
    SHOW(syscall(SYS_pread64, pair.server, buffer, 5, 0));
    SHOW(syscall(SYS_fcntl, pair.server, F_SETFL, O_RDWR | O_NONBLOCK));
    SHOW(syscall(SYS_read, pair.server, buffer, 5));
    SHOW(recv(pair.server, buffer, 5, 0));
    int value = 0;
    SHOW(syscall(SYS_ioctl, pair.server, FIONREAD, &value));
    pollfd entry{pair.server, POLLIN | POLLOUT, 0};
    SHOW(syscall(SYS_poll, &entry, 1, 0));
    say("%s", event_names(static_cast<uint32_t>(entry.revents)).c_str());
    value = 1;
    socklen_t length = sizeof value;
    SHOW(syscall(SYS_setsockopt, pair.client, IPPROTO_TCP, TCP_NODELAY, &value, sizeof value));
    SHOW(get_option(pair.client, IPPROTO_TCP, TCP_NODELAY));
    SHOW(syscall(SYS_getsockopt, pair.client, SOL_SOCKET, SO_KEEPALIVE, &value, &length));
    const int copy = static_cast<int>(syscall(SYS_dup, pair.client));
    SHOW_BOOL(syscall(SYS_dup3, pair.client, 70, 0) == 70);
    SHOW(write(copy, "ab", 2));
    SHOW(write(70, "cd", 2));
    wait_for(pair.server, POLLIN);
    set_nonblocking(pair.server, false);
    say("%s", receive(pair.server, 4).c_str());
    const int set = static_cast<int>(syscall(SYS_epoll_create1, 0));
    epoll_event event{};
    event.events = EPOLLIN;
    SHOW(syscall(SYS_epoll_ctl, set, EPOLL_CTL_ADD, pair.server, &event));
    SHOW(send(pair.client, "x", 1, 0));
    SHOW(syscall(SYS_epoll_wait, set, &event, 1, kPatience));
    SHOW(syscall(SYS_shutdown, pair.client, SHUT_WR));
    say("%s", receive_to_end(pair.server).c_str());
    Address name;
    SHOW(syscall(SYS_getpeername, pair.client, name.raw(), &name.length));
    SHOW(syscall(SYS_close_range, pair.server, pair.server, 0));
    SHOW(syscall(SYS_fcntl, pair.server, F_GETFD));
    wait_for(70, POLLHUP);
    SHOW(syscall(SYS_read, -1, buffer, 5));
    SHOW(syscall(999999));
}

BEHAVIOUR("glibc's aliases", aliases, accelerated) {
    const int listener = make_listener();
    const int client = MUST(socket(AF_INET, SOCK_STREAM, 0));
    const Address to = local_address(listener);
    SHOW(__connect(client, to.raw(), to.length));
    const int server = MUST(accept(listener, nullptr, nullptr));
    char buffer[32] = {};
    SHOW(__write(client, "one", 3));
    SHOW(__send(client, "two", 3, 0));
    SHOW(__read(server, buffer, 3));
    SHOW(__read(server, buffer + 3, 3));
    say("%s", buffer);
    pollfd entry{server, POLLOUT, 0};
    SHOW(__poll(&entry, 1, 0));
    fd_set set;
    FD_ZERO(&set);
    FD_SET(server, &set);
    SHOW(__select(server + 1, nullptr, &set, nullptr, nullptr));
    SHOW(__fcntl(server, F_SETFL, O_NONBLOCK));
    SHOW(__read(server, buffer, 3));
    SHOW(__dup2(client, 80));
    SHOW(__close(client));
    SHOW(__write(80, "dup", 3));
    wait_for(server, POLLIN);
    SHOW(__read(server, buffer, 32));
    SHOW(__close(80));
    SHOW_BOOL(wait_for(server, POLLRDHUP));
}

BEHAVIOUR("fortified wrappers", fortified, accelerated) {
    const Pair pair = make_pair();
    char buffer[32] = {};
    send_all(pair.client, "0123456789");
    SHOW(__read_chk(pair.server, buffer, 3, sizeof buffer));
    SHOW(__recv_chk(pair.server, buffer, 3, sizeof buffer, 0));
    SHOW(__recvfrom_chk(pair.server, buffer, 3, sizeof buffer, 0, nullptr, nullptr));
    SHOW(__pread_chk(pair.server, buffer, 3, 0, sizeof buffer));
    say("%.3s", buffer);
    pollfd entry{pair.server, POLLIN, 0};
    SHOW(__poll_chk(&entry, 1, kPatience, sizeof entry));
    const timespec none{0, 0};
    SHOW(__ppoll_chk(&entry, 1, &none, nullptr, sizeof entry));
}

BEHAVIOUR("stdio over a connection", streams, accelerated) {
    const Pair pair = make_pair();
    FILE *client = fdopen(pair.client, "r+");
    FILE *server = fdopen(pair.server, "r+");
    SHOW(fprintf(client, "line %d\nline two\n", 1));
    SHOW(fflush(client));
    char line[64] = {};
    SHOW_BOOL(fgets(line, sizeof line, server) != nullptr);
    say("%.6s", line);
    SHOW_BOOL(fgets(line, sizeof line, server) != nullptr);
    say("%.8s", line);
    SHOW(fputs("answer\n", server) >= 0 ? 0 : -1);
    SHOW(fclose(server));
    SHOW_BOOL(fgets(line, sizeof line, client) != nullptr);
    say("%.6s", line);
    SHOW_BOOL(fgets(line, sizeof line, client) == nullptr && feof(client));
    SHOW(fclose(client));
    // fclose has closed the numbers.
    SHOW(fcntl(pair.client, F_GETFD));
    SHOW(send(pair.server, "x", 1, MSG_NOSIGNAL));
}

BEHAVIOUR("much data through stdio", streams_large, accelerated) {
    const Pair pair = make_pair();
    const std::string data = pattern(300000);
    std::thread writer([&] {
        FILE *out = fdopen(pair.client, "w");
        SHOW_BOOL(fwrite(data.data(), 1, data.size(), out) == data.size());
        fclose(out);
    });
    FILE *in = fdopen(pair.server, "r");
    std::string got(data.size() + 100, '\0');
    got.resize(fread(got.data(), 1, got.size(), in));
    writer.join();
    SHOW_BOOL(got == data);
    fclose(in);
}

// As `git daemon` does under inetd, which gives it the connection as stderr. What was written goes to the
// peer first.
BEHAVIOUR("stdio streams that are opened again", streams_opened_again, accelerated) {
    const Pair pair = make_pair();
    const pid_t child = spawn([&] {
        const int also = MUST(dup(pair.server));
        for (const int number : {STDIN_FILENO, STDERR_FILENO})
            MUST(dup2(pair.server, number));
        close(pair.server);
        close(pair.client);
        fputs("seen ", stderr);
        FILE *buffered = fdopen(also, "w");
        fputs("flushed", buffered);
        SHOW_BOOL(freopen("/dev/null", "w", buffered) == buffered);
        SHOW_BOOL(fileno(buffered) == also);
        SHOW(fputs("nobody sees this", buffered) >= 0 ? 0 : -1);
        SHOW(fclose(buffered));
        SHOW_BOOL(freopen64("/dev/null", "w", stderr) == stderr);
        fputs("nor this", stderr);
        SHOW(fflush(stderr));
        SHOW_BOOL(fileno(stderr) == STDERR_FILENO);
        SHOW_BOOL(freopen("/dev/zero", "r", stdin) == stdin);
        SHOW(getchar());
        const Pair another = make_pair();
        MUST(dup2(another.client, STDERR_FILENO));
        fputs("a new peer", stderr);
        SHOW(fflush(stderr));
        say("%s", receive(another.server, 10).c_str());
        SHOW_BOOL(freopen("/nowhere/at/all", "w", stderr) == nullptr);
    });
    close(pair.server);
    reap("child", child);
    say("%s", receive_to_end(pair.client).c_str());
}

BEHAVIOUR("dprintf", formatted_to_descriptor, accelerated) {
    const Pair pair = make_pair();
    SHOW(dprintf(pair.client, "number %d\n", 42));
    say("%.9s", receive(pair.server, 10).c_str());
}

BEHAVIOUR("printf into a connection", standard_output, accelerated) {
    const Pair pair = make_pair();
    output_fd = MUST(fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 90));
    MUST(dup2(pair.client, STDOUT_FILENO));
    close(pair.client);
    printf("printed %s\n", "text");
    puts("second line");
    fflush(stdout);
    say("%.12s", receive(pair.server, 25).c_str());
    SHOW(close(STDOUT_FILENO));
    say("rest %zu", receive_to_end(pair.server).size());
}

namespace {

aiocb request(int fd, void *buffer, size_t size) {
    aiocb r{};
    r.aio_fildes = fd;
    r.aio_buf = buffer;
    r.aio_nbytes = size;
    return r;
}

} // namespace

BEHAVIOUR("POSIX asynchronous I/O", asynchronous, accelerated) {
    const Pair pair = make_pair();
    char buffer[16] = {};
    aiocb reading = request(pair.server, buffer, sizeof buffer);
    SHOW(aio_read(&reading));
    char text[] = "async";
    aiocb writing = request(pair.client, text, 5);
    SHOW(aio_write(&writing));
    const aiocb *const both[] = {&writing, &reading};
    const timespec limit{5, 0};
    for (Stopwatch watch; watch.ms() < kPatience && aio_error(&reading) == EINPROGRESS;)
        aio_suspend(both + 1, 1, &limit);
    while (aio_error(&writing) == EINPROGRESS)
        aio_suspend(both, 1, &limit);
    say("errors %d %d", aio_error(&writing), aio_error(&reading));
    SHOW(aio_return(&writing));
    SHOW(aio_return(&reading));
    say("%s", buffer);
}

// The C library's helper threads have all signals blocked.
BEHAVIOUR("an asynchronous write that nobody can receive raises no SIGPIPE", asynchronous_to_nobody, accelerated) {
    const Pair pair = make_pair();
    signal(SIGPIPE, [](int) { say("SIGPIPE"); });
    SHOW(shutdown(pair.client, SHUT_WR));
    char text[] = "async";
    aiocb writing = request(pair.client, text, 5);
    SHOW(aio_write(&writing));
    const aiocb *const list[] = {&writing};
    while (aio_error(&writing) == EINPROGRESS)
        aio_suspend(list, 1, nullptr);
    say("error %d returned %zd", aio_error(&writing), aio_return(&writing));
}

// A read of nothing finds no error; the next one does.
BEHAVIOUR("an asynchronous read of nothing", asynchronous_of_nothing, accelerated) {
    const Pair pair = make_pair();
    const linger at_once{1, 0};
    MUST(setsockopt(pair.client, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once));
    MUST(close(pair.client));
    char byte;
    for (const size_t size : {0u, 1u}) {
        aiocb reading = request(pair.server, &byte, size);
        SHOW(aio_read(&reading));
        const aiocb *const list[] = {&reading};
        while (aio_error(&reading) == EINPROGRESS)
            aio_suspend(list, 1, nullptr);
        say("error %d returned %zd", aio_error(&reading), aio_return(&reading));
    }
}

int main(int argc, char **argv) { return run_behaviour(argc, argv); }
