#include "libpages/slots.hpp"

#include "libpages/changes.hpp"
#include "libpages/device.hpp"
#include "libpages/next.hpp"
#include "libpages/settings.hpp"

#include <cerrno>

namespace sd::pages {
namespace {

/// At most so many at a time: each is a mapping, of which a process may have 65530.
constexpr int kMostTaken = 8192;
/// Blocks that nobody has stay mapped, up to this many bytes: their pages need not be had and cleared again.
constexpr size_t kMostKept = size_t{64} << 20, kMostKeptBlock = size_t{32} << 20;
/// Blocks of a class have 5, 6, 7 or 8 eighths of the slot, so that one that is kept fits the next request.
constexpr unsigned kSteps = 4;

enum class State : uint64_t {
    none = 0,    ///< on the list of free slots, or never used
    taken = 1,   ///< somebody is about to map something
    block = 2,   ///< the program has a block
    mapping = 3, ///< the program has a mapping, of which "from" to "end" may be left
    kept = 4,    ///< a block that nobody has
};
/// Of a slot's word: state, worn, first page, page behind the last.
constexpr uint64_t kWorn = 8;
constexpr unsigned kFromShift = 8, kEndShift = 32;
constexpr uint64_t kPagesMask = 0xff'ffff;

constexpr uint64_t word_of(State s, uint64_t from, uint64_t end) noexcept {
    return static_cast<uint64_t>(s) | from << kFromShift | end << kEndShift;
}
constexpr State state_of(uint64_t word) noexcept { return static_cast<State>(word & 7); }
constexpr uint64_t from_of(uint64_t word) noexcept { return word >> kFromShift & kPagesMask; }
constexpr uint64_t end_of(uint64_t word) noexcept { return word >> kEndShift & kPagesMask; }

struct Slot {
    std::atomic<uint64_t> word;
    std::atomic<uint32_t> below; ///< on a list: the next one's number + 1
};

Slot slots[kClasses][kMostSlots]; // pages that are never touched cost nothing

Slot &slot_at(Place p) noexcept { return slots[p.kind][p.number]; }

/// Numbers of slots of one class: the topmost + 1, and above it a count of changes.
class List {
  public:
    void push(unsigned kind, uint32_t number) noexcept {
        uint64_t top = top_.load(std::memory_order_relaxed);
        do {
            slots[kind][number].below.store(static_cast<uint32_t>(top), std::memory_order_relaxed);
        } while (!top_.compare_exchange_weak(top, next_count(top) | (number + 1), std::memory_order_release,
                                             std::memory_order_relaxed));
    }
    /// False: it is empty.
    bool pop(unsigned kind, uint32_t &number) noexcept {
        uint64_t top = top_.load(std::memory_order_acquire);
        while (static_cast<uint32_t>(top) != 0) {
            number = static_cast<uint32_t>(top) - 1;
            // May have been taken meanwhile, and then is anything: the count has changed in that case.
            const uint32_t below = slots[kind][number].below.load(std::memory_order_relaxed);
            if (top_.compare_exchange_weak(top, next_count(top) | below, std::memory_order_acquire,
                                           std::memory_order_acquire))
                return true;
        }
        return false;
    }

  private:
    static uint64_t next_count(uint64_t top) noexcept { return (top >> 32 << 32) + (uint64_t{1} << 32); }
    std::atomic<uint64_t> top_{0};
};

struct Class {
    List free, kept[kSteps];
    std::atomic<uint32_t> used{0}; ///< slots from here on were never used
};
constinit Class classes[kClasses];
constinit std::atomic<int> taken{0};
constinit std::atomic<size_t> kept_bytes{0};

constexpr size_t step_size(unsigned kind) noexcept { return slot_size(kind) / 8; }

/// The list of kept blocks that one of this length belongs to; kSteps: none.
unsigned step_of(unsigned kind, size_t length) noexcept {
    if (length % step_size(kind) != 0 || length <= slot_size(kind) / 2 || length > kMostKeptBlock)
        return kSteps;
    return static_cast<unsigned>(length / step_size(kind)) - 5;
}

void leave(Place p) noexcept {
    slot_at(p).word.store(0, std::memory_order_release);
    taken.fetch_sub(1, std::memory_order_relaxed);
    classes[p.kind].free.push(p.kind, p.number);
}

/// A block that nobody has, and that is on no list.
void unmap_slot(Place p, size_t length) noexcept {
    const int saved = errno;
    {
        const Change guard;
        next().munmap(reinterpret_cast<void *>(p.address()), length);
    }
    errno = saved;
    leave(p);
}

/// A slot with memory of the device, `taken`. False: there is none.
bool take_slot(unsigned kind, size_t length, Place &p) noexcept {
    if (taken.fetch_add(1, std::memory_order_relaxed) >= kMostTaken) {
        taken.fetch_sub(1, std::memory_order_relaxed);
        return false;
    }
    Class &c = classes[kind];
    p.kind = kind;
    if (!c.free.pop(kind, p.number)) {
        uint32_t fresh = c.used.load(std::memory_order_relaxed);
        do {
            if (fresh >= slots_of(kind)) {
                taken.fetch_sub(1, std::memory_order_relaxed);
                return false;
            }
        } while (!c.used.compare_exchange_weak(fresh, fresh + 1, std::memory_order_relaxed));
        p.number = fresh;
    }
    slot_at(p).word.store(word_of(State::taken, 0, 0), std::memory_order_relaxed);
    const Change guard;
    const int error = map_device(p.address(), length);
    if (error == EEXIST) { // somebody has mapped something here by himself: the slot is his
        taken.fetch_sub(1, std::memory_order_relaxed);
        return false;
    }
    if (error != 0)
        leave(p);
    return error == 0;
}

/// The block at the beginning of a slot; null.
Slot *slot_of_block(const void *at, Place &p) noexcept {
    if (!in_window(at))
        return nullptr;
    p = place_of(reinterpret_cast<uintptr_t>(at));
    if (!p.exists() || p.address() != reinterpret_cast<uintptr_t>(at))
        return nullptr;
    Slot &s = slot_at(p);
    return state_of(s.word.load(std::memory_order_relaxed)) == State::block ? &s : nullptr;
}

/// Calls `what` with each slot that the range meets, and its first and last + 1 page in it.
template <class F> void each_slot(const void *from, size_t length, F what) noexcept {
    uintptr_t at = reinterpret_cast<uintptr_t>(from);
    const uintptr_t end = at + whole_pages(length), start = window.load(std::memory_order_relaxed);
    if (start == kNowhere)
        return;
    if (at < start)
        at = start;
    while (at < end && in_window(at)) {
        const Place p = place_of(at);
        if (!p.exists()) { // on to the next class
            at = start + (uintptr_t{p.kind + 1} << kPartShift);
            continue;
        }
        const uintptr_t slot_end = p.address() + p.size(), to = slot_end < end ? slot_end : end;
        what(p, (at - p.address()) / kPage, (to - p.address()) / kPage);
        at = slot_end;
    }
}

void wear(Slot &s) noexcept {
    if (state_of(s.word.load(std::memory_order_relaxed)) == State::block)
        s.word.fetch_or(kWorn, std::memory_order_relaxed);
}

} // namespace

Block take_block(size_t size, size_t alignment) noexcept {
    const unsigned kind = class_of(size > alignment ? size : alignment);
    if (kind >= kClasses || window.load(std::memory_order_relaxed) == kNowhere)
        return {};
    const size_t step = step_size(kind);
    const size_t length = size > slot_size(kind) / 2 ? (size + step - 1) / step * step : whole_pages(size);
    Place p{kind, 0};
    const unsigned list = step_of(kind, length);
    if (list < kSteps && classes[kind].kept[list].pop(kind, p.number)) {
        kept_bytes.fetch_sub(length, std::memory_order_relaxed);
        slot_at(p).word.store(word_of(State::block, 0, length / kPage), std::memory_order_relaxed);
        return {reinterpret_cast<void *>(p.address()), length, false};
    }
    if (!take_slot(kind, length, p))
        return {};
    slot_at(p).word.store(word_of(State::block, 0, length / kPage), std::memory_order_relaxed);
    return {reinterpret_cast<void *>(p.address()), length, true};
}

size_t block_length(const void *at) noexcept {
    Place p;
    Slot *const s = slot_of_block(at, p);
    return s ? end_of(s->word.load(std::memory_order_relaxed)) * kPage : 0;
}

bool release_block(void *at) noexcept {
    Place p;
    Slot *const s = slot_of_block(at, p);
    if (!s)
        return false;
    uint64_t word = s->word.load(std::memory_order_relaxed);
    const size_t length = end_of(word) * kPage;
    const bool keeps = !(word & kWorn) && least_block.load(std::memory_order_relaxed) != kNever;
    const unsigned list = keeps ? step_of(p.kind, length) : kSteps;
    // Of two threads that free it, one does.
    if (!s->word.compare_exchange_strong(word, word_of(State::kept, 0, length / kPage)))
        return state_of(word) == State::block && release_block(at);
    if (list < kSteps) {
        if (kept_bytes.fetch_add(length, std::memory_order_relaxed) + length <= kMostKept) {
            classes[p.kind].kept[list].push(p.kind, p.number);
            return true;
        }
        kept_bytes.fetch_sub(length, std::memory_order_relaxed);
    }
    unmap_slot(p, length);
    return true;
}

void release_kept() noexcept {
    for (unsigned kind = 0; kind < kClasses; ++kind)
        for (auto &list : classes[kind].kept)
            for (Place p{kind, 0}; list.pop(kind, p.number);) {
                const size_t length = end_of(slot_at(p).word.load(std::memory_order_relaxed)) * kPage;
                kept_bytes.fetch_sub(length, std::memory_order_relaxed);
                unmap_slot(p, length);
            }
}

void shrink_block(void *at, size_t length) noexcept {
    Place p;
    Slot *const s = slot_of_block(at, p);
    if (!s)
        return;
    uint64_t word = s->word.load(std::memory_order_relaxed);
    const size_t before = end_of(word) * kPage;
    while (!s->word.compare_exchange_weak(word, word_of(State::block, 0, length / kPage) | (word & kWorn),
                                          std::memory_order_relaxed)) {
    }
    const int saved = errno;
    const Change guard;
    next().munmap(static_cast<char *>(at) + length, before - length);
    errno = saved;
}

void *take_mapping(size_t length) noexcept {
    const unsigned kind = class_of(length);
    Place p;
    if (kind >= kClasses || window.load(std::memory_order_relaxed) == kNowhere || !take_slot(kind, length, p))
        return nullptr;
    slot_at(p).word.store(word_of(State::mapping, 0, length / kPage), std::memory_order_relaxed);
    return reinterpret_cast<void *>(p.address());
}

void unmapped(const void *from, size_t length) noexcept {
    each_slot(from, length, [](Place p, uint64_t first, uint64_t end) {
        Slot &s = slot_at(p);
        wear(s);
        uint64_t word = s.word.load(std::memory_order_relaxed);
        while (state_of(word) == State::mapping) {
            uint64_t low = from_of(word), high = end_of(word);
            if (first <= low && end > low)
                low = end < high ? end : high;
            else if (end >= high && first < high)
                high = first;
            else
                return; // a hole: the slot is used again when both sides of it are gone, or never
            const bool gone = low >= high;
            if (s.word.compare_exchange_weak(word, gone ? word_of(State::taken, 0, 0)
                                                        : word_of(State::mapping, low, high))) {
                if (gone)
                    leave(p);
                return;
            }
        }
    });
}

void worn(const void *from, size_t length) noexcept {
    each_slot(from, length, [](Place p, uint64_t, uint64_t) { wear(slot_at(p)); });
}

} // namespace sd::pages
