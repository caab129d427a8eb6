// SCM_RIGHTS: connections and sockets in other states passed between processes.
#include "tests/programs/passing.hpp"
#include "tests/programs/sets.hpp"

#include <sys/stat.h>

using namespace sdtest;

// The sender keeps using it, too.
BEHAVIOUR("the sender keeps it", still_at_the_sender, accelerated) {
    const Channel channel;
    const pid_t child = spawn([&] {
        const int fd = take(channel.child)[0];
        say("child got %s", receive(fd, 4).c_str());
        send_all(fd, "from child ");
        MUST(pass(channel.child, {1}));
    });
    const Pair pair = make_pair(); // made after the fork: the child is no heir of it
    MUST(pass(channel.parent, {pair.server}));
    send_all(pair.client, "ping");
    take(channel.parent);
    send_all(pair.server, "from parent");
    reap("child", child);
    close(pair.server);
    say("%s", receive_to_end(pair.client).c_str());
}

// Between processes that are not related: a worker that connected to a Unix socket by itself and executed
// afterwards.
BEHAVIOUR("to an unrelated process", to_an_unrelated_process, accelerated) {
    const int listener = MUST(socket(AF_UNIX, SOCK_SEQPACKET, 0));
    sockaddr_un name{};
    name.sun_family = AF_UNIX;
    snprintf(name.sun_path + 1, sizeof name.sun_path - 1, "sd-passing-%d", static_cast<int>(getpid()));
    MUST(bind(listener, reinterpret_cast<sockaddr *>(&name), sizeof name));
    MUST(listen(listener, 4));
    char path[4096] = {};
    MUST(readlink("/proc/self/exe", path, sizeof path - 1));
    const pid_t child = spawn([&] {
        execl(path, path, "worker", name.sun_path + 1, nullptr);
        give_up("exec");
    });
    const int channel = MUST(accept(listener, nullptr, nullptr));
    for (int i = 0; i < 5; ++i) {
        const Pair pair = make_pair();
        MUST(fcntl(pair.server, F_SETFL, O_RDWR | O_NONBLOCK));
        send_all(pair.client, "before ");
        MUST(pass(channel, {pair.server}));
        close(pair.server);
        send_all(pair.client, "after");
        MUST(shutdown(pair.client, SHUT_WR));
        say("%s", receive_to_end(pair.client).c_str());
        close(pair.client);
        close(pair.listener);
    }
    close(channel);
    reap("worker", child);
}

BEHAVIOUR("several in one message", several_in_one_message, accelerated) {
    const Channel channel;
    const int listener = make_listener();
    int clients[4];
    const pid_t child = spawn([&] {
        close(channel.parent);
        const std::vector<int> fds = take(channel.child);
        say("child got %zu", fds.size());
        for (size_t i = 0; i < fds.size(); ++i)
            send_all(fds[i], std::to_string(i));
    });
    std::vector<int> servers;
    for (int &client : clients) {
        client = connect_to(listener);
        servers.push_back(MUST(accept(listener, nullptr, nullptr)));
    }
    MUST(pass(channel.parent, servers));
    for (const int fd : servers)
        close(fd);
    for (const int client : clients)
        say("%s", receive_to_end(client).c_str());
    reap("child", child);
}

// Both directions of sendmmsg and recvmmsg.
BEHAVIOUR("in several messages at once", in_several_messages_at_once, accelerated) {
    const Channel channel;
    int both[2];
    MUST(socketpair(AF_UNIX, SOCK_DGRAM, 0, both));
    const Pair one = make_pair(), two = make_pair();
    char bytes[2] = {'a', 'b'};
    iovec parts[2] = {{bytes, 1}, {bytes + 1, 1}};
    Control control[2];
    mmsghdr messages[2] = {};
    fill(messages[0].msg_hdr, parts[0], control[0], {one.server});
    fill(messages[1].msg_hdr, parts[1], control[1], {two.server});
    SHOW(sendmmsg(both[0], messages, 2, 0));
    SHOW(messages[1].msg_len);
    close(one.server);
    close(two.server);
    Control in[2];
    for (int i = 0; i < 2; ++i) {
        messages[i].msg_hdr.msg_control = in[i].bytes;
        messages[i].msg_hdr.msg_controllen = sizeof in[i].bytes;
    }
    SHOW(recvmmsg(both[1], messages, 2, MSG_CMSG_CLOEXEC, nullptr));
    for (int i = 0; i < 2; ++i) {
        int fd = -1;
        memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&messages[i].msg_hdr)), sizeof fd);
        SHOW(fcntl(fd, F_GETFD));
        const char *text = i ? "second" : "first";
        send_all(fd, text);
        say("%s", receive(i ? two.client : one.client, strlen(text)).c_str());
    }
}

// A message that nobody takes: the connection ends with the queue it lies in.
BEHAVIOUR("lost on the way", lost_on_the_way, accelerated) {
    const Pair pair = make_pair();
    const Channel channel;
    MUST(pass(channel.parent, {pair.server}));
    close(pair.server);
    SHOW_BOOL((poll_now(pair.client, POLLRDHUP, 150) & POLLRDHUP) == 0);
    close(channel.child);
    close(channel.parent);
    SHOW_BOOL(peer_is_gone(pair.client));
}

// On and on: through three processes, the last of which answers.
namespace {

ino_t inode_of(int fd) {
    struct stat status {};
    MUST(fstat(fd, &status));
    return status.st_ino;
}

// One who was told the inode of an accepted connection looks whether that is what he gets, as Dovecot does.
void check_inode(bool as_another_user) {
    const Pair pair = make_pair();
    int channel[2];
    MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, channel));
    const pid_t receiver = spawn([&] {
        close(pair.client);
        close(pair.server);
        close(channel[0]);
        if (as_another_user && geteuid() == 0)
            MUST(setuid(65534));
        ino_t told = 0;
        MUST(read(channel[1], &told, sizeof told));
        const int fd = receive_descriptor(channel[1]);
        SHOW_BOOL(inode_of(fd) == told);
        const int copy = MUST(dup(fd));
        close(fd);
        send_all(copy, receive(copy, 5));
        SHOW_BOOL(inode_of(copy) == told);
    });
    const ino_t own = inode_of(pair.server);
    MUST(write(channel[0], &own, sizeof own));
    pass_descriptor(channel[0], pair.server);
    close(pair.server);
    send_all(pair.client, "hello");
    reap("receiver", receiver);
    say("%s", receive(pair.client, 5).c_str());
}

} // namespace

BEHAVIOUR("its inode is the same elsewhere", same_inode_elsewhere, accelerated) { check_inode(false); }

BEHAVIOUR("its inode is the same in another user's process", same_inode_of_another_user, accelerated) {
    check_inode(true);
}

BEHAVIOUR("passed on", passed_on, accelerated) {
    const Channel first, second;
    const pid_t middle = spawn([&] {
        const int fd = take(first.child)[0];
        say("middle got %s", receive(fd, 3).c_str());
        MUST(pass(second.parent, {fd}));
    });
    const pid_t last = spawn([&] {
        const int fd = take(second.child)[0];
        say("last got %s", receive(fd, 3).c_str());
        send_all(fd, "answer");
    });
    close(first.child);
    close(second.parent);
    close(second.child);
    const Pair pair = make_pair();
    send_all(pair.client, "one");
    MUST(pass(first.parent, {pair.server}));
    close(pair.server);
    reap("middle", middle);
    send_all(pair.client, "two");
    reap("last", last);
    say("%s", receive_to_end(pair.client).c_str());
}

BEHAVIOUR("looked at first", looked_at_first, accelerated) {
    const Channel channel;
    const Pair pair = make_pair();
    MUST(pass(channel.parent, {pair.server}));
    close(pair.server);
    const std::vector<int> peeked = take(channel.child, MSG_PEEK), taken = take(channel.child);
    send_all(peeked[0], "peeked ");
    send_all(taken[0], "taken");
    close(peeked[0]);
    close(taken[0]);
    say("%s", receive_to_end(pair.client).c_str());
}

// To oneself: two descriptors of one connection, of which either may be closed first.
BEHAVIOUR("back to where it was", back_to_where_it_was, accelerated) {
    const Channel channel;
    const Pair pair = make_pair();
    for (int round = 0; round < 3; ++round) {
        MUST(pass(channel.parent, {pair.server}));
        const int again = take(channel.child)[0];
        send_all(again, "again");
        close(again);
        say("%s", receive(pair.client, 5).c_str());
        SHOW_BOOL((poll_now(pair.client, POLLRDHUP, 50) & POLLRDHUP) == 0);
    }
    MUST(pass(channel.parent, {pair.server}));
    close(pair.server);
    const int last = take(channel.child)[0];
    send_all(last, "last");
    say("%s", receive(pair.client, 4).c_str());
    send_all(pair.client, "answer");
    say("%s", receive(last, 6).c_str());
    close(last);
    SHOW_BOOL(peer_is_gone(pair.client));
}

// One connection, several times in the queue.
BEHAVIOUR("passed several times", passed_several_times, accelerated) {
    const Channel channel;
    const Pair pair = make_pair();
    for (int i = 0; i < 4; ++i)
        SHOW(pass(channel.parent, {pair.server}));
    close(pair.server);
    close(pair.listener);
    int fd[4];
    for (int i = 0; i < 4; ++i) {
        fd[i] = take(channel.child)[0];
        SHOW(send(fd[i], "x", 1, 0));
    }
    say("%s", receive(pair.client, 4).c_str());
    for (int i = 0; i < 4; ++i) {
        SHOW_BOOL((poll_now(pair.client, POLLRDHUP, 10) & POLLRDHUP) == 0);
        close(fd[i]);
    }
    SHOW_BOOL(peer_is_gone(pair.client));
}

/// Does the kernel remember a connection between these ports that has ended? Such names cannot be used again
/// for a minute. Both ports are looked for: one of them alone may belong to what an earlier program has left
/// behind.
bool is_remembered(uint16_t port, uint16_t other) {
    FILE *f = fopen("/proc/net/tcp", "r");
    char line[512], local[64], peer[64];
    unsigned state = 0;
    bool found = false;
    while (f && fgets(line, sizeof line, f))
        if (sscanf(line, " %*d: %63s %63s %x", local, peer, &state) == 3 && state == TCP_TIME_WAIT) {
            const auto here = strtoul(strchr(local, ':') + 1, nullptr, 16);
            const auto there = strtoul(strchr(peer, ':') + 1, nullptr, 16);
            found |= (here == port && there == other) || (here == other && there == port);
        }
    if (f)
        fclose(f);
    return found;
}

// A server that hands each connection on does so thousands of times, and the ports of its clients come again.
BEHAVIOUR("no name is used up", no_name_is_used_up, accelerated) {
    const Channel channel;
    const Pair pair = make_pair();
    const uint16_t port = local_address(pair.client).port();
    const uint16_t server_port = local_address(pair.server).port();
    for (int i = 0; i < 3; ++i) {
        MUST(pass(channel.parent, {pair.server}));
        const int fd = take(channel.child)[0];
        send_all(pair.client, "hello");
        say("%s", receive(fd, 5).c_str());
        close(fd);
        sleep_ms(20); // the monitor hears of it
        SHOW_BOOL(is_remembered(port, server_port));
    }
}

// The receiver has the kernel's set; what the sender does afterwards with an instance of its own is not seen
// there.
BEHAVIOUR("an epoll instance", an_epoll_instance, accelerated) {
    const Channel channel;
    const Pair pair = make_pair();
    const auto watch = [&] {
        const int ep = MUST(epoll_create1(0));
        MUST(add(ep, pair.server, EPOLLIN, 0));
        return ep;
    };
    const int first = watch();
    MUST(pass(channel.parent, {first}));
    const int received = take(channel.child)[0];
    epoll_event e{};
    MUST(epoll_ctl(first, EPOLL_CTL_DEL, pair.server, nullptr));
    close(first);
    const int second = watch();
    std::thread waiter([&] {
        for (int i = 0; i < 50; ++i) {
            epoll_event got{};
            MUST(epoll_wait(second, &got, 1, 5000));
            receive(pair.server, 4);
        }
    });
    std::thread sender([&] {
        for (int i = 0; i < 50; ++i) {
            sleep_ms(2);
            send_all(pair.client, "ping");
        }
    });
    SHOW(epoll_wait(received, &e, 1, 300));
    sender.join();
    waiter.join();
}

// A child gives what it has inherited back to its parent.
BEHAVIOUR("inherited and given back", inherited_and_given_back, accelerated) {
    const Channel channel;
    const Pair pair = make_pair();
    const pid_t child = spawn([&] {
        MUST(pass(channel.child, {pair.server}));
        say("%s", receive(pair.server, 3).c_str());
    });
    const int again = take(channel.parent)[0];
    close(pair.server);
    send_all(pair.client, "one");
    reap("child", child);
    send_all(again, "two");
    say("%s", receive(pair.client, 3).c_str());
    close(again);
    SHOW_BOOL(peer_is_gone(pair.client));
}

// One that is not connected yet; either side connects it.
BEHAVIOUR("not connected yet", not_connected_yet, any) {
    const Channel channel;
    const int listener = make_listener();
    const Address address = local_address(listener);
    const pid_t child = spawn([&] {
        const int fd = take(channel.child)[0];
        MUST(connect(fd, address.raw(), address.length));
        send_all(fd, "connected");
    });
    const int fd = MUST(socket(AF_INET, SOCK_STREAM, 0));
    MUST(pass(channel.parent, {fd}));
    const int server = MUST(accept(listener, nullptr, nullptr));
    say("%s", receive(server, 9).c_str());
    send_all(server, "and back");
    say("%s", receive(fd, 8).c_str());
    reap("child", child);
}

BEHAVIOUR("wrong descriptors", wrong_descriptors, accelerated) {
    const Channel channel;
    const Pair pair = make_pair();
    SHOW(pass(channel.parent, {pair.server, 987}));
    SHOW(pass(channel.parent, {-1}));
    send_all(pair.client, "fine");
    say("%s", receive(pair.server, 4).c_str());
}

// The sender ends before anybody has taken it.
BEHAVIOUR("the sender dies", the_sender_dies, accelerated) {
    const Channel channel;
    const int listener = make_listener();
    const Address address = local_address(listener);
    const pid_t child = spawn([&] {
        const int server = MUST(accept(listener, nullptr, nullptr));
        MUST(pass(channel.child, {server}));
        raise(SIGKILL);
    });
    const int client = connect_to(address);
    send_all(client, "for whom");
    reap("child", child);
    const int fd = take(channel.parent)[0];
    say("%s", receive(fd, 8).c_str());
    send_all(fd, "for me");
    close(fd);
    say("%s", receive_to_end(client).c_str());
}

namespace {

/// A process that connects to itself, passes one end and answers over the other, each when it is told to.
struct Sender {
    Channel channel;
    int taken = -1;
    pid_t pid = spawn([this] {
        char byte;
        MUST(read(channel.child, &byte, 1));
        const Pair pair = make_pair();
        MUST(pass(channel.child, {pair.client}));
        close(pair.client);
        MUST(read(channel.child, &byte, 1));
        send_all(pair.server, "hello ");
        send_all(pair.server, receive(pair.server, 5));
    });

    void begin() {
        send_all(channel.parent, "b", 1);
        taken = take(channel.parent)[0];
    }
    /// Whether what was passed works to its end.
    bool works() {
        send_all(channel.parent, "x", 1);
        send_all(taken, "there", 5);
        const bool right = receive_to_end(taken) == "hello there";
        reap("sender", pid);
        close(taken);
        return right;
    }
};

constexpr int kSenders = 60;

} // namespace

// All at one time, to one receiver. They are there before it gets anything: so they inherit nothing.
BEHAVIOUR("from many processes", from_many_processes, any) {
    std::vector<Sender> senders(kSenders);
    for (Sender &sender : senders)
        sender.begin();
    int working = 0;
    for (Sender &sender : senders)
        working += sender.works();
    say("%d of %d", working, kSenders);
}

// To a receiver that lives longer than each of them.
BEHAVIOUR("from one process after another", from_one_process_after_another, any) {
    std::vector<Sender> senders(kSenders);
    int working = 0;
    for (Sender &sender : senders) {
        sender.begin();
        working += sender.works();
    }
    say("%d of %d", working, kSenders);
}

int main(int argc, char **argv) {
    if (argc == 3 && strcmp(argv[1], "worker") == 0) {
        const int channel = MUST(socket(AF_UNIX, SOCK_SEQPACKET, 0));
        sockaddr_un name{};
        name.sun_family = AF_UNIX;
        snprintf(name.sun_path + 1, sizeof name.sun_path - 1, "%s", argv[2]);
        MUST(connect(channel, reinterpret_cast<sockaddr *>(&name), sizeof name));
        for (;;) {
            const std::vector<int> fds = take(channel);
            if (fds.empty())
                return 0;
            say("non-blocking: %s", yes_no((fcntl(fds[0], F_GETFL) & O_NONBLOCK) != 0));
            MUST(fcntl(fds[0], F_SETFL, O_RDWR));
            send_all(fds[0], receive_to_end(fds[0]));
            close(fds[0]);
        }
    }
    return run_behaviour(argc, argv);
}
