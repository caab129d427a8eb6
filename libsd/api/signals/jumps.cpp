// Jumps that go back to an earlier signal mask. libc saves and restores the kernel's mask; what is kept
// beside it (vfs/readiness/signal_mask.hpp) goes with it, in the last word of the space for the mask, of
// which the kernel's takes the first.
#include "libsd/api/wrap.hpp"
#include "libsd/control/objects.hpp"
#include "libsd/cpu/trampolines.hpp"
#include "libsd/vfs/readiness/signal_mask.hpp"

using namespace sd;

namespace {

static_assert((kCopyFaults & cpu::kJumpMark) == 0 && sizeof(sigset_t) > 4 * sizeof(long));

void go_back(const __jmp_buf_tag *to) noexcept {
    if (!to->__mask_was_saved)
        return;
    unsigned long word;
    memcpy(&word, reinterpret_cast<const char *>(to) + cpu::kJumpWord, sizeof word);
    pretended_mask = (word & ~kCopyFaults) == cpu::kJumpMark ? word & kCopyFaults : 0;
}

} // namespace

extern "C" {
void *sd_real_sigsetjmp = nullptr;
[[gnu::used]] void *sd_find_real_sigsetjmp() noexcept {
    constexpr char kName[] = "__sigsetjmp";
    Sought sought{kName, gnu_hash(kName), nullptr};
    find_behind(&sought, 1);
    std::atomic_ref<void *>(sd_real_sigsetjmp).store(sought.found, std::memory_order_relaxed);
    return sought.found;
}
}

// libc's own functions do not come back.
#define SD_JUMP(name, call)                                                                                        \
    extern "C" __attribute__((noreturn, visibility("default"))) void name(__jmp_buf_tag *to, int value) noexcept { \
        go_back(to);                                                                                               \
        real.call(to, value);                                                                                      \
        __builtin_unreachable();                                                                                   \
    }

SD_JUMP(siglongjmp, siglongjmp)
SD_JUMP(longjmp, longjmp)
SD_JUMP(_longjmp, _longjmp)
SD_JUMP(__longjmp_chk, __longjmp_chk)
