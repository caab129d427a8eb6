// The MSG_ flags of the send and receive calls on a stream.
#include "tests/programs/cases.hpp"
#include "tests/programs/process.hpp"

using namespace sdtest;

BEHAVIOUR("MSG_PEEK", peek, accelerated) {
    const Pair pair = make_pair();
    char buffer[16] = {};
    SHOW(recv(pair.server, buffer, 4, MSG_PEEK | MSG_DONTWAIT));
    SHOW(send(pair.client, "abcdef", 6, 0));
    SHOW(recv(pair.server, buffer, 3, MSG_PEEK));
    wait_for(pair.server, POLLIN);
    SHOW(recv(pair.server, buffer, sizeof buffer, MSG_PEEK));
    say("%s", buffer);
    SHOW(recv(pair.server, buffer, 2, 0));
    SHOW(recv(pair.server, buffer, sizeof buffer, MSG_PEEK));
    say("%.4s", buffer);
    SHOW(recv(pair.server, buffer, sizeof buffer, 0));
    SHOW(recv(pair.server, buffer, 1, MSG_PEEK | MSG_DONTWAIT));
    close(pair.client);
    SHOW(recv(pair.server, buffer, 1, MSG_PEEK));
    SHOW(recv(pair.server, buffer, 1, MSG_PEEK));
    SHOW(recv(pair.server, buffer, 1, 0));
}

// A peek sees across the borders of several writes.
BEHAVIOUR("MSG_PEEK across many writes", peek_many_records, accelerated) {
    const Pair pair = make_pair();
    std::string sent;
    for (int i = 0; i < 200; ++i) {
        const std::string part = pattern(static_cast<size_t>(1 + i % 37), static_cast<uint64_t>(i));
        send_all(pair.client, part);
        sent += part;
    }
    std::string seen(sent.size(), '\0');
    ssize_t got = 0;
    for (int i = 0; i < 1000 && got < static_cast<ssize_t>(sent.size()); ++i) {
        got = recv(pair.server, seen.data(), seen.size(), MSG_PEEK);
        sleep_ms(1);
    }
    SHOW_BOOL(seen == sent);
    char first[10];
    iovec parts[] = {{first, 3}, {first + 3, 7}};
    msghdr message{};
    message.msg_iov = parts;
    message.msg_iovlen = 2;
    SHOW(recvmsg(pair.server, &message, MSG_PEEK));
    SHOW_BOOL(sent.compare(0, 10, std::string(first, 10)) == 0);
    SHOW_BOOL(receive(pair.server, sent.size()) == sent);
}

BEHAVIOUR("MSG_WAITALL", waitall, accelerated) {
    const Pair pair = make_pair();
    std::thread writer([&] {
        for (int i = 0; i < 10; ++i) {
            send_all(pair.client, "0123456789");
            sleep_ms(5);
        }
    });
    char buffer[100];
    SHOW(recv(pair.server, buffer, sizeof buffer, MSG_WAITALL));
    writer.join();
    show_data("all", std::string(buffer, sizeof buffer));
    send_all(pair.client, "short");
    wait_for(pair.server, POLLIN);
    SHOW(recv(pair.server, buffer, sizeof buffer, MSG_WAITALL | MSG_DONTWAIT));
    send_all(pair.client, "the rest");
    shutdown(pair.client, SHUT_WR);
    SHOW(recv(pair.server, buffer, sizeof buffer, MSG_WAITALL));
    SHOW(recv(pair.server, buffer, sizeof buffer, MSG_WAITALL));
}

BEHAVIOUR("MSG_WAITALL with MSG_PEEK", waitall_peek, accelerated) {
    const Pair pair = make_pair();
    std::thread writer([&] {
        for (int i = 0; i < 4; ++i) {
            send_all(pair.client, "0123456789");
            sleep_ms(5);
        }
    });
    char buffer[40];
    SHOW(recv(pair.server, buffer, sizeof buffer, MSG_WAITALL | MSG_PEEK));
    SHOW(recv(pair.server, buffer, sizeof buffer, MSG_WAITALL));
    writer.join();
    show_data("all", std::string(buffer, sizeof buffer));
}

BEHAVIOUR("MSG_WAITALL with a deadline", waitall_times_out, accelerated) {
    const Pair pair = make_pair();
    set_timeout(pair.server, SO_RCVTIMEO, 100);
    send_all(pair.client, "some");
    char buffer[100];
    SHOW(recv(pair.server, buffer, sizeof buffer, MSG_WAITALL));
    SHOW(recv(pair.server, buffer, sizeof buffer, MSG_WAITALL));
}

BEHAVIOUR("MSG_WAITALL for megabytes", waitall_large, accelerated) {
    const Pair pair = make_pair();
    const std::string data = pattern(3000000, 12);
    std::thread writer([&] { send_all(pair.client, data); });
    std::string got(data.size(), '\0');
    SHOW(recv(pair.server, got.data(), got.size(), MSG_WAITALL));
    writer.join();
    SHOW_BOOL(got == data);
}

BEHAVIOUR("MSG_DONTWAIT", dontwait, accelerated) {
    const Pair pair = make_pair();
    char buffer[16];
    SHOW(recv(pair.server, buffer, sizeof buffer, MSG_DONTWAIT));
    const std::string data = pattern(65536);
    ssize_t sent, total = 0;
    while ((sent = send(pair.client, data.data(), data.size(), MSG_DONTWAIT)) > 0)
        total += sent;
    say("stopped by %s", strerrorname_np(errno));
    // The flag is for the call only.
    SHOW_BOOL((fcntl(pair.client, F_GETFL) & O_NONBLOCK) == 0);
    SHOW_BOOL(receive(pair.server, static_cast<size_t>(total)).size() == static_cast<size_t>(total));
}

BEHAVIOUR("MSG_NOSIGNAL", nosignal, accelerated) {
    const Pair pair = make_pair();
    shutdown(pair.client, SHUT_WR);
    SHOW(send(pair.client, "x", 1, MSG_NOSIGNAL));
    iovec part{opaque(const_cast<char *>("x")), 1};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    SHOW(sendmsg(pair.client, &message, MSG_NOSIGNAL));
    mmsghdr several{message, 0};
    SHOW(sendmmsg(pair.client, &several, 1, MSG_NOSIGNAL));
    SHOW(sendto(pair.client, "x", 1, MSG_NOSIGNAL, nullptr, 0));
}

// On a stream MSG_TRUNC throws the data away and says how much.
BEHAVIOUR("MSG_TRUNC discards", trunc, accelerated) {
    const Pair pair = make_pair();
    send_all(pair.client, "abcdefghij");
    wait_for(pair.server, POLLIN);
    char buffer[16] = "untouched";
    SHOW(recv(pair.server, buffer, 4, MSG_TRUNC));
    say("%s", buffer);
    SHOW(recv(pair.server, nullptr, 3, MSG_TRUNC));
    SHOW(recv(pair.server, buffer, 16, MSG_TRUNC | MSG_PEEK));
    SHOW(recv(pair.server, buffer, 16, 0));
    say("%.3s", buffer);
}

BEHAVIOUR("MSG_MORE", more, accelerated) {
    const Pair pair = make_pair();
    SHOW(send(pair.client, "head ", 5, MSG_MORE));
    SHOW(send(pair.client, "middle ", 7, MSG_MORE));
    SHOW(send(pair.client, "tail", 4, 0));
    say("%s", receive(pair.server, 16).c_str());
    // Held back data goes out when the stream ends.
    SHOW(send(pair.client, "last", 4, MSG_MORE));
    SHOW(shutdown(pair.client, SHUT_WR));
    say("%s", receive_to_end(pair.server).c_str());
}

// Held back data goes out after a while even if nothing follows.
BEHAVIOUR("MSG_MORE with nothing following", more_alone, accelerated) {
    const Pair pair = make_pair();
    SHOW(send(pair.client, "alone", 5, MSG_MORE));
    say("%s", receive(pair.server, 5).c_str());
}

BEHAVIOUR("TCP_CORK", cork, accelerated) {
    const Pair pair = make_pair();
    set_option(pair.client, IPPROTO_TCP, TCP_CORK, 1);
    SHOW(write(pair.client, "one ", 4));
    SHOW(write(pair.client, "two", 3));
    set_option(pair.client, IPPROTO_TCP, TCP_CORK, 0);
    say("%s", receive(pair.server, 7).c_str());
}

BEHAVIOUR("flags without effect", harmless_flags, accelerated) {
    const Pair pair = make_pair();
    char buffer[16];
    SHOW(send(pair.client, "a", 1, MSG_DONTROUTE));
    SHOW(send(pair.client, "b", 1, MSG_CONFIRM));
    SHOW(send(pair.client, "c", 1, MSG_EOR));
    receive(pair.server, 2);
    SHOW(recv(pair.server, buffer, sizeof buffer, MSG_CMSG_CLOEXEC));
}

BEHAVIOUR("MSG_ERRQUEUE", error_queue, accelerated) {
    const Pair pair = make_pair();
    send_all(pair.client, "data");
    char buffer[16];
    SHOW(recv(pair.server, buffer, sizeof buffer, MSG_ERRQUEUE));
    SHOW(recv(pair.server, buffer, sizeof buffer, 0));
}

BEHAVIOUR("flags that recvmsg returns", flags_of_recvmsg, accelerated) {
    const Pair pair = make_pair();
    send_all(pair.client, "abcdef");
    wait_for(pair.server, POLLIN);
    char buffer[4];
    iovec part{buffer, sizeof buffer};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    SHOW(recvmsg(pair.server, &message, MSG_PEEK));
    say("flags %x", static_cast<unsigned>(message.msg_flags));
    SHOW(recvmsg(pair.server, &message, MSG_DONTWAIT));
    say("flags %x", static_cast<unsigned>(message.msg_flags));
    SHOW(recvmsg(pair.server, &message, MSG_CMSG_CLOEXEC));
    say("flags %x", static_cast<unsigned>(message.msg_flags));
    shutdown(pair.client, SHUT_WR);
    SHOW(recvmsg(pair.server, &message, 0));
    say("flags %x", static_cast<unsigned>(message.msg_flags));
}

BEHAVIOUR("MSG_OOB without urgent data", no_urgent_data, accelerated) {
    const Pair pair = make_pair();
    char byte;
    SHOW(recv(pair.server, &byte, 1, MSG_OOB));
    send_all(pair.client, "x");
    wait_for(pair.server, POLLIN);
    SHOW(recv(pair.server, &byte, 1, MSG_OOB));
    SHOW(sockatmark(pair.server));
    SHOW(recv(pair.server, &byte, 1, 0));
    SHOW(sockatmark(pair.server));
}

BEHAVIOUR("urgent data", urgent_data, any) {
    const Pair pair = make_pair();
    SHOW(send(pair.client, "ab!", 3, MSG_OOB));
    SHOW(send(pair.client, "cd", 2, 0));
    wait_for(pair.server, POLLIN | POLLPRI);
    show_ready("server", pair.server);
    char buffer[16] = {};
    SHOW(recv(pair.server, buffer, sizeof buffer, 0));
    SHOW(sockatmark(pair.server));
    SHOW(recv(pair.server, buffer, sizeof buffer, MSG_OOB));
    say("%c", buffer[0]);
    SHOW(recv(pair.server, buffer, sizeof buffer, MSG_OOB));
    SHOW(recv(pair.server, buffer, sizeof buffer, 0));
    say("%.2s", buffer);
}

BEHAVIOUR("urgent data in line", urgent_data_inline, any) {
    const Pair pair = make_pair();
    set_option(pair.server, SOL_SOCKET, SO_OOBINLINE, 1);
    SHOW(send(pair.client, "ab!", 3, MSG_OOB));
    SHOW(send(pair.client, "cd", 2, 0));
    wait_for(pair.server, POLLIN | POLLPRI);
    char buffer[16] = {};
    SHOW(recv(pair.server, buffer, sizeof buffer, 0));
    SHOW(sockatmark(pair.server));
    SHOW(recv(pair.server, buffer, 1, 0));
    say("%c", buffer[0]);
    SHOW(sockatmark(pair.server));
    SHOW(recv(pair.server, buffer, 2, MSG_WAITALL));
}

int main(int argc, char **argv) { return run_behaviour(argc, argv); }
