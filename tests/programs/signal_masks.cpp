// Masks: of calls, handlers, jumps, new threads and programs, and other ways to them.
#include "tests/programs/cases.hpp"
#include "tests/programs/masks.hpp"
#include "tests/programs/process.hpp"

#include <spawn.h>
#include <sys/time.h>
#include <ucontext.h>

using namespace sdtest;

BEHAVIOUR("masks are inherited", masks_are_inherited, accelerated) {
    const Pair pair = make_pair();
    for (const int signal : kFaults) {
        count_with(signal, with(plain, 0));
        change_faults(SIG_BLOCK);
        std::atomic<bool> sent{false}, done{false};
        std::thread thread([&] {
            show_state("new thread", signal);
            send_all(pair.client, "x"); // from now on it has dealings with sockets
            SHOW(send(pair.client, bad_pointer<char>(), 10, 0));
            show_state("the same later", signal);
            MUST(raise(signal));
            show_state("its own", signal);
            sent = true;
            while (!done)
                sleep_ms(1);
        });
        while (!sent)
            sleep_ms(1);
        receive(pair.server, 1);
        show_state("another's", signal);
        done = true;
        thread.join();
        show_state("gone with its thread", signal);
        // What is for the process is taken by whoever wants it.
        std::atomic<bool> ready{false};
        std::thread taker([&] {
            change_faults(SIG_UNBLOCK);
            ready = true;
            for (Stopwatch watch; runs == 0 && watch.ms() < kPatience;)
                sleep_ms(1);
        });
        while (!ready)
            sleep_ms(1);
        MUST(kill(getpid(), signal));
        taker.join();
        show_state("taken", signal);
        change_faults(SIG_UNBLOCK);
    }
    change_faults(SIG_BLOCK);
    for (const int fd : {pair.client, pair.server, pair.listener})
        MUST(fcntl(fd, F_SETFD, FD_CLOEXEC)); // what the kernel says of grep is the program's mask
    for (const bool spawned : {false, true}) {
        char *const arguments[] = {const_cast<char *>("grep"), const_cast<char *>("SigBlk"),
                                   const_cast<char *>("/proc/self/status"), nullptr};
        pid_t pid = 0;
        if (spawned)
            MUST(-posix_spawnp(&pid, "grep", nullptr, nullptr, arguments, environ));
        else
            pid = spawn([&] { execvp("grep", arguments); });
        reap("grep", pid);
    }
    show_state("parent", SIGSEGV);
}

// siglongjmp goes back to the mask of its sigsetjmp: the next fault of the program's own finds its handler.
BEHAVIOUR("masks over jumps", masks_over_jumps, accelerated) {
    const Pair pair = make_pair();
    MUST(sigaction(SIGSEGV, opaque(std::make_unique<struct sigaction>(with(leave, 0)).get()), nullptr));
    static const auto fault = [] { *opaque(bad_pointer<volatile char>()) = 1; };
    if (sigsetjmp(jump, 1) == 0) {
        change_faults(SIG_BLOCK);
        show_state("blocked", SIGSEGV);
        siglongjmp(jump, 1);
    }
    show_state("back", SIGSEGV);
    if (sigsetjmp(jump, 1) == 0)
        fault();
    say("survived");
    change_faults(SIG_BLOCK);
    if (sigsetjmp(jump, 1) == 0) {
        change_faults(SIG_UNBLOCK);
        longjmp(jump, 1);
    }
    show_state("blocked again", SIGSEGV);
    if (sigsetjmp(jump, 0) == 0) {
        change_faults(SIG_UNBLOCK);
        siglongjmp(jump, 1);
    }
    show_state("without a mask", SIGSEGV);
    // Out of a call that had everything else blocked, and out of a handler that had everything blocked.
    static bool in_call;
    static int fd;
    fd = pair.client;
    static const auto jump_out = [] {
        struct sigaction action = with([](int) { siglongjmp(jump, 1); }, 0);
        if (!in_call)
            sigfillset(&action.sa_mask);
        MUST(sigaction(SIGALRM, &action, nullptr));
        sigset_t mask;
        sigfillset(&mask);
        sigdelset(&mask, SIGALRM);
        const itimerval soon{{0, 0}, {0, 30000}};
        MUST(setitimer(ITIMER_REAL, &soon, nullptr));
        pollfd entry{fd, POLLIN, 0};
        ppoll(&entry, 1, nullptr, in_call ? &mask : nullptr);
        say("not reached");
    };
    static const auto both = [] {
        if (sigsetjmp(jump, 1) == 0)
            jump_out();
        show_state("jumped out", SIGSEGV);
        if (sigsetjmp(jump, 1) == 0)
            fault();
        say("survived");
    };
    change_faults(SIG_UNBLOCK);
    in_call = true;
    both();
    in_call = false;
    both();
    SHOW(send(pair.client, "x", 1, 0));
}

namespace {

sigset_t seen_in_context;
std::string names_in(const sigset_t &set) {
    std::string text;
    for (int i = 1; i < 32; ++i)
        if (sigismember(&set, i) == 1)
            text += std::string(text.empty() ? "" : " ") + sigabbrev_np(i);
    return text;
}

} // namespace

// A handler's context has the mask that its thread gets back, which the handler may change, also where it
// ends a blocked call.
BEHAVIOUR("masks in handlers' contexts", masks_in_contexts, accelerated) {
    const Pair pair = make_pair();
    struct sigaction action = with(
        [](int, siginfo_t *, void *context) {
            auto &mask = static_cast<ucontext_t *>(context)->uc_sigmask;
            sigemptyset(&seen_in_context);
            memcpy(&seen_in_context, &mask, sizeof(uint64_t)); // the kernel's part
            sigaddset(&mask, SIGUSR2);
            sigdelset(&mask, SIGHUP);
        },
        0);
    MUST(sigaction(SIGALRM, &action, nullptr));
    const int set = MUST(epoll_create1(0));
    epoll_event event{};
    event.events = EPOLLIN;
    MUST(epoll_ctl(set, EPOLL_CTL_ADD, pair.client, &event));
    pollfd entry{pair.client, POLLIN, 0};
    const sigset_t calls_mask = set_of({SIGWINCH, SIGSEGV});
    char byte;
    const std::pair<const char *, std::function<long()>> calls[] = {
        {"raise", [] { return raise(SIGALRM); }},
        {"recv", [&] { return recv(pair.client, &byte, 1, 0); }},
        {"accept", [&] { return accept(pair.listener, nullptr, nullptr); }},
        {"poll", [&] { return poll(&entry, 1, -1); }},
        {"ppoll", [&] { return ppoll(&entry, 1, nullptr, &calls_mask); }},
        {"epoll_wait", [&] { return epoll_wait(set, &event, 1, -1); }},
        {"epoll_pwait", [&] { return epoll_pwait(set, &event, 1, -1, &calls_mask); }},
    };
    for (const auto &[name, call] : calls) {
        const sigset_t mask = set_of({SIGHUP, SIGBUS});
        MUST(sigprocmask(SIG_SETMASK, &mask, nullptr));
        const itimerval soon{{0, 0}, {0, 30000}}, never{};
        if (strcmp(name, "raise") != 0)
            MUST(setitimer(ITIMER_REAL, &soon, nullptr));
        SHOW(call());
        MUST(setitimer(ITIMER_REAL, &never, nullptr));
        say("%s: %s, then %s", name, names_in(seen_in_context).c_str(), blocked_signals().c_str());
    }
}

// A call that only looks is ended by a signal that its mask lets through, too.
BEHAVIOUR("a look lets signals through", let_through_by_a_look, accelerated) {
    const Pair pair = make_pair();
    count_with(SIGUSR1, with(plain, SA_RESTART));
    const sigset_t one = set_of({SIGUSR1}), none = set_of({});
    MUST(sigprocmask(SIG_BLOCK, &one, nullptr));
    const timespec now{};
    pollfd entry{pair.client, POLLIN, 0};
    fd_set fds;
    for (const bool ready : {false, true}) {
        if (ready) {
            send_all(pair.server, "x");
            MUST(wait_for(pair.client, POLLIN));
        }
        MUST(raise(SIGUSR1));
        SHOW(ppoll(&entry, 1, &now, &none));
        show_state("ppoll", SIGUSR1);
        MUST(raise(SIGUSR1));
        FD_ZERO(&fds);
        FD_SET(pair.client, &fds);
        SHOW(pselect(pair.client + 1, &fds, nullptr, nullptr, &now, &none));
        show_state("pselect", SIGUSR1);
        sigtimedwait(&one, nullptr, &now);
    }
}

// Older and lower ways to the mask.
BEHAVIOUR("other ways to the mask", other_ways_to_the_mask, accelerated) {
    SHOW(syscall(SYS_rt_sigprocmask, SIG_BLOCK, bad_pointer<char>(), nullptr, sizeof(uint64_t)));
    const Pair pair = make_pair();
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
    for (const int signal : kFaults) {
        count_with(signal, with(plain, 0));
        SHOW(sighold(signal));
        MUST(raise(signal));
        show_state("sighold", signal);
        SHOW(send(pair.client, "x", 1, 0));
        SHOW(sigrelse(signal));
        show_state("sigrelse", signal);
        SHOW(sigblock(1 << (signal - 1)));
        SHOW(send(pair.client, bad_pointer<char>(), 10, 0));
        MUST(raise(signal));
        show_state("sigblock", signal);
        SHOW(sigpause(signal));
        show_state("sigpause", signal);
        SHOW(sigsetmask(0) == 1 << (signal - 1));
        show_state("sigsetmask", signal);
        const uint64_t word = uint64_t{1} << (signal - 1);
        uint64_t old = 0;
        SHOW(syscall(SYS_rt_sigprocmask, SIG_BLOCK, &word, &old, sizeof word));
        SHOW(send(pair.client, bad_pointer<char>(), 10, 0));
        MUST(raise(signal));
        show_state("rt_sigprocmask", signal);
        SHOW(syscall(SYS_rt_sigprocmask, SIG_UNBLOCK, &word, &old, sizeof word));
        SHOW_BOOL(old == word);
        show_state("rt_sigprocmask", signal);
        SHOW(syscall(SYS_rt_sigprocmask, SIG_BLOCK, bad_pointer<char>(), &old, sizeof word));
        SHOW(syscall(SYS_rt_sigprocmask, SIG_BLOCK, &word, bad_pointer<char>(), sizeof word));
        show_state("rt_sigprocmask", signal);
        SHOW(syscall(SYS_rt_sigprocmask, SIG_UNBLOCK, &word, nullptr, sizeof word));
        SHOW(sigignore(signal));
        show_action(signal);
        MUST(raise(signal));
        SHOW(send(pair.client, bad_pointer<char>(), 10, 0));
    }
    SHOW(sighold(1000));
    SHOW(sigrelse(0));
    SHOW(sigignore(SIGKILL));
    SHOW(sigpause(1000));
#pragma GCC diagnostic pop
}

namespace {

void spin_for(int rounds) {
    for (int i = 0; i < rounds; ++i)
        asm volatile("");
}

} // namespace

// A signal that the mask of a call blocks does not end it, also when it comes while the call does not sleep
// yet, or when its time is up.
BEHAVIOUR("signals blocked for a call", blocked_for_a_call, accelerated) {
    const Pair pair = make_pair();
    count_with(SIGUSR1, with(plain, 0));
    const sigset_t mask = set_of({SIGUSR1});
    const int set = MUST(epoll_create1(0));
    epoll_event event{};
    event.events = EPOLLIN;
    MUST(epoll_ctl(set, EPOLL_CTL_ADD, pair.client, &event));
    pollfd entry{pair.client, POLLIN, 0};
    const pthread_t target = pthread_self();
    int wrong = 0;
    for (int i = 0; i < 300; ++i) {
        std::atomic<bool> go{false};
        std::thread sender([&, i] {
            while (!go)
                ;
            spin_for(i * 100);
            pthread_kill(target, SIGUSR1);
        });
        const timespec limit{0, 3'000'000};
        go = true;
        spin_for(2000);
        const int r = i % 4 < 2 ? ppoll(&entry, 1, &limit, &mask) : epoll_pwait(set, &event, 1, 3, &mask);
        wrong += r != 0;
        sender.join();
    }
    SHOW(wrong);
    for (const bool epoll : {false, true}) {
        runs = 0;
        std::thread sender([&] {
            sleep_ms(30);
            pthread_kill(target, SIGUSR1);
        });
        const timespec limit{0, 100'000'000};
        if (epoll)
            SHOW(epoll_pwait(set, &event, 1, 100, &mask));
        else
            SHOW(ppoll(&entry, 1, &limit, &mask));
        SHOW(runs.load());
        sender.join();
    }
}

// A program without sockets: its handler runs on a signal stack that becomes read-only, again and again, once
// the kernel has written the frame.
BEHAVIOUR("a read-only signal stack", read_only_signal_stack, untouched) {
    alignas(4096) static char spare[40960];
    stack_t stack{};
    stack.ss_sp = spare;
    stack.ss_size = sizeof spare;
    MUST(sigaltstack(&stack, nullptr));
    const struct sigaction nothing = with([](int) {}, 0);
    MUST(sigaction(SIGSEGV, &nothing, nullptr)); // of a frame that could not be written
    const struct sigaction action = with([](int) {}, SA_ONSTACK);
    MUST(sigaction(SIGHUP, &action, nullptr));
    std::atomic<bool> done{false};
    std::thread changing([&] {
        while (!done) {
            mprotect(spare, sizeof spare, PROT_READ);
            mprotect(spare, sizeof spare, PROT_READ | PROT_WRITE);
        }
    });
    const int self_id = gettid();
    for (int i = 0; i < 30000; ++i)
        tgkill(getpid(), self_id, SIGHUP);
    done = true;
    changing.join();
    say("survived");
}

int main(int argc, char **argv) { return run_behaviour(argc, argv); }
