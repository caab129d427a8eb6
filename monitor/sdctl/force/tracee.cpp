// What is done to one thread by ptrace, and undone; see tracee.hpp.
//
// While the thread runs the library's function all its signals wait, and it has registers, vector registers
// and signal mask put back before it goes on. A system call that the stop has interrupted is begun again by
// the kernel, which finds in the registers that are put back what it had left there.
#include "monitor/sdctl/force/tracee.hpp"

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstring>
#include <elf.h>
#include <linux/ptrace.h>
#include <memory>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

namespace sd::ctl {

namespace {

constexpr int kStopMs = 100;      ///< for a thread to stop: longer it is in the kernel, or in vfork
constexpr int kFunctionMs = 5000; ///< for the library's function, which asks the monitor
constexpr auto kLook = std::chrono::microseconds(100);

using Clock = std::chrono::steady_clock;

// The C library's ptrace() takes one kind of pointer; this takes what each request wants.
long trace(int request, pid_t tid, uintptr_t address, const void *data) {
    return syscall(SYS_ptrace, request, tid, address, data);
}

template <typename T> bool read_word(pid_t pid, uint64_t address, T &to) {
    return read_memory(pid, address, &to, sizeof to);
}

} // namespace

bool read_memory(pid_t pid, uint64_t address, void *to, size_t bytes) {
    const iovec here{to, bytes}, there{reinterpret_cast<void *>(address), bytes};
    return process_vm_readv(pid, &here, 1, &there, 1, 0) == static_cast<ssize_t>(bytes);
}

bool write_memory(pid_t pid, uint64_t address, const void *from, size_t bytes) {
    const iovec here{const_cast<void *>(from), bytes}, there{reinterpret_cast<void *>(address), bytes};
    return process_vm_writev(pid, &here, 1, &there, 1, 0) == static_cast<ssize_t>(bytes);
}

Tracee::~Tracee() {
    if (!is_traced_) {
        return;
    }
    if (!is_stopped_ && trace(PTRACE_INTERRUPT, tid_, 0, nullptr) == 0) {
        is_stopped_ = wait_stop(kStopMs);
    }
    // One that did not stop is let go when we end.
    trace(PTRACE_DETACH, tid_, 0, nullptr);
}

/// Signals that come before the stop are delivered. False: it does not stop; is_traced_ is false when it has
/// ended.
bool Tracee::wait_stop(int milliseconds) {
    const auto end = Clock::now() + std::chrono::milliseconds(milliseconds);
    for (;;) {
        int status = 0;
        const pid_t r = waitpid(tid_, &status, __WALL | WNOHANG);
        if (r < 0 || (r == tid_ && !WIFSTOPPED(status))) {
            is_traced_ = false;
            return false;
        }
        if (r == tid_) {
            if (status >> 16 == PTRACE_EVENT_STOP) {
                return true;
            }
            const long signal = status >> 16 == 0 ? WSTOPSIG(status) : 0;
            trace(PTRACE_CONT, tid_, 0, reinterpret_cast<void *>(signal));
            continue;
        }
        if (Clock::now() >= end) {
            return false;
        }
        std::this_thread::sleep_for(kLook);
    }
}

int Tracee::stop() {
    if (trace(PTRACE_SEIZE, tid_, 0, nullptr) != 0) {
        return errno;
    }
    is_traced_ = true;
    if (trace(PTRACE_INTERRUPT, tid_, 0, nullptr) != 0) {
        return errno;
    }
    is_stopped_ = wait_stop(kStopMs);
    return is_stopped_ ? 0 : is_traced_ ? EBUSY : ESRCH;
}

/// It would not be told, as it is at any other interruption, that it has to begin again.
bool Tracee::in_sequence(const cpu::Registers &r) const {
    struct {
        uint64_t area;
        uint32_t bytes, signature, flags, pad;
    } known{};
    constexpr int kGetSequences = 0x420f; // PTRACE_GET_RSEQ_CONFIGURATION
    constexpr uint64_t kCurrent = 8;      // in the area: where the sequence is described that it is in
    uint64_t description = 0;
    cpu::Sequence sequence{};
    return trace(kGetSequences, tid_, sizeof known, &known) > 0 && known.area != 0 &&
           read_word(tid_, known.area + kCurrent, description) && description != 0 &&
           read_word(tid_, description, sequence) && sequence.has(r);
}

Tracee::Step Tracee::wait_end(const ForcedEntry &entry) {
    const auto end = Clock::now() + std::chrono::milliseconds(kFunctionMs);
    for (uint64_t beat = 1;; ++beat) {
        int status = 0;
        const pid_t r = waitpid(tid_, &status, __WALL | WNOHANG);
        if (r < 0 || (r == tid_ && !WIFSTOPPED(status))) {
            is_traced_ = is_stopped_ = false;
            return Step::ended;
        }
        if (r == tid_) { // somebody stops the process, or sends it a signal that cannot wait
            const long signal = status >> 16 == 0 ? WSTOPSIG(status) : 0;
            trace(PTRACE_CONT, tid_, 0, reinterpret_cast<void *>(signal));
        }
        uint32_t state = forced::kRunning;
        read_word(tid_, entry.call + offsetof(forced::Call, state), state);
        const bool is_over = Clock::now() >= end;
        if (state != forced::kRunning || is_over) {
            if (trace(PTRACE_INTERRUPT, tid_, 0, nullptr) == 0) {
                is_stopped_ = wait_stop(kStopMs);
            }
            // Asked again: nothing changes while it is stopped.
            if (!is_stopped_ || !read_word(tid_, entry.call + offsetof(forced::Call, state), state)) {
                return is_traced_ ? Step::overdue : Step::ended;
            }
            return state == forced::kDone ? Step::done : Step::overdue;
        }
        // One that has ended is noticed above.
        (void)write_memory(tid_, entry.call + offsetof(forced::Call, beat), &beat, sizeof beat);
        std::this_thread::sleep_for(kLook);
    }
}

Tracee::Step Tracee::run(const ForcedEntry &entry) {
    cpu::Registers before{};
    if (trace(PTRACE_GETREGS, tid_, 0, &before) != 0) {
        return Step::ended;
    }
    if (!cpu::runs_this_mode(before) || in_sequence(before)) {
        return Step::unsafe;
    }
    uint32_t state = 0;
    if (!read_word(tid_, entry.call + offsetof(forced::Call, state), state)) {
        return Step::unreachable;
    }
    if (state == forced::kRunning || state == forced::kLeft) {
        return state == forced::kLeft ? Step::left : Step::busy;
    }
    cpu::make_call_again(before);
    const auto call = std::make_unique<forced::Call>();
    iovec vectors{call->vectors, sizeof call->vectors - sizeof(uint64_t)}; // a multiple of 8
    constexpr uint64_t kAll = ~0ull;
    if (trace(PTRACE_GETREGSET, tid_, NT_X86_XSTATE, &vectors) != 0 ||
        trace(PTRACE_GETSIGMASK, tid_, sizeof call->mask, &call->mask) != 0) {
        return Step::ended;
    }
    const std::vector<uint8_t> kept(call->vectors, call->vectors + vectors.iov_len);
    cpu::finish_vectors(call->vectors, vectors.iov_len);
    cpu::fill_frame(call->frame, before, call->mask, entry.call + offsetof(forced::Call, vectors));
    call->state.store(forced::kRunning, std::memory_order_relaxed);
    if (!write_memory(tid_, entry.call, call.get(), offsetof(forced::Call, vectors) + vectors.iov_len + 4)) {
        return Step::unreachable;
    }
    cpu::Registers inside = before;
    cpu::begin_at(inside, entry.function, entry.stack_top);
    // If we are killed the thread comes back by itself, with the frame's mask: from this call on, until its
    // own registers are the last that is put back.
    if (trace(PTRACE_SETREGS, tid_, 0, &inside) != 0 ||
        trace(PTRACE_SETSIGMASK, tid_, sizeof kAll, &kAll) != 0 || trace(PTRACE_CONT, tid_, 0, nullptr) != 0) {
        return Step::ended;
    }
    is_stopped_ = false;
    const Step end = wait_end(entry);
    if (end != Step::done) {
        return end;
    }
    uint32_t result = forced::kUnsafe;
    read_word(tid_, entry.call + offsetof(forced::Call, result), result);
    iovec back{const_cast<uint8_t *>(kept.data()), kept.size()};
    trace(PTRACE_SETSIGMASK, tid_, sizeof call->mask, &call->mask);
    trace(PTRACE_SETREGSET, tid_, NT_X86_XSTATE, &back);
    trace(PTRACE_SETREGS, tid_, 0, &before);
    switch (result) {
    case forced::kAll:
        return Step::done;
    case forced::kBusy:
        return Step::busy;
    case forced::kOff:
        return Step::off;
    default:
        return Step::unsafe;
    }
}

} // namespace sd::ctl
