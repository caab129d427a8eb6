// Handlers of the programs about signals, and what is set, as text.
#pragma once
#include "tests/programs/common.hpp"

#include <atomic>
#include <csetjmp>
#include <csignal>
#include <string>

namespace sdtest {

inline std::atomic<int> runs{0};
inline std::atomic<long> last_value{0};
inline sigjmp_buf jump;

inline void plain(int) { ++runs; }
inline void informed(int, siginfo_t *info, void *) {
    ++runs;
    last_value = info->si_value.sival_int;
}
inline void leave(int, siginfo_t *info, void *) {
    last_value = info->si_code;
    siglongjmp(jump, 1);
}

inline struct sigaction with(void (*handler)(int), int flags) {
    struct sigaction action {};
    action.sa_handler = handler;
    action.sa_flags = flags;
    return action;
}

inline struct sigaction with(void (*handler)(int, siginfo_t *, void *), int flags) {
    struct sigaction action {};
    action.sa_sigaction = handler;
    action.sa_flags = flags | SA_SIGINFO;
    return action;
}

inline void show_action(int signal) {
    struct sigaction action {};
    MUST(sigaction(signal, nullptr, &action));
    const char *name = action.sa_handler == SIG_DFL      ? "default"
                       : action.sa_handler == SIG_IGN    ? "ignored"
                       : action.sa_handler == plain      ? "plain"
                       : action.sa_sigaction == informed ? "informed"
                       : action.sa_sigaction == leave    ? "leave"
                                                         : "unknown";
    std::string mask;
    for (int i = 1; i < 32; ++i)
        if (sigismember(&action.sa_mask, i) == 1)
            mask += std::string(mask.empty() ? "" : " ") + sigabbrev_np(i);
    constexpr int kShown = SA_SIGINFO | SA_ONSTACK | SA_RESTART | SA_NODEFER | static_cast<int>(SA_RESETHAND);
    say("SIG%s: %s, flags %x, mask %s", sigabbrev_np(signal), name,
        static_cast<unsigned>(action.sa_flags & kShown), mask.c_str());
}

inline std::string blocked_signals() {
    sigset_t mask;
    MUST(-pthread_sigmask(SIG_BLOCK, nullptr, &mask));
    std::string text;
    for (int i = 1; i < 32; ++i)
        if (sigismember(&mask, i) == 1)
            text += std::string(text.empty() ? "" : " ") + sigabbrev_np(i);
    return text;
}

} // namespace sdtest
