// Signals that interrupt a thread in a call on a socket, and signals that a socket sends.
#include "tests/programs/cases.hpp"
#include "tests/programs/process.hpp"

#include <csetjmp>
#include <sys/ioctl.h>
#include <sys/uio.h>

using namespace sdtest;

namespace {

std::atomic<int> handled{0};
int answer_fd = -1;
sigjmp_buf jump;

void install(
    int flags, void (*handler)(int) = [](int) { ++handled; }) {
    struct sigaction action {};
    action.sa_handler = handler;
    action.sa_flags = flags;
    MUST(sigaction(SIGUSR1, &action, nullptr));
}

// Runs a blocking call in this thread while another keeps sending it SIGUSR1.
template <class Call> void interrupt(const char *what, Call call) {
    handled = 0;
    Nagger nagger(pthread_self(), SIGUSR1);
    const long result = call();
    const int error = errno;
    nagger.stop();
    say("%s: %ld %s, handled %s", what, result, result < 0 ? strerrorname_np(error) : "-", yes_no(handled > 0));
}

} // namespace

BEHAVIOUR("EINTR", eintr_without_restart, accelerated) {
    const Pair pair = make_pair();
    install(0);
    char byte;
    iovec part{&byte, 1};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    interrupt("recv", [&] { return recv(pair.client, &byte, 1, 0); });
    interrupt("read", [&] { return read(pair.client, &byte, 1); });
    interrupt("readv", [&] { return readv(pair.client, &part, 1); });
    interrupt("recvmsg", [&] { return recvmsg(pair.client, &message, 0); });
    interrupt("accept", [&] { return accept(pair.listener, nullptr, nullptr); });
    pollfd entry{pair.client, POLLIN, 0};
    interrupt("poll", [&] { return poll(&entry, 1, kPatience); });
    fd_set set;
    FD_ZERO(&set);
    FD_SET(pair.client, &set);
    interrupt("select", [&] { return select(pair.client + 1, &set, nullptr, nullptr, nullptr); });
    const int epoll = MUST(epoll_create1(0));
    epoll_event event{};
    event.events = EPOLLIN;
    MUST(epoll_ctl(epoll, EPOLL_CTL_ADD, pair.client, &event));
    interrupt("epoll_wait", [&] { return epoll_wait(epoll, &event, 1, kPatience); });
    fill(pair.client);
    interrupt("send", [&] { return send(pair.client, "x", 1, 0); });
    // A part that was already received is returned instead.
    send_all(pair.server, "abc");
    wait_for(pair.client, POLLIN);
    char buffer[10];
    interrupt("wait for all", [&] { return recv(pair.client, buffer, sizeof buffer, MSG_WAITALL); });
}

BEHAVIOUR("SA_RESTART", restart, accelerated) {
    const Pair pair = make_pair();
    install(SA_RESTART);
    char byte;
    std::thread writer([&] {
        sleep_ms(150);
        send_all(pair.server, "x");
        sleep_ms(150);
        connect_to(pair.listener);
    });
    interrupt("recv", [&] { return recv(pair.client, &byte, 1, 0); });
    interrupt("accept", [&] { return accept(pair.listener, nullptr, nullptr) >= 0 ? 0 : -1; });
    writer.join();
    // These are never restarted.
    pollfd entry{pair.client, POLLIN, 0};
    interrupt("poll", [&] { return poll(&entry, 1, kPatience); });
    const int epoll = MUST(epoll_create1(0));
    epoll_event event{};
    event.events = EPOLLIN;
    MUST(epoll_ctl(epoll, EPOLL_CTL_ADD, pair.client, &event));
    interrupt("epoll_wait", [&] { return epoll_wait(epoll, &event, 1, kPatience); });
    set_timeout(pair.client, SO_RCVTIMEO, 3000);
    interrupt("recv with a deadline", [&] { return recv(pair.client, &byte, 1, 0); });
}

// A handler that uses the very socket the interrupted thread is waiting on.
BEHAVIOUR("a handler uses the socket", handler_uses_the_socket, accelerated) {
    const Pair pair = make_pair();
    answer_fd = pair.client;
    install(SA_RESTART, [](int) {
        if (handled++ == 0)
            send_all(answer_fd, "from the handler");
    });
    std::thread server([&] {
        say("%s", receive(pair.server, 16).c_str());
        send_all(pair.server, "ok");
    });
    interrupt("recv", [&] {
        char buffer[2];
        return recv(pair.client, buffer, 2, MSG_WAITALL);
    });
    server.join();
}

BEHAVIOUR("siglongjmp out of a handler", jump_out_of_a_handler, accelerated) {
    const Pair pair = make_pair();
    install(0, [](int) { siglongjmp(jump, 1); });
    char byte;
    static int round = 0; // static: its value must survive the jump
    for (; round < 3; ++round) {
        if (sigsetjmp(jump, 1) == 0) {
            std::thread([self = pthread_self()] {
                sleep_ms(60);
                pthread_kill(self, SIGUSR1);
            }).detach();
            SHOW(recv(pair.client, &byte, 1, 0));
        } else {
            say("jumped");
        }
    }
    send_all(pair.server, "fine");
    say("%s", receive(pair.client, 4).c_str());
}

BEHAVIOUR("SIGIO", io_signal, accelerated) {
    const Pair pair = make_pair();
    struct sigaction action {};
    action.sa_handler = [](int) { ++handled; };
    MUST(sigaction(SIGIO, &action, nullptr));
    SHOW(fcntl(pair.server, F_SETOWN, getpid()));
    SHOW_BOOL(fcntl(pair.server, F_GETOWN) == getpid());
    SHOW(fcntl(pair.server, F_SETFL, O_ASYNC | O_NONBLOCK));
    send_all(pair.client, "x");
    for (Stopwatch watch; handled == 0 && watch.ms() < 2000;)
        sleep_ms(5);
    SHOW_BOOL(handled > 0);
}

// In the middle of a conversation, and with data that has come already; both descriptors of the socket go on.
BEHAVIOUR("SIGURG", urgent_signal, accelerated) {
    const Pair pair = make_pair();
    const int copy = MUST(dup(pair.server));
    const int set = MUST(epoll_create1(0));
    epoll_event event{};
    event.events = EPOLLIN;
    MUST(epoll_ctl(set, EPOLL_CTL_ADD, copy, &event));
    send_all(pair.client, "half and half");
    say("%s", receive(pair.server, 4).c_str());
    struct sigaction action {};
    action.sa_handler = [](int) { ++handled; };
    MUST(sigaction(SIGURG, &action, nullptr));
    SHOW(fcntl(pair.server, F_SETOWN, getpid()));
    say("%s", receive(copy, 9).c_str());
    send_all(pair.server, "answer");
    say("%s", receive(pair.client, 6).c_str());
    SHOW(send(pair.client, "!", 1, MSG_OOB));
    for (Stopwatch watch; handled == 0 && watch.ms() < 2000;)
        sleep_ms(5);
    SHOW_BOOL(handled > 0);
    char byte = 0;
    SHOW(recv(copy, &byte, 1, MSG_OOB));
    say("%c", byte);
    send_all(pair.client, "more");
    SHOW(epoll_wait(set, &event, 1, kPatience));
    say("%s", receive(pair.server, 4).c_str());
    close(pair.client);
    SHOW_BOOL((poll_now(copy, POLLRDHUP, kPatience) & POLLRDHUP) != 0);
}

BEHAVIOUR("SIGIO of a listener", io_signal_of_a_listener, any) {
    const int listener = make_listener();
    struct sigaction action {};
    action.sa_handler = [](int) { ++handled; };
    action.sa_flags = SA_RESTART;
    MUST(sigaction(SIGIO, &action, nullptr));
    SHOW(fcntl(listener, F_SETOWN, getpid()));
    SHOW(fcntl(listener, F_SETFL, O_ASYNC));
    const int client = connect_to(listener);
    for (Stopwatch watch; handled == 0 && watch.ms() < 2000;)
        sleep_ms(5);
    SHOW_BOOL(handled > 0);
    const int server = MUST(accept(listener, nullptr, nullptr));
    send_all(client, "hello");
    say("%s", receive(server, 5).c_str());
}

// The client's end becomes a kernel socket while the connection still waits in the listener's queue.
BEHAVIOUR("SIGIO of a connection that is not accepted yet", io_signal_before_accept, any) {
    const int listener = make_listener();
    const int client = connect_to(listener);
    struct sigaction action {};
    action.sa_handler = [](int) { ++handled; };
    action.sa_flags = SA_RESTART;
    MUST(sigaction(SIGIO, &action, nullptr));
    SHOW(fcntl(client, F_SETOWN, getpid()));
    int on = 1;
    SHOW(ioctl(client, FIOASYNC, &on));
    send_all(client, "early");
    const int server = MUST(accept(listener, nullptr, nullptr));
    say("%s", receive(server, 5).c_str());
    send_all(server, "hello");
    // A reader that waits already would get no signal
    for (Stopwatch watch; handled == 0 && watch.ms() < 2000;)
        sleep_ms(5);
    SHOW_BOOL(handled > 0);
    say("%s", receive(client, 5).c_str());
    close(server);
    SHOW_BOOL((poll_now(client, POLLRDHUP, kPatience) & POLLRDHUP) != 0);
}

int main(int argc, char **argv) { return run_behaviour(argc, argv); }
