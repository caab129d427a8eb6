// One thread is blocked in a call; another shuts the socket down, closes it, or puts something else under its
// number.
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

// The number is taken from under the call, which goes on with the socket it has; afterwards comes what it
// waits for.
void taken_away(void (*take)(int)) {
    watch_signals();
    for (const BlockingCall &call : blocking_calls()) {
        if (skipped(call))
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

BEHAVIOUR("disturbed: the socket of a blocked call is closed", closed, accelerated) {
    taken_away([](int fd) { close(fd); });
}

BEHAVIOUR("disturbed: another file under the number of a blocked call", replaced, accelerated) {
    static const int nothing = MUST(open("/dev/null", O_RDWR));
    taken_away([](int fd) { MUST(dup2(nothing, fd)); });
}

// What poll says of a number that another thread takes away from under it, when its socket wakes it up, and
// when the time is up.
BEHAVIOUR("disturbed: what poll says of a number taken away", polled_numbers, accelerated) {
    static const int nothing = MUST(open("/dev/null", O_RDWR));
    for (const Blocked why : {Blocked::data, Blocked::connection})
        for (const bool replace : {false, true})
            for (const bool satisfy : {false, true}) {
                Scene scene(why);
                std::atomic<pid_t> entered{0};
                std::atomic<bool> returned{false};
                pollfd entry{scene.fd, POLLIN, 0};
                int result = -1;
                std::thread poller([&] {
                    entered = thread_id();
                    result = poll(&entry, 1, satisfy && (replace || why == Blocked::data) ? 20000 : 400);
                    returned = true;
                });
                wait_until_blocked(entered, returned);
                if (replace)
                    MUST(dup2(nothing, scene.fd));
                else
                    close(scene.fd);
                if (satisfy)
                    scene.satisfy(); // a client may get the number that has become free
                poller.join();
                say("%s, %s, %s: %d, events %x", why == Blocked::data ? "data" : "connection",
                    replace ? "replaced" : "closed", satisfy ? "satisfied" : "in vain", result, entry.revents);
            }
}

// A child made while only a blocked call holds the listener does not have it.
BEHAVIOUR("disturbed: a fork while only a blocked call holds the listener", forked_beside, accelerated) {
    const int listener = make_listener();
    const Address address = local_address(listener);
    std::atomic<pid_t> entered{0};
    std::atomic<bool> returned{false};
    std::thread acceptor([&] {
        entered = thread_id();
        const int server = accept(listener, nullptr, nullptr);
        say("accepted: %s", yes_no(server >= 0));
        close(server);
        returned = true;
    });
    say("blocked: %s", yes_no(wait_until_blocked(entered, returned)));
    close(listener);
    int hold[2], runs_now[2];
    MUST(pipe(hold));
    MUST(pipe(runs_now));
    const pid_t child = MUST(fork());
    char byte = 0;
    if (child == 0) {
        close(hold[1]);
        MUST(write(runs_now[1], &byte, 1));
        _exit(static_cast<int>(read(hold[0], &byte, 1)));
    }
    MUST(read(runs_now[0], &byte, 1));
    close(connect_to(address));
    acceptor.join();
    const int late = MUST(socket(AF_INET, SOCK_STREAM, 0));
    const int result = connect(late, address.raw(), address.length);
    say("afterwards: %d, %s", result, result < 0 ? strerrorname_np(errno) : "connected");
    close(late);
    close(hold[1]);
    MUST(waitpid(child, nullptr, 0));
}

BEHAVIOUR("disturbed: the socket of a blocked call is shut down", shut_down, accelerated) {
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

// The connection is undone: calls that transfer end, and what waits for readiness hears of it.
BEHAVIOUR("disturbed: the connection of a blocked call is undone", undone, any) {
    watch_signals();
    sockaddr nothing{};
    nothing.sa_family = AF_UNSPEC;
    for (const BlockingCall &call : blocking_calls()) {
        if (skipped(call) || call.why == Blocked::connection)
            continue;
        Scene scene(call.why);
        {
            Caller caller(scene, call);
            const bool before = caller.blocked();
            const int result = connect(scene.fd, &nothing, sizeof nothing);
            say("%s: %s, %d, %s", call.name, yes_no(before), result, end_of(caller, scene, call).c_str());
        }
        // The socket is as good as new.
        const Address address = local_address(scene.listener);
        int error = 0;
        socklen_t length = sizeof error;
        MUST(getsockopt(scene.fd, SOL_SOCKET, SO_ERROR, &error, &length));
        say("error %s, connect %d", error != 0 ? strerrorname_np(error) : "none",
            connect(scene.fd, address.raw(), address.length));
        const int server = MUST(accept(scene.listener, nullptr, nullptr));
        send_all(server, "new");
        say("%s", receive(scene.fd, 3).c_str());
        close(server);
    }
}

// O_NONBLOCK is for the calls that come afterwards.
BEHAVIOUR("disturbed: the socket of a blocked call is made non-blocking", made_non_blocking, accelerated) {
    watch_signals();
    static const BlockingCall all_of_it{"all of it", Blocked::data, [](Scene &s) -> long {
                                            return recv(s.fd, calls::small, 4, MSG_WAITALL);
                                        }};
    static const BlockingCall whole{"the whole", Blocked::room, [](Scene &s) -> long {
                                        return send(s.fd, calls::large().data(), calls::large().size(), 0);
                                    }};
    for (const BlockingCall *call : {&all_of_it, &whole}) {
        Scene scene(call->why);
        Caller caller(scene, *call);
        SHOW_BOOL(caller.blocked());
        SHOW(fcntl(scene.fd, F_SETFL, O_RDWR | O_NONBLOCK));
        if (call->why == Blocked::data) {
            send_all(scene.server, "ab");
            SHOW_BOOL(caller.blocked());
            send_all(scene.server, "cd");
        }
        for (Stopwatch watch; !caller.returned() && watch.ms() < kPatience;)
            if (call->why == Blocked::room)
                scene.drain();
        say("%s: %s", call->name, caller.outcome(scene, *call).c_str());
        say("%ld", caller.result());
    }
}

int main(int argc, char **argv) { return run_behaviour(argc, argv); }
