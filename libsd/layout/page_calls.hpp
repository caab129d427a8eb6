// What libsd calls in libsd-pages.so, if that is loaded: one function, by name, that returns a table. Both
// may be of different releases: a table of another version is not used, and a later one only gets longer.
#pragma once
#include <cstddef>
#include <cstdint>

namespace sd {

constexpr uint32_t kPageCallsVersion = 1;

struct PageCalls {
    uint32_t version;
    uint32_t size; ///< of this table
    /// All memory of the device lies in this range of addresses, which also has other memory.
    uintptr_t window, window_bytes;
    /// A new channel: the descriptors of its ends, close-on-exec. 0, or -errno. Any thread.
    long (*make_channel)(int end[2]) noexcept;
    /// A call on an end. 0, or -errno. Async-signal-safe.
    long (*call)(int end, unsigned long request, void *argument) noexcept;
    /// What the module says in INFO; of a library that does not say it the table ends before.
    uint32_t module_version, unused;
    uint64_t least_give, least_copy;
    /// Puts anonymous memory in the place of all that is the device's, with the program's threads running. 0;
    /// -EBUSY: some is left, to be tried again. No token is held, nor anything that a thread waits for.
    long (*leave)() noexcept;
};
constexpr size_t kFirstPageCalls = offsetof(PageCalls, module_version),
                 kMeasuredPageCalls = offsetof(PageCalls, leave);

} // namespace sd

/// Null in a process without the library; returns null there without the module.
extern "C" [[gnu::weak, gnu::visibility("default")]] const sd::PageCalls *socksdirect_page_calls() noexcept;
