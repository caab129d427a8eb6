// The device that memory comes from.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace sd::pages {

/// From the constructor: opens the device, and chooses the window. Does nothing without a module that fits.
void open_device() noexcept;

/// Maps memory of the device there, where nothing is mapped yet; it is zero. 0, or an error's number. Any
/// thread; no cancellation point; leaves errno alone.
[[nodiscard]] int map_device(uintptr_t at, size_t length) noexcept;

/// Memory of the device in this range holds zeros afterwards; other memory in it stays as it is. False: not
/// all of it could be done. Whole pages. As above.
[[nodiscard]] bool discard(uintptr_t at, size_t length) noexcept;

/// What the kernel has mapped at an address.
struct Mapped {
    uintptr_t from, end; ///< both 0: nothing, or it is not known
    int protection;
    bool shared; ///< memory of the device is, to the kernel
};
/// The first mapping that ends behind the address. Opens /proc/self/maps; async-signal-safe.
Mapped mapped_behind(uintptr_t at) noexcept;

/// Puts private anonymous memory with the same contents in the place of the device's, which has to be
/// readable; it can be written then. For what the device's memory cannot do. False: it is as it was.
[[nodiscard]] bool make_anonymous(uintptr_t at, size_t length) noexcept;

/// What the module has said when it was asked last: at the start, and for each channel.
struct Module {
    std::atomic<uint32_t> version;
    std::atomic<uint64_t> least_give, least_copy; ///< as in sdzc_info
};
extern Module module;

/// Is this a descriptor of the device, with a module that fits? Asks it. Leaves errno alone.
bool is_device(int fd) noexcept;
/// Nothing comes from the device any more: its descriptor, if it is still that, is the caller's; else -1.
/// Nobody uses it at the moment.
[[nodiscard]] int take_descriptor() noexcept;

/// Puts anonymous memory in the place of all that is the device's, whatever other threads do with it; from
/// now on nothing comes from the device, and its descriptor is closed. 0, also where the module cannot do it;
/// -EBUSY: some of it could not be had (the kernel uses it for I/O, a stack lies there, no memory), and may
/// be had later. leave.cpp.
[[nodiscard]] long leave_device() noexcept;

/// A new channel: its two ends, close-on-exec. 0, or -errno. Any thread; leaves errno alone.
[[nodiscard]] long make_channel(int end[2]) noexcept;
/// A call on an end of a channel. 0, or -errno. Async-signal-safe; leaves errno alone.
[[nodiscard]] long call_end(int end, unsigned long request, void *argument) noexcept;

} // namespace sd::pages
