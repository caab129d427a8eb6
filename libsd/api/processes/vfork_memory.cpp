#include "libsd/api/processes/vfork_memory.hpp"
#include "libsd/api/wrap.hpp"
#include "libsd/base/start_section.hpp"
#include "libsd/control/client.hpp"
#include "libsd/control/hidden_fd.hpp"
#include "libsd/control/objects.hpp"
#include "libsd/control/sandbox_state.hpp"
#include "libsd/cpu/instructions.hpp"
#include "libsd/cpu/trampolines.hpp"
#include "libsd/vfs/descriptors/file.hpp"
#include "libsd/vfs/family/process.hpp"
#include <gnu/libc-version.h>
#include <link.h>

namespace sd {

namespace {

constexpr size_t kPage = 4096;
constexpr size_t kMostPages = 256;

/// The library's variables as they were: the pages that were in use, then this thread's own, behind this
/// header. The other pages were empty.
struct SavedMemory : VforkMemory {
    size_t bytes;
    bool used[kMostPages];
    char *copy() noexcept { return reinterpret_cast<char *>(this + 1); }
};

// Found once: the loader's list is not to be walked in a signal handler, where vfork may be called.
SD_START_STATE char *variables = nullptr;
SD_START_STATE size_t pages = 0, pages_of_file = 0; ///< the latter come from the library's file
SD_START_STATE long own_offset = 0; ///< from the thread's pointer to what the thread has of this library
SD_START_STATE size_t own_bytes = 0;

bool shared = false;

/// Which pages hold anything, in memory or in swap; the others are empty.
bool look_for_used(bool *used) noexcept {
    uint64_t entries[kMostPages];
    const long fd = sys::call(SYS_openat, AT_FDCWD, sys::arg("/proc/self/pagemap"), O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return false;
    const auto bytes = static_cast<long>(pages * sizeof *entries);
    const long at = static_cast<long>(reinterpret_cast<uintptr_t>(variables) / kPage * sizeof *entries);
    const bool got = sys::call(SYS_pread64, fd, sys::arg(entries), bytes, at) == bytes;
    sys::close(static_cast<int>(fd));
    for (size_t i = 0; got && i < pages; ++i)
        used[i] = i < pages_of_file || entries[i] >> 62 != 0;
    return got;
}

struct Search {
    const void *vfork;
    bool is_libcs; ///< so is fork
};

SD_START_CODE int look_at_object(dl_phdr_info *info, size_t, void *context) noexcept {
    auto &search = *static_cast<Search *>(context);
    const auto here = reinterpret_cast<uintptr_t>(&shared);
    uintptr_t begin = 0, end_of_file = 0, end = 0, read_only = 0;
    size_t own = 0;
    bool libc = false, has_vfork = false, has_fork = false;
    for (int i = 0; i < info->dlpi_phnum; ++i) {
        const auto &segment = info->dlpi_phdr[i];
        const uintptr_t at = info->dlpi_addr + segment.p_vaddr;
        const auto has = [&](uintptr_t address) { return address >= at && address < at + segment.p_memsz; };
        if (segment.p_type == PT_LOAD) {
            libc = libc || has(reinterpret_cast<uintptr_t>(gnu_get_libc_version));
            has_vfork = has_vfork || has(reinterpret_cast<uintptr_t>(search.vfork));
            has_fork = has_fork || has(reinterpret_cast<uintptr_t>(real.fork));
            if (has(here)) {
                begin = at & ~(kPage - 1);
                end_of_file = at + segment.p_filesz;
                end = at + segment.p_memsz;
            }
        } else if (segment.p_type == PT_GNU_RELRO) { // the loader made whole pages read-only again
            read_only = (at + segment.p_memsz) & ~(kPage - 1);
        } else if (segment.p_type == PT_TLS) {
            own = segment.p_memsz;
        }
    }
    search.is_libcs = search.is_libcs || (libc && has_vfork && has_fork);
    if (!begin)
        return 0;
    if (begin < read_only)
        begin = read_only;
    const size_t all = (end - begin + kPage - 1) / kPage;
    if (all > kMostPages || (own && !info->dlpi_tls_data))
        return 0;
    variables = reinterpret_cast<char *>(begin);
    pages = all;
    pages_of_file = end_of_file > begin ? (end_of_file - begin + kPage - 1) / kPage : 0;
    own_bytes = own;
    own_offset = own ? static_cast<char *>(info->dlpi_tls_data) - cpu::thread_pointer() : 0;
    return 0;
}

/// Nobody but the caller runs in this memory, and no number in the table would have to be kept apart.
bool may_share_memory() noexcept {
    return pages != 0 && !shared && one_thread() && !sandboxed() &&
           fd_high.load(std::memory_order_relaxed) == 0 && control::channel() < 0 && single_threaded();
}

SavedMemory *save() noexcept {
    bool used[kMostPages];
    if (!may_share_memory() || !look_for_used(used))
        return nullptr;
    size_t bytes = sizeof(SavedMemory) + own_bytes;
    for (size_t i = 0; i < pages; ++i)
        bytes += used[i] ? kPage : 0;
    void *room =
        sys::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    if (!room)
        return nullptr;
    SavedMemory *saved = new (room) SavedMemory{{}, bytes, {}};
    memcpy(saved->used, used, pages * sizeof *used);
    char *to = saved->copy();
    for (size_t i = 0; i < pages; ++i)
        if (used[i]) {
            memcpy(to, variables + i * kPage, kPage);
            to += kPage;
        }
    memcpy(to, cpu::thread_pointer() + own_offset, own_bytes);
    return saved;
}

} // namespace

SD_START_CODE void init_vfork() noexcept {
    // Another library behind this one has its own reasons not to let memory be shared, or has to be told: the
    // sanitizers'.
    constexpr char kName[] = "vfork";
    Sought sought{kName, gnu_hash(kName), nullptr};
    find_behind(&sought, 1);
    Search search{sought.found, false};
    dl_iterate_phdr(look_at_object, &search);
    if (!search.is_libcs)
        pages = 0;
}

void memory_is_shared() noexcept { shared = true; }

// A handler that ran while the library is switched off would make sockets that are not ours and change what
// is put back. So none does, from here until the variables are back in the parent, and until the child, which
// has a mask of its own, goes its way. Nested, for a child of a child, it is the same once more.
VforkMemory *vfork_begin() noexcept {
    uint64_t mask;
    sys::block_signals(&mask);
    SavedMemory *saved = save();
    if (!saved) {
        sys::restore_signals(&mask);
        return nullptr;
    }
    saved->mask = mask;
    vfs::begin_vfork();
    return saved;
}

void vfork_end(VforkMemory *memory) noexcept {
    auto *saved = static_cast<SavedMemory *>(memory);
    const uint64_t mask = saved->mask;
    const bool still_shared = shared; // the child may have left a process behind that runs on in here
    bool now[kMostPages];
    const bool known = look_for_used(now);
    const char *from = saved->copy();
    for (size_t i = 0; i < pages; ++i) {
        char *const page = variables + i * kPage;
        if (saved->used[i]) {
            if (memcmp(page, from, kPage) != 0)
                memcpy(page, from, kPage);
            from += kPage;
        } else if (!known || now[i]) {
            memset(page, 0, kPage);
        }
    }
    memcpy(cpu::thread_pointer() + own_offset, from, own_bytes);
    shared = still_shared;
    sys::munmap(saved, saved->bytes);
    sys::restore_signals(&mask);
}

} // namespace sd

using namespace sd;

extern "C" {
[[gnu::used]] VforkMemory *sd_vfork_begin() noexcept { return vfork_begin(); }
[[gnu::used]] long sd_vfork_fork() noexcept {
    vfs::child_starts_program = true;
    const long child = real.fork();
    vfs::child_starts_program = false;
    return child;
}
[[gnu::used]] long sd_vfork_end(long result, VforkMemory *memory) noexcept {
    vfork_end(memory);
    return with_errno(result);
}
}

static_assert(offsetof(VforkMemory, mask) == 0, "libsd/cpu/vfork.cpp reads it there");
