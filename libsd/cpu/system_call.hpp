// The system call instruction. Returns the value or -errno and leaves errno alone; async-signal-safe.
#pragma once

namespace sd::cpu {

inline long call(long n, long a = 0, long b = 0, long c = 0, long d = 0, long e = 0, long f = 0) noexcept {
    long r;
    register long r10 asm("r10") = d;
    register long r8 asm("r8") = e;
    register long r9 asm("r9") = f;
    asm volatile("syscall"
                 : "=a"(r)
                 : "a"(n), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
                 : "rcx", "r11", "memory");
    return r;
}
/// The same with one argument.
inline long call1(long n, long a) noexcept {
    long r;
    asm volatile("syscall" : "=a"(r) : "a"(n), "D"(a) : "rcx", "r11", "memory");
    return r;
}
/// And with four.
inline long call4(long n, long a, long b, long c, long d) noexcept {
    long r;
    register long r10 asm("r10") = d;
    asm volatile("syscall" : "=a"(r) : "a"(n), "D"(a), "S"(b), "d"(c), "r"(r10) : "rcx", "r11", "memory");
    return r;
}

} // namespace sd::cpu
