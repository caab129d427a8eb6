// What becomes of what TCP_CORK and MSG_MORE hold back without another call of the sender: with time, by the
// peer, at the end.
#include "tests/programs/attempt.hpp"
#include "tests/programs/process.hpp"

using namespace sdtest;

// Without another call of the sender.
BEHAVIOUR("what is held back goes by itself", goes_by_itself, accelerated) {
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
BEHAVIOUR("what is held back finds those who sleep", found_asleep, accelerated) {
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
BEHAVIOUR("an answer pushes what MSG_MORE holds back", pushed_by_the_peer, accelerated) {
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
BEHAVIOUR("the peer's end pushes what MSG_MORE holds back", pushed_by_the_peers_end, accelerated) {
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

BEHAVIOUR("the end pushes what is held back", the_end_pushes, accelerated) {
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

BEHAVIOUR("a killed sender loses nothing that it held back", a_killed_sender, accelerated) {
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
BEHAVIOUR("a reset drops what is held back", a_reset_drops, accelerated) {
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

BEHAVIOUR("what is held back for a peer that has closed", nobody_reads_it, accelerated) {
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

BEHAVIOUR("processes that share a corked connection", shared, accelerated) {
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

int main(int argc, char **argv) { return run_behaviour(argc, argv); }
