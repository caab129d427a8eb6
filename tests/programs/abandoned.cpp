// Calls that never return: a handler jumps out of them, or their thread is cancelled in them. Nothing stays
// locked, and nothing grows.
#include "tests/programs/blocking.hpp"
#include "tests/programs/cases.hpp"

#include <csetjmp>
#include <filesystem>
#include <sys/syscall.h>

using namespace sdtest;

namespace {

thread_local sigjmp_buf way_out;

void leave(int) { siglongjmp(way_out, 1); }

// Mappings and descriptors of this process.
long holdings() {
    long n = mappings();
    for (const auto &entry : std::filesystem::directory_iterator("/proc/self/fd"))
        n += !entry.path().empty();
    return n;
}

// Jumps out of the call `times` times in one thread.
void jump_out(Scene &scene, const BlockingCall &call, int times) {
    std::atomic<pid_t> entered{0};
    std::atomic<bool> returned{false};
    std::atomic<int> rounds{0};
    std::thread caller([&] {
        volatile int done = 0;
        for (;;) {
            if (sigsetjmp(way_out, 1) == 0) {
                if (done == times)
                    break;
                entered = static_cast<pid_t>(syscall(SYS_gettid));
                call.make(scene);
                returned = true;
                break;
            }
            entered = 0;
            done = done + 1;
            ++rounds;
        }
    });
    for (int i = 0; i < times && !returned; ++i) {
        wait_until_blocked(entered, returned);
        pthread_kill(caller.native_handle(), SIGUSR1);
        while (rounds <= i && !returned)
            usleep(100);
    }
    caller.join();
    if (returned)
        say("%s returned", call.name);
}

void cancel(Scene &scene, const BlockingCall &call) {
    struct Task {
        Scene &scene;
        const BlockingCall &call;
        std::atomic<pid_t> entered{0};
        std::atomic<bool> returned{false};
    } task{scene, call};
    pthread_t thread;
    MUST(-pthread_create(
        &thread, nullptr,
        [](void *argument) -> void * {
            auto &t = *static_cast<Task *>(argument);
            t.entered = static_cast<pid_t>(syscall(SYS_gettid));
            t.call.make(t.scene);
            t.returned = true;
            return nullptr;
        },
        &task));
    wait_until_blocked(task.entered, task.returned);
    MUST(-pthread_cancel(thread));
    void *result = nullptr;
    MUST(-pthread_join(thread, &result));
    if (result != PTHREAD_CANCELED)
        say("%s returned", call.name);
}

// Everything about the scene still works, and its connection ends when it is closed.
void works_on(const BlockingCall &call, Scene &scene) {
    scene.satisfy();
    pollfd entry{scene.fd, static_cast<short>(call.why == Blocked::room ? POLLOUT : POLLIN), 0};
    if (call.why == Blocked::answer)
        entry.events = 0;
    const bool ready = call.why == Blocked::answer || poll(&entry, 1, kPatience) == 1;
    bool ended = true;
    if (call.why == Blocked::data || call.why == Blocked::room) {
        close(scene.client);
        scene.client = -1;
        if (call.why == Blocked::room)
            scene.drain();
        ended = (poll_now(scene.server, POLLRDHUP, kPatience) & (POLLRDHUP | POLLERR)) != 0;
    }
    say("%s: works on %s, ends %s", call.name, yes_no(ready), yes_no(ended));
}

void set_handler() {
    struct sigaction action {};
    action.sa_handler = leave;
    MUST(sigaction(SIGUSR1, &action, nullptr));
}

} // namespace

BEHAVIOUR("abandoned: jumps out of every call", jumps, accelerated) {
    set_handler();
    for (const BlockingCall &call : blocking_calls()) {
        Scene scene(call.why);
        jump_out(scene, call, 3);
        works_on(call, scene);
    }
}

BEHAVIOUR("abandoned: every call cancelled", cancellations, accelerated) {
    for (const BlockingCall &call : blocking_calls()) {
        if (strcmp(call.name, "sendfile") == 0)
            continue; // no cancellation point
        Scene scene(call.why);
        cancel(scene, call);
        works_on(call, scene);
    }
}

// Whatever takes the descriptor away ends the connection: nothing of the call holds it.
BEHAVIOUR("abandoned: the descriptor of a call jumped out of is taken away", number_taken_after_a_jump,
          accelerated) {
    struct sigaction action {};
    action.sa_handler = leave;
    MUST(sigaction(SIGALRM, &action, nullptr));
    struct Way {
        const char *name;
        void (*take)(int fd);
    };
    static constexpr Way ways[] = {
        {"close", [](int fd) { close(fd); }},
        {"dup2", [](int fd) { dup2(0, fd); }},
        {"dup3", [](int fd) { dup3(0, fd, O_CLOEXEC); }},
        {"close_range", [](int fd) { close_range(static_cast<unsigned>(fd), static_cast<unsigned>(fd), 0); }},
    };
    for (const Way &way : ways) {
        const Pair pair = make_pair();
        if (sigsetjmp(way_out, 1) == 0) {
            ualarm(50'000, 0);
            char byte;
            iovec part{&byte, 1};
            readv(pair.client, &part, 1);
            say("%s: returned", way.name);
        }
        way.take(pair.client);
        say("%s: ends %s", way.name, yes_no((poll_now(pair.server, POLLRDHUP, kPatience) & POLLRDHUP) != 0));
    }
}

// Each time another listener, hence another link: what is kept of a call that was left keeps the link.
BEHAVIOUR("abandoned: jumps leave nothing", jumps_leave_nothing, accelerated) {
    set_handler();
    for (const BlockingCall &call : blocking_calls()) {
        if (call.why != Blocked::data && call.why != Blocked::connection)
            continue;
        long before = 0;
        for (int i = 0; i < 12; ++i) {
            if (i == 4)
                before = holdings();
            Scene scene(call.why);
            jump_out(scene, call, 1);
        }
        say("%s: grows %s", call.name, yes_no(holdings() > before + 4));
    }
}

BEHAVIOUR("abandoned: cancellations leave nothing", cancellations_leave_nothing, accelerated) {
    for (const BlockingCall &call : blocking_calls()) {
        if (call.why != Blocked::data && call.why != Blocked::connection)
            continue;
        long before = 0;
        for (int i = 0; i < 12; ++i) {
            if (i == 4)
                before = holdings();
            Scene scene(call.why);
            cancel(scene, call);
        }
        say("%s: grows %s", call.name, yes_no(holdings() > before + 4));
    }
}

// Lists too long for the stack.
BEHAVIOUR("abandoned: jumps out of polls of long lists", jumps_out_of_long_lists, accelerated) {
    set_handler();
    long before = 0;
    const Pair pair = make_pair();
    for (int i = 0; i < 40; ++i) {
        if (i == 4)
            before = holdings();
        std::atomic<pid_t> entered{0};
        std::atomic<bool> returned{false};
        std::thread caller([&] {
            std::vector<pollfd> list(800, pollfd{-1, 0, 0});
            list[799] = {pair.client, POLLIN, 0};
            volatile int times = 0;
            sigsetjmp(way_out, 1);
            times = times + 1;
            if (times > 3)
                return;
            entered = static_cast<pid_t>(syscall(SYS_gettid));
            poll(list.data(), list.size(), -1);
        });
        for (int k = 0; k < 3; ++k) {
            wait_until_blocked(entered, returned);
            entered = 0;
            pthread_kill(caller.native_handle(), SIGUSR1);
        }
        caller.join();
    }
    SHOW_BOOL(holdings() < before + 20);
}

int main(int argc, char **argv) { return run_behaviour(argc, argv); }
