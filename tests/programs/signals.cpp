// Signals in a program that has connections: dispositions and masks, handlers that use sockets, faults,
// cancelled threads.
#include "tests/programs/cases.hpp"
#include "tests/programs/handlers.hpp"
#include "tests/programs/process.hpp"

#include <sys/time.h>

using namespace sdtest;

namespace {

int handler_fd = -1;

} // namespace

BEHAVIOUR("dispositions are reported as set", dispositions, accelerated) {
    show_action(SIGSEGV);
    struct sigaction action = with(plain, SA_RESTART | SA_NODEFER);
    sigfillset(&action.sa_mask);
    SHOW(sigaction(SIGSEGV, &action, nullptr));
    const Pair pair = make_pair();
    show_action(SIGSEGV);
    SHOW(sigaction(SIGUSR1, &action, nullptr));
    show_action(SIGUSR1);
    struct sigaction other = with(informed, SA_ONSTACK | static_cast<int>(SA_RESETHAND));
    struct sigaction *const same = opaque(&other); // the old action may replace the new one in place
    SHOW(sigaction(SIGSEGV, &other, same));
    SHOW_BOOL(other.sa_handler == plain);
    show_action(SIGSEGV);
    SHOW_BOOL(signal(SIGSEGV, SIG_IGN) == reinterpret_cast<sighandler_t>(reinterpret_cast<void *>(informed)));
    show_action(SIGSEGV);
    SHOW_BOOL(signal(SIGSEGV, SIG_DFL) == SIG_IGN);
    show_action(SIGSEGV);
    SHOW_BOOL(signal(SIGUSR2, plain) == SIG_DFL);
    show_action(SIGUSR2);
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
    SHOW(siginterrupt(SIGUSR2, 1));
#pragma GCC diagnostic pop
    show_action(SIGUSR2);
    SHOW_BOOL(signal(SIGUSR2, plain) == plain);
    show_action(SIGUSR2);
    SHOW_BOOL(sysv_signal(SIGHUP, plain) == SIG_DFL);
    show_action(SIGHUP);
    SHOW(raise(SIGHUP));
    show_action(SIGHUP);
    SHOW(sigaction(SIGKILL, &action, nullptr));
    SHOW(sigaction(0, &action, nullptr));
    SHOW(sigaction(65, &action, nullptr));
    SHOW(sigaction(32, &action, nullptr));
    SHOW_BOOL(signal(SIGSTOP, plain) == SIG_ERR);
    SHOW(send(pair.client, "x", 1, 0));
}

BEHAVIOUR("masks", masks, accelerated) {
    const Pair pair = make_pair();
    sigset_t all, before;
    sigfillset(&all);
    SHOW(sigprocmask(SIG_SETMASK, &all, &before));
    say("%s", blocked_signals().c_str());
    // A bad pointer is still an error and not the end.
    SHOW(send(pair.client, bad_pointer<char>(), 10, 0));
    SHOW(raise(SIGUSR1));
    sigset_t waiting;
    MUST(sigpending(&waiting));
    SHOW(sigismember(&waiting, SIGUSR1));
    timespec none{0, 0};
    SHOW_BOOL(sigtimedwait(&all, nullptr, &none) == SIGUSR1);
    sigset_t one;
    sigemptyset(&one);
    sigaddset(&one, SIGSEGV);
    SHOW(sigprocmask(SIG_UNBLOCK, &one, nullptr));
    say("%s", blocked_signals().c_str());
    SHOW(sigprocmask(SIG_SETMASK, &before, nullptr));
    say("[%s]", blocked_signals().c_str());
    SHOW(sigprocmask(77, &before, nullptr));
}

// A handler that uses the socket whose send or recv it interrupted.
BEHAVIOUR("a handler uses the socket it interrupted", handler_uses_same_socket, accelerated) {
    const Pair pair = make_pair();
    handler_fd = pair.client;
    const struct sigaction action = with(
        [](int) {
            ++runs;
            if (send(handler_fd, "!", 1, MSG_DONTWAIT) != 1)
                --runs;
        },
        SA_RESTART);
    MUST(sigaction(SIGALRM, &action, nullptr));
    std::atomic<size_t> marks{0}, others{0};
    std::thread reader([&] {
        char buffer[65536];
        ssize_t got;
        while ((got = recv(pair.server, buffer, sizeof buffer, 0)) > 0)
            for (ssize_t i = 0; i < got; ++i)
                ++(buffer[i] == '!' ? marks : others);
    });
    const itimerval often{{0, 300}, {0, 300}}, never{};
    MUST(setitimer(ITIMER_REAL, &often, nullptr));
    const std::string data(1000, '.');
    size_t sent = 0;
    for (Stopwatch watch; runs < 200 && watch.ms() < 5000;) {
        const ssize_t r = send(pair.client, data.data(), 1 + sent % data.size(), 0);
        if (r > 0)
            sent += static_cast<size_t>(r);
    }
    MUST(setitimer(ITIMER_REAL, &never, nullptr));
    MUST(shutdown(pair.client, SHUT_WR));
    reader.join();
    SHOW_BOOL(runs > 0);
    SHOW_BOOL(marks == static_cast<size_t>(runs));
    SHOW_BOOL(others == sent);
}

// Queued signals arrive in order and complete, whatever the thread does meanwhile.
BEHAVIOUR("queued signals all arrive, in order", queued_signals_all_arrive, accelerated) {
    const Pair pair = make_pair();
    static std::atomic<bool> in_order{true};
    const struct sigaction action = with(
        [](int, siginfo_t *info, void *) {
            if (info->si_value.sival_int != runs)
                in_order = false;
            ++runs;
        },
        SA_RESTART);
    MUST(sigaction(SIGRTMIN + 1, &action, nullptr));
    const pthread_t target = pthread_self();
    std::thread sender([&] {
        for (int i = 0; i < 2000; ++i) {
            sigval value{};
            value.sival_int = i;
            while (pthread_sigqueue(target, SIGRTMIN + 1, value) == EAGAIN)
                sleep_ms(1);
            if (i % 50 == 0)
                sleep_ms(1);
        }
    });
    char byte = 'x';
    bool right = true;
    for (Stopwatch watch; runs < 2000 && watch.ms() < 10000;)
        right = right && send(pair.client, &byte, 1, 0) == 1 && recv(pair.server, &byte, 1, 0) == 1;
    sender.join();
    SHOW_BOOL(right);
    SHOW_BOOL(runs == 2000);
    SHOW_BOOL(in_order);
}

// siglongjmp out of a handler, again and again, between and out of calls.
BEHAVIOUR("siglongjmp out of blocked calls", jumps_out_of_calls, accelerated) {
    const Pair pair = make_pair();
    static std::atomic<int> jumps{0};
    const struct sigaction action = with(
        [](int) {
            ++jumps;
            siglongjmp(jump, 1);
        },
        0);
    MUST(sigaction(SIGALRM, &action, nullptr));
    const itimerval often{{0, 2000}, {0, 2000}}, never{};
    if (sigsetjmp(jump, 1) == 0)
        MUST(setitimer(ITIMER_REAL, &often, nullptr));
    if (jumps < 50) {
        char byte;
        for (;;)
            if (recv(pair.server, &byte, 1, 0) <= 0) // nothing ever comes
                give_up("recv");
    }
    MUST(setitimer(ITIMER_REAL, &never, nullptr));
    SHOW_BOOL(jumps == 50);
    send_all(pair.client, "still alive");
    say("%s", receive(pair.server, 11).c_str());
}

// What a call held when a handler jumped out of it is not held any more: a close is the end of the
// connection.
BEHAVIOUR("close after siglongjmp out of a call", close_after_a_jump, accelerated) {
    for (int i = 0; i < 3; ++i) {
        const Pair pair = make_pair();
        const struct sigaction action = with([](int) { siglongjmp(jump, 1); }, 0);
        MUST(sigaction(SIGALRM, &action, nullptr));
        if (sigsetjmp(jump, 1) == 0) {
            const itimerval soon{{0, 0}, {0, 20000}};
            MUST(setitimer(ITIMER_REAL, &soon, nullptr));
            char byte;
            recv(pair.client, &byte, 1, 0);
            give_up("recv");
        }
        int type = -1;
        pthread_setcanceltype(PTHREAD_CANCEL_DEFERRED, &type);
        SHOW_BOOL(type == PTHREAD_CANCEL_DEFERRED);
        MUST(close(pair.client));
        SHOW_BOOL(wait_for(pair.server, POLLIN | POLLRDHUP, 2000));
        char byte;
        SHOW(recv(pair.server, &byte, 1, 0));
    }
}

BEHAVIOUR("faults of the program's own", faults, accelerated) {
    const Pair pair = make_pair();
    const struct sigaction action = with(leave, 0);
    MUST(sigaction(SIGSEGV, &action, nullptr));
    if (sigsetjmp(jump, 1) == 0) {
        *opaque(bad_pointer<volatile char>()) = 1;
        say("not reached");
    }
    SHOW_BOOL(last_value == SEGV_ACCERR);
    if (sigsetjmp(jump, 1) == 0) {
        raise(SIGSEGV);
        say("not reached");
    }
    SHOW_BOOL(last_value == SI_TKILL);
    // Ours to answer, not the program's handler's to see.
    last_value = 0;
    SHOW(send(pair.client, bad_pointer<char>(), 10, 0));
    SHOW(last_value);
    const auto child = [&](const char *label, void (*body)()) {
        reap(label, spawn([&] {
                 signal(SIGSEGV, SIG_DFL);
                 body();
             }));
    };
    child("fault", [] { *opaque(bad_pointer<volatile char>()) = 1; });
    child("kill", [] { kill(getpid(), SIGSEGV); });
    child("ignored kill", [] {
        signal(SIGSEGV, SIG_IGN);
        kill(getpid(), SIGSEGV);
        _exit(7);
    });
    child("ignored fault", [] {
        signal(SIGSEGV, SIG_IGN);
        *opaque(bad_pointer<volatile char>()) = 1;
    });
    child("blocked fault", [] {
        sigset_t all;
        sigfillset(&all);
        sigprocmask(SIG_BLOCK, &all, nullptr);
        const struct sigaction never = with(leave, 0);
        sigaction(SIGSEGV, &never, nullptr);
        if (sigsetjmp(jump, 1) == 0)
            *opaque(bad_pointer<volatile char>()) = 1;
        _exit(9);
    });
    child("once", [] {
        const struct sigaction once = with(plain, static_cast<int>(SA_RESETHAND));
        sigaction(SIGSEGV, &once, nullptr);
        kill(getpid(), SIGSEGV);
        say("%d", runs.load());
        kill(getpid(), SIGSEGV);
    });
    child("bus", [] {
        const int fd = memfd_create("short", 0);
        auto *page = static_cast<volatile char *>(mmap(nullptr, 4096, PROT_READ, MAP_SHARED, fd, 0));
        _exit(page[10]);
    });
}

// An alternate stack is the only way to handle the end of the usual one.
BEHAVIOUR("the end of the stack", stack_overflow, accelerated) {
    const Pair pair = make_pair();
    static char spare[65536];
    stack_t stack{};
    stack.ss_sp = spare;
    stack.ss_size = sizeof spare;
    MUST(sigaltstack(&stack, nullptr));
    const struct sigaction action = with(leave, SA_ONSTACK);
    MUST(sigaction(SIGSEGV, &action, nullptr));
    static int (*volatile descend)(volatile char *) = nullptr;
    descend = [](volatile char *above) -> int {
        volatile char here[4096];
        here[0] = *above;
        return descend(here) + here[0];
    };
    volatile char start = 1;
    if (sigsetjmp(jump, 1) == 0)
        say("%d", descend(&start));
    else
        say("caught");
    SHOW(send(pair.client, "x", 1, 0));
}

namespace {

// Cancels a thread that is blocked in `call`.
void cancel_in(const char *what, const std::function<void()> &call) {
    pthread_t thread;
    MUST(-pthread_create(
        &thread, nullptr,
        [](void *argument) -> void * {
            (*static_cast<const std::function<void()> *>(argument))();
            return nullptr;
        },
        const_cast<std::function<void()> *>(&call)));
    sleep_ms(60);
    MUST(-pthread_cancel(thread));
    void *result = nullptr;
    MUST(-pthread_join(thread, &result));
    say("%s: %s", what, result == PTHREAD_CANCELED ? "cancelled" : "returned");
}

} // namespace

BEHAVIOUR("cancelled threads", cancelled_calls, accelerated) {
    const Pair pair = make_pair();
    char byte;
    cancel_in("recv", [&] { recv(pair.client, &byte, 1, 0); });
    cancel_in("read", [&] { read(pair.client, &byte, 1); });
    cancel_in("accept", [&] { accept(pair.listener, nullptr, nullptr); });
    pollfd entry{pair.client, POLLIN, 0};
    cancel_in("poll", [&] { poll(&entry, 1, -1); });
    cancel_in("poll with a limit", [&] { poll(&entry, 1, 10000); });
    cancel_in("select", [&] {
        fd_set set;
        FD_ZERO(&set);
        FD_SET(pair.client, &set);
        select(pair.client + 1, &set, nullptr, nullptr, nullptr);
    });
    const int set = MUST(epoll_create1(0));
    epoll_event event{};
    event.events = EPOLLIN;
    MUST(epoll_ctl(set, EPOLL_CTL_ADD, pair.client, &event));
    cancel_in("epoll_wait", [&] { epoll_wait(set, &event, 1, -1); });
    fill(pair.client);
    const std::string data = pattern(100000);
    cancel_in("send", [&] { send(pair.client, data.data(), data.size(), 0); });
    cancel_in("before the call", [&] {
        sleep_ms(10);
        pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, nullptr);
        const timespec wait{0, 150000000};
        nanosleep(&wait, nullptr);
        pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, nullptr);
        recv(pair.client, &byte, 1, 0);
    });
    cancel_in("disabled", [&] {
        pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, nullptr);
        poll(&entry, 1, 100);
    });
    // Everything works on afterwards.
    SHOW(send(pair.server, "on", 2, 0));
    SHOW(epoll_wait(set, &event, 1, kPatience));
    SHOW(poll(&entry, 1, kPatience));
    say("%s", receive(pair.client, 2).c_str());
    const Pair another = connect_through(pair.listener);
    SHOW(send(another.client, "x", 1, 0));
}

// The only thread of a process cancels itself: the next call that is a cancellation point ends it.
BEHAVIOUR("the only thread cancels itself", cancelled_by_itself, accelerated) {
    const Pair pair = make_pair();
    const auto cancel_before = [](const char *name, const std::function<void()> &call) {
        reap(name, spawn([&] {
                 pthread_cancel(pthread_self());
                 pthread_cleanup_push([](void *) { say("cancelled"); }, nullptr);
                 call();
                 pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, nullptr);
                 say("returned");
                 pthread_cleanup_pop(0);
             }));
    };
    cancel_before("open", [] { open("/", O_RDONLY | O_DIRECTORY); });
    cancel_before("close of a file", [] { close(0); });
    cancel_before("dup", [] { dup(0); });
    cancel_before("send", [&] { send(pair.client, "x", 1, 0); });
    cancel_before("recv", [&] {
        char byte;
        recv(pair.client, &byte, 1, 0);
    });
    cancel_before("close of a connection", [&] { close(pair.client); });
}

int main(int argc, char **argv) { return run_behaviour(argc, argv); }
