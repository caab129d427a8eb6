// Signals that interrupt blocked calls: every call, with and without SA_RESTART and timeouts, before and
// after part of the work was done.
#include "tests/programs/blocking.hpp"
#include "tests/programs/cases.hpp"

using namespace sdtest;

namespace {

int handler_fd = -1;

void count(int) { ++runs; }

void set_handler(void (*handler)(int), int flags) {
    struct sigaction action {};
    action.sa_handler = handler;
    action.sa_flags = flags;
    MUST(sigaction(SIGUSR1, &action, nullptr));
}

std::string interrupted(const BlockingCall &call, int flags, bool limits, bool partly) {
    set_handler(count, flags);
    Scene scene(call.why);
    if (limits) {
        set_timeout(scene.fd, SO_RCVTIMEO, 60000);
        set_timeout(scene.fd, SO_SNDTIMEO, 60000);
    }
    Caller caller(scene, call);
    if (partly && caller.blocked()) {
        if (call.why == Blocked::data)
            send_all(scene.server, "da"); // less than MSG_WAITALL wants
        else
            scene.drain();
    }
    // One that goes on gets two signals, and then what it waits for.
    const bool stopped = caller.interrupt() && caller.interrupt();
    if (!caller.returned())
        scene.satisfy();
    (void)stopped;
    return caller.outcome(scene, call);
}

void whole_table(bool limits) {
    for (const BlockingCall &call : blocking_calls())
        say("%s: %s, SA_RESTART: %s", call.name, interrupted(call, 0, limits, false).c_str(),
            interrupted(call, SA_RESTART, limits, false).c_str());
}

} // namespace

BEHAVIOUR("interrupted: every call", every_call, accelerated) { whole_table(false); }
BEHAVIOUR("interrupted: every call with timeouts", every_call_with_timeouts, accelerated) {
    whole_table(true);
}

// After some bytes have been transferred a call returns how many, whatever the handler's flags.
BEHAVIOUR("interrupted after a part was done", after_a_part, accelerated) {
    for (const BlockingCall &call : blocking_calls()) {
        const std::string name = call.name;
        const bool large = call.why == Blocked::room && !call.polls && name != "send of a few bytes" &&
                           name != "splice to the socket" && name != "sendmmsg";
        if (large || name == "recv MSG_WAITALL")
            say("%s: %s, SA_RESTART: %s", call.name, interrupted(call, 0, false, true).c_str(),
                interrupted(call, SA_RESTART, false, true).c_str());
    }
}

// Of two threads in the same call only the one that gets the signal returns.
BEHAVIOUR("interrupted: one of two threads", one_of_two_threads, accelerated) {
    set_handler(count, 0);
    for (const BlockingCall &call : blocking_calls()) {
        // A second connect on the socket is another story, two splices wait for each other on the pipe, and
        // which of two senders got what room there was is chance.
        if (call.why == Blocked::answer || strncmp(call.name, "splice", 6) == 0 ||
            (call.why == Blocked::room && !call.polls))
            continue;
        Scene scene(call.why);
        Caller first(scene, call), second(scene, call);
        const bool both = first.blocked() && second.blocked();
        first.interrupt();
        const std::string one = first.outcome(scene, call);
        // A kernel's sender may find a little room meanwhile, as its buffers adapt.
        const bool still = call.why == Blocked::room || second.blocked();
        scene.satisfy();
        say("%s: %s %s %s, the other %s", call.name, yes_no(both), one.c_str(), yes_no(still),
            second.outcome(scene, call).c_str());
    }
}

// The handler uses the socket on which the call it interrupted is blocked; the call goes on afterwards.
BEHAVIOUR("interrupted by a handler that uses the socket", handler_uses_the_socket, accelerated) {
    static std::atomic<long> did{0};
    static std::atomic<int> how{0};
    set_handler(
        [](int) {
            const int error = errno;
            char byte;
            if (how == 0)
                did = send(handler_fd, "!", 1, MSG_DONTWAIT);
            else
                did = recv(handler_fd, &byte, 1, MSG_DONTWAIT);
            errno = error;
            ++runs;
        },
        SA_RESTART);
    for (const BlockingCall &call : blocking_calls()) {
        if (call.why != Blocked::data && (call.why != Blocked::room || call.polls))
            continue;
        Scene scene(call.why);
        handler_fd = scene.fd;
        how = call.why == Blocked::data ? 0 : 1;
        if (how == 1)
            send_all(scene.server, "?");
        Caller caller(scene, call);
        caller.interrupt();
        const long done = did;
        if (!caller.returned())
            scene.satisfy();
        say("%s: in the handler %ld, then %s", call.name, done, caller.outcome(scene, call).c_str());
        if (how == 0)
            say("the peer got %s", receive(scene.server, 1).c_str());
    }
}

// What was told as sent has arrived, and nothing else.
BEHAVIOUR("interrupted: amounts are right", amounts_are_right, accelerated) {
    set_handler(count, 0);
    for (const BlockingCall &call : blocking_calls()) {
        if (call.why != Blocked::room || call.polls || strcmp(call.name, "sendmmsg") == 0)
            continue;
        Scene scene(call.why);
        long sent = 0;
        {
            Caller caller(scene, call);
            if (caller.blocked())
                scene.drain();
            caller.interrupt();
            caller.outcome(scene, call);
            sent = caller.result();
        }
        for (size_t before = SIZE_MAX; before != scene.arrived;) {
            before = scene.arrived;
            scene.drain();
        }
        say("%s: %s", call.name,
            yes_no(scene.arrived == scene.in_flight + static_cast<size_t>(sent > 0 ? sent : 0)));
    }
}

namespace {

/// Whether a thread in `call` is left in it by who puts something else under the number `fd`, which becomes
/// `instead`, and then sends one signal, `microseconds` after the call began.
template <class F> bool left_in(F call, int fd, int instead, int microseconds) {
    std::atomic<bool> begins{false}, over{false};
    std::thread caller([&] {
        begins = true;
        call(fd);
        over = true;
    });
    while (!begins)
        sched_yield();
    const timespec a_moment{0, microseconds * 1000};
    nanosleep(&a_moment, nullptr);
    MUST(dup2(instead, fd));
    pthread_kill(caller.native_handle(), SIGUSR1);
    for (Stopwatch watch; !over && watch.ms() < 1000;)
        sleep_ms(1);
    const bool left = !over;
    while (!over) { // one signal more, and it sleeps for certain
        pthread_kill(caller.native_handle(), SIGUSR1);
        sleep_ms(10);
    }
    caller.join();
    return left;
}

} // namespace

// As Java closes a socket that another thread uses: the number first becomes something else, then the thread
// gets a signal. It is to end at any moment of the call.
BEHAVIOUR("interrupted: the number is replaced first", number_replaced_first, any) {
    set_handler(count, 0);
    int ends[2];
    MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, ends));
    close(ends[1]);
    int left = 0;
    for (int round = 0; round < 200 && left == 0; ++round) {
        const int listener = make_listener();
        left += left_in(
            [](int fd) {
                if (const int got = accept(fd, nullptr, nullptr); got >= 0)
                    close(got);
            },
            listener, ends[0], round % 40 * 5);
        close(listener);
    }
    SHOW(left);
    for (int round = 0; round < 200 && left == 0; ++round) {
        const Pair pair = make_pair();
        send_all(pair.client, "x"); // whoever answered looks for the next thing before it sleeps
        left += left_in(
            [](int fd) {
                char byte;
                for (ssize_t n = 1; n > 0;) {
                    n = recv(fd, &byte, 1, 0);
                    if (n > 0)
                        n = send(fd, &byte, 1, MSG_NOSIGNAL);
                }
            },
            pair.server, ends[0], round % 40 * 3);
        close(pair.client);
        close(pair.server);
        close(pair.listener);
    }
    SHOW(left);
}

int main(int argc, char **argv) { return run_behaviour(argc, argv); }
