// What is blocked and pending, for the programs about signals' masks.
#pragma once
#include "tests/programs/handlers.hpp"

#include <initializer_list>

namespace sdtest {

/// Signals of faults: libsd keeps them deliverable for itself where the program has them blocked.
inline constexpr int kFaults[] = {SIGSEGV, SIGBUS};

inline sigset_t set_of(std::initializer_list<int> signals) {
    sigset_t set;
    sigemptyset(&set);
    for (const int signal : signals)
        sigaddset(&set, signal);
    return set;
}

inline bool is_pending(int signal) {
    sigset_t set;
    MUST(sigpending(&set));
    return sigismember(&set, signal) == 1;
}

inline bool is_blocked(int signal) {
    sigset_t set;
    MUST(-pthread_sigmask(SIG_BLOCK, nullptr, &set));
    return sigismember(&set, signal) == 1;
}

inline void change_faults(int how) {
    const sigset_t both = set_of({SIGSEGV, SIGBUS});
    MUST(sigprocmask(how, &both, nullptr));
}

inline void show_state(const char *where, int signal) {
    say("%s: %d run, %s, %s", where, runs.load(), is_pending(signal) ? "pending" : "not pending",
        is_blocked(signal) ? "blocked" : "not blocked");
}

inline void count_with(int signal, const struct sigaction &action) {
    MUST(sigaction(signal, &action, nullptr));
    runs = 0;
}

} // namespace sdtest
