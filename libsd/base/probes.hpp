// USDT probes: places at which perf, bpftrace and gdb can look in, provider `socksdirect`.
//
// Each is one nop, and a note in the file that says where it is and in which registers its arguments are.
// Nothing of it is a call, a test or a store, so unused it costs what a nop costs; the arguments are values
// that are at hand there anyway. Where the header was missing when the library was built, there are none.
// docs/tracing.md says what each argument is.
#pragma once
#if __has_include(<sys/sdt.h>)
#include <sys/sdt.h>
#define SD_PROBE1(name, a) STAP_PROBE1(socksdirect, name, a)
#define SD_PROBE2(name, a, b) STAP_PROBE2(socksdirect, name, a, b)
#define SD_PROBE3(name, a, b, c) STAP_PROBE3(socksdirect, name, a, b, c)
#define SD_PROBE4(name, a, b, c, d) STAP_PROBE4(socksdirect, name, a, b, c, d)
#else
#define SD_PROBE1(name, a) static_cast<void>(a)
#define SD_PROBE2(name, a, b) (static_cast<void>(a), static_cast<void>(b))
#define SD_PROBE3(name, a, b, c) (static_cast<void>(a), static_cast<void>(b), static_cast<void>(c))
#define SD_PROBE4(name, a, b, c, d)                                                                          \
    (static_cast<void>(a), static_cast<void>(b), static_cast<void>(c), static_cast<void>(d))
#endif
