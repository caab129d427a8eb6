// What TCP_CORK and MSG_MORE hold back, and who sees it.
#include "tests/programs/attempt.hpp"
#include "tests/programs/process.hpp"

#include <linux/sockios.h>
#include <sys/sendfile.h>

using namespace sdtest;

BEHAVIOUR("TCP_CORK holds back", cork_and_uncork, accelerated) {
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

BEHAVIOUR("MSG_MORE holds back", more_and_no_more, accelerated) {
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
BEHAVIOUR("what is held back stands behind what was sent", behind_what_was_sent, accelerated) {
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

BEHAVIOUR("a send of nothing pushes nothing", sending_nothing_pushes_nothing, accelerated) {
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

BEHAVIOUR("options that push what is held back", options_that_push, accelerated) {
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

BEHAVIOUR("TCP_CORK before a connection", corked_before_connecting, accelerated) {
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

BEHAVIOUR("urgent data of a corked connection", urgent_does_not_wait, accelerated) {
    in_time([](Attempt &a) {
        a.cork(true);
        a.write("before");
        a.note("urgent %zd", send(a.client, "!", 1, MSG_OOB));
        a.look("urgent");
        a.take();
    });
}

BEHAVIOUR("SIOCOUTQ and SIOCOUTQNSD of a corked connection", queues, accelerated) {
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

// Nothing but whole segments goes; then the rest. In every size, and over every ring that libsd changes to
// meanwhile.
BEHAVIOUR("more than a segment on a corked connection", large, accelerated) {
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

BEHAVIOUR("corked and not at random, 6 MiB", many_at_random, accelerated) {
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

BEHAVIOUR("sendfile and splice on a corked connection", files_and_pipes, accelerated) {
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
