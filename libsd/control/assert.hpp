// SD_ASSERT: what the owner of some state says is always so. Builds with assertions (b_ndebug=false, as the
// sanitizers' are) end the process where it is not; in others nothing of it is left.
//
// Only of words that no peer can write: what others can have made false is checked, and answered.
#pragma once
#include "libsd/control/sys.hpp"

namespace sd {

/// Without libc: its streams, and its way to end, are the program's.
[[noreturn, gnu::cold, gnu::noinline]] inline void assertion_failed(const char *text, size_t length) noexcept {
    sys::write(2, text, length);
    __builtin_trap();
}

} // namespace sd

#ifdef NDEBUG
#define SD_ASSERT(condition) static_cast<void>(false && (condition))
#else
#define SD_ASSERT_LINE(number) #number
#define SD_ASSERT_TEXT(file, line, condition) file ":" SD_ASSERT_LINE(line) ": not so: " condition "\n"
#define SD_ASSERT(condition)                                                                                 \
    ((condition) ? static_cast<void>(0)                                                                      \
                 : ::sd::assertion_failed(SD_ASSERT_TEXT(__FILE__, __LINE__, #condition),                    \
                                          sizeof(SD_ASSERT_TEXT(__FILE__, __LINE__, #condition)) - 1))
#endif
