// Libraries loaded with RTLD_DEEPBIND, as PHP loads its extensions: the dynamic linker leads what they call
// to the C library, past everything preloaded, and what a program's sockets have become would be used as if
// it were the kernel's. After such a load the references of the new objects to what is interposed here are
// written anew, unless the objects among themselves have something else of that name: that is what the flag
// is for.
#include "libsd/api/processes/loading.hpp"
#include "libsd/api/wrap.hpp"
#include "libsd/control/objects.hpp"
#include "libsd/control/sys.hpp"
#include "libsd/cpu/elf.hpp"
#include "libsd/cpu/trampolines.hpp"
#include <bitset>

namespace sd {

namespace {

/// Goes through the objects that were loaded after the last one of before; our own comes before them.
struct Pass {
    const void *last = nullptr; ///< program headers of the last object before
    bool is_new = false, own_known = false;
    dl_phdr_info own_info{};
    std::bitset<4096> wanted; ///< numbers of exported symbols that new objects refer to
    bool write = false;

    void look() noexcept {
        is_new = own_known = false;
        dl_iterate_phdr(
            [](dl_phdr_info *info, size_t, void *self) { return static_cast<Pass *>(self)->visit(*info); }, this);
    }

    int visit(const dl_phdr_info &info) noexcept {
        if (is_new && own_known)
            look_at(Object(info), Object(own_info));
        is_new = is_new || info.dlpi_phdr == last;
        if (!own_known && contains(info, reinterpret_cast<uintptr_t>(&bind_real_symbols))) {
            own_info = info;
            own_known = true;
        }
        return 0;
    }

    static long protect(const Object &o, int how) noexcept {
        return sys::call(SYS_mprotect, static_cast<long>(o.sealed_from),
                         static_cast<long>(o.sealed_end - o.sealed_from), how);
    }

    void look_at(const Object &o, const Object &own) noexcept {
        if (!o.complete() || !own.complete())
            return;
        bool opened = false;
        for (const auto &table : o.references)
            for (size_t i = 0; table.at && i < table.bytes / sizeof *table.at; ++i)
                refer(o, own, table.at[i], opened);
        if (opened)
            protect(o, PROT_READ);
    }

    void refer(const Object &o, const Object &own, const ElfW(Rela) & r, bool &opened) noexcept {
        const auto kind = ELF64_R_TYPE(r.r_info);
        const ElfW(Sym) &symbol = o.symbols[ELF64_R_SYM(r.r_info)];
        if (!cpu::stores_address(kind) || r.r_addend || !ELF64_R_SYM(r.r_info) || symbol.st_shndx != SHN_UNDEF)
            return;
        const char *name = o.names + symbol.st_name;
        const uint32_t number = exported(own, name, gnu_hash(name));
        if (!number || number >= wanted.size())
            return;
        if (!write) {
            wanted[number] = true;
            return;
        }
        const uintptr_t at = o.info->dlpi_addr + r.r_offset;
        if (!wanted[number] || at % sizeof at || !o.writable(at))
            return;
        if (at >= o.sealed_from && at < o.sealed_end && !opened) {
            if (protect(o, PROT_READ | PROT_WRITE) < 0)
                return;
            opened = true;
        }
        __atomic_store_n(reinterpret_cast<uintptr_t *>(at),
                         own.info->dlpi_addr + own.symbols[number].st_value, __ATOMIC_RELAXED);
    }

    /// Leaves those whose name leads to the C library from the objects of `handle`. No lock of the dynamic
    /// linker is held here: dlsym takes another one.
    void keep_those_of_libc(void *handle) noexcept {
        const Object own(own_info);
        for (size_t i = 0; i < wanted.size(); ++i) {
            if (!wanted[i])
                continue;
            const char *name = own.names + own.symbols[i].st_name;
            Sought behind{name, gnu_hash(name), nullptr};
            find_behind(&behind, 1);
            const void *found = real.dlsym(handle, name);
            if (behind.found &&
                found != behind.found) // of liburing's functions there may be none but the new objects' own
                wanted[i] = false;
        }
        real.dlerror(); // the program is not to see that a name was not found
    }
};

/// dlopen() looks at who calls it: a name without a slash is also searched for where that object says so.
bool same_from_here(const char *file, void *caller) noexcept {
    if (!file || strchr(file, '$'))
        return false;
    if (strchr(file, '/'))
        return true;
    Dl_info info;
    void *object = nullptr;
    if (!real.dladdr1(caller, &info, &object, RTLD_DL_LINKMAP) || !object)
        return false;
    for (const ElfW(Dyn) *d = static_cast<const link_map *>(object)->l_ld; d->d_tag != DT_NULL; ++d)
        if (d->d_tag == DT_RUNPATH || d->d_tag == DT_RPATH)
            return false;
    return true;
}

void *open_deep(const char *file, int mode) {
    Pass pass;
    dl_iterate_phdr(
        [](dl_phdr_info *info, size_t, void *last) {
            *static_cast<const void **>(last) = info->dlpi_phdr;
            return 0;
        },
        &pass.last);
    void *handle = real.dlopen(file, mode);
    if (!handle)
        return nullptr;
    pass.look();
    if (pass.wanted.any()) {
        pass.keep_those_of_libc(handle);
        pass.write = true;
        pass.look();
    }
    return handle;
}

} // namespace

const void *open_plugin(uint32_t version) noexcept {
    Dl_info own{};
    void *object = nullptr;
    char path[PATH_MAX];
    if (!real.dladdr1(reinterpret_cast<void *>(&bind_real_symbols), &own, &object, RTLD_DL_LINKMAP) ||
        !own.dli_fname || own.dli_fname[0] != '/') // a relative name would mean another folder by now
        return nullptr;
    const char *name = strrchr(own.dli_fname, '/');
    constexpr char kName[] = "libsd-rdma.so";
    const size_t n = name ? static_cast<size_t>(name + 1 - own.dli_fname) : 0;
    if (n == 0 || n + sizeof kName > sizeof path)
        return nullptr;
    memcpy(path, own.dli_fname, n);
    memcpy(path + n, kName, sizeof kName);
    void *library = real.dlopen(path, RTLD_NOW | RTLD_LOCAL);
    const auto table =
        library ? reinterpret_cast<const void *(*)(uint32_t)>(real.dlsym(library, "sd_rdma_plugin")) : nullptr;
    real.dlerror(); // the program is not to see it
    return table ? table(version) : nullptr;
}

} // namespace sd

using namespace sd;

extern "C" [[gnu::used]] void *sd_way_to_dlopen(const char *file, int mode, void *caller) noexcept {
    static std::atomic<bool> bound{false};
    if (!active() && !bound.exchange(true, std::memory_order_relaxed)) {
        bind_real_symbols(); // a constructor may run before ours: the stand-in would call from here
    }
    return mode & RTLD_DEEPBIND && active() && same_from_here(file, caller)
               ? reinterpret_cast<void *>(open_deep)
               : reinterpret_cast<void *>(real.dlopen);
}
