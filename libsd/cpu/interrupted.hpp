// A thread that a tracer has stopped, and that is to run a function of the library as if a signal handler
// did: its registers, and the frame by which it goes on by itself where the tracer has died meanwhile.
#pragma once
#include <cerrno>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <sys/syscall.h>
#include <sys/user.h>

namespace sd::cpu {

using Registers = user_regs_struct; // as PTRACE_GETREGS gives them

/// What the kernel takes back with rt_sigreturn: its struct ucontext.
struct ReturnFrame {
    uint64_t flags, link;
    uint64_t stack_base, stack_flags, stack_bytes; // the program's stack for signals
    uint64_t r8, r9, r10, r11, r12, r13, r14, r15, di, si, bp, bx, dx, ax, cx, sp, ip, processor_flags;
    uint16_t cs, gs, fs, ss;
    uint64_t error, trap, old_mask, cr2, vectors, reserved[8];
    uint64_t mask; ///< of signals
};
static_assert(sizeof(ReturnFrame) == 40 + 256 + 8);

constexpr size_t kVectorRoom = 16384; ///< more than the registers of any processor so far take
constexpr uint16_t kProgramCode = 0x33, kProgramStack = 0x2b;

/// Is it in 64-bit code?
inline bool runs_this_mode(const Registers &r) noexcept { return r.cs == kProgramCode; }
/// Is it in a system call, which the stop has interrupted?
inline bool is_in_call(const Registers &r) noexcept { return static_cast<int64_t>(r.orig_rax) >= 0; }

/// Calls that the kernel does not begin again by itself when a stop has interrupted them, but that the
/// program has not been told of yet. They have done nothing, so they can be made again.
inline bool is_made_again(uint64_t call) noexcept {
    switch (call) {
    case SYS_epoll_wait:
    case SYS_epoll_pwait:
    case 441: // epoll_pwait2
    case SYS_semop:
    case SYS_semtimedop:
    case SYS_rt_sigtimedwait:
    case SYS_io_getevents:
    case 333: // io_pgetevents
    case SYS_read:
    case SYS_readv:
    case SYS_recvfrom:
    case SYS_recvmsg:
    case SYS_recvmmsg:
    case SYS_write:
    case SYS_writev:
    case SYS_sendto:
    case SYS_sendmsg:
    case SYS_sendmmsg:
    case SYS_accept:
    case SYS_accept4:
    case SYS_connect:
        return true;
    default:
        return false;
    }
}

// What an interrupted call has left in rax for the kernel, before anybody else sees it.
constexpr int64_t kRestartAlways = -512, kRestartNoIntr = -513, kRestartNoHandler = -514, kRestartBlock = -516;

/// Has the interrupted thread make its call again where the kernel would not.
inline void make_call_again(Registers &r) noexcept {
    if (is_in_call(r) && static_cast<int64_t>(r.rax) == -EINTR && is_made_again(r.orig_rax)) {
        r.rax = r.orig_rax;
        r.rip -= 2;
        r.orig_rax = ~0ull;
    }
}

/// Where the thread goes on by `frame` alone. What only the kernel could go on with ends in EINTR.
inline void fill_frame(ReturnFrame &frame, const Registers &r, uint64_t mask, uint64_t vectors) noexcept {
    frame = {};
    frame.flags = 3; // vector registers, and ss, are there
    frame.stack_flags = 2;
    frame.r8 = r.r8, frame.r9 = r.r9, frame.r10 = r.r10, frame.r11 = r.r11;
    frame.r12 = r.r12, frame.r13 = r.r13, frame.r14 = r.r14, frame.r15 = r.r15;
    frame.di = r.rdi, frame.si = r.rsi, frame.bp = r.rbp, frame.bx = r.rbx;
    frame.dx = r.rdx, frame.ax = r.rax, frame.cx = r.rcx, frame.sp = r.rsp, frame.ip = r.rip;
    frame.processor_flags = r.eflags;
    frame.cs = kProgramCode, frame.ss = kProgramStack;
    frame.vectors = vectors;
    frame.mask = mask;
    if (!is_in_call(r))
        return;
    switch (static_cast<int64_t>(r.rax)) {
    case kRestartAlways:
    case kRestartNoIntr:
    case kRestartNoHandler:
        frame.ax = r.orig_rax;
        frame.ip -= 2;
        break;
    case kRestartBlock:
        frame.ax = static_cast<uint64_t>(-EINTR);
        break;
    default:
        break;
    }
}

/// What rt_sigreturn looks for beside the vector registers, which `bytes` of `image` are as PTRACE_GETREGSET
/// gives them; room for 4 more is there.
inline void finish_vectors(uint8_t *image, size_t bytes) noexcept {
    constexpr size_t kSoftware = 464; // bytes there are software's
    struct {
        uint32_t magic, whole;
        uint64_t features;
        uint32_t bytes, padding[7];
    } about{};
    static_assert(sizeof about == 48);
    memcpy(&about.features, image + kSoftware, sizeof about.features); // the kernel has put them there
    about.magic = 0x46505853;
    about.bytes = static_cast<uint32_t>(bytes);
    about.whole = about.bytes + 4;
    memcpy(image + kSoftware, &about, sizeof about);
    const uint32_t end = 0x46505845;
    memcpy(image + bytes, &end, sizeof end);
}

/// Has the thread begin at `entry`, which never returns, on a stack of its own that ends at `top`.
inline void begin_at(Registers &r, uint64_t entry, uint64_t top) noexcept {
    r.rip = entry;
    r.rsp = (top & ~15ull) - 8; // as behind a call
    r.rbp = 0;
    r.eflags &= ~0x0d00ull; // no single steps of its own, strings upwards
    r.rax = 0;
    r.orig_rax = ~0ull; // in no system call
}

/// A piece of code that has to be left by its end or begun again (restartable sequences).
struct Sequence {
    uint32_t version, flags;
    uint64_t start, bytes, abort;
    bool has(const Registers &r) const noexcept { return r.rip - start < bytes; }
};

/// In the thread itself: goes on where the frame says.
[[noreturn]] inline void resume(ReturnFrame &frame) noexcept {
    stack_t own{};
    asm volatile("syscall" : : "a"(SYS_sigaltstack), "D"(nullptr), "S"(&own) : "rcx", "r11", "memory");
    frame.stack_base = reinterpret_cast<uint64_t>(own.ss_sp);
    frame.stack_flags = static_cast<uint32_t>(own.ss_flags);
    frame.stack_bytes = own.ss_size;
    asm volatile("mov %0, %%rsp\n\t"
                 "mov %1, %%eax\n\t"
                 "syscall\n\t"
                 "ud2"
                 :
                 : "r"(&frame), "i"(SYS_rt_sigreturn)
                 : "memory");
    __builtin_unreachable();
}

} // namespace sd::cpu
