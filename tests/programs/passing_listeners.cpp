// Listeners passed between processes with SCM_RIGHTS, and through them other ways by which one arrives that
// nobody here has made.
#include "tests/programs/passing.hpp"

#include <barrier>
#include <thread>

using namespace sdtest;

BEHAVIOUR("a listener", a_listener, accelerated) {
    const Channel channel;
    const int listener = make_listener();
    const Address address = local_address(listener);
    const pid_t child = spawn([&] {
        close(listener);
        const int fd = take(channel.child)[0];
        for (int i = 0; i < 2; ++i) {
            const int connection = MUST(accept(fd, nullptr, nullptr));
            send_all(connection, receive(connection, 5));
            close(connection);
        }
    });
    MUST(pass(channel.parent, {listener}));
    for (int i = 0; i < 2; ++i) {
        const int client = connect_to(address);
        send_all(client, "hello");
        say("%s", receive_to_end(client).c_str());
        close(client);
    }
    reap("child", child);
}

// A listener that is only in the mail any more goes on listening, and who waits there goes on waiting.
BEHAVIOUR("a listener in the mail", a_listener_in_the_mail, any) {
    const Channel channel;
    const int listener = make_listener();
    const int client = connect_to(listener);
    send_all(client, "early");
    MUST(pass(channel.parent, {listener}));
    close(listener);
    show_ready("waiting", client);
    char byte;
    SHOW(recv(client, &byte, 1, MSG_DONTWAIT));
    sleep_ms(150); // the monitor looks where the listener is
    SHOW(recv(client, &byte, 1, MSG_DONTWAIT));
    const int taken = take(channel.child)[0];
    const int second = connect_to(taken);
    const int server = MUST(accept(taken, nullptr, nullptr));
    say("%s", receive(server, 5).c_str());
    send_all(server, "late");
    say("%s", receive(client, 4).c_str());
    SHOW_FD(accept(taken, nullptr, nullptr));
    const int third = connect_to(taken);
    SHOW_FD(accept(taken, nullptr, nullptr));
    for (const int fd : {second, third})
        show_ready("accepted", fd);
}

// Asked for signals before it is used in any other way.
BEHAVIOUR("a listener asked for signals", a_listener_asked_for_signals, any) {
    static volatile sig_atomic_t arrived;
    signal(SIGIO, [](int) { arrived = 1; });
    const Channel channel;
    const int listener = make_listener();
    MUST(pass(channel.parent, {listener}));
    const int taken = take(channel.child)[0];
    SHOW(fcntl(taken, F_SETOWN, getpid()));
    SHOW(fcntl(taken, F_SETFL, O_RDWR | O_ASYNC));
    const int client = connect_to(listener);
    for (Stopwatch watch; !arrived && watch.ms() < kPatience;)
        sleep_ms(1);
    SHOW_BOOL(arrived);
    const int server = MUST(accept(taken, nullptr, nullptr));
    send_all(client, "hello");
    say("%s", receive(server, 5).c_str());
}

// One that is lost there ends, and so do those who wait.
BEHAVIOUR("a listener lost in the mail", a_listener_lost_in_the_mail, any) {
    Channel channel;
    const int listener = make_listener();
    const int client = connect_to(listener);
    MUST(pass(channel.parent, {listener}));
    close(listener);
    show_ready("waiting", client);
    close(channel.child);
    SHOW_BOOL(peer_is_gone(client));
    char byte;
    SHOW(recv(client, &byte, 1, 0));
}

// It has come twice, and one of the two is closed: the other goes on, and has who waits.
BEHAVIOUR("a listener received twice", a_listener_received_twice, accelerated) {
    const Channel channel;
    const int listener = make_listener();
    MUST(pass(channel.parent, {listener}));
    MUST(pass(channel.parent, {listener}));
    close(listener);
    const int first = take(channel.child)[0], second = take(channel.child)[0];
    for (const int fd : {first, second, first, second}) {
        const int client = connect_to(fd);
        const int server = MUST(accept(fd, nullptr, nullptr));
        close(client);
        close(server);
    }
    const pid_t child = spawn([&] { // somebody new
        close(first);
        const int client = connect_to(second);
        close(second);
        send_all(client, "hello");
        MUST(write(channel.child, "c", 1));
        say("%s", receive_to_end(client).c_str());
    });
    char byte;
    MUST(read(channel.parent, &byte, 1));
    close(first);
    SHOW_BOOL((poll_now(second, POLLIN, kPatience) & POLLIN) != 0);
    const int server = MUST(accept(second, nullptr, nullptr));
    send_all(server, receive(server, 5));
    close(server);
    reap("child", child);
}

// Several threads are the first to use it, at the same moment, while clients wait. (In HAProxy, the threads
// of a worker that a reload has started.)
BEHAVIOUR("a listener used by several threads at once", a_listener_used_by_threads_at_once, accelerated) {
    constexpr int kThreads = 4, kClients = 12;
    const Channel channel;
    for (int i = 0; i < 100; ++i) {
        const int listener = make_listener();
        MUST(fcntl(listener, F_SETFL, O_RDWR | O_NONBLOCK));
        int clients[kClients];
        for (int &client : clients) {
            client = connect_to(listener);
            send_all(client, "hello");
        }
        MUST(pass(channel.parent, {listener}));
        close(listener);
        const int taken = take(channel.child)[0];
        std::barrier start(kThreads);
        std::vector<std::thread> threads;
        threads.reserve(kThreads);
        const auto serve = [&] {
            const int server = accept(taken, nullptr, nullptr);
            if (server < 0 || receive(server, 5) != "hello")
                give_up("accept");
            close(server);
        };
        for (int t = 0; t < kThreads; ++t)
            threads.emplace_back([&] {
                start.arrive_and_wait();
                serve();
            });
        for (std::thread &thread : threads)
            thread.join();
        for (int left = kThreads; left < kClients; ++left) {
            poll_now(taken, POLLIN, kPatience);
            serve();
        }
        for (const int client : clients)
            close(client);
        close(taken);
    }
    say("served");
}

// Under a number that was polled before, when it stood for something else; and polled again before anything
// else is done with it.
BEHAVIOUR("a listener under a number that was polled before", a_listener_under_a_number_polled_before,
          accelerated) {
    const Channel channel;
    const Pair pair = make_pair(); // so that poll() looks at what it is given
    const int listener = make_listener();
    const int early = connect_to(listener);
    const int number = MUST(open("/dev/null", O_RDWR));
    pollfd both[] = {{number, POLLIN, 0}, {pair.client, POLLIN, 0}};
    SHOW(poll(both, 2, 0));
    close(number);
    MUST(pass(channel.parent, {listener}));
    const int taken = take(channel.child)[0];
    SHOW_BOOL(taken == number);
    close(listener);
    send_all(early, "hello");
    SHOW(poll(both, 2, kPatience));
    const int server = MUST(accept(taken, nullptr, nullptr));
    say("%s", receive(server, 5).c_str());
}

// Two processes give it to each other all the time, so it is often with nobody, but never gone: no client is
// turned away, whenever it comes.
BEHAVIOUR("a listener that goes round", a_listener_that_goes_round, any) {
    constexpr int kClients = 4, kConnections = 800;
    const Channel ways[2];
    int stop[2];
    MUST(pipe(stop));
    const int listener = make_listener();
    MUST(fcntl(listener, F_SETFL, O_RDWR | O_NONBLOCK));
    const Address address = local_address(listener);
    pid_t servers[2], clients[kClients];
    for (int i = 0; i < 2; ++i)
        servers[i] = spawn([&, i] {
            close(listener);
            for (bool over = false; !over;) {
                const int taken = take(ways[i].child)[0];
                for (int server; (server = accept(taken, nullptr, nullptr)) >= 0; close(server))
                    send_all(server, receive(server, 5));
                over = poll_now(stop[0], POLLIN) != 0;
                MUST(pass(ways[1 - i].parent, {taken}));
                close(taken);
            }
        });
    for (pid_t &client : clients)
        client = spawn([&] {
            close(listener);
            for (int i = 0; i < kConnections; ++i) {
                const int fd = connect_to(address);
                send_all(fd, "hello");
                if (receive_to_end(fd) != "hello")
                    give_up("no answer");
                close(fd);
            }
        });
    MUST(pass(ways[0].parent, {listener}));
    close(listener);
    for (const pid_t client : clients)
        reap("client", client);
    MUST(write(stop[1], "", 1));
    for (const pid_t server : servers)
        reap("server", server);
}

int main(int argc, char **argv) { return run_behaviour(argc, argv); }
