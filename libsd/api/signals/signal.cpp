// Signals. A program's handlers are entered through a function of ours, which
//  - lets the operation in progress on a socket end first: a handler may call any socket function, also on
//    the same socket;
//  - counts them, so that blocking calls, whose sleep is not the kernel's own, know that and how they were
//    interrupted;
//  - makes a bad pointer given to a socket call an EFAULT instead of the end of the program.
// The program sees its own dispositions only; its mask is signal_mask.cpp's.
#include "libsd/api/signals/signal.hpp"
#include "libsd/api/signals/signal_mask.hpp"
#include "libsd/api/wrap.hpp"
#include "libsd/control/fork_sections.hpp"
#include "libsd/vfs/readiness/signal_mask.hpp"
#include <initializer_list>
#include <ucontext.h>

using namespace sd;

constinit std::atomic<bool> sd::fault_handler_installed{false};

namespace {

using Handler = void (*)(int, siginfo_t *, void *);

constexpr int kSignals = 65;
constexpr uint64_t bit(int signal) noexcept { return uint64_t{1} << (signal - 1); }
/// Signals that an instruction can raise. They are never put off and never blocked by us.
constexpr uint64_t kFaults = bit(SIGSEGV) | bit(SIGBUS) | bit(SIGFPE) | bit(SIGILL) | bit(SIGTRAP) | bit(SIGSYS);
static_assert(kCopyFaults == (bit(SIGSEGV) | bit(SIGBUS)));

/// What the program wants. `function` keeps the last real handler, for a signal that was on its way while the
/// disposition changed.
struct Disposition {
    std::atomic<Handler> function{nullptr};
    std::atomic<int> flags{0};
    std::atomic<uint64_t> mask{0};
    /// SIG_DFL, SIG_IGN or `function`; used while the fault handler is in front
    std::atomic<Handler> set{nullptr};
};
constinit Disposition table[kSignals];
SD_FORK_STATE constinit Lock table_lock;
/// Signals that signal() installs without SA_RESTART, see siginterrupt().
constinit std::atomic<uint64_t> interrupting{0};

/// Signals put off until the operation in progress ends. More than a few at once are rare: they are left to
/// the kernel.
struct PutOff {
    siginfo_t info[8];
    unsigned count;
    bool all_blocked;     ///< since the first was put off
    uint64_t mask_before; ///< the mask to go back to
};
constinit thread_local PutOff waiting{};

Handler as_handler(sighandler_t h) noexcept { return reinterpret_cast<Handler>(reinterpret_cast<void *>(h)); }
sighandler_t as_plain(Handler h) noexcept {
    return reinterpret_cast<sighandler_t>(reinterpret_cast<void *>(h));
}
bool is_function(Handler h) noexcept {
    return h != as_handler(SIG_DFL) && h != as_handler(SIG_IGN) && h != as_handler(SIG_ERR);
}
bool valid_signal(int signal) noexcept { return signal > 0 && signal < kSignals; }

void requeue(int signal, siginfo_t *info) noexcept {
    sys::call(SYS_rt_tgsigqueueinfo, sys::getpid(), sys::gettid(), signal, sys::arg(info));
}

/// A signal that was sent while the program has it blocked: it becomes pending, where it was sent to, and is
/// really blocked in this thread until the program lets it through. So a process's signal goes from thread to
/// thread until it meets one that wants it. (Of one sent with a value nobody can tell whether it was for the
/// thread; it is taken for the process's.)
bool keep_pending(int signal, siginfo_t *info, void *context) noexcept {
    const uint64_t one = bit(signal);
    if (!(pretended_mask & one) || info->si_code > 0) [[likely]]
        return false;
    // SA_NODEFER: this handler does not block it
    sys::call(SYS_rt_sigprocmask, SIG_BLOCK, sys::arg(&one), 0, 8);
    // The kernel takes only one's own number where the sender is named; a thread's stands for its process
    // here.
    const long r = info->si_code == SI_TKILL
                       ? sys::call(SYS_rt_tgsigqueueinfo, sys::getpid(), sys::gettid(), signal, sys::arg(info))
                       : sys::call(SYS_rt_sigqueueinfo, sys::gettid(), signal, sys::arg(info));
    if (r < 0) // no room, or a sandbox: better early than never
        return false;
    auto &mask = static_cast<ucontext_t *>(context)->uc_sigmask;
    set_word(mask, word_of(mask) | one);
    pretended_mask &= ~one;
    return true;
}

/// The kernel's default takes over, with the flags that the program gave.
void set_default(int signal) noexcept {
    struct sigaction def {};
    def.sa_flags = table[signal].flags.load(std::memory_order_relaxed);
    set_word(def.sa_mask, table[signal].mask.load(std::memory_order_relaxed));
    real.sigaction(signal, &def, nullptr);
}

/// Keeps the signal, and everything blocked, until run_put_off().
void put_off(int signal, siginfo_t *info, void *context) noexcept {
    uint64_t all = ~kFaults;
    sys::call(SYS_rt_sigprocmask, SIG_BLOCK, sys::arg(&all), 0, 8);
    constexpr unsigned kRoom = sizeof waiting.info / sizeof waiting.info[0];
    if (waiting.count < kRoom)
        waiting.info[waiting.count++] = *info;
    else
        requeue(signal, info);
    auto &mask = static_cast<ucontext_t *>(context)->uc_sigmask;
    // Handlers that were entered together unwind from the last to the first; the first one's context has the
    // program's mask.
    waiting.mask_before = word_of(mask);
    waiting.all_blocked = true;
    set_word(mask, waiting.mask_before | all);
    self.deferred = 1;
}

/// The program's mask, which it gets back after the handler, in the handler's context; and what the handler
/// made of it.
class ShownMask {
  public:
    explicit ShownMask(void *context) noexcept
        : mask_(static_cast<ucontext_t *>(context)->uc_sigmask), own_{word_of(mask_), pretended_mask},
          outer_(outer_mask) {
        outer_mask = nullptr;
        set_word(mask_, of_program());
    }
    ~ShownMask() {
        WholeMask &program = outer_ ? *outer_ : own_;
        const uint64_t changed = word_of(mask_) ^ of_program();
        program.kernels ^= changed & ~program.pretended;
        program.pretended &= ~changed;
        set_word(mask_, own_.kernels);
        outer_mask = outer_;
        pretended_mask = own_.pretended;
    }
    ShownMask(const ShownMask &) = delete;
    ShownMask &operator=(const ShownMask &) = delete;

  private:
    uint64_t of_program() const noexcept {
        const WholeMask &program = outer_ ? *outer_ : own_;
        return program.kernels | program.pretended;
    }
    sigset_t &mask_;
    WholeMask own_;
    WholeMask *outer_;
};

void call_program(int signal, siginfo_t *info, void *context) noexcept {
    Disposition &d = table[signal];
    int flags = d.flags.load(std::memory_order_relaxed);
    Handler h = d.function.load(std::memory_order_acquire);
    if (flags & static_cast<int>(SA_RESETHAND)) {
        d.set.store(as_handler(SIG_DFL), std::memory_order_relaxed);
        if (!(bit(signal) & kCopyFaults) || !fault_handler_installed.load(std::memory_order_relaxed))
            set_default(signal);
    }
    ++self.handled;
    if (!(flags & SA_RESTART))
        ++self.interrupts;
    if (!h)
        return;
    const ShownMask shown(context);
    if (!self.asleep) [[likely]] {
        h(signal, info, context);
        return;
    }
    // The handler may be cancelled where any function may be, not anywhere; and it may jump away and leave it
    // at that.
    self.asleep = false;
    pthread_setcanceltype(PTHREAD_CANCEL_DEFERRED, nullptr);
    h(signal, info, context);
    self.asleep = true;
    // NOLINTNEXTLINE(concurrency-thread-canceltype-asynchronous): as the interrupted sleep had it
    pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, nullptr);
}

} // namespace

// After the operation. In the order of arrival, hence before those that are still pending in the kernel.
void sd::run_put_off() noexcept {
    if (inside_operation())
        return; // the end of the outermost operation does it
    ucontext_t context{};
    getcontext(&context);
    uint64_t mask = waiting.all_blocked ? waiting.mask_before : word_of(context.uc_sigmask);
    waiting.all_blocked = false;
    while (waiting.count) {
        siginfo_t info = waiting.info[0];
        memmove(waiting.info, waiting.info + 1, --waiting.count * sizeof info);
        self.deferred = waiting.count != 0; // the handler may not come back
        int signal = info.si_signo;
        const Disposition &d = table[signal];
        uint64_t during = mask | d.mask.load(std::memory_order_relaxed);
        if (!(d.flags.load(std::memory_order_relaxed) & SA_NODEFER))
            during |= bit(signal);
        set_word(context.uc_sigmask, mask);
        sys::restore_signals(&during);
        call_program(signal, &info, &context);
        mask = word_of(context.uc_sigmask); // theirs to change, as on the signal stack
    }
    self.deferred = 0;
    sys::restore_signals(&mask);
}

namespace {

[[gnu::noinline]] void entry_with_sockets(int signal, siginfo_t *info, void *context) noexcept {
    if (!(bit(signal) & kFaults) && inside_operation()) [[unlikely]]
        put_off(signal, info, context);
    else
        call_program(signal, info, context);
}

/// Stands for every handler of the program. As long as the process has had no sockets of ours nothing is
/// written to the stack, which the program may have made just large enough, or read-only: the handler is
/// jumped to.
void entry(int signal, siginfo_t *info, void *context) noexcept {
    const Disposition &d = table[signal];
    const int flags = d.flags.load(std::memory_order_relaxed);
    const Handler h = d.function.load(std::memory_order_acquire);
    if (fault_handler_installed.load(std::memory_order_relaxed) || self.depth || self.asleep || !h ||
        (flags & static_cast<int>(SA_RESETHAND))) [[unlikely]]
        return entry_with_sockets(signal, info, context);
    ++self.handled;
    if (!(flags & SA_RESTART))
        ++self.interrupts;
    h(signal, info, context);
}

/// In front of the program's disposition for SIGSEGV and SIGBUS.
void fault_entry(int signal, siginfo_t *info, void *context) noexcept {
    bool raised_by_instruction = info->si_code > 0;
    if (raised_by_instruction && leave_copy(context))
        return;
    if (keep_pending(signal, info, context))
        return;
    Handler set = table[signal].set.load(std::memory_order_acquire);
    bool blocked = pretended_mask & bit(signal);
    if (is_function(set) && !(blocked && raised_by_instruction)) {
        call_program(signal, info, context);
        return;
    }
    if (set == as_handler(SIG_IGN) && !raised_by_instruction)
        return;
    // The kernel's default. The instruction faults again, or the signal comes again, and ends the program the
    // usual way.
    set_default(signal);
    if (!raised_by_instruction)
        requeue(signal, info);
}

/// Installs `act`, which has a real handler, with ours in front.
int install(int signal, Handler front, const struct sigaction &act, struct sigaction *old) noexcept {
    struct sigaction ours = act;
    ours.sa_sigaction = front;
    ours.sa_flags = (act.sa_flags & ~static_cast<int>(SA_RESETHAND)) | SA_SIGINFO;
    return real.sigaction(signal, &ours, old);
}

void remember(Disposition &d, const struct sigaction &act) noexcept {
    Handler h = act.sa_flags & SA_SIGINFO ? act.sa_sigaction : as_handler(act.sa_handler);
    if (is_function(h)) {
        d.flags.store(act.sa_flags, std::memory_order_relaxed);
        d.function.store(h, std::memory_order_release);
    }
    d.mask.store(word_of(act.sa_mask), std::memory_order_relaxed);
    d.set.store(h, std::memory_order_release);
}

/// Turns what the kernel said into what the program set.
void translate(int signal, struct sigaction *old) noexcept {
    const Disposition &d = table[signal];
    if (old->sa_sigaction == fault_entry && !is_function(d.set.load(std::memory_order_relaxed))) {
        old->sa_handler = as_plain(d.set.load(std::memory_order_relaxed));
        old->sa_flags &= ~(SA_SIGINFO | SA_ONSTACK);
        return;
    }
    if (old->sa_sigaction != entry && old->sa_sigaction != fault_entry)
        return;
    constexpr int kChanged = static_cast<int>(SA_SIGINFO | SA_RESETHAND | SA_ONSTACK);
    old->sa_sigaction = d.function.load(std::memory_order_relaxed);
    old->sa_flags = (old->sa_flags & ~kChanged) | (d.flags.load(std::memory_order_relaxed) & kChanged);
}

int set_fault_action(int signal, const struct sigaction &act) noexcept {
    Disposition &d = table[signal];
    remember(d, act);
    struct sigaction base = act;
    base.sa_flags |= SA_ONSTACK; // a program whose stack overflowed has set one up
    return install(signal, fault_entry, base, nullptr);
}

int change(int signal, const struct sigaction *act, struct sigaction *old) noexcept {
    if (!valid_signal(signal) || signal == SIGKILL || signal == SIGSTOP)
        return real.sigaction(signal, act, old);
    struct sigaction wanted {
    }, was{};
    if (act)
        wanted = *act; // read before `old`, which may be the same object, is written
    int r;
    {
        LockGuard guard(table_lock);
        r = real.sigaction(signal, nullptr, &was);
        if (r == 0)
            translate(signal, &was);
        if (r == 0 && act) {
            Disposition &d = table[signal];
            Handler h = wanted.sa_flags & SA_SIGINFO ? wanted.sa_sigaction : as_handler(wanted.sa_handler);
            if ((bit(signal) & kCopyFaults) && fault_handler_installed.load(std::memory_order_relaxed)) {
                r = set_fault_action(signal, wanted);
            } else if (is_function(h)) {
                remember(d, wanted);
                r = install(signal, entry, wanted, nullptr);
            } else {
                r = real.sigaction(signal, &wanted, nullptr);
                if (r == 0)
                    remember(d, wanted);
            }
        }
    }
    if (r == 0 && old)
        *old = was;
    return r;
}

sighandler_t simple(int signal, sighandler_t handler, int flags) noexcept {
    struct sigaction act {
    }, old{};
    act.sa_handler = handler;
    act.sa_flags = flags;
    return ::sigaction(signal, &act, &old) == 0 ? old.sa_handler : SIG_ERR;
}

bool signal_argument(int signal, sighandler_t handler) noexcept {
    if (handler != SIG_ERR && valid_signal(signal))
        return true;
    errno = EINVAL;
    return false;
}

} // namespace

namespace sd {

void install_fault_handler() noexcept {
    if (fault_handler_installed.load(std::memory_order_acquire))
        return;
    {
        LockGuard guard(table_lock);
        if (fault_handler_installed.load(std::memory_order_relaxed))
            return;
        for (int signal : {SIGSEGV, SIGBUS}) {
            struct sigaction was {};
            if (real.sigaction(signal, nullptr, &was) != 0)
                continue;
            translate(signal, &was);
            set_fault_action(signal, was);
        }
        fault_handler_installed.store(true, std::memory_order_release);
    }
    let_faults_through();
}

SD_FORK_CODE void reset_signals_in_child() noexcept { table_lock.reset(); }

} // namespace sd

SD_EXPORT int sigaction(int signal, const struct sigaction *act, struct sigaction *old) noexcept {
    return active_or_in_vfork() ? change(signal, act, old) : real.sigaction(signal, act, old);
}
SD_ALIAS(__sigaction, sigaction);

SD_EXPORT sighandler_t signal(int signal, sighandler_t handler) noexcept {
    if (!signal_argument(signal, handler))
        return SIG_ERR;
    bool restart = !(interrupting.load(std::memory_order_relaxed) & bit(signal));
    struct sigaction act {
    }, old{};
    act.sa_handler = handler;
    sigaddset(&act.sa_mask, signal);
    act.sa_flags = restart ? SA_RESTART : 0;
    return sigaction(signal, &act, &old) == 0 ? old.sa_handler : SIG_ERR;
}
SD_ALIAS(bsd_signal, signal);
SD_ALIAS(ssignal, signal);

SD_EXPORT sighandler_t sysv_signal(int signal, sighandler_t handler) noexcept {
    if (!signal_argument(signal, handler))
        return SIG_ERR;
    return simple(signal, handler, static_cast<int>(SA_RESETHAND | SA_NODEFER | SA_INTERRUPT));
}
SD_ALIAS(__sysv_signal, sysv_signal);

SD_EXPORT sighandler_t sigset(int signal, sighandler_t handler) noexcept {
    if (!signal_argument(signal, handler))
        return SIG_ERR;
    sigset_t one, before;
    sigemptyset(&one);
    sigaddset(&one, signal);
    if (handler == SIG_HOLD) {
        if (sigprocmask(SIG_BLOCK, &one, &before) < 0)
            return SIG_ERR;
        if (sigismember(&before, signal))
            return SIG_HOLD;
        struct sigaction old {};
        return sigaction(signal, nullptr, &old) == 0 ? old.sa_handler : SIG_ERR;
    }
    sighandler_t old = simple(signal, handler, 0);
    if (old == SIG_ERR || sigprocmask(SIG_UNBLOCK, &one, &before) < 0)
        return SIG_ERR;
    return sigismember(&before, signal) ? SIG_HOLD : old;
}

SD_EXPORT int siginterrupt(int signal, int interrupt) noexcept {
    struct sigaction act {};
    if (sigaction(signal, nullptr, &act) < 0)
        return -1;
    if (interrupt) {
        interrupting.fetch_or(bit(signal), std::memory_order_relaxed);
        act.sa_flags &= ~SA_RESTART;
    } else {
        interrupting.fetch_and(~bit(signal), std::memory_order_relaxed);
        act.sa_flags |= SA_RESTART;
    }
    return sigaction(signal, &act, nullptr);
}

SD_EXPORT int sigignore(int signal) noexcept { return simple(signal, SIG_IGN, 0) == SIG_ERR ? -1 : 0; }
