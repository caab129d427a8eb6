// Signals of faults that are sent while the program has them blocked.
#include "tests/programs/cases.hpp"
#include "tests/programs/masks.hpp"
#include "tests/programs/process.hpp"

#include <sys/signalfd.h>

using namespace sdtest;

namespace {

/// What runs beside `call`: the signal for the process, a moment later, from a thread that does not want it.
void with_signal_later(int signal, const std::function<void()> &call) {
    const sigset_t both = set_of({SIGSEGV, SIGBUS});
    std::thread sender([&] {
        MUST(-pthread_sigmask(SIG_BLOCK, &both, nullptr));
        sleep_ms(30);
        MUST(kill(getpid(), signal));
    });
    call();
    sender.join();
}

} // namespace

// The library keeps these two deliverable for itself. Sent ones are pending all the same while the program
// has them blocked.
BEHAVIOUR("faults' signals sent while blocked", sent_while_blocked, accelerated) {
    const Pair pair = make_pair();
    for (const int signal : kFaults) {
        count_with(signal, with(informed, 0));
        for (int way = 0; way < 4; ++way) {
            runs = 0;
            last_value = 0;
            change_faults(SIG_BLOCK);
            sigval value{};
            value.sival_int = 42;
            switch (way) {
            case 0:
                MUST(kill(getpid(), signal));
                break;
            case 1:
                MUST(raise(signal));
                break;
            case 2:
                MUST(sigqueue(getpid(), signal, value));
                break;
            default:
                MUST(-pthread_sigqueue(pthread_self(), signal, value));
            }
            show_state("sent", signal);
            sigset_t full;
            sigfillset(&full);
            MUST(sigprocmask(SIG_SETMASK, &full, nullptr));
            show_state("everything blocked", signal);
            MUST(sigprocmask(SIG_SETMASK, &full, nullptr));
            show_state("and again", signal);
            sigemptyset(&full);
            MUST(sigprocmask(SIG_SETMASK, &full, nullptr));
            show_state("let through", signal);
            SHOW_BOOL(way < 2 || last_value == 42);
            SHOW(send(pair.client, bad_pointer<char>(), 10, 0));
            change_faults(SIG_BLOCK);
            SHOW(send(pair.client, bad_pointer<char>(), 10, 0));
            change_faults(SIG_UNBLOCK);
        }
    }
    const auto child = [&](const char *label, void (*body)()) {
        reap(label, spawn([&] {
                 change_faults(SIG_BLOCK);
                 body();
             }));
    };
    child("default", [] {
        signal(SIGSEGV, SIG_DFL);
        kill(getpid(), SIGSEGV);
        show_state("default", SIGSEGV);
        change_faults(SIG_UNBLOCK);
        say("not reached");
    });
    child("ignored", [] {
        signal(SIGBUS, SIG_IGN);
        kill(getpid(), SIGBUS);
        change_faults(SIG_UNBLOCK);
        say("goes on");
    });
    child("a fault then", [] {
        kill(getpid(), SIGSEGV);
        *opaque(bad_pointer<volatile char>()) = 1;
        say("not reached");
    });
    child("a child's", [] {
        kill(getpid(), SIGSEGV);
        reap("grandchild", spawn([] { show_state("forked", SIGSEGV); }));
        show_state("parent", SIGSEGV);
    });
}

BEHAVIOUR("faults' signals waited for", sent_faults_waited_for, accelerated) {
    const Pair pair = make_pair();
    const timespec limit{5, 0};
    for (const int signal : kFaults) {
        count_with(signal, with(informed, 0));
        change_faults(SIG_BLOCK);
        const sigset_t one = set_of({signal});
        int got = 0;
        siginfo_t info{};
        MUST(kill(getpid(), signal));
        SHOW(sigwait(&one, &got));
        SHOW_BOOL(got == signal);
        MUST(raise(signal));
        SHOW_BOOL(sigtimedwait(&one, &info, &limit) == signal);
        with_signal_later(signal, [&] { SHOW_BOOL(sigtimedwait(&one, &info, &limit) == signal); });
        SHOW_BOOL(info.si_code == SI_USER && info.si_pid == getpid());
        const int fd = MUST(signalfd(-1, &one, SFD_CLOEXEC));
        signalfd_siginfo report{};
        MUST(kill(getpid(), signal));
        SHOW_BOOL(wait_for(fd, POLLIN, kPatience));
        SHOW(read(fd, &report, sizeof report));
        with_signal_later(signal, [&] { SHOW(read(fd, &report, sizeof report)); });
        SHOW_BOOL(report.ssi_signo == static_cast<unsigned>(signal));
        MUST(close(fd));
        show_state("waited for", signal);
        // A blocked call does not notice.
        with_signal_later(signal, [&] {
            std::thread peer([&] {
                sleep_ms(100);
                send_all(pair.server, "x");
            });
            say("%s", receive(pair.client, 1).c_str());
            peer.join();
        });
        show_state("received", signal);
        SHOW_BOOL(sigtimedwait(&one, &info, &limit) == signal);
        // Calls that let it through.
        sigset_t none;
        sigemptyset(&none);
        pollfd entry{pair.client, POLLIN, 0};
        const int set = MUST(epoll_create1(0));
        epoll_event event{};
        event.events = EPOLLIN;
        MUST(epoll_ctl(set, EPOLL_CTL_ADD, pair.client, &event));
        const std::pair<const char *, std::function<void()>> calls[] = {
            {"sigsuspend", [&] { SHOW(sigsuspend(&none)); }},
            {"ppoll", [&] { SHOW(ppoll(&entry, 1, &limit, &none)); }},
            {"pselect",
             [&] {
                 fd_set fds;
                 FD_ZERO(&fds);
                 FD_SET(pair.client, &fds);
                 SHOW(pselect(pair.client + 1, &fds, nullptr, nullptr, &limit, &none));
             }},
            {"epoll_pwait", [&] { SHOW(epoll_pwait(set, &event, 1, 5000, &none)); }},
            {"ppoll of nothing", [&] { SHOW(ppoll(nullptr, 0, &limit, &none)); }},
        };
        SHOW(ppoll(bad_pointer<pollfd>(), 1, &limit, &none));
        SHOW(ppoll(&entry, 1, &limit, bad_pointer<sigset_t>()));
        SHOW(pselect(1, bad_pointer<fd_set>(), nullptr, nullptr, &limit, &none));
        for (const auto &[name, call] : calls) {
            runs = 0;
            MUST(raise(signal));
            call();
            show_state(name, signal);
            with_signal_later(signal, call);
            show_state(name, signal);
        }
        MUST(close(set));
        change_faults(SIG_UNBLOCK);
    }
}

BEHAVIOUR("faults' signals sent in handlers", sent_faults_in_handlers, accelerated) {
    const Pair pair = make_pair();
    static int fault;
    for (const int signal : kFaults) {
        fault = signal;
        count_with(signal, with(plain, 0));
        struct sigaction action = with(
            [](int) {
                raise(fault);
                show_state("in the handler", fault);
            },
            0);
        action.sa_mask = set_of({SIGSEGV, SIGBUS});
        MUST(sigaction(SIGUSR1, &action, nullptr));
        MUST(raise(SIGUSR1));
        show_state("after it", signal);
        sigemptyset(&action.sa_mask);
        action.sa_handler = [](int) {
            change_faults(SIG_BLOCK);
            raise(fault);
            show_state("blocked in the handler", fault);
        };
        MUST(sigaction(SIGUSR1, &action, nullptr));
        MUST(raise(SIGUSR1));
        show_state("after it", signal);
        action.sa_handler = [](int) {
            raise(fault);
            show_state("still blocked", fault);
            change_faults(SIG_UNBLOCK);
            show_state("let through in the handler", fault);
        };
        MUST(sigaction(SIGUSR1, &action, nullptr));
        change_faults(SIG_BLOCK);
        MUST(raise(SIGUSR1));
        show_state("after it", signal);
        change_faults(SIG_UNBLOCK);
    }
    SHOW(send(pair.client, "x", 1, 0));
}

int main(int argc, char **argv) { return run_behaviour(argc, argv); }
