// As demoted, while other threads of the process are blocked on sockets or make some.
#include "tests/programs/cases.hpp"
#include "tests/programs/process.hpp"
#include "tests/programs/rights.hpp"
#include "tests/programs/talking.hpp"

#include <atomic>
#include <thread>

using namespace sdtest;

namespace {

// One of two connections has a thread of the child's blocked in `serve` when the child gives up its rights.
void with_a_thread_in(const std::function<void(int fd)> &serve) {
    const Pair one = make_pair(), two = make_pair();
    const std::set<std::string> before = all_shared();
    const pid_t child = spawn([&] {
        close(one.client);
        close(two.client);
        std::thread waits([&] { serve(one.server); });
        sleep_ms(100);
        become_nobody();
        SHOW_BOOL(still_mapped(before));
        echo(two.server);
        waits.join();
    });
    close(one.server);
    close(two.server);
    sleep_ms(200);
    talk(two.client);
    end(two.client);
    talk(one.client);
    end(one.client);
    reap("child", child);
}

} // namespace

BEHAVIOUR("a thread is blocked on a connection", with_a_thread_that_waits, accelerated) {
    with_a_thread_in(echo);
}

BEHAVIOUR("a thread is blocked in poll", with_a_thread_in_poll, accelerated) {
    with_a_thread_in([](int fd) {
        pollfd entry{fd, POLLIN, 0};
        while (poll(&entry, 1, kPatience) < 0 && errno == EINTR) { // of the C library's, to each thread
        }
        say("%s", event_names(static_cast<uint32_t>(entry.revents)).c_str());
        echo(fd);
    });
}

BEHAVIOUR("a thread is blocked in epoll_wait", with_a_thread_in_epoll, accelerated) {
    with_a_thread_in([](int fd) {
        const int set = MUST(epoll_create1(0));
        epoll_event event{};
        event.events = EPOLLIN;
        MUST(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event));
        int n;
        do {
            n = epoll_wait(set, &event, 1, kPatience);
        } while (n < 0 && errno == EINTR);
        say("%d", n);
        echo(fd);
        close(set);
    });
}

namespace {

// A thread of the child's serves `clients` that connect once the child has given up its rights. It goes on
// with the kernel's queue.
void with_a_thread_that_accepts(int clients, const std::function<void(int listener)> &serve) {
    const int listener = make_listener();
    const Address address = local_address(listener);
    const int first = connect_to(address), its = MUST(accept(listener, nullptr, nullptr));
    const std::set<std::string> before = all_shared();
    const Gate changed;
    const pid_t child = spawn([&] {
        close(first);
        std::thread waits([&] { serve(listener); });
        sleep_ms(100);
        become_nobody();
        SHOW_BOOL(still_mapped(before));
        changed.open();
        echo(its);
        waits.join();
    });
    close(its);
    close(listener);
    changed.pass();
    for (int i = 0; i < clients; ++i) {
        const int next = connect_to(address);
        talk(next);
        end(next);
    }
    talk(first);
    end(first);
    reap("child", child);
}

} // namespace

BEHAVIOUR("a thread waits for clients", with_a_thread_in_accept, accelerated) {
    with_a_thread_that_accepts(1, [](int listener) { echo(MUST(accept(listener, nullptr, nullptr))); });
}

BEHAVIOUR("a thread waits for clients in epoll_wait", with_a_thread_and_a_listener_in_epoll, accelerated) {
    with_a_thread_that_accepts(2, [](int listener) {
        const int set = MUST(epoll_create1(0));
        epoll_event event{};
        event.events = EPOLLIN;
        MUST(epoll_ctl(set, EPOLL_CTL_ADD, listener, &event));
        for (int i = 0; i < 2; ++i) {
            while (epoll_wait(set, &event, 1, kPatience) < 0 && errno == EINTR) {
            }
            echo(MUST(accept(listener, nullptr, nullptr)));
        }
        close(set);
    });
}

namespace {

// Connections begin before, meanwhile and afterwards; what was there before is out of reach. `heir`: a child
// has its records as well.
void while_a_thread_connects(bool heir) {
    const int listener = make_listener();
    const Address address = local_address(listener);
    const pid_t child = spawn([&] {
        close(listener);
        close(connect_to(address));
        const Gate over;
        const pid_t has_it_too = heir ? spawn([&] { over.pass(); }) : 0;
        std::atomic<bool> ends{false};
        std::thread connects([&] {
            while (!ends)
                close(connect_to(address));
        });
        sleep_ms(50);
        const std::set<std::string> before = heir ? all_shared() : mapped("sd-link");
        const bool could = geteuid() == 0;
        become_nobody();
        SHOW_BOOL(could && still_mapped(before));
        sleep_ms(20);
        ends = true;
        connects.join();
        const int last = connect_to(address);
        send_all(last, "last");
        say("%s", receive(last, 4).c_str());
        end(last);
        over.open();
        if (heir)
            reap("its child", has_it_too);
    });
    for (bool over = false; !over;) {
        const int fd = MUST(accept(listener, nullptr, nullptr));
        const std::string got = receive(fd, 4);
        over = got == "last";
        if (over)
            send_all(fd, got);
        close(fd);
    }
    reap("child", child);
}

} // namespace

BEHAVIOUR("a thread connects all the time", with_a_thread_that_connects, accelerated) {
    while_a_thread_connects(false);
}

BEHAVIOUR("a thread connects all the time, a child has the records", with_a_thread_and_an_heir, accelerated) {
    while_a_thread_connects(true);
}

// The call goes on with what has no number any more, and cannot be taken elsewhere: it stays as it is.
BEHAVIOUR("a thread is blocked on what was closed meanwhile", with_a_thread_on_what_was_closed, accelerated) {
    const Pair one = make_pair(), two = make_pair();
    const pid_t child = spawn([&] {
        close(one.client);
        close(two.client);
        std::thread waits([&] { say("%s", receive(one.server, 4).c_str()); });
        sleep_ms(100);
        close(one.server);
        give_up_capabilities(); // without a signal, which would have the call made anew
        echo(two.server);
        waits.join();
    });
    close(one.server);
    close(two.server);
    sleep_ms(300);
    talk(two.client);
    end(two.client);
    send_all(one.client, "late");
    reap("child", child);
}

// Other threads, none of which waits on a socket.
BEHAVIOUR("other threads", with_threads, accelerated) {
    const Pair pair = make_pair();
    const std::set<std::string> before = all_shared();
    const pid_t child = spawn([&] {
        close(pair.client);
        const Gate gate;
        std::thread other([&] { gate.pass(); });
        become_nobody();
        SHOW_BOOL(still_mapped(before));
        gate.open();
        other.join();
        echo(pair.server);
    });
    close(pair.server);
    talk(pair.client);
    end(pair.client);
    reap("child", child);
}

BEHAVIOUR("other threads, and a child has the records", with_threads_and_an_heir, accelerated) {
    const int listener = make_listener();
    const Address address = local_address(listener);
    const pid_t child = spawn([&] {
        close(listener);
        const int fd = connect_to(address);
        const Gate over, gate;
        const pid_t heir = spawn([&] {
            over.pass();
            send_all(fd, "heir");
        });
        std::thread other([&] { gate.pass(); });
        const std::set<std::string> before = all_shared();
        const bool could = geteuid() == 0;
        become_nobody();
        SHOW_BOOL(could && still_mapped(before));
        gate.open();
        other.join();
        send_all(fd, "mine");
        over.open();
        reap("its child", heir);
        end(fd);
    });
    const int fd = MUST(accept(listener, nullptr, nullptr));
    const std::string got = receive(fd, 8), rest = receive_to_end(fd);
    close(fd);
    reap("child", child); // it has said all of its own by then
    say("%s %zu", got.c_str(), rest.size());
}

int main(int argc, char **argv) { return run_behaviour(argc, argv); }
