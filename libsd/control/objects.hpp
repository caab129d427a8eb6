// The objects that the dynamic linker has loaded, and what they export. dlsym is not in the C library itself
// before glibc 2.34.
#pragma once
#include <cstddef>
#include <cstdint>
#include <link.h>

namespace sd {

/// A loaded object, as its dynamic section describes it. Only for as long as it stays loaded.
struct Object {
    const dl_phdr_info *info;
    const ElfW(Sym) *symbols = nullptr;
    const char *names = nullptr;
    const uint32_t *hash = nullptr;     ///< DT_GNU_HASH
    const uint32_t *old_hash = nullptr; ///< DT_HASH
    const uint16_t *versions = nullptr; ///< of the symbols
    struct {
        const ElfW(Rela) * at;
        size_t bytes;
    } references[2]{};                         ///< of data, and of calls
    uintptr_t sealed_from = 0, sealed_end = 0; ///< read-only since the relocations were done

    explicit Object(const dl_phdr_info &i) noexcept;
    /// False: there is nothing in it to look through.
    bool complete() const noexcept { return symbols && names; }
    bool writable(uintptr_t at) const noexcept;
};

/// Whether `at` lies in a segment of the object.
bool contains(const dl_phdr_info &info, uintptr_t at) noexcept;

/// The hash of a name in DT_GNU_HASH.
constexpr uint32_t gnu_hash(const char *name) noexcept {
    uint32_t value = 5381;
    for (; *name; ++name)
        value = value * 33 + static_cast<unsigned char>(*name);
    return value;
}

/// The number of the symbol of this name that the object defines, in its default version where there are
/// several; 0: none.
uint32_t exported(const Object &o, const char *name, uint32_t hash) noexcept;

/// A name to be looked up.
struct Sought {
    const char *name;
    uint32_t hash;
    void *found;
};

/// Looks the names up in the objects that stand behind this one in the search order, and then in those before
/// it: a program may have loaded this one late. One whose `found` is not null stays as it is. Takes the
/// dynamic linker's lock, as dlsym does, but neither allocates nor touches errno.
void find_behind(Sought *sought, size_t count) noexcept;

} // namespace sd
