// Caching closed placeholders; see placeholder_cache.hpp.
#include "libsd/vfs/descriptors/placeholder_cache.hpp"
#include "libsd/control/fork_sections.hpp"
#include "libsd/control/hot_section.hpp"
#include "libsd/vfs/descriptors/fd.hpp"
#include "libsd/vfs/descriptors/unconnected.hpp"

namespace sd {

File cached_placeholder;
SD_HOT_STATE std::atomic<uint32_t> cached_count{0};
SD_HOT_STATE std::atomic<uint64_t> numbers_in_use{0};

namespace {

constexpr unsigned kNumbers = 1024; ///< higher numbers are not cached
constexpr unsigned kWords = kNumbers / 64;
constexpr uint32_t kMost = 64; ///< they count against the program's limit

/// One bit for each number.
struct Bits {
    std::atomic<uint64_t> word[kWords];
    bool get(unsigned fd) const noexcept {
        return word[fd / 64].load(std::memory_order_relaxed) >> (fd % 64) & 1;
    }
    void set(unsigned fd, bool on) noexcept {
        const uint64_t bit = uint64_t{1} << (fd % 64);
        if (get(fd) == on)
            return;
        if (on)
            word[fd / 64].fetch_or(bit, std::memory_order_relaxed);
        else
            word[fd / 64].fetch_and(~bit, std::memory_order_relaxed);
    }
};
SD_FORK_STATE constinit Bits cached{}, own_numbers{}, cloexec_set{};

/// True for the one caller that may have the number.
bool claim(unsigned fd) noexcept {
    const uint64_t bit = uint64_t{1} << (fd % 64);
    if (fd >= kNumbers || !(cached.word[fd / 64].fetch_and(~bit, std::memory_order_acq_rel) & bit))
        return false;
    cached_count.fetch_sub(1, std::memory_order_relaxed);
    return true;
}

void clear_entry(unsigned fd) noexcept {
    File *expected = &cached_placeholder;
    fd_table[fd].compare_exchange_strong(expected, nullptr, std::memory_order_acq_rel);
}

void close_claimed(unsigned fd) noexcept {
    clear_entry(fd);
    sys::close(static_cast<int>(fd));
    number_freed(static_cast<int>(fd));
}

uint32_t in_use() noexcept { return static_cast<uint32_t>(numbers_in_use.load(std::memory_order_acquire)); }

} // namespace

File *close_cached(int fd) noexcept {
    if (claim(static_cast<unsigned>(fd))) {
        close_claimed(static_cast<unsigned>(fd));
        return nullptr;
    }
    await_shared(fd);
    File *f = entry_of(fd);
    return f == &cached_placeholder ? nullptr : f;
}

long take_cached(bool cloexec) noexcept {
    if (cached_count.load(std::memory_order_relaxed) == 0)
        return -1;
    for (unsigned w = 0; w < kWords; ++w)
        while (uint64_t bits = cached.word[w].load(std::memory_order_acquire)) {
            const unsigned fd = w * 64 + static_cast<unsigned>(__builtin_ctzll(bits));
            if (fd >= in_use())
                return -1; // there may be a free number below
            if (!claim(fd))
                continue;
            clear_entry(fd);
            if (cloexec_set.get(fd) != cloexec) {
                sys::fcntl(static_cast<int>(fd), F_SETFD, cloexec ? FD_CLOEXEC : 0);
                cloexec_set.set(fd, cloexec);
            }
            return fd;
        }
    return -1;
}

SD_FORK_CODE bool can_cache(int fd, const File &f) noexcept {
    const auto n = static_cast<unsigned>(fd);
    return n > 2 && n < kNumbers && is_placeholder(f) && own_numbers.get(n) && n < in_use() &&
           cached_count.load(std::memory_order_relaxed) < kMost;
}

void cache_placeholder(int fd) noexcept {
    const auto n = static_cast<unsigned>(fd);
    // A thread that uses a number it has not got may have made another socket's of it meanwhile, with dup2:
    // then there is nothing to keep.
    File *none = nullptr;
    if (!fd_table[n].compare_exchange_strong(none, &cached_placeholder, std::memory_order_acq_rel))
        return;
    cached_count.fetch_add(1, std::memory_order_relaxed);
    cached.word[n / 64].fetch_or(uint64_t{1} << (n % 64), std::memory_order_release);
}

void close_all_cached() noexcept {
    for (unsigned w = 0; w < kWords; ++w)
        while (uint64_t bits = cached.word[w].load(std::memory_order_acquire)) {
            const unsigned fd = w * 64 + static_cast<unsigned>(__builtin_ctzll(bits));
            if (claim(fd))
                close_claimed(fd);
        }
}

void lower_numbers_in_use(int fd) noexcept {
    uint64_t now = numbers_in_use.load(std::memory_order_relaxed), next;
    do {
        auto low = static_cast<uint32_t>(now);
        if (low > static_cast<uint32_t>(fd))
            low = static_cast<uint32_t>(fd);
        next = ((now >> 32) + 1) << 32 | low;
    } while (!numbers_in_use.compare_exchange_weak(now, next, std::memory_order_acq_rel));
}

void lowest_was(int fd, uint64_t before) noexcept {
    uint64_t now = numbers_in_use.load(std::memory_order_relaxed);
    const uint32_t low = static_cast<uint32_t>(fd) + 1;
    // A number that was freed meanwhile may lie below.
    while (now >> 32 == before >> 32 && static_cast<uint32_t>(now) < low)
        if (numbers_in_use.compare_exchange_weak(now, (now >> 32) << 32 | low, std::memory_order_acq_rel))
            return;
}

void note_origin(int fd, Origin o) noexcept {
    const auto n = static_cast<unsigned>(fd);
    if (n >= kNumbers)
        return;
    own_numbers.set(n, o != Origin::other);
    cloexec_set.set(n, o == Origin::placeholder_cloexec);
}

void note_cloexec(int fd, bool on) noexcept {
    if (static_cast<unsigned>(fd) < kNumbers)
        cloexec_set.set(static_cast<unsigned>(fd), on);
}

void note_cloexec_range(unsigned first, unsigned last) noexcept {
    for (unsigned fd = first; fd <= last && fd < kNumbers; ++fd)
        cloexec_set.set(fd, true);
}

void forget_cached(int fd) noexcept {
    clear_entry(static_cast<unsigned>(fd));
    claim(static_cast<unsigned>(fd));
}

namespace {

bool made_way(bool early) noexcept {
    const int lowest = give_way(early);
    if (lowest < 0)
        return false;
    number_freed(lowest);
    return true;
}

} // namespace

void come_to_ours() noexcept { made_way(true); }

bool vacated() noexcept { return made_way(false); }

} // namespace sd
