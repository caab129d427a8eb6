// How connections end in order: shutdown in each direction, half-close, end of file, SIGPIPE, lingering.
#include "tests/programs/cases.hpp"
#include "tests/programs/process.hpp"

#include <sys/uio.h>

using namespace sdtest;

namespace {

volatile sig_atomic_t pipe_signals = 0;

void count_pipe_signal(int) { pipe_signals = pipe_signals + 1; }

void catch_pipe_signals() {
    struct sigaction action {};
    action.sa_handler = count_pipe_signal;
    MUST(sigaction(SIGPIPE, &action, nullptr));
}

} // namespace

BEHAVIOUR("SHUT_WR", shut_write, accelerated) {
    const Pair pair = make_pair();
    catch_pipe_signals();
    char buffer[16];
    SHOW(send(pair.client, "last words", 10, 0));
    SHOW(shutdown(pair.client, SHUT_WR));
    SHOW(write(pair.client, "x", 1));
    say("SIGPIPE %d", static_cast<int>(pipe_signals));
    SHOW(send(pair.client, "", 0, MSG_NOSIGNAL));
    wait_for(pair.server, POLLRDHUP);
    show_ready("server", pair.server);
    show_ready("client", pair.client);
    SHOW(recv(pair.server, buffer, sizeof buffer, 0));
    SHOW(recv(pair.server, buffer, sizeof buffer, 0));
    SHOW(recv(pair.server, buffer, sizeof buffer, 0));
    SHOW(recv(pair.server, buffer, sizeof buffer, MSG_DONTWAIT));
    show_ready("server", pair.server);
    // The other direction is still open.
    SHOW(send(pair.server, "answer", 6, 0));
    SHOW(recv(pair.client, buffer, sizeof buffer, 0));
    SHOW(shutdown(pair.client, SHUT_WR));
    SHOW(close(pair.server));
    SHOW(recv(pair.client, buffer, sizeof buffer, 0));
    wait_for(pair.client, POLLHUP);
    show_ready("client", pair.client);
}

BEHAVIOUR("SHUT_RD", shut_read, accelerated) {
    const Pair pair = make_pair();
    char buffer[16];
    SHOW(shutdown(pair.server, SHUT_RD));
    show_ready("server", pair.server);
    show_ready("client", pair.client);
    SHOW(recv(pair.server, buffer, sizeof buffer, 0));
    // The peer does not learn of it, and what it sends can still be read.
    SHOW(send(pair.client, "late", 4, 0));
    sleep_ms(20);
    SHOW(recv(pair.server, buffer, sizeof buffer, 0));
    SHOW(recv(pair.server, buffer, sizeof buffer, 0));
    SHOW(send(pair.server, "still", 5, 0));
    SHOW(recv(pair.client, buffer, sizeof buffer, 0));
    SHOW(shutdown(pair.server, SHUT_RD));
}

BEHAVIOUR("SHUT_RD with data waiting", shut_read_with_data_waiting, accelerated) {
    const Pair pair = make_pair();
    char buffer[16];
    SHOW(send(pair.client, "early", 5, 0));
    wait_for(pair.server, POLLIN);
    SHOW(shutdown(pair.server, SHUT_RD));
    show_ready("server", pair.server);
    SHOW(recv(pair.server, buffer, 3, 0));
    SHOW(recv(pair.server, buffer, sizeof buffer, 0));
    SHOW(recv(pair.server, buffer, sizeof buffer, 0));
}

BEHAVIOUR("SHUT_RDWR", shut_both, accelerated) {
    const Pair pair = make_pair();
    char buffer[16];
    SHOW(send(pair.server, "before", 6, 0));
    wait_for(pair.client, POLLIN);
    SHOW(shutdown(pair.client, SHUT_RDWR));
    show_ready("client", pair.client);
    SHOW(recv(pair.client, buffer, sizeof buffer, 0));
    SHOW(recv(pair.client, buffer, sizeof buffer, 0));
    SHOW(send(pair.client, "x", 1, MSG_NOSIGNAL));
    wait_for(pair.server, POLLRDHUP);
    show_ready("server", pair.server);
    SHOW(recv(pair.server, buffer, sizeof buffer, 0));
    SHOW(shutdown(pair.server, SHUT_WR));
    wait_for(pair.server, POLLHUP);
    wait_for(pair.client, POLLHUP);
    show_ready("server", pair.server);
    show_ready("client", pair.client);
    SHOW(shutdown(pair.client, SHUT_RDWR));
    SHOW(shutdown(pair.server, SHUT_RD));
}

BEHAVIOUR("shutdown again", shut_twice, accelerated) {
    const Pair pair = make_pair();
    SHOW(shutdown(pair.client, SHUT_WR));
    SHOW(shutdown(pair.client, SHUT_WR));
    SHOW(shutdown(pair.client, SHUT_RD));
    SHOW(shutdown(pair.client, SHUT_RDWR));
}

BEHAVIOUR("shutdown that must fail", bad_shutdown, accelerated) {
    const Pair pair = make_pair();
    SHOW(shutdown(pair.client, 3));
    SHOW(shutdown(pair.client, -1));
    SHOW(shutdown(-1, SHUT_RD));
    SHOW(shutdown(STDOUT_FILENO, SHUT_RD));
    const int fresh = MUST(socket(AF_INET, SOCK_STREAM, 0));
    SHOW(shutdown(fresh, SHUT_RD));
    SHOW(shutdown(fresh, SHUT_WR));
    SHOW(send(pair.client, "fine", 4, 0));
    say("%s", receive(pair.server, 4).c_str());
}

BEHAVIOUR("half-close and a large answer", half_close_request, accelerated) {
    const Pair pair = make_pair();
    const std::string request = pattern(300000, 1), answer = pattern(500000, 2);
    std::thread server([&] {
        show_data("request", receive_to_end(pair.server));
        send_all(pair.server, answer);
        close(pair.server);
    });
    send_all(pair.client, request);
    MUST(shutdown(pair.client, SHUT_WR));
    const std::string got = receive_to_end(pair.client);
    server.join();
    show_data("answer", got);
}

BEHAVIOUR("end of file", end_of_file, accelerated) {
    const Pair pair = make_pair();
    char buffer[16];
    send_all(pair.client, "abc");
    SHOW(close(pair.client));
    wait_for(pair.server, POLLRDHUP);
    show_ready("server", pair.server);
    SHOW(read(pair.server, buffer, 2));
    SHOW(read(pair.server, buffer, sizeof buffer));
    SHOW(read(pair.server, buffer, sizeof buffer));
    show_ready("server", pair.server);
    set_nonblocking(pair.server);
    SHOW(read(pair.server, buffer, sizeof buffer));
    say("SO_ERROR %s", socket_error(pair.server).c_str());
}

BEHAVIOUR("first and second write after the peer closed", write_after_peer_closed, accelerated) {
    const Pair pair = make_pair();
    catch_pipe_signals();
    SHOW(close(pair.server));
    wait_for(pair.client, POLLRDHUP);
    SHOW(write(pair.client, "first", 5));
    wait_for(pair.client, POLLHUP);
    show_ready("client", pair.client);
    SHOW(write(pair.client, "second", 6));
    say("SIGPIPE %d", static_cast<int>(pipe_signals));
    say("SO_ERROR %s", socket_error(pair.client).c_str());
    SHOW(write(pair.client, "third", 5));
    say("SIGPIPE %d", static_cast<int>(pipe_signals));
    char byte;
    SHOW(read(pair.client, &byte, 1));
    show_ready("client", pair.client);
}

BEHAVIOUR("reading after such a write", write_after_peer_closed_read_first, accelerated) {
    const Pair pair = make_pair();
    SHOW(close(pair.server));
    wait_for(pair.client, POLLRDHUP);
    SHOW(send(pair.client, "first", 5, MSG_NOSIGNAL));
    wait_for(pair.client, POLLHUP);
    char byte;
    SHOW(read(pair.client, &byte, 1));
    say("SO_ERROR %s", socket_error(pair.client).c_str());
    SHOW(read(pair.client, &byte, 1));
    SHOW(send(pair.client, "second", 6, MSG_NOSIGNAL));
}

BEHAVIOUR("SIGPIPE kills", sigpipe_kills, accelerated) {
    const Pair pair = make_pair();
    const pid_t child = spawn([&] {
        shutdown(pair.client, SHUT_WR);
        say("about to write");
        write(pair.client, "x", 1) < 0 ? say("survived") : say("written");
    });
    reap("child", child);
}

BEHAVIOUR("SIGPIPE ignored", sigpipe_ignored, accelerated) {
    const Pair pair = make_pair();
    signal(SIGPIPE, SIG_IGN);
    shutdown(pair.client, SHUT_WR);
    iovec part{opaque(const_cast<char *>("x")), 1};
    SHOW(write(pair.client, "x", 1));
    SHOW(writev(pair.client, &part, 1));
    SHOW(send(pair.client, "x", 1, 0));
}

BEHAVIOUR("SIGPIPE for each call", sigpipe_counts, accelerated) {
    const Pair pair = make_pair();
    catch_pipe_signals();
    shutdown(pair.client, SHUT_WR);
    iovec part{opaque(const_cast<char *>("x")), 1};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    SHOW(write(pair.client, "x", 1));
    SHOW(writev(pair.client, &part, 1));
    SHOW(send(pair.client, "x", 1, 0));
    SHOW(sendmsg(pair.client, &message, 0));
    SHOW(send(pair.client, "x", 1, MSG_NOSIGNAL));
    SHOW(write(pair.client, "", 0));
    say("SIGPIPE %d", static_cast<int>(pipe_signals));
}

BEHAVIOUR("close delivers what was written", close_delivers, accelerated) {
    const Pair pair = make_pair();
    const std::string data = pattern(1 << 20, 9);
    std::thread writer([&] {
        send_all(pair.client, data);
        close(pair.client);
    });
    writer.join();
    SHOW_BOOL(receive_to_end(pair.server) == data);
}

// SO_LINGER with time to spare: close returns when all has been taken.
BEHAVIOUR("SO_LINGER with time", linger_delivers, accelerated) {
    const Pair pair = make_pair();
    const linger patient{1, 10};
    MUST(setsockopt(pair.client, SOL_SOCKET, SO_LINGER, &patient, sizeof patient));
    const std::string data = pattern(100000, 9);
    std::thread reader([&] { SHOW_BOOL(receive_to_end(pair.server) == data); });
    send_all(pair.client, data);
    const int closed = close(pair.client);
    reader.join();
    say("close %d", closed);
}

BEHAVIOUR("shutdown of a listener", shutdown_listener, any) {
    const int listener = make_listener();
    const Address to = local_address(listener);
    SHOW(shutdown(listener, SHUT_WR));
    SHOW(shutdown(listener, SHUT_RD));
    SHOW(accept(listener, nullptr, nullptr));
    const int client = MUST(socket(AF_INET, SOCK_STREAM, 0));
    SHOW(connect(client, to.raw(), to.length));
    show_ready("listener", listener);
    // It can be put to work again.
    SHOW(listen(listener, 5));
    const Address now = local_address(listener); // the port was not asked for by number: it is a new one
    SHOW(connect(client, now.raw(), now.length));
    SHOW_FD(accept(listener, nullptr, nullptr));
}

int main(int argc, char **argv) { return run_behaviour(argc, argv); }
