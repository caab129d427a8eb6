// What an exec keeps of connections and listeners, and what it ends: the second image is this program again.
#include "tests/programs/cases.hpp"
#include "tests/programs/process.hpp"

#include <linux/capability.h>
#include <sys/resource.h>
#include <sys/syscall.h>

using namespace sdtest;

namespace {

std::string own_path() {
    char path[4096] = {};
    MUST(readlink("/proc/self/exe", path, sizeof path - 1));
    return path;
}

// Replaces this process by `executing image NAME NUMBERS...`.
[[noreturn]] void become(const char *image, std::initializer_list<int> numbers) {
    const std::string path = own_path();
    std::vector<std::string> words{path, "image", image};
    for (const int n : numbers)
        words.push_back(std::to_string(n));
    std::vector<char *> arguments;
    arguments.reserve(words.size() + 1);
    for (std::string &word : words)
        arguments.push_back(word.data());
    arguments.push_back(nullptr);
    execv(path.c_str(), arguments.data());
    give_up("exec");
}

void set_cloexec(int fd) { MUST(fcntl(fd, F_SETFD, FD_CLOEXEC)); }

// A client that waits before the child's exec, and one that comes after it.
void serve_before_and_after(const Address &address, const Gate &gate, pid_t child) {
    const int first = connect_to(address);
    send_all(first, "first");
    gate.open();
    say("%s", receive(first, 5).c_str());
    const int second = connect_to(address);
    send_all(second, "again");
    say("%s", receive(second, 5).c_str());
    reap("child", child);
    SHOW_BOOL(peer_is_gone(first));
}

} // namespace

// In the middle of a stream: what was sent before, and not read or half read, is read by the next image.
BEHAVIOUR("data that was on the way", data_on_the_way, accelerated) {
    const Pair pair = make_pair();
    const int ready = MUST(fcntl(pair.listener, F_DUPFD, 70)); // something else that stays open
    send_all(pair.client, "one two three");
    say("%s", receive(pair.server, 4).c_str());
    const pid_t child = spawn([&] {
        close(pair.client);
        become("reads", {pair.server});
    });
    close(pair.server);
    close(ready);
    send_all(pair.client, " four");
    MUST(shutdown(pair.client, SHUT_WR));
    say("%s", receive_to_end(pair.client).c_str());
    reap("child", child);
}

// Flags, options, names and duplicates are those of the former image.
BEHAVIOUR("flags, options, names, duplicates", state_of_the_socket, accelerated) {
    const Pair pair = make_pair();
    const int one = 1;
    const timeval limit{0, 50'000};
    MUST(setsockopt(pair.server, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one));
    MUST(setsockopt(pair.server, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit));
    MUST(setsockopt(pair.server, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof one));
    MUST(fcntl(pair.server, F_SETFL, O_RDWR | O_NONBLOCK));
    MUST(dup2(pair.server, 80));
    const pid_t child = spawn([&] {
        close(pair.client);
        become("state", {pair.server, 80});
    });
    close(80);
    say("%s", receive(pair.client, 5).c_str());
    reap("child", child);
    // O_NONBLOCK belongs to the open file description, which the two images shared.
    SHOW(fcntl(pair.server, F_GETFL) & O_NONBLOCK);
    close(pair.server);
    SHOW_BOOL(peer_is_gone(pair.client));
}

// What is marked ends with the image, although the process lives on.
BEHAVIOUR("what is marked ends", marked_ones_end, accelerated) {
    const int listener = make_listener();
    const int kept_client = connect_to(listener), kept = MUST(accept(listener, nullptr, nullptr));
    const int gone_client = connect_to(listener), gone = MUST(accept(listener, nullptr, nullptr));
    set_cloexec(gone);
    const pid_t child = spawn([&] {
        close(kept_client);
        close(gone_client);
        become("echo", {kept});
    });
    close(gone);
    close(kept);
    SHOW_BOOL(peer_is_gone(gone_client));
    send_all(kept_client, "still");
    MUST(shutdown(kept_client, SHUT_WR));
    say("%s", receive_to_end(kept_client).c_str());
    reap("child", child);
}

// The same where nothing is kept, and the next image has no use for sockets.
BEHAVIOUR("all that is marked ends", all_marked_end, accelerated) {
    const int listener = make_listener();
    const int client = connect_to(listener);
    const int server = MUST(accept4(listener, nullptr, nullptr, SOCK_CLOEXEC));
    set_cloexec(listener);
    const pid_t child = spawn([&] {
        close(client);
        execl("/bin/sleep", "sleep", "20", nullptr);
        give_up("exec");
    });
    close(server);
    SHOW_BOOL(peer_is_gone(client));
    MUST(kill(child, SIGTERM));
    reap("child", child);
}

// A connection that was passed and not taken yet belongs to neither image.
BEHAVIOUR("a connection in the mail", in_the_mail, accelerated) {
    const Pair pair = make_pair();
    int mail[2];
    MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, mail));
    const pid_t child = spawn([&] {
        pass_descriptor(mail[0], pair.client);
        set_cloexec(pair.client);
        become("looks", {pair.server, mail[1]});
    });
    close(pair.client);
    close(pair.server);
    close(mail[1]);
    reap("child", child);
}

// A listener and what waits on it survive an exec of the only process that holds it.
BEHAVIOUR("a listener with a queue", a_listener_with_a_queue, accelerated) {
    const int listener = make_listener();
    const Address address = local_address(listener);
    const Gate gate;
    const pid_t child = spawn([&] {
        gate.pass();
        become("accepts", {listener});
    });
    close(listener);
    serve_before_and_after(address, gate, child);
}

// The next image may have too little address space for accelerated connections, as a mail server gives its
// login processes: what reaches the listener must not wait for the parent, which holds it, too, but never
// accepts.
BEHAVIOUR("a listener for an image with little memory", a_listener_for_an_image_with_little_memory, any) {
    const int listener = make_listener();
    const Address address = local_address(listener);
    int replaced[2];
    MUST(pipe2(replaced, O_CLOEXEC));
    const pid_t child = spawn([&] {
        const rlimit little{rlim_t{1} << 30, rlim_t{1} << 30};
        MUST(setrlimit(RLIMIT_AS, &little));
        become("accepts", {listener});
    });
    close(replaced[1]);
    char none;
    SHOW(read(replaced[0], &none, 1));
    for (int i = 0; i < 2; ++i) {
        const int client = connect_to(address);
        send_all(client, "hello");
        say("%s", receive(client, 5).c_str());
    }
    reap("child", child);
}

// The same with a client that waits already, because of whom the program is executed.
BEHAVIOUR("a listener on which clients wait for an image with little memory",
          a_queue_for_an_image_with_little_memory, any) {
    const int listener = make_listener();
    const Address address = local_address(listener);
    const Gate gate;
    const pid_t child = spawn([&] {
        gate.pass();
        const rlimit little{rlim_t{1} << 30, rlim_t{1} << 30};
        MUST(setrlimit(RLIMIT_AS, &little));
        become("accepts", {listener});
    });
    serve_before_and_after(address, gate, child);
}

// A listener that ends with the former image, but for the copy in the mail, where the next image finds it.
namespace {

// As Dovecot does: a master waits for clients, and starts who serves them, as another user, when one comes.
void starts_who_serves(const Gate *after) {
    const int listener = make_listener();
    const Address address = local_address(listener);
    const pid_t client = spawn([&] {
        close(listener);
        if (after)
            after->pass();
        for (const char *word : {"first", "again"}) {
            const int fd = connect_to(address);
            send_all(fd, word);
            say("%s", receive(fd, 5).c_str());
            close(fd);
        }
    });
    if (after) { // an image of root's gets back what it drops here
        __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
        __user_cap_data_struct own[2];
        MUST(syscall(SYS_capget, &header, own));
        own[0].effective &= ~(1U << CAP_CHOWN);
        own[0].permitted &= ~(1U << CAP_CHOWN);
        MUST(syscall(SYS_capset, &header, own));
        after->open();
    }
    SHOW_BOOL(poll_now(listener, POLLIN, kPatience) == POLLIN);
    const pid_t child = spawn([&] { become("serves as another", {listener}); });
    reap("client", client);
    reap("child", child);
}

} // namespace

BEHAVIOUR("a listener on which a client waits, for an image that becomes another user",
          a_listener_for_another_user, any) {
    starts_who_serves(nullptr);
}

BEHAVIOUR("a listener on which a client waits, for an image with more rights", a_listener_for_more_rights, any) {
    const Gate ready;
    starts_who_serves(&ready);
}

BEHAVIOUR("a listener in the mail", a_listener_in_the_mail, any) {
    const int listener = make_listener();
    const Address address = local_address(listener);
    const Gate gate;
    const pid_t child = spawn([&] {
        int mail[2];
        MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, mail));
        pass_descriptor(mail[0], listener);
        set_cloexec(listener);
        gate.pass();
        become("finds", {mail[1], mail[0]});
    });
    close(listener);
    serve_before_and_after(address, gate, child);
}

// Both ends of a connection in one process, and more than one exec.
BEHAVIOUR("both ends, twice", both_ends_twice, accelerated) {
    const Pair pair = make_pair();
    send_all(pair.client, "before");
    const pid_t child = spawn([&] { become("again", {pair.client, pair.server}); });
    close(pair.client);
    close(pair.server);
    reap("child", child);
}

// An exec that fails leaves everything as it was, and so does a second one.
BEHAVIOUR("an exec that fails", failed_exec, accelerated) {
    const Pair pair = make_pair();
    set_cloexec(pair.client);
    for (int i = 0; i < 3; ++i) {
        SHOW(execl("/nowhere/at/all", "all", nullptr));
        SHOW(execlp("no-such-program-here", "no", nullptr));
    }
    send_all(pair.client, "and on");
    say("%s", receive(pair.server, 6).c_str());
    const int client = connect_to(pair.listener), server = MUST(accept(pair.listener, nullptr, nullptr));
    send_all(server, "new");
    say("%s", receive(client, 3).c_str());
    const pid_t child = spawn([&] {
        close(client);
        execl("/nowhere", "nowhere", nullptr);
        become("echo", {server});
    });
    close(server);
    send_all(client, "once more");
    MUST(shutdown(client, SHUT_WR));
    say("%s", receive_to_end(client).c_str());
    reap("child", child);
}

// The parent uses the connection too, before and after its child has executed another program.
BEHAVIOUR("a connection shared with the parent", shared_with_the_parent, accelerated) {
    const Pair pair = make_pair();
    send_all(pair.server, "parent ");
    const pid_t child = spawn([&] {
        send_all(pair.server, "child ");
        become("says", {pair.server});
    });
    reap("child", child);
    send_all(pair.server, " parent");
    close(pair.server);
    say("%s", receive_to_end(pair.client).c_str());
}

// A socket that is not connected yet keeps its options and can be connected by the next image.
BEHAVIOUR("a socket connected afterwards", connected_afterwards, any) {
    const int listener = make_listener();
    const int fd = MUST(socket(AF_INET, SOCK_STREAM, 0));
    const int one = 1;
    MUST(setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one));
    const pid_t child = spawn([&] { become("connects", {fd, local_address(listener).port()}); });
    close(fd);
    const int server = MUST(accept(listener, nullptr, nullptr));
    say("%s", receive(server, 5).c_str());
    reap("child", child);
    SHOW_BOOL(peer_is_gone(server));
}

// Many at once.
BEHAVIOUR("three hundred connections", three_hundred, accelerated) {
    const int listener = make_listener("127.0.0.1", 512);
    std::vector<int> clients, servers;
    for (int i = 0; i < 300; ++i) {
        clients.push_back(connect_to(listener));
        servers.push_back(MUST(accept(listener, nullptr, nullptr)));
    }
    const int first = servers.front(), last = servers.back();
    SHOW_BOOL(last > first);
    const pid_t child = spawn([&] {
        for (const int fd : clients)
            close(fd);
        std::string numbers;
        const std::string path = own_path();
        for (const int fd : servers)
            numbers += std::to_string(fd) + ",";
        execl(path.c_str(), path.c_str(), "image", "all", numbers.c_str(), nullptr);
        give_up("exec");
    });
    for (const int fd : servers)
        close(fd);
    int right = 0;
    for (size_t i = 0; i < clients.size(); ++i)
        right += receive_to_end(clients[i]) == std::to_string(i);
    say("%d", right);
    reap("child", child);
}

// Programs that know nothing of sockets: a shell, cat, and what inetd does.
BEHAVIOUR("inetd style", inetd_style, accelerated) {
    const int listener = make_listener();
    const Address address = local_address(listener);
    for (const char *command :
         {"tr a-z A-Z", "read line; echo \"got $line\"", "cat", "head -c 5; exec cat >/dev/null"}) {
        const int client = connect_to(address);
        const int server = MUST(accept(listener, nullptr, nullptr));
        const pid_t child = spawn([&] {
            close(client);
            for (int n = 0; n < 3; ++n)
                MUST(dup2(server, n));
            close(server);
            close(listener);
            execl("/bin/sh", "sh", "-c", command, nullptr);
            give_up("exec");
        });
        close(server);
        send_all(client, "some words\n");
        MUST(shutdown(client, SHUT_WR));
        say("%s: %s", command, receive_to_end(client).c_str());
        reap("child", child);
        close(client);
    }
}

namespace {

void second_image(const std::string &name, const std::vector<int> &fds) {
    if (name == "finds") {
        close(fds[1]);
        second_image("accepts", {receive_descriptor(fds[0])});
    } else if (name == "reads") {
        std::string got = receive_to_end(fds[0]);
        send_all(fds[0], "[" + got + "]");
    } else if (name == "state") {
        int value = -1;
        socklen_t length = sizeof value;
        SHOW(getsockopt(fds[0], IPPROTO_TCP, TCP_NODELAY, &value, &length));
        say("nodelay %d", value);
        SHOW(getsockopt(fds[0], SOL_SOCKET, SO_KEEPALIVE, &value, &length));
        say("keepalive %d", value);
        timeval limit{};
        length = sizeof limit;
        SHOW(getsockopt(fds[1], SOL_SOCKET, SO_RCVTIMEO, &limit, &length));
        say("timeout %ld", static_cast<long>(limit.tv_sec * 1000000 + limit.tv_usec));
        SHOW(fcntl(fds[1], F_GETFL) & O_NONBLOCK);
        say("%s to %s", local_address(fds[0]).host().c_str(), peer_address(fds[1]).host().c_str());
        char byte;
        SHOW(recv(fds[0], &byte, 1, 0));
        MUST(fcntl(fds[1], F_SETFL, O_RDWR));
        SHOW(fcntl(fds[0], F_GETFL) & O_NONBLOCK);
        SHOW(recv(fds[0], &byte, 1, 0)); // the timeout
        close(fds[0]);
        send_all(fds[1], "state");
    } else if (name == "echo") {
        send_all(fds[0], receive_to_end(fds[0]));
    } else if (name == "serves as another") {
        if (geteuid() == 0) // not as SD_E2E_STRANGERS
            MUST(setuid(65534));
        for (int i = 0; i < 2; ++i) {
            SHOW_BOOL(poll_now(fds[0], POLLIN, kPatience) == POLLIN);
            const int fd = MUST(accept(fds[0], nullptr, nullptr));
            send_all(fd, receive(fd, 5));
            close(fd);
        }
    } else if (name == "accepts") {
        std::vector<int> kept;
        for (int i = 0; i < 2; ++i) {
            const int fd = MUST(accept(fds[0], nullptr, nullptr));
            send_all(fd, receive(fd, 5));
            kept.push_back(fd);
        }
    } else if (name == "again") {
        say("%s", receive(fds[1], 6).c_str());
        send_all(fds[1], "on the way");
        become("last", {fds[0], fds[1]});
    } else if (name == "last") {
        say("%s", receive(fds[0], 10).c_str());
        send_all(fds[0], "end");
        close(fds[0]);
        say("%s", receive_to_end(fds[1]).c_str());
    } else if (name == "says") {
        send_all(fds[0], "image");
    } else if (name == "connects") {
        int value = -1;
        socklen_t length = sizeof value;
        SHOW(getsockopt(fds[0], IPPROTO_TCP, TCP_NODELAY, &value, &length));
        say("nodelay %d", value);
        const Address to = make_address("127.0.0.1", static_cast<uint16_t>(fds[1]));
        SHOW(connect(fds[0], to.raw(), to.length));
        send_all(fds[0], "hello");
    } else if (name == "looks") {
        say("events %x", static_cast<unsigned>(poll_now(fds[0], POLLIN | POLLOUT | POLLRDHUP, 0)));
    } else if (name == "all") {
        for (size_t i = 0; i < fds.size(); ++i)
            send_all(fds[i], std::to_string(i));
    }
}

} // namespace

int main(int argc, char **argv) {
    if (argc > 3 && strcmp(argv[1], "image") == 0) {
        std::vector<int> fds;
        for (int i = 3; i < argc; ++i)
            for (char *word = strtok(argv[i], ","); word; word = strtok(nullptr, ","))
                fds.push_back(atoi(word));
        if (getenv("SD_EXEC_FD"))
            say("the environment has something it had not");
        second_image(argv[2], fds);
        return 0;
    }
    return run_behaviour(argc, argv);
}
