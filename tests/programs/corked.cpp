// What TCP_CORK and MSG_MORE hold back, until when, and who sees it.
#include "tests/programs/cases.hpp"
#include "tests/programs/process.hpp"

#include <linux/sockios.h>
#include <sys/ioctl.h>
#include <sys/sendfile.h>

using namespace sdtest;

namespace {

constexpr long kHeld = 120; // ms: what is held back for longer may have gone by itself

// One try of an observation on a connection of its own. The kernel lets go of what it holds back after 200 ms, so what a try on a busy machine has taken
// too long for is tried again.
class Attempt {
  public:
    const int client, server;

    Attempt(int from, int to) : client(from), server(to), set_(MUST(epoll_create1(0))) {
        epoll_event event{};
        event.events = EPOLLIN;
        MUST(epoll_ctl(set_, EPOLL_CTL_ADD, server, &event));
    }
    Attempt(const Attempt &) = delete;
    Attempt &operator=(const Attempt &) = delete;

    void cork(bool on) const { set_option(client, IPPROTO_TCP, TCP_CORK, on); }
    void write(const char *text, int flags = 0) {
        note("send \"%s\"%s", text, flags & MSG_MORE ? " and more" : "");
        if (send(client, text, strlen(text), flags) != static_cast<ssize_t>(strlen(text)))
            note("send failed: %s", strerrorname_np(errno));
    }
    // How much the receiver can have now, by all who can say so.
    void look(const char *when) {
        int waiting = 0;
        MUST(ioctl(server, FIONREAD, &waiting));
        fd_set readable;
        FD_ZERO(&readable);
        FD_SET(server, &readable);
        timeval none{0, 0};
        epoll_event event{};
        note("%s: %d, poll %d, select %d, epoll %d", when, waiting, poll_now(server, POLLIN) & POLLIN,
             select(server + 1, &readable, nullptr, nullptr, &none), epoll_wait(set_, &event, 1, 0));
    }
    // What is there now.
    void take() {
        char buffer[64] = {};
        const ssize_t got = recv(server, buffer, sizeof buffer - 1, MSG_DONTWAIT);
        note("received %s", got < 0 ? strerrorname_np(errno) : got == 0 ? "the end" : buffer);
    }
    [[gnu::format(printf, 2, 3)]] void note(const char *format, ...) {
        char line[200];
        va_list args;
        va_start(args, format);
        vsnprintf(line, sizeof line, format, args);
        va_end(args);
        lines_.emplace_back(line);
    }
    bool in_time() const { return watch_.ms() < kHeld; }
    void tell() const {
        for (const std::string &line : lines_)
            say("%s", line.c_str());
    }

  private:
    int set_;
    Stopwatch watch_;
    std::vector<std::string> lines_;
};

void in_time(const std::function<void(Attempt &)> &body, int family = AF_INET) {
    for (int tries = 0; tries < 40; ++tries) {
        const Pair pair = make_pair(family);
        Attempt attempt(pair.client, pair.server);
        body(attempt);
        if (attempt.in_time()) {
            attempt.tell();
            return;
        }
    }
    say("the machine is too slow");
}

} // namespace

BEHAVIOUR(cork_and_uncork) {
    for (const int family : {AF_INET, AF_INET6})
        in_time(
            [](Attempt &a) {
                a.cork(true);
                a.write("one ");
                a.look("corked");
                a.take();
                a.write("two");
                a.look("corked");
                a.cork(false);
                a.look("uncorked");
                a.take();
                a.write("three");
                a.take();
                a.note("cork %d", get_option(a.client, IPPROTO_TCP, TCP_CORK));
            },
            family);
}

BEHAVIOUR(more_and_no_more) {
    in_time([](Attempt &a) {
        a.write("one ", MSG_MORE);
        a.take();
        a.write("two ", MSG_MORE);
        a.look("more");
        a.write("three");
        a.look("no more");
        a.take();
        a.write("four", MSG_MORE);
        a.take();
        a.write("five");
        a.take();
    });
}

// What is sent before stays where it is, and a peek ends where the rest is held back.
BEHAVIOUR(behind_what_was_sent) {
    in_time([](Attempt &a) {
        char buffer[16];
        a.write("sent ");
        wait_for(a.server, POLLIN);
        a.cork(true);
        a.write("held");
        a.note("peek %zd", recv(a.server, buffer, sizeof buffer, MSG_PEEK | MSG_DONTWAIT));
        a.look("corked");
        a.take();
        a.take();
        a.cork(false);
        a.take();
    });
}

BEHAVIOUR(sending_nothing_pushes_nothing) {
    in_time([](Attempt &a) {
        a.write("held", MSG_MORE);
        a.note("send of nothing %zd", send(a.client, "", 0, 0));
        a.look("nothing sent");
        a.note("bad address %s", send(a.client, bad_pointer<char>(), 3, 0) < 0 ? strerrorname_np(errno) : "?");
        a.look("nothing sent");
        a.write("!");
        a.take();
    });
}

BEHAVIOUR(options_that_push) {
    in_time([](Attempt &a) {
        a.cork(true);
        a.write("one");
        set_option(a.client, IPPROTO_TCP, TCP_NODELAY, 0);
        a.look("nodelay off");
        set_option(a.client, IPPROTO_TCP, TCP_NODELAY, 1);
        a.look("nodelay on");
        a.write("two");
        a.look("still corked");
        a.note("cork %d", get_option(a.client, IPPROTO_TCP, TCP_CORK));
        a.cork(false);
        a.look("uncorked");
    });
    in_time([](Attempt &a) {
        set_option(a.client, IPPROTO_TCP, TCP_NODELAY, 1);
        a.write("more", MSG_MORE);
        a.look("nodelay before");
        a.cork(false);
        a.look("cork off");
    });
    in_time([](Attempt &a) {
        a.write("more", MSG_MORE);
        a.cork(true);
        a.look("cork on");
        a.write("plain");
        a.look("corked");
        a.cork(false);
        a.look("cork off");
    });
}

BEHAVIOUR(corked_before_connecting) {
    const int listener = make_listener();
    set_option(listener, IPPROTO_TCP, TCP_CORK, 1);
    const Address address = local_address(listener);
    for (int tries = 0;; ++tries) {
        const int client = MUST(socket(AF_INET, SOCK_STREAM, 0));
        set_option(client, IPPROTO_TCP, TCP_CORK, 1);
        MUST(connect(client, address.raw(), address.length));
        const int server = MUST(accept(listener, nullptr, nullptr));
        Attempt to_server(client, server), to_client(server, client);
        for (Attempt *a : {&to_server, &to_client}) {
            a->note("cork %d", get_option(a->client, IPPROTO_TCP, TCP_CORK));
            a->write("corked");
            a->look("corked");
            a->cork(false);
            a->look("uncorked");
        }
        if (to_server.in_time() || tries > 40) {
            to_server.tell();
            to_client.tell();
            return;
        }
    }
}

// Without another call of the sender.
BEHAVIOUR(goes_by_itself) {
    const auto wait_in = [](const char *label, const Pair &pair, const std::function<void()> &wait) {
        MUST(send(pair.client, label, strlen(label), MSG_MORE));
        wait();
        say("%s", receive(pair.server, strlen(label)).c_str());
    };
    Pair pair = make_pair();
    wait_in("recv", pair, [] {});
    wait_in("poll", pair, [&] { SHOW(poll_now(pair.server, POLLIN, kPatience)); });
    wait_in("select", pair, [&] {
        fd_set set;
        FD_ZERO(&set);
        FD_SET(pair.server, &set);
        SHOW(select(pair.server + 1, &set, nullptr, nullptr, nullptr));
    });
    const int epoll = MUST(epoll_create1(0)), outer = MUST(epoll_create1(0));
    for (const uint32_t how : {uint32_t{EPOLLIN}, EPOLLIN | static_cast<uint32_t>(EPOLLET)}) {
        epoll_event event{};
        event.events = how;
        MUST(epoll_ctl(epoll, EPOLL_CTL_ADD, pair.server, &event));
        wait_in("epoll", pair, [&] { SHOW(epoll_wait(epoll, &event, 1, kPatience)); });
        event.events = EPOLLIN;
        MUST(epoll_ctl(outer, EPOLL_CTL_ADD, epoll, &event));
        wait_in("nested", pair, [&] { SHOW(epoll_wait(outer, &event, 1, kPatience)); });
        wait_in("polled set", pair, [&] { SHOW(poll_now(epoll, POLLIN, kPatience)); });
        MUST(epoll_ctl(outer, EPOLL_CTL_DEL, epoll, nullptr));
        MUST(epoll_ctl(epoll, EPOLL_CTL_DEL, pair.server, nullptr));
    }
    set_option(pair.client, IPPROTO_TCP, TCP_CORK, 1);
    wait_in("corked", pair, [] {});
    char buffer[16];
    MUST(send(pair.client, "whole", 5, 0));
    SHOW(recv(pair.server, buffer, 5, MSG_WAITALL));
    MUST(send(pair.client, "peeked", 6, 0));
    SHOW(recv(pair.server, buffer, 6, MSG_PEEK));
    MUST(send(pair.client, " at", 3, 0));
    SHOW(recv(pair.server, buffer, 9, MSG_WAITALL));
    set_option(pair.server, SOL_SOCKET, SO_RCVLOWAT, 6);
    MUST(send(pair.client, "low", 3, 0));
    MUST(send(pair.client, "water", 5, 0));
    wait_for(pair.server, POLLIN);
    say("%s", receive(pair.server, 8).c_str());
}

// The receiver sleeps already when something begins to be held back, one among many.
BEHAVIOUR(found_asleep) {
    for (const bool polls : {false, true}) {
        std::vector<Pair> pairs;
        const int listener = make_listener(), set = MUST(epoll_create1(0));
        for (int i = 0; i < 100; ++i) {
            pairs.push_back(connect_through(listener));
            epoll_event event{};
            event.events = EPOLLIN;
            event.data.u32 = static_cast<uint32_t>(i);
            MUST(epoll_ctl(set, EPOLL_CTL_ADD, pairs.back().server, &event));
        }
        std::thread sender([&] {
            for (const size_t i : {42u, 7u, 99u}) {
                sleep_ms(30);
                MUST(send(pairs[i].client, "x", 1, MSG_MORE));
            }
        });
        std::string found;
        while (found.size() < 3) {
            size_t which = 0;
            if (polls) {
                std::vector<pollfd> list;
                for (const Pair &p : pairs)
                    list.push_back({p.server, POLLIN, 0});
                if (poll(list.data(), list.size(), kPatience) <= 0)
                    break;
                while (!list[which].revents)
                    ++which;
            } else {
                epoll_event event{};
                if (epoll_wait(set, &event, 1, kPatience) <= 0)
                    break;
                which = event.data.u32;
            }
            found += receive(pairs[which].server, 1);
        }
        sender.join();
        say("%s", found.c_str());
        for (const Pair &p : pairs) {
            close(p.client);
            close(p.server);
        }
        close(set);
    }
}

// Whoever answers has what was held back for him, unless by TCP_CORK.
BEHAVIOUR(pushed_by_the_peer) {
    for (const bool cork : {false, true})
        in_time([cork](Attempt &a) {
            a.cork(cork);
            a.write("held", cork ? 0 : MSG_MORE);
            a.look("held");
            a.note("the other way %zd", send(a.server, "x", 1, 0));
            a.look("after that");
        });
}

// So does who ends what he sends.
BEHAVIOUR(pushed_by_the_peers_end) {
    in_time([](Attempt &a) {
        a.write("held", MSG_MORE);
        a.note("SHUT_WR %d", shutdown(a.server, SHUT_WR));
        a.take();
    });
    in_time([](Attempt &a) { // it came, and was left unread
        a.write("held", MSG_MORE);
        a.note("the other way %zd", send(a.server, "x", 1, 0));
        close(a.server);
        char buffer[4];
        a.note("reset: %s", recv(a.client, buffer, 4, 0) < 0 || recv(a.client, buffer, 4, 0) < 0 ? "yes" : "no");
    });
}

BEHAVIOUR(the_end_pushes) {
    in_time([](Attempt &a) {
        a.write("shutdown", MSG_MORE);
        a.note("SHUT_RD %d", shutdown(a.client, SHUT_RD));
        a.look("only reading");
        a.note("SHUT_WR %d", shutdown(a.client, SHUT_WR));
        a.take();
        a.take();
    });
    in_time([](Attempt &a) {
        a.cork(true);
        a.write("close");
        const int copy = MUST(dup(a.client));
        close(a.client);
        a.look("one of two closed");
        close(copy);
        a.take();
        a.take();
    });
    const Pair pair = make_pair();
    set_option(pair.client, IPPROTO_TCP, TCP_CORK, 1);
    const pid_t child = spawn([&] {
        MUST(write(pair.client, "killed", 6));
        raise(SIGKILL);
    });
    reap("child", child);
    close(pair.client);
    say("%s", receive_to_end(pair.server).c_str());
}

BEHAVIOUR(a_killed_sender) {
    const int listener = make_listener();
    const Address address = local_address(listener);
    const pid_t child = spawn([&] {
        const int fd = connect_to(address);
        set_option(fd, IPPROTO_TCP, TCP_CORK, 1);
        for (int i = 0; i < 100; ++i)
            MUST(write(fd, "0123456789", 10));
        raise(SIGKILL);
    });
    const int server = MUST(accept(listener, nullptr, nullptr));
    const std::string all = receive_to_end(server);
    SHOW(static_cast<long>(all.size()));
    reap("child", child);
}

// A reset takes along what was not sent.
BEHAVIOUR(a_reset_drops) {
    in_time([](Attempt &a) {
        a.cork(true);
        a.write("lost");
        abort_connection(a.client);
        a.take();
    });
    in_time([](Attempt &a) {
        send(a.server, "unread", 6, 0);
        wait_for(a.client, POLLIN);
        a.cork(true);
        a.write("lost");
        close(a.client);
        a.take();
    });
}

BEHAVIOUR(nobody_reads_it) {
    in_time([](Attempt &a) {
        a.cork(true);
        a.write("held");
        close(a.server);
        a.note("closed: %s", event_names(static_cast<uint32_t>(poll_now(a.client))).c_str());
        a.cork(false);
        wait_for(a.client, POLLHUP);
        char byte;
        a.note("uncorked: %s", event_names(static_cast<uint32_t>(poll_now(a.client))).c_str());
        a.note("recv %zd", recv(a.client, &byte, 1, 0));
        a.note("send %s", send(a.client, "x", 1, MSG_NOSIGNAL) < 0 ? strerrorname_np(errno) : "ok");
    });
}

BEHAVIOUR(shared) {
    in_time([](Attempt &a) {
        a.cork(true);
        a.write("one ");
        const pid_t child = spawn([&] {
            MUST(write(a.client, "two ", 4));
            _exit(0);
        });
        waitpid(child, nullptr, 0);
        a.look("both have written");
        const pid_t other = spawn([&] {
            set_option(a.client, IPPROTO_TCP, TCP_CORK, 0);
            _exit(0);
        });
        waitpid(other, nullptr, 0);
        a.look("the child has uncorked");
        a.take();
        a.write("plain");
        a.take();
    });
}

BEHAVIOUR(urgent_does_not_wait) {
    in_time([](Attempt &a) {
        a.cork(true);
        a.write("before");
        a.note("urgent %zd", send(a.client, "!", 1, MSG_OOB));
        a.look("urgent");
        a.take();
    });
}

BEHAVIOUR(queues) {
    in_time([](Attempt &a) {
        const auto held = [&] {
            int all = 0, not_sent = 0;
            MUST(ioctl(a.client, SIOCOUTQ, &all));
            MUST(ioctl(a.client, SIOCOUTQNSD, &not_sent));
            a.note("not acknowledged %d, not sent %d", all, not_sent);
        };
        a.cork(true);
        held();
        a.write("three");
        a.write("four");
        held();
    });
}

// Nothing but whole segments goes; then the rest. In every size, and over every ring that libsd changes to meanwhile.
BEHAVIOUR(large) {
    for (const size_t piece : {100u, 1000u, 5000u, 30000u})
        in_time([piece](Attempt &a) {
            const std::string data = pattern(piece, 3);
            a.cork(true);
            size_t sent = 0;
            bool held = true;
            for (; sent + piece <= 30000; sent += piece) {
                MUST(send(a.client, data.data(), piece, 0));
                int waiting = 0;
                MUST(ioctl(a.server, FIONREAD, &waiting));
                held &= waiting == 0;
            }
            a.note("%zu in pieces of %zu held back: %s", sent, piece, yes_no(held));
            for (; sent < 70000; sent += piece)
                MUST(send(a.client, data.data(), piece, 0));
            int waiting = 0;
            MUST(ioctl(a.server, FIONREAD, &waiting));
            a.note("a part of %zu is there: %s", sent,
                   yes_no(waiting > 0 && static_cast<size_t>(waiting) < sent));
            a.cork(false);
            const std::string all = receive(a.server, sent);
            bool right = all.size() == sent;
            for (size_t i = 0; right && i < sent; ++i)
                right = all[i] == data[i % piece];
            a.note("all is there: %s", yes_no(right));
        });
}

BEHAVIOUR(many_at_random) {
    const Pair pair = make_pair();
    constexpr size_t kAll = 6u << 20;
    const std::string data = pattern(kAll, 9);
    std::thread sender([&] {
        uint64_t state = 5;
        const auto dice = [&](uint64_t n) {
            state = state * 6364136223846793005ull + 1442695040888963407ull;
            return state / 65536 % n;
        };
        for (size_t at = 0; at < kAll;) {
            if (dice(10) == 0)
                set_option(pair.client, IPPROTO_TCP, TCP_CORK, dice(2) == 0);
            const size_t n = std::min(kAll - at, static_cast<size_t>(1 + dice(dice(8) ? 900 : 90000)));
            at += static_cast<size_t>(MUST(send(pair.client, &data[at], n, dice(3) == 0 ? MSG_MORE : 0)));
        }
        close(pair.client);
    });
    const std::string all = receive_to_end(pair.server);
    sender.join();
    SHOW_BOOL(all == data);
}

BEHAVIOUR(files_and_pipes) {
    const int file = MUST(memfd_create("data", 0));
    MUST(write(file, "from a file", 11));
    in_time([&](Attempt &a) {
        off_t from = 0;
        a.cork(true);
        a.write("corked ");
        a.note("sendfile %zd", sendfile(a.client, file, &from, 11));
        a.look("corked");
        a.cork(false);
        a.take();
    });
    in_time([&](Attempt &a) {
        int ends[2];
        MUST(pipe(ends));
        MUST(write(ends[1], "onetwo", 6));
        a.note("splice and more %zd", splice(ends[0], nullptr, a.client, nullptr, 3, SPLICE_F_MORE));
        a.look("more");
        a.note("splice %zd", splice(ends[0], nullptr, a.client, nullptr, 3, 0));
        a.take();
        close(ends[0]);
        close(ends[1]);
    });
}

int main(int argc, char **argv) { return run_behaviour(argc, argv); }
