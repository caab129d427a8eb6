// Where the device's memory lies: a window of addresses that is this library's by convention only. Nothing is
// reserved in it: whoever maps something there says MAP_FIXED_NOREPLACE, so that the kernel has the last
// word. The kernel itself maps programs above it (0x55.., 0x7f..), and garbage collectors that choose
// addresses take lower ones.
//
// It has a part for each class of sizes (powers of two), and each part consists of slots of that size. A slot
// has one block of malloc, or one mapping of the program's. So an address alone tells whose it is.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace sd::pages {

constexpr size_t kPage = 4096;
constexpr unsigned kLeastShift = 16, kMostShift = 30; ///< sizes of slots
constexpr unsigned kClasses = kMostShift - kLeastShift + 1;
constexpr unsigned kPartShift = 38;
constexpr size_t kWindow = size_t{kClasses} << kPartShift;
constexpr uintptr_t kLowestWindow = 0x3000'0000'0000, kHighestWindow = 0x4b00'0000'0000;
constexpr uint32_t kMostSlots = 4096; ///< of a class

/// No address of a program is in a window that begins here.
constexpr uintptr_t kNowhere = uintptr_t{1} << 63;
/// Written once, before memory is served.
extern std::atomic<uintptr_t> window;

inline bool in_window(uintptr_t at) noexcept { return at - window.load(std::memory_order_relaxed) < kWindow; }
inline bool in_window(const void *at) noexcept { return in_window(reinterpret_cast<uintptr_t>(at)); }
/// Whether any byte of it is. No length overflows here that the kernel would accept.
inline bool meets_window(const void *from, size_t length) noexcept {
    const auto at = reinterpret_cast<uintptr_t>(from), start = window.load(std::memory_order_relaxed);
    return at - start < kWindow || (at < start && length > start - at && start != kNowhere);
}

constexpr size_t whole_pages(size_t n) noexcept { return (n + kPage - 1) & ~(kPage - 1); }
constexpr size_t slot_size(unsigned kind) noexcept { return size_t{1} << (kind + kLeastShift); }
constexpr uint32_t slots_of(unsigned kind) noexcept {
    const size_t fit = size_t{1} << (kPartShift - kLeastShift - kind);
    return fit < kMostSlots ? static_cast<uint32_t>(fit) : kMostSlots;
}
/// The class whose slots have room for that many bytes; kClasses or more: none.
constexpr unsigned class_of(size_t bytes) noexcept {
    unsigned kind = 0;
    while (kind < kClasses && slot_size(kind) < bytes)
        ++kind;
    return kind;
}

/// The place of a slot.
struct Place {
    unsigned kind;
    uint32_t number;

    uintptr_t address() const noexcept {
        return window.load(std::memory_order_relaxed) + (uintptr_t{kind} << kPartShift) +
               uintptr_t{number} * slot_size(kind);
    }
    size_t size() const noexcept { return slot_size(kind); }
    /// False: between the last slot of a class and the next class.
    bool exists() const noexcept { return number < slots_of(kind); }
};

/// Of an address in the window.
inline Place place_of(uintptr_t at) noexcept {
    const uintptr_t offset = at - window.load(std::memory_order_relaxed);
    const auto kind = static_cast<unsigned>(offset >> kPartShift);
    return {kind, static_cast<uint32_t>((offset & ((uintptr_t{1} << kPartShift) - 1)) >> (kind + kLeastShift))};
}

} // namespace sd::pages
