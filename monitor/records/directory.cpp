// The directory of one network namespace.
#include "monitor/records/directory.hpp"

#include "libsd/control/assert.hpp"
#include "libsd/layout/link_layout.hpp"

#include <cstring>
#include <fcntl.h>
#include <unistd.h>

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif

namespace sd::monitor {

DirectoryFile::DirectoryFile(uint64_t epoch)
    : memfd_(make_memfd("sd-directory", sizeof(Directory))), map_(memfd_.get(), sizeof(Directory)) {
    Directory &d = directory();
    d.version = kLayoutVersion;
    d.entries = kDirectoryEntries;
    d.monitor_pid = static_cast<uint32_t>(getpid());
    d.epoch = epoch;
    d.magic = kDirectoryMagic;
    // Our own mapping stays writable; nobody can make another one that is.
    seal(memfd_.get(), F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL);
}

int DirectoryFile::insert(uint32_t id, const ListenAddress &address, uint64_t cookie, uint32_t backlog,
                          uint32_t owner) {
    uint32_t i = directory_hash(address.port);
    for (unsigned tried = 0; tried < kDirectoryEntries; ++tried, i = (i + 1) % kDirectoryEntries) {
        DirectoryEntry &entry = directory().entry[i];
        if (entry.id.load(std::memory_order_relaxed) != 0) {
            continue;
        }
        // A reader that still copies the former entry sees another id when it looks again.
        std::atomic_thread_fence(std::memory_order_seq_cst);
        entry.port = address.port;
        entry.family = address.family;
        entry.v6only = address.v6only ? 1 : 0;
        entry.backlog = backlog;
        std::memcpy(entry.ip, address.ip, sizeof entry.ip);
        entry.owner = owner;
        entry.cookie = cookie;
        entry.used.store(1, std::memory_order_release);
        entry.id.store(id, std::memory_order_release);
        ++live_;
        return static_cast<int>(i);
    }
    return -1;
}

void DirectoryFile::remove(int index) {
    auto *entry = directory().entry;
    auto i = static_cast<unsigned>(index);
    SD_ASSERT(i < kDirectoryEntries && live_ != 0 && entry[i].id.load(std::memory_order_relaxed) != 0);
    entry[i].id.store(0, std::memory_order_seq_cst);
    if (--live_ == 0) {
        for (unsigned n = 0; n < kDirectoryEntries; ++n) {
            entry[n].used.store(0, std::memory_order_release);
        }
        return;
    }
    // Where nothing follows, nobody needs to pass through here any more: keep chains short.
    while (entry[i].id.load(std::memory_order_relaxed) == 0 &&
           entry[i].used.load(std::memory_order_relaxed) != 0 &&
           entry[(i + 1) % kDirectoryEntries].used.load(std::memory_order_relaxed) == 0) {
        entry[i].used.store(0, std::memory_order_release);
        i = (i + kDirectoryEntries - 1) % kDirectoryEntries;
    }
}

void DirectoryFile::set_backlog(int index, uint32_t backlog) {
    std::atomic_ref<uint32_t>(directory().entry[index].backlog).store(backlog, std::memory_order_relaxed);
}

void DirectoryFile::bump_birth() { directory().birth_sequence.fetch_add(1, std::memory_order_seq_cst); }

void DirectoryFile::set_discovery(uint32_t word) {
    directory().discovery.store(word, std::memory_order_seq_cst);
}

void DirectoryFile::monitor_gone() { directory().monitor_gone.store(1, std::memory_order_seq_cst); }

} // namespace sd::monitor
