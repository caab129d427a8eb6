#include "libsd/control/objects.hpp"
#include "libsd/base/start_section.hpp"
#include <cstring>

namespace sd {

namespace {

constexpr uintptr_t kPage = 4096;

/// The dynamic linker makes most of these addresses absolute, but not in every object, and musl's in none.
template <class T> void take(const T *&pointer, uintptr_t base, const ElfW(Dyn) & d) noexcept {
    const uintptr_t at = d.d_un.d_ptr;
    pointer = reinterpret_cast<const T *>(at < base ? base + at : at);
}

uint32_t old_hash_of(const char *name) noexcept {
    uint32_t value = 0;
    for (; *name; ++name) {
        value = (value << 4) + static_cast<unsigned char>(*name);
        value ^= value >> 24 & 0xf0;
        value &= 0x0fff'ffff;
    }
    return value;
}

/// Of several symbols with one name: the default version is what a program linked today gets.
struct Choice {
    const Object &object;
    const char *const name;
    uint32_t best = 0;

    /// True: there is none better.
    SD_START_CODE bool offer(uint32_t number) noexcept {
        const ElfW(Sym) &s = object.symbols[number];
        const unsigned kind = ELF64_ST_TYPE(s.st_info);
        if (s.st_shndx == SHN_UNDEF || (!s.st_value && s.st_shndx != SHN_ABS) || kind == STT_TLS ||
            strcmp(object.names + s.st_name, name) != 0)
            return false;
        const bool hidden = object.versions && object.versions[number] & 0x8000;
        if (!best || !hidden)
            best = number;
        return !hidden;
    }
};

void *address(const Object &o, uint32_t number) noexcept {
    const ElfW(Sym) &s = o.symbols[number];
    const uintptr_t at = o.info->dlpi_addr + s.st_value;
    if (ELF64_ST_TYPE(s.st_info) == STT_GNU_IFUNC)
        return reinterpret_cast<void *(*)()>(at)();
    return reinterpret_cast<void *>(at);
}

struct Search {
    Sought *const sought;
    const size_t count;
    bool behind, own_passed = false;

    /// Not 0: everything is found.
    SD_START_CODE int visit(const dl_phdr_info &info) noexcept {
        const bool own = contains(info, reinterpret_cast<uintptr_t>(&find_behind));
        const bool wanted = own_passed == behind && !own;
        own_passed = own_passed || own;
        return wanted ? look_in(Object(info)) : own && !behind;
    }

    SD_START_CODE int look_in(const Object &o) noexcept {
        size_t left = 0;
        for (size_t i = 0; i < count; ++i) {
            Sought &s = sought[i];
            if (s.found)
                continue;
            if (const uint32_t number = exported(o, s.name, s.hash))
                s.found = address(o, number);
            else
                ++left;
        }
        return left == 0;
    }
};

SD_START_CODE int visit(dl_phdr_info *info, size_t, void *search) noexcept {
    return static_cast<Search *>(search)->visit(*info);
}

} // namespace

SD_START_CODE Object::Object(const dl_phdr_info &i) noexcept : info(&i) {
    const ElfW(Dyn) *d = nullptr;
    for (unsigned n = 0; n < i.dlpi_phnum; ++n) {
        const ElfW(Phdr) &part = i.dlpi_phdr[n];
        const uintptr_t from = i.dlpi_addr + part.p_vaddr;
        if (part.p_type == PT_DYNAMIC) {
            d = reinterpret_cast<const ElfW(Dyn) *>(from);
        } else if (part.p_type == PT_GNU_RELRO) {
            sealed_from = from & ~(kPage - 1);
            sealed_end = (from + part.p_memsz) & ~(kPage - 1);
        }
    }
    for (; d && d->d_tag != DT_NULL; ++d)
        switch (d->d_tag) {
        case DT_SYMTAB:
            take(symbols, i.dlpi_addr, *d);
            break;
        case DT_STRTAB:
            take(names, i.dlpi_addr, *d);
            break;
        case DT_GNU_HASH:
            take(hash, i.dlpi_addr, *d);
            break;
        case DT_HASH:
            take(old_hash, i.dlpi_addr, *d);
            break;
        case DT_VERSYM:
            take(versions, i.dlpi_addr, *d);
            break;
        case DT_RELA:
            take(references[0].at, i.dlpi_addr, *d);
            break;
        case DT_RELASZ:
            references[0].bytes = d->d_un.d_val;
            break;
        case DT_JMPREL:
            take(references[1].at, i.dlpi_addr, *d);
            break;
        case DT_PLTRELSZ:
            references[1].bytes = d->d_un.d_val;
            break;
        }
}

bool Object::writable(uintptr_t at) const noexcept {
    for (unsigned n = 0; n < info->dlpi_phnum; ++n)
        if (const ElfW(Phdr) &part = info->dlpi_phdr[n]; part.p_type == PT_LOAD && part.p_flags & PF_W &&
                                                         at - info->dlpi_addr - part.p_vaddr < part.p_memsz)
            return true;
    return false;
}

SD_START_CODE bool contains(const dl_phdr_info &info, uintptr_t at) noexcept {
    for (unsigned n = 0; n < info.dlpi_phnum; ++n)
        if (const ElfW(Phdr) &part = info.dlpi_phdr[n];
            part.p_type == PT_LOAD && at - info.dlpi_addr - part.p_vaddr < part.p_memsz)
            return true;
    return false;
}

// DT_GNU_HASH: the number of buckets, the first symbol with a hash, the number and shift of the words of a
// Bloom filter; these words; the buckets, with the first symbol of each; the hashes of the symbols, the last
// of a bucket odd. DT_HASH: the number of buckets and of symbols; the buckets; the next symbol of each.
SD_START_CODE uint32_t exported(const Object &o, const char *name, uint32_t hash) noexcept {
    if (!o.complete())
        return 0;
    Choice choice{o, name};
    if (o.hash) {
        const uint32_t buckets = o.hash[0], first = o.hash[1], words = o.hash[2], shift = o.hash[3];
        const auto *filter = reinterpret_cast<const uint64_t *>(o.hash + 4);
        const uint32_t *bucket = o.hash + 4 + 2 * words, *chain = bucket + buckets;
        if (!buckets || !words)
            return 0;
        const uint64_t word = filter[hash / 64 & (words - 1)];
        if (!(word >> hash % 64 & word >> (hash >> shift) % 64 & 1))
            return 0;
        for (uint32_t i = bucket[hash % buckets]; i >= first && i; ++i) {
            const uint32_t h = chain[i - first];
            if ((h | 1) == (hash | 1) && choice.offer(i))
                break;
            if (h & 1)
                break;
        }
    } else if (o.old_hash && o.old_hash[0]) {
        const uint32_t *bucket = o.old_hash + 2, *next = bucket + o.old_hash[0];
        for (uint32_t i = bucket[old_hash_of(name) % o.old_hash[0]]; i; i = next[i])
            if (choice.offer(i))
                break;
    }
    return choice.best;
}

SD_START_CODE void find_behind(Sought *sought, size_t count) noexcept {
    Search behind{sought, count, true};
    if (dl_iterate_phdr(visit, &behind) != 0)
        return;
    Search before{sought, count, false};
    dl_iterate_phdr(visit, &before);
}

} // namespace sd
