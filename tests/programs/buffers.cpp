// Bytes that are sent from buffers and received in place (include/socksdirect/buffers.h): on kernel sockets
// the same calls copy, and the stream is the same.
#include "include/socksdirect/buffers.hpp"
#include "tests/programs/cases.hpp"
#include "tests/programs/process.hpp"

#include <dlfcn.h>
#include <sys/ioctl.h>
#include <sys/uio.h>

using namespace sdtest;
using socksdirect::Buffer;
using socksdirect::Buffers;
using socksdirect::View;

namespace {

constexpr size_t kFrame = 300'000; // neither pages nor records end with it

bool under_libsd() { return dlsym(RTLD_DEFAULT, "socksdirect_buffer_calls") != nullptr; }

Buffer filled(Buffers &from, const std::string &bytes, int timeout_ms = -1) {
    Buffer buffer = from.get(bytes.size(), timeout_ms);
    memcpy(buffer.data(), bytes.data(), bytes.size());
    return buffer;
}

size_t send_buffer(Buffers &to, const Buffer &buffer, int flags = 0) {
    const sd_piece piece[] = {buffer.piece()};
    return to.send(piece, flags);
}

bool is(const View &view, const std::string &bytes) {
    return view.size() == bytes.size() && memcmp(view.data(), bytes.data(), bytes.size()) == 0;
}

/// Received in place where that can be.
void show_view(const char *label, const View &view, const std::string &bytes) {
    say("%s: %zu bytes, right: %s, in place where it can be: %s", label, view.size(), yes_no(is(view, bytes)),
        yes_no(view.is_in_place() == under_libsd()));
}

/// The two know of each other: what is sent next is handed over.
void meet(Buffers &sender, Buffers &receiver) {
    Buffer first = sender.get(1);
    *first.data() = std::byte{'.'};
    send_buffer(sender, first);
    say("met: %zu", receiver.receive(1, MSG_WAITALL).size());
}

std::string read_some(int fd, size_t n, int flags = 0) {
    std::string data(n, '\0');
    const ssize_t r = recv(fd, data.data(), n, flags);
    data.resize(r < 0 ? 0 : static_cast<size_t>(r));
    return data;
}

std::string read_all(int fd, size_t n) { return read_some(fd, n, MSG_WAITALL); }

int waiting_bytes(int fd) {
    int n = -1;
    MUST(ioctl(fd, FIONREAD, &n));
    return n;
}

struct Ends : Pair {
    Ends() : Pair(make_pair()) { meet(sender, receiver); }
    Buffers sender{client}, receiver{server};
};

} // namespace

BEHAVIOUR("frames arrive whole, one behind the other", frames, all_accelerated) {
    Ends e;
    for (unsigned i = 0; i < 8; ++i) {
        const std::string bytes = pattern(kFrame + i * 4097, i + 1);
        SHOW_BOOL(send_buffer(e.sender, filled(e.sender, bytes)) == bytes.size());
        show_view("frame", e.receiver.receive(bytes.size(), MSG_WAITALL), bytes);
    }
}

BEHAVIOUR("pieces: headers here, data there", pieces, all_accelerated) {
    Ends e;
    const std::string head = "head", body = pattern(kFrame), tail = "tail";
    const Buffer buffer = filled(e.sender, body);
    const sd_piece piece[] = {{head.data(), head.size(), nullptr},
                              buffer.piece(0, 100'000),
                              buffer.piece(100'000, body.size() - 100'000),
                              buffer.piece(5, 10),
                              {tail.data(), tail.size(), nullptr}};
    SHOW(static_cast<long>(e.sender.send(piece)));
    show_view("body",
              (e.receiver.receive(head.size(), MSG_WAITALL), e.receiver.receive(body.size(), MSG_WAITALL)),
              body);
    say("%s", read_all(e.server, 10 + tail.size()).substr(10).c_str());
    // Across what was copied and what was not: one copy.
    SHOW(static_cast<long>(e.sender.send(piece)));
    const View all = e.receiver.receive(head.size() + body.size() + 10 + tail.size(), MSG_WAITALL);
    SHOW_BOOL(is(all, head + body + body.substr(5, 10) + tail) && !all.is_in_place());
}

BEHAVIOUR("an ordinary recv() gets the bytes of buffers", ordinary_receiver, all_accelerated) {
    Ends e;
    const std::string bytes = pattern(90'000); // as much as the kernel, too, has arrived at once
    const Buffer buffer = filled(e.sender, bytes);
    send_buffer(e.sender, buffer);
    SHOW(waiting_bytes(e.server));
    SHOW_BOOL(read_some(e.server, 70'001, MSG_PEEK | MSG_WAITALL) == bytes.substr(0, 70'001));
    size_t at = 0;
    for (const size_t n : {1ul, 7ul, 61'439ul, 2ul, 10'000ul}) {
        SHOW_BOOL(read_all(e.server, n) == bytes.substr(at, n));
        at += n;
        SHOW(waiting_bytes(e.server));
    }
    SHOW(recv(e.server, nullptr, 1000, MSG_TRUNC));
    at += 1000;
    char a[10], b[6'000];
    iovec parts[] = {{a, sizeof a}, {b, sizeof b}};
    SHOW(readv(e.server, parts, 2));
    SHOW_BOOL(std::string(b, sizeof b) == bytes.substr(at + 10, sizeof b));
    at += 10 + sizeof b;
    show_view("rest", e.receiver.receive(bytes.size() - at, MSG_WAITALL), bytes.substr(at));
    SHOW_BOOL(!buffer.is_read());
}

BEHAVIOUR("send() and buffers in any order", mixed, all_accelerated) {
    Ends e;
    const std::string one = pattern(50'000, 1), two = pattern(80'000, 2), three = pattern(20'000, 3);
    for (int round = 0; round < 20; ++round) {
        MUST(send(e.client, one.data(), one.size(), 0));
        send_buffer(e.sender, filled(e.sender, two));
        MUST(send(e.client, three.data(), three.size(), 0));
        std::string got = read_all(e.server, 45'000);
        const View view = e.receiver.receive(5'000 + two.size() + 1, MSG_WAITALL);
        got.append(reinterpret_cast<const char *>(view.data()), view.size());
        got += read_all(e.server, three.size() - 1);
        if (got != one + two + three)
            say("round %d differs", round);
    }
}

BEHAVIOUR("what waits in a buffer is data like any other", readiness, all_accelerated) {
    Ends e;
    constexpr size_t kSmall = 50'000; // the kernel has a mind of its own where its buffer is nearly full
    const int set = MUST(epoll_create1(0));
    epoll_event event{EPOLLIN | EPOLLET, {}};
    MUST(epoll_ctl(set, EPOLL_CTL_ADD, e.server, &event));
    SHOW(epoll_wait(set, &event, 1, 0));
    show_ready("nothing", e.server);
    const Buffer buffer = filled(e.sender, pattern(kSmall));
    send_buffer(e.sender, buffer);
    SHOW(epoll_wait(set, &event, 1, kPatience));
    SHOW(epoll_wait(set, &event, 1, 0));
    show_ready("a frame", e.server);
    SHOW_BOOL(buffer.is_read() == under_libsd());
    read_all(e.server, 30'000);
    show_ready("a part", e.server);
    send_buffer(e.sender, filled(e.sender, pattern(20'000)));
    SHOW(epoll_wait(set, &event, 1, kPatience));
    set_option(e.server, SOL_SOCKET, SO_RCVLOWAT, kSmall - 30'000 + 20'000);
    show_ready("all that is wanted", e.server);
    read_all(e.server, 1);
    show_ready("one less", e.server);
    set_option(e.server, SOL_SOCKET, SO_RCVLOWAT, 1);
    SHOW(static_cast<long>(e.receiver.receive(kSmall + 20'000 - 30'001, MSG_WAITALL).size()));
    show_ready("nothing", e.server);
    SHOW_BOOL(!buffer.is_read());
    set_timeout(e.server, SO_RCVTIMEO, 50);
    SHOW(static_cast<long>(e.receiver.receive(10).size()));
    SHOW(static_cast<long>(e.receiver.receive(10, MSG_DONTWAIT).size()));
}

BEHAVIOUR("a view outlives its connection, and its sender", view_after_close, all_accelerated) {
    const Pair p = make_pair();
    Buffers receiver(p.server);
    const std::string bytes = pattern(kFrame);
    const pid_t child = spawn([&] {
        Buffers sender(p.client);
        Buffer dot = sender.get(1);
        *dot.data() = std::byte{'.'};
        send_buffer(sender, dot);
        char back;
        MUST(recv(p.client, &back, 1, 0));
        const Buffer buffer = filled(sender, bytes);
        SHOW_BOOL(send_buffer(sender, buffer) == bytes.size());
        raise(SIGKILL);
    });
    close(p.client);
    say("%zu", receiver.receive(1).size());
    MUST(send(p.server, "!", 1, 0));
    View view = receiver.receive(bytes.size(), MSG_WAITALL);
    reap("sender", child);
    show_view("of the dead", view, bytes);
    say("%zu at the end", receiver.receive(1).size());
    close(p.server);
    SHOW_BOOL(is(view, bytes));
    view.release();
}

BEHAVIOUR("what was handed over before a close arrives", sent_before_close, all_accelerated) {
    const std::string bytes = pattern(kFrame);
    {
        Ends e;
        send_buffer(e.sender, filled(e.sender, bytes));
        MUST(shutdown(e.client, SHUT_WR));
        show_view("after FIN", e.receiver.receive(kFrame, MSG_WAITALL), bytes);
        say("%zu at the end", e.receiver.receive(1).size());
        try {
            send_buffer(e.sender, filled(e.sender, bytes), MSG_NOSIGNAL);
        } catch (const std::system_error &error) {
            say("%s", strerrorname_np(error.code().value()));
        }
    }
    {
        Ends e;
        send_buffer(e.sender, filled(e.sender, bytes));
        close(e.client);
        SHOW_BOOL(read_all(e.server, kFrame + 1) == bytes);
    }
    {
        Ends e;
        send_buffer(e.sender, filled(e.sender, bytes));
        wait_for(e.server, POLLIN);
        close(e.server); // with bytes that nobody has read
        wait_for(e.client, POLLERR);
        say("%s", socket_error(e.client).c_str());
    }
}

BEHAVIOUR("a receiver that keeps everything meets a quota", hoarder, all_accelerated) {
    const Pair p = make_pair();
    Buffers sender(p.client, 4u << 20), receiver(p.server);
    meet(sender, receiver);
    std::vector<View> kept;
    std::vector<std::string> sent;
    for (unsigned i = 0; i < 40; ++i) {
        sent.push_back(pattern(kFrame, i));
        const pid_t child = spawn([&] {}); // for which nothing changes
        Buffer buffer = filled(sender, sent.back(), 0);
        std::thread writer([&] { send_buffer(sender, buffer); });
        kept.push_back(receiver.receive(kFrame, MSG_WAITALL));
        writer.join();
        int status;
        MUST(waitpid(child, &status, 0));
    }
    unsigned right = 0, in_place = 0;
    for (unsigned i = 0; i < 40; ++i) {
        right += is(kept[i], sent[i]);
        in_place += kept[i].is_in_place();
    }
    SHOW(right);
    SHOW_BOOL(in_place == (under_libsd() ? (4u << 20) / (kFrame / 4096 * 4096 + 4096) : 0u));
    // One that waits gets what is released.
    std::thread reader([&] {
        sleep_ms(50);
        kept.clear();
    });
    const Buffer buffer = sender.get(4u << 20, -1);
    SHOW_BOOL(buffer.is_pooled() == under_libsd());
    reader.join();
}

BEHAVIOUR("a buffer is sent again and again from where it lies", again, all_accelerated) {
    Ends e;
    const std::string value = pattern(100'000);
    const Buffer buffer = filled(e.sender, value);
    std::vector<View> views;
    for (int i = 0; i < 3; ++i) {
        send_buffer(e.sender, buffer);
        views.push_back(e.receiver.receive(value.size(), MSG_WAITALL));
        show_view("value", views.back(), value);
    }
    const sd_piece part[] = {buffer.piece(40'000, 30'000)};
    e.sender.send(part);
    show_view("part", e.receiver.receive(30'000, MSG_WAITALL), value.substr(40'000, 30'000));
    SHOW_BOOL(buffer.is_read() == under_libsd());
    views.clear();
    SHOW_BOOL(!buffer.is_read());
}

BEHAVIOUR("buffers of another connection are copied", other_connection, all_accelerated) {
    Ends one, two;
    const std::string bytes = pattern(kFrame);
    const Buffer buffer = filled(one.sender, bytes);
    send_buffer(two.sender, buffer);
    const View view = two.receiver.receive(kFrame, MSG_WAITALL);
    SHOW_BOOL(is(view, bytes) && !view.is_in_place());
    const sd_buffers_counts counts = two.sender.counts();
    SHOW_BOOL(counts.sent_in_place == 0 && counts.sent_copied == kFrame + 1);
}

BEHAVIOUR("a sender that may not wait", nonblocking, all_accelerated) {
    Ends e;
    set_nonblocking(e.client);
    const std::string bytes = pattern(4u << 20);
    const Buffer buffer = filled(e.sender, bytes);
    // Small handles fill the ring, too, and what is told as sent has been sent.
    size_t sent = 0;
    unsigned refused = 0;
    while (refused == 0 && sent < size_t{4} << 30) {
        const sd_piece piece[] = {buffer.piece(sent % (3u << 20), 16'384)};
        const size_t n = e.sender.send(piece, MSG_NOSIGNAL);
        sent += n;
        refused += n == 0;
    }
    SHOW_BOOL(refused == 1);
    size_t got = 0;
    bool right = true;
    while (got < sent) {
        const View view = e.receiver.receive(std::min<size_t>(sent - got, 16'384), MSG_WAITALL);
        right = right && memcmp(view.data(), buffer.data() + got % (3u << 20), view.size()) == 0;
        got += view.size();
        if (view.empty())
            break;
    }
    SHOW_BOOL(right && got == sent);
    SHOW_BOOL(wait_for(e.client, POLLOUT));
    SHOW_BOOL(!buffer.is_read());
}

BEHAVIOUR("after a fork both processes send and receive", forked, all_accelerated) {
    Ends e;
    const std::string bytes = pattern(kFrame), other = pattern(kFrame, 2);
    const Buffer inherited = filled(e.sender, bytes);
    send_buffer(e.sender, inherited);
    const View view = e.receiver.receive(kFrame, MSG_WAITALL);
    const pid_t child = spawn([&] {
        // What the child has inherited it may send, but not in place.
        send_buffer(e.sender, inherited);
        Buffers own(e.client);
        send_buffer(own, filled(own, other));
        SHOW_BOOL(is(view, bytes));
        memset(inherited.data(), 0, kFrame); // a mistake, and the child's alone
    });
    const View first = e.receiver.receive(kFrame, MSG_WAITALL);
    const View second = e.receiver.receive(kFrame, MSG_WAITALL);
    reap("child", child);
    SHOW_BOOL(is(first, bytes) && is(second, other));
    SHOW_BOOL(is(view, bytes));
    const pid_t reader = spawn([&] {
        const View third = e.receiver.receive(kFrame, MSG_WAITALL);
        SHOW_BOOL(is(third, bytes));
    });
    send_buffer(e.sender, inherited);
    reap("reader", reader);
}

namespace {

/// Passes a connection to a child, and waits until that has done what it does with it.
void give_to(pid_t child, int channel, int fd) {
    pass_descriptor(channel, fd);
    close(fd);
    char done;
    MUST(read(channel, &done, 1));
    reap("child", child);
}

} // namespace

BEHAVIOUR("a connection is passed on with bytes in a buffer", passed, all_accelerated) {
    int channel[2];
    MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, channel));
    const pid_t child = spawn([&] { // which was there before the connection
        const int fd = receive_descriptor(channel[1]);
        const std::string bytes = pattern(kFrame);
        SHOW_BOOL(read_all(fd, 1000) == bytes.substr(0, 1000));
        Buffers receiver(fd);
        const View view = receiver.receive(kFrame - 1000, MSG_WAITALL);
        SHOW_BOOL(is(view, bytes.substr(1000)));
        MUST(write(channel[1], "d", 1));
    });
    Ends e;
    send_buffer(e.sender, filled(e.sender, pattern(kFrame)));
    give_to(child, channel[0], e.server);
}

BEHAVIOUR("a buffer behind the urgent byte is peeked at by who has not seen its like", urgent, all_accelerated) {
    int channel[2];
    MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, channel));
    const pid_t child = spawn([&] {
        const int fd = receive_descriptor(channel[1]);
        const std::string bytes = pattern(kFrame);
        SHOW_BOOL(read_some(fd, 1000, MSG_PEEK) == bytes.substr(0, 1000));
        SHOW_BOOL(read_all(fd, kFrame) == bytes);
        MUST(write(channel[1], "d", 1));
    });
    Ends e;
    MUST(send(e.client, "u", 1, MSG_OOB));
    send_buffer(e.sender, filled(e.sender, pattern(kFrame)));
    give_to(child, channel[0], e.server);
}

BEHAVIOUR("another program goes on with bytes in a buffer", executed, accelerated) {
    Ends e;
    send_buffer(e.sender, filled(e.sender, pattern(kFrame)));
    SHOW_BOOL(read_all(e.server, 1000) == pattern(kFrame).substr(0, 1000));
    const pid_t child = spawn([&] {
        const std::string number = std::to_string(e.server);
        execl("/proc/self/exe", "buffers", "read_the_rest", number.c_str(), nullptr);
    });
    reap("child", child);
}

BEHAVIOUR("what cannot be asked for", refused, all_accelerated) {
    Ends e;
    sd_view view;
    sd_buffers *c = sd_buffers_open(e.server, 0);
    SHOW(sd_buffers_recv(c, 10, MSG_PEEK, nullptr, 0, &view));
    SHOW(sd_buffers_recv(c, 0, 0, nullptr, 0, &view));
    sd_buffers_close(c);
    const Buffer buffer = e.sender.get(kFrame);
    const sd_piece beyond[] = {{buffer.data() + 4096, 2 * kFrame, nullptr}};
    const sd_piece wrong[] = {{beyond[0].data, 20 * kFrame, buffer.piece().buffer}};
    if (under_libsd()) {
        try {
            e.sender.send(wrong);
        } catch (const std::system_error &error) {
            say("%s", strerrorname_np(error.code().value()));
        }
    } else {
        say("EINVAL"); // the program would read what is not its own
    }
}

int main(int argc, char **argv) {
    if (argc == 3 && strcmp(argv[1], "read_the_rest") == 0) {
        SHOW_BOOL(read_all(atoi(argv[2]), kFrame - 1000) == pattern(kFrame).substr(1000));
        return 0;
    }
    return run_behaviour(argc, argv);
}
