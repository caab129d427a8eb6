// Sockets that a process leaves to its child.
#include "libsd/vfs/paths/inherited.hpp"
#include "libsd/control/fork_sections.hpp"
#include "libsd/control/memory.hpp"
#include "libsd/control/sandbox_state.hpp"
#include <linux/memfd.h>
#include <sys/mman.h>

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif

namespace sd {

namespace {

constexpr uint32_t kEntries = 512;
struct Table {
    /// By number modulo kEntries: that of the socket that was left last. 0: none.
    std::atomic<uint64_t> left[kEntries];
};
static_assert(sizeof(Table) == 4096);

/// The children that this process has begun to make, and those that lie between the first process and it.
constexpr uint64_t kFork = 1, kChild = uint64_t{1} << 32;
SD_FORK_STATE std::atomic<uint64_t> place{0};

SD_FORK_STATE std::atomic<uint64_t> last_number{0};
/// Made with the first fork after a socket got a number. `written_table` does not exist in a child.
SD_FORK_STATE std::atomic<Table *> written_table{nullptr};
SD_FORK_STATE const Table *shown = nullptr; ///< the same for children to read
SD_FORK_STATE bool tried = false;           ///< to make it
SD_FORK_STATE long writer = 0;              ///< whose `written_table` is, by process id
SD_FORK_STATE const Table *parents = nullptr;

/// The writable mapping comes first: after the seal nobody gets one.
[[gnu::cold]] void make_table() noexcept {
    if (sandboxed() || !control::file_may_be(sizeof(Table)))
        return;
    SpareNumbers spare;
    const long made = sys::memfd_create("socksdirect-left", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (made < 0)
        return;
    const int fd = static_cast<int>(made);
    constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL | F_SEAL_FUTURE_WRITE;
    void *to_write = nullptr, *to_read = nullptr;
    if (sys::ftruncate(fd, sizeof(Table)) == 0)
        to_write = sys::mmap(nullptr, sizeof(Table), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (to_write && sys::madvise(to_write, sizeof(Table), MADV_DONTFORK) == 0 &&
        sys::fcntl(fd, F_ADD_SEALS, kSeals) == 0)
        to_read = sys::mmap(nullptr, sizeof(Table), PROT_READ, MAP_SHARED, fd, 0);
    sys::close(fd);
    if (!to_read) {
        if (to_write)
            sys::munmap(to_write, sizeof(Table));
        return;
    }
    shown = static_cast<const Table *>(to_read);
    writer = sys::getpid();
    written_table.store(static_cast<Table *>(to_write), std::memory_order_release);
}

uint64_t place_of(const File &f) noexcept {
    return f.unconnected.alone_since.load(std::memory_order_relaxed);
}

} // namespace

void hold_alone(File &f) noexcept {
    f.unconnected.number.store(last_number.fetch_add(1, std::memory_order_relaxed) + 1,
                               std::memory_order_relaxed);
    f.unconnected.alone_since.store(place.load(std::memory_order_seq_cst), std::memory_order_release);
}

bool is_held_alone(const File &f) noexcept { return place_of(f) == place.load(std::memory_order_seq_cst); }

bool is_of_this_process(const File &f) noexcept {
    return place_of(f) / kChild == place.load(std::memory_order_relaxed) / kChild;
}

void leave_to_child(const File &f) noexcept {
    Table *table = sandboxed() ? nullptr : written_table.load(std::memory_order_acquire);
    std::atomic_thread_fence(std::memory_order_seq_cst);
    // A child that was made without the library's knowledge has the variable, and not the memory.
    if (!table || place.load(std::memory_order_seq_cst) != place_of(f) + kFork || sys::getpid() != writer)
        return;
    const uint64_t number = f.unconnected.number.load(std::memory_order_relaxed);
    table->left[number % kEntries].store(number, std::memory_order_release);
}

bool may_be_left_here(const File &f) noexcept {
    return parents && place.load(std::memory_order_relaxed) == place_of(f) + kFork + kChild;
}

bool is_left_here(const File &f) noexcept {
    const uint64_t number = f.unconnected.number.load(std::memory_order_relaxed);
    return may_be_left_here(f) && parents->left[number % kEntries].load(std::memory_order_acquire) == number;
}

SD_FORK_CODE void inherited_fork_prepare() noexcept {
    if (last_number.load(std::memory_order_relaxed) != 0 && !tried) {
        tried = true;
        make_table();
    }
    place.fetch_add(kFork, std::memory_order_seq_cst);
}

SD_FORK_CODE void inherited_fork_child() noexcept {
    place.fetch_add(kChild, std::memory_order_relaxed);
    if (parents)
        sys::munmap(const_cast<Table *>(parents), sizeof(Table));
    parents = shown;
    shown = nullptr;
    tried = false;
    written_table.store(nullptr, std::memory_order_relaxed);
}

} // namespace sd
