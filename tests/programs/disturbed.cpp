// One thread is blocked in a call; another shuts the socket down, closes it, or puts something else under its number.
#include "tests/programs/blocking.hpp"
#include "tests/programs/cases.hpp"

using namespace sdtest;

namespace {

void count(int) { ++runs; }

// What the call says within a while; one that goes on waiting is ended by a signal.
std::string end_of(Caller &caller, const Scene &scene, const BlockingCall &call) {
    for (Stopwatch watch; !caller.returned() && watch.ms() < 150;)
        usleep(200);
    const bool waits = !caller.returned();
    if (waits)
        caller.interrupt();
    return (waits ? "waits, then " : "") + caller.outcome(scene, call);
}

void watch_signals() {
    struct sigaction action {};
    action.sa_handler = count;
    MUST(sigaction(SIGUSR1, &action, nullptr));
    signal(SIGPIPE, SIG_IGN);
}

// A connect to a full queue is not accelerated.
bool skipped(const BlockingCall &call) { return call.why == Blocked::answer; }

// What docs/compatibility.md lists: calls that let go of a socket whose last number is closed.
bool lets_go(const BlockingCall &call) {
    const std::string name = call.name;
    return name == "splice from the socket" || call.why == Blocked::connection;
}

// The number is taken from under the call, which goes on with the socket it has; afterwards comes what it waits for.
void taken_away(void (*take)(int)) {
    watch_signals();
    for (const BlockingCall &call : blocking_calls()) {
        if (skipped(call) || lets_go(call))
            continue;
        Scene scene(call.why);
        Caller caller(scene, call);
        const bool before = caller.blocked();
        take(scene.fd);
        sleep_ms(20);
        // A kernel's sender may find a little room meanwhile, as its buffers adapt.
        const bool after = call.why == Blocked::room || caller.blocked();
        if (!caller.returned())
            scene.satisfy();
        say("%s: %s %s, %s", call.name, yes_no(before), yes_no(after), end_of(caller, scene, call).c_str());
    }
}

} // namespace

BEHAVIOUR(closed) {
    taken_away([](int fd) { close(fd); });
}

BEHAVIOUR(replaced) {
    static const int nothing = MUST(open("/dev/null", O_RDWR));
    taken_away([](int fd) { MUST(dup2(nothing, fd)); });
}

BEHAVIOUR(shut_down) {
    watch_signals();
    for (const BlockingCall &call : blocking_calls()) {
        if (skipped(call))
            continue;
        for (const int how : {SHUT_RD, SHUT_WR, SHUT_RDWR}) {
            if (how == SHUT_RD && call.why == Blocked::room)
                continue; // wakes the kernel's senders, who may find that there is room by now, or not
            Scene scene(call.why);
            Caller caller(scene, call);
            const bool before = caller.blocked();
            const int result = shutdown(scene.fd, how);
            say("%s: %s, shutdown %d: %d, %s", call.name, yes_no(before), how, result,
                end_of(caller, scene, call).c_str());
        }
    }
}

int main(int argc, char **argv) { return run_behaviour(argc, argv); }
