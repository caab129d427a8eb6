// Which system calls a helper of the monitor leaves itself.
#pragma once
#include "libsd/control/sys.hpp"
#include "libsd/cpu/call_numbers.hpp"

#include <cerrno>
#include <cstddef>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/mman.h>
#include <vector>

namespace sd::monitor {

/// A list of questions about the number of the call, each followed by what is asked about its arguments. What
/// is not allowed fails with EPERM. All calls are made with the instruction itself: see
/// sandbox/privileges.cpp.
class CallFilter {
  public:
    CallFilter() {
        add(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, arch));
        add(BPF_JMP | BPF_JEQ | BPF_K, cpu::kAuditArch, 1, 0);
        add(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS);
        add(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr));
    }
    void allow(unsigned call) {
        add(BPF_JMP | BPF_JEQ | BPF_K, call, 0, 1);
        add(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    }
    /// Where none of `bits` is set in an argument.
    void allow_without(unsigned call, unsigned argument, unsigned bits) {
        add(BPF_JMP | BPF_JEQ | BPF_K, call, 0, 4);
        load_argument(argument);
        add(BPF_JMP | BPF_JSET | BPF_K, bits, 1, 0);
        add(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
        refuse();
    }
    /// Memory, but none that could be executed.
    void allow_memory() {
        allow_without(SYS_mmap, 2, PROT_EXEC);
        allow_without(SYS_mprotect, 2, PROT_EXEC);
    }
    /// Where an argument is one of a few.
    void allow_with(unsigned call, unsigned argument, const std::vector<unsigned> &values) {
        add(BPF_JMP | BPF_JEQ | BPF_K, call, 0, static_cast<uint8_t>(2 + 2 * values.size()));
        load_argument(argument);
        for (const unsigned value : values) {
            add(BPF_JMP | BPF_JEQ | BPF_K, value, 0, 1);
            add(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
        }
        refuse();
    }
    /// Where two arguments are these.
    void allow_with_both(unsigned call, unsigned first, unsigned value, unsigned second, unsigned other) {
        add(BPF_JMP | BPF_JEQ | BPF_K, call, 0, 6);
        load_argument(first);
        add(BPF_JMP | BPF_JEQ | BPF_K, value, 0, 3);
        load_argument(second);
        add(BPF_JMP | BPF_JEQ | BPF_K, other, 0, 1);
        add(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
        refuse();
    }
    /// From here on. False, with errno.
    [[nodiscard]] bool install() {
        refuse();
        sock_fprog program{static_cast<unsigned short>(code_.size()), code_.data()};
        const long result = sys::call(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, sys::arg(&program));
        errno = result < 0 ? static_cast<int>(-result) : errno;
        return result >= 0;
    }

  private:
    void add(unsigned code, unsigned k, uint8_t yes = 0, uint8_t no = 0) {
        code_.push_back({static_cast<uint16_t>(code), yes, no, k});
    }
    void refuse() { add(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM); }
    /// The lower half; the kernel takes no more of those that are asked about.
    void load_argument(unsigned i) {
        add(BPF_LD | BPF_W | BPF_ABS, static_cast<unsigned>(offsetof(seccomp_data, args) + 8 * i));
    }
    std::vector<sock_filter> code_;
};

} // namespace sd::monitor
