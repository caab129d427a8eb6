#include "libpages/next.hpp"

#include "libsd/control/objects.hpp"

#include <atomic>
#include <type_traits>

namespace sd::pages {
namespace {

constinit Next table{};
constinit std::atomic<bool> bound{false};

enum Index : size_t {
#define SD_NEXT(name) at_##name,
#include "libpages/next.def"
#undef SD_NEXT
    kFunctions
};

struct Names {
    Sought sought[kFunctions];
};
constexpr Names kNames = {{
#define SD_NEXT(name) {#name, gnu_hash(#name), nullptr},
#include "libpages/next.def"
#undef SD_NEXT
}};

// Two threads may do it at a time: both find the same.
void bind() noexcept {
    Names names = kNames;
    find_behind(names.sought, kFunctions);
#define SD_NEXT(name)                                                                                        \
    std::atomic_ref(table.name)                                                                              \
        .store(reinterpret_cast<decltype(table.name)>(names.sought[at_##name].found),                        \
               std::memory_order_relaxed);
#include "libpages/next.def"
#undef SD_NEXT
    bound.store(true, std::memory_order_release);
}

/// Not 0: this library was reached, or *found is true.
int look_in_front(dl_phdr_info *info, size_t, void *found) noexcept {
    if (contains(*info, reinterpret_cast<uintptr_t>(&look_in_front)))
        return 1;
    const Object o(*info);
    for (const char *name : {"malloc", "free", "realloc"})
        if (exported(o, name, gnu_hash(name)))
            *static_cast<bool *>(found) = true;
    return 0;
}

} // namespace

const Next &next() noexcept {
    if (!bound.load(std::memory_order_acquire)) [[unlikely]]
        bind();
    return table;
}

bool serves_malloc() noexcept {
    bool others = false;
    dl_iterate_phdr(look_in_front, &others);
    return !others;
}

} // namespace sd::pages
