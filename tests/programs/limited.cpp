// Resource limits of getrlimit(2), small or 0, set before the program starts and while it runs: connections
// work as far as the kernel's would, and nothing that the program may still use is spent by others.
#include "tests/programs/cases.hpp"
#include "tests/programs/process.hpp"

#include <sys/resource.h>
#include <sys/signalfd.h>

using namespace sdtest;

namespace {

void limit(int resource, rlim_t soft, rlim_t hard) {
    const rlimit to{soft, hard};
    MUST(setrlimit(static_cast<__rlimit_resource>(resource), &to));
}
void limit(int resource, rlim_t to) { limit(resource, to, to); }

/// Both sides sleep in between, and more goes than fits into the smallest buffers.
void converse(int fd) {
    for (const size_t size : {size_t{1}, size_t{5000}, size_t{200000}}) {
        SHOW_BOOL(send_all(fd, pattern(size, size)));
        SHOW_BOOL(poll_now(fd, POLLIN, kPatience) == POLLIN);
        SHOW_BOOL(receive(fd, size) == pattern(size, size));
    }
}

void echo(int fd) {
    for (const size_t size : {size_t{1}, size_t{5000}, size_t{200000}}) {
        const std::string data = receive(fd, size);
        sleep_ms(20);
        send_all(fd, data);
    }
    receive_to_end(fd);
    close(fd);
}

/// What a program with limits does: a connection as a client, one as a server, one to itself.
void act(const Address &to) {
    const int fd = SHOW_FD(socket(AF_INET, SOCK_STREAM, 0));
    SHOW(connect(fd, to.raw(), to.length));
    converse(fd);
    close(fd);
    const Pair own = make_pair();
    send_all(own.client, "to itself");
    say("%s", receive(own.server, 9).c_str());
    for (const int each : {own.client, own.server, own.listener})
        close(each);
    const int other = connect_to(to);
    const pid_t child = spawn([&] { converse(other); });
    close(other);
    reap("its child", child);
}

void serve(int listener, int times) {
    for (int i = 0; i < times; ++i)
        echo(MUST(accept(listener, nullptr, nullptr)));
}

/// `start`: the limits are there when the program begins.
template <class F> void under(F set_limits, bool start) {
    const int listener = make_listener();
    const Address to = local_address(listener);
    const std::string port = std::to_string(to.port());
    const pid_t child = spawn([&] {
        close(listener);
        set_limits();
        if (!start)
            return act(to);
        execl("/proc/self/exe", "limited", "--act", port.c_str(), static_cast<char *>(nullptr));
        give_up("exec");
    });
    serve(listener, 2);
    reap("under the limits", child);
}

template <class F> void under(F set_limits) {
    under(set_limits, true);
    under(set_limits, false);
}

/// The limits come when the connection is there, and nothing else is wanted then.
template <class F> void on_a_live_connection(F set_limits) {
    const Pair pair = make_pair();
    const pid_t child = spawn([&] {
        close(pair.server);
        converse(pair.client);
        set_limits();
        converse(pair.client);
        char byte;
        SHOW(recv(pair.client, &byte, 1, MSG_DONTWAIT));
    });
    close(pair.client);
    for (int i = 0; i < 2; ++i)
        for (const size_t size : {size_t{1}, size_t{5000}, size_t{200000}}) {
            const std::string data = receive(pair.server, size);
            sleep_ms(20);
            send_all(pair.server, data);
        }
    reap("under the limits", child);
}

} // namespace

// SIGXFSZ would end the program.
BEHAVIOUR("no file may grow (RLIMIT_FSIZE)", no_file_may_grow, accelerated) {
    under([] { limit(RLIMIT_FSIZE, 0); });
    under([] { limit(RLIMIT_FSIZE, 0, RLIM_INFINITY); });
    under([] { limit(RLIMIT_FSIZE, 100000); });
    on_a_live_connection([] { limit(RLIMIT_FSIZE, 0); });
}

// An exec that hands connections on.
BEHAVIOUR("an exec while no file may grow", exec_while_no_file_may_grow, accelerated) {
    const Pair pair = make_pair();
    const pid_t child = spawn([&] {
        close(pair.server);
        limit(RLIMIT_FSIZE, 0);
        const std::string number = std::to_string(pair.client);
        execl("/proc/self/exe", "limited", "--converse", number.c_str(), static_cast<char *>(nullptr));
        give_up("exec");
    });
    close(pair.client);
    echo(pair.server);
    reap("the next program", child);
}

// As sshd does it with those of its processes that see what strangers send.
BEHAVIOUR("a sandbox made of limits", sandbox_by_limits, accelerated) {
    on_a_live_connection([] {
        limit(RLIMIT_FSIZE, 0);
        limit(RLIMIT_NPROC, 0);
        limit(RLIMIT_NOFILE, 1); // 0 forbids poll, too
    });
}

// recv and send sleep all the same.
BEHAVIOUR("no descriptor at all (RLIMIT_NOFILE)", no_descriptor_at_all, accelerated) {
    const Pair pair = make_pair();
    const pid_t child = spawn([&] {
        close(pair.server);
        limit(RLIMIT_NOFILE, 0);
        SHOW_BOOL(receive(pair.client, 5) == "hello");
        SHOW_BOOL(send_all(pair.client, pattern(3000000)));
        fd_set set;
        FD_ZERO(&set);
        FD_SET(pair.client, &set);
        SHOW(select(pair.client + 1, &set, nullptr, nullptr, nullptr));
        SHOW_BOOL(receive(pair.client, 5) == "again");
    });
    close(pair.client);
    sleep_ms(100);
    send_all(pair.server, "hello");
    sleep_ms(100);
    SHOW_BOOL(receive(pair.server, 3000000) == pattern(3000000));
    sleep_ms(100);
    send_all(pair.server, "again");
    reap("without descriptors", child);
}

BEHAVIOUR("limits that connections have nothing to do with", limits_of_no_consequence, accelerated) {
    under([] {
        limit(RLIMIT_CORE, 0);
        limit(RLIMIT_RSS, 0);
        limit(RLIMIT_LOCKS, 0);
        limit(RLIMIT_MSGQUEUE, 0);
        limit(RLIMIT_NICE, 0);
        limit(RLIMIT_RTPRIO, 0);
        limit(RLIMIT_SIGPENDING, 0);
        limit(RLIMIT_MEMLOCK, 0);
        limit(RLIMIT_RTTIME, 1000000);
        limit(RLIMIT_CPU, 5);
    });
}

// Processes of libsd's own count for the user: there are none.
// The child that was not made holds nothing.
BEHAVIOUR("a fork that fails", fork_that_fails, any) {
    reap("alone", spawn([] {
             MUST(setgid(65534));
             MUST(setuid(65534));
             const Pair pair = make_pair(), other = make_pair();
             send_all(pair.client, "last");
             limit(RLIMIT_NPROC, 0);
             SHOW(fork());
             close(pair.client);
             say("%s", receive_to_end(pair.server).c_str());
             close(other.server);
             say("%zu", receive_to_end(other.client).size());
         }));
}

BEHAVIOUR("no further process (RLIMIT_NPROC)", no_further_process, accelerated) {
    on_a_live_connection([] {
        MUST(setgid(65534));
        MUST(setuid(65534));
        limit(RLIMIT_NPROC, 1);
    });
    const Pair pair = make_pair();
    const pid_t child = spawn([&] {
        MUST(setgid(65534));
        MUST(setuid(65534));
        limit(RLIMIT_NPROC, 0);
        SHOW(fork());
        converse(pair.client);
    });
    close(pair.client);
    echo(pair.server);
    reap("alone", child);
}

// What is blocked and queued stays queued, with what came along.
BEHAVIOUR("no signal may be queued (RLIMIT_SIGPENDING)", no_signal_may_be_queued, accelerated) {
    limit(RLIMIT_SIGPENDING, 0);
    const Pair pair = make_pair();
    sigset_t set, pending;
    sigemptyset(&set);
    for (const int s : {SIGSEGV, SIGBUS, SIGUSR1})
        sigaddset(&set, s);
    MUST(sigprocmask(SIG_BLOCK, &set, nullptr));
    for (const int s : {SIGSEGV, SIGBUS, SIGUSR1}) {
        SHOW(kill(getpid(), s));
        sigval value{};
        value.sival_int = 7;
        SHOW(sigqueue(getpid(), s, value));
        MUST(sigpending(&pending));
        SHOW(sigismember(&pending, s));
        timespec now{0, 0};
        siginfo_t info{};
        SHOW_BOOL(sigtimedwait(&set, &info, &now) == s);
    }
    send_all(pair.client, "hello");
    say("%s", receive(pair.server, 5).c_str());
}

namespace {

bool can_have(size_t bytes) {
    void *p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
        return false;
    munmap(p, bytes);
    return true;
}

} // namespace

// Private memory that can be written: the library's is next to nothing, also after links were given back.
BEHAVIOUR("little data (RLIMIT_DATA)", little_data, accelerated) {
    const int listener = make_listener();
    const Address to = local_address(listener);
    const pid_t child = spawn([&] {
        close(listener);
        for (int i = 0; i < 3; ++i) {
            const Pair pair = make_pair();
            for (const int each : {pair.client, pair.server, pair.listener})
                close(each);
        }
        limit(RLIMIT_DATA, 24 << 20);
        SHOW_BOOL(can_have(16 << 20));
        const int fd = connect_to(to);
        converse(fd);
        SHOW_BOOL(can_have(16 << 20));
        close(fd);
        SHOW_BOOL(can_have(16 << 20));
    });
    serve(listener, 1);
    reap("with little data", child);
}

// As much as mail and file servers allow themselves: connections are accelerated, grow, and leave the program
// its room. A peer that writes what the kernel would buffer does not wait for the reader.
BEHAVIOUR("little address space (RLIMIT_AS)", little_address_space, all_accelerated) {
    under([] { limit(RLIMIT_AS, 512 << 20); }, true);
    const int listener = make_listener();
    const Address to = local_address(listener);
    const pid_t child = spawn([&] {
        close(listener);
        limit(RLIMIT_AS, 512 << 20);
        const int fd = connect_to(to);
        SHOW_BOOL(receive(fd, 1) == "x"); // all has been written by now
        SHOW_BOOL(receive(fd, 1 << 20) == pattern(1 << 20));
        SHOW_BOOL(can_have(64 << 20));
    });
    const int fd = MUST(accept(listener, nullptr, nullptr));
    const std::string data = "x" + pattern(1 << 20);
    send_all(fd, data);
    reap("with little address space", child);
}

BEHAVIOUR("little stack (RLIMIT_STACK)", little_stack, accelerated) {
    under([] { limit(RLIMIT_STACK, 256 << 10); });
    // Threads of the least stack there is, and handlers on the least of their own.
    const Pair pair = make_pair();
    static int server;
    server = pair.server;
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    if (pthread_attr_setstacksize(&attributes, 16384) != 0)
        give_up("stack size");
    pthread_t thread;
    auto body = [](void *) -> void * {
        alignas(16) static char buffer[4096];
        long all = 0;
        const int other = socket(AF_INET, SOCK_STREAM, 0), set = epoll_create1(0);
        Address to = local_address(server);
        (void)to;
        epoll_event event{};
        event.events = EPOLLIN;
        MUST(epoll_ctl(set, EPOLL_CTL_ADD, server, &event));
        while (all < 300000) {
            MUST(epoll_wait(set, &event, 1, -1));
            pollfd p{server, POLLIN, 0};
            MUST(poll(&p, 1, -1));
            const ssize_t got = recv(server, buffer, sizeof buffer, 0);
            if (got <= 0)
                break;
            all += got;
        }
        close(other);
        close(set);
        SHOW_BOOL(all == 300000);
        MUST(send(server, "x", 1, 0));
        return nullptr;
    };
    if (pthread_create(&thread, &attributes, body, nullptr) != 0)
        give_up("thread");
    send_all(pair.client, pattern(150000));
    sleep_ms(50);
    send_all(pair.client, pattern(150000));
    SHOW_BOOL(receive(pair.client, 1) == "x");
    pthread_join(thread, nullptr);
}

// Locked memory of the program is the program's: what is shared for connections is as large as can be, and
// almost empty.
BEHAVIOUR("all memory locked", all_memory_locked, accelerated) {
    under([] { MUST(mlockall(MCL_FUTURE)); }, false);
    under([] { MUST(mlockall(MCL_CURRENT | MCL_FUTURE)); }, false);
    on_a_live_connection([] { SHOW(mlockall(MCL_CURRENT)); });
    on_a_live_connection([] { SHOW(mlockall(MCL_CURRENT | MCL_FUTURE)); });
}

BEHAVIOUR("little memory may be locked (RLIMIT_MEMLOCK)", little_memory_may_be_locked, accelerated) {
    auto little = [] {
        limit(RLIMIT_MEMLOCK, 4 << 20);
        MUST(setgid(65534));
        MUST(setuid(65534));
        MUST(mlockall(MCL_FUTURE));
    };
    on_a_live_connection([&] {
        little();
        SHOW_BOOL(can_have(2 << 20));
        SHOW_BOOL(!can_have(8 << 20));
        SHOW(munlockall());
        SHOW_BOOL(can_have(8 << 20));
    });
    under(little, false);
}

int main(int argc, char **argv) {
    if (argc == 3 && strcmp(argv[1], "--act") == 0) {
        act(make_address("127.0.0.1", static_cast<uint16_t>(atoi(argv[2]))));
        return 0;
    }
    if (argc == 3 && strcmp(argv[1], "--converse") == 0) {
        converse(atoi(argv[2]));
        return 0;
    }
    return run_behaviour(argc, argv);
}
