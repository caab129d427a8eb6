// Calls with a deadline: SO_RCVTIMEO and SO_SNDTIMEO on each call that can block.
#include "tests/programs/cases.hpp"
#include "tests/programs/process.hpp"

using namespace sdtest;

namespace {

// Runs a call that should give up after `ms`: not much earlier, and not never.
template <class Call> void gives_up_after(const char *what, long ms, Call call) {
    Stopwatch watch;
    const long result = call();
    const int error = errno;
    say("%s: %ld %s, waited long enough %s", what, result, result < 0 ? strerrorname_np(error) : "-",
        yes_no(watch.ms() >= ms - 20));
}

} // namespace

BEHAVIOUR("SO_RCVTIMEO on each call", receive, accelerated) {
    const Pair pair = make_pair();
    set_timeout(pair.client, SO_RCVTIMEO, 100);
    char buffer[16];
    iovec part{buffer, sizeof buffer};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    mmsghdr several{message, 0};
    gives_up_after("recv", 100, [&] { return recv(pair.client, buffer, 16, 0); });
    gives_up_after("read", 100, [&] { return read(pair.client, buffer, 16); });
    gives_up_after("recvmsg", 100, [&] { return recvmsg(pair.client, &message, 0); });
    gives_up_after("recvmmsg", 100, [&] { return recvmmsg(pair.client, &several, 1, 0, nullptr); });
    gives_up_after("peek", 100, [&] { return recv(pair.client, buffer, 16, MSG_PEEK); });
    gives_up_after("dontwait", 0, [&] { return recv(pair.client, buffer, 16, MSG_DONTWAIT); });
    send_all(pair.server, "here");
    gives_up_after("with data", 0, [&] { return recv(pair.client, buffer, 16, 0); });
    set_timeout(pair.client, SO_RCVTIMEO, 0);
    std::thread writer([&] {
        sleep_ms(200);
        send_all(pair.server, "late");
    });
    gives_up_after("without limit", 150, [&] { return recv(pair.client, buffer, 16, 0); });
    writer.join();
}

BEHAVIOUR("SO_SNDTIMEO", send, accelerated) {
    const Pair pair = make_pair();
    set_timeout(pair.client, SO_SNDTIMEO, 100);
    const std::string data = pattern(1 << 20);
    size_t total = 0;
    // The call during which the room ends returns what it placed; the next one has no room at all.
    for (;;) {
        const ssize_t sent = send(pair.client, data.data(), data.size(), 0);
        if (sent <= 0)
            break;
        total += static_cast<size_t>(sent);
    }
    say("%s", strerrorname_np(errno));
    gives_up_after("send", 100, [&] { return send(pair.client, data.data(), data.size(), 0); });
    gives_up_after("write", 100, [&] { return write(pair.client, data.data(), data.size()); });
    SHOW_BOOL(::receive(pair.server, total).size() == total);
    wait_for(pair.client, POLLOUT);
    gives_up_after("send", 0, [&] { return send(pair.client, data.data(), 1, 0); });
}

BEHAVIOUR("accept with a deadline", accept_call, accelerated) {
    const int listener = make_listener();
    set_timeout(listener, SO_RCVTIMEO, 100);
    gives_up_after("accept", 100, [&] { return accept(listener, nullptr, nullptr); });
    const int client = connect_to(listener);
    SHOW_FD(accept(listener, nullptr, nullptr));
    close(client);
}

// The deadline is a property of the open socket, so a duplicate has it too.
BEHAVIOUR("deadlines are shared by duplicates", shared_by_duplicates, accelerated) {
    const Pair pair = make_pair();
    const int copy = MUST(dup(pair.client));
    set_timeout(copy, SO_RCVTIMEO, 100);
    char byte;
    gives_up_after("original", 100, [&] { return recv(pair.client, &byte, 1, 0); });
}

BEHAVIOUR("a deadline set before connecting", set_before_connect, accelerated) {
    const int listener = make_listener();
    const int client = MUST(socket(AF_INET, SOCK_STREAM, 0));
    set_timeout(client, SO_RCVTIMEO, 100);
    const Address to = local_address(listener);
    MUST(connect(client, to.raw(), to.length));
    char byte;
    gives_up_after("recv", 100, [&] { return recv(client, &byte, 1, 0); });
}

BEHAVIOUR("the deadline of recvmmsg", recvmmsg_deadline, accelerated) {
    const Pair pair = make_pair();
    char buffer[16];
    iovec part{buffer, sizeof buffer};
    mmsghdr several[2] = {};
    several[0].msg_hdr.msg_iov = several[1].msg_hdr.msg_iov = &part;
    several[0].msg_hdr.msg_iovlen = several[1].msg_hdr.msg_iovlen = 1;
    // The deadline of recvmmsg is looked at between messages only; the second message ends the call.
    send_all(pair.server, "one");
    std::thread writer([&] {
        sleep_ms(150);
        send_all(pair.server, "two");
    });
    timespec limit{0, 100000000};
    SHOW(recvmmsg(pair.client, several, 2, 0, &limit));
    writer.join();
}

int main(int argc, char **argv) { return run_behaviour(argc, argv); }
