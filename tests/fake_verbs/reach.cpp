#include "tests/fake_verbs/reach.hpp"
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/uio.h>
#include <unistd.h>

namespace sd::fake_verbs {

namespace {

/// Other processes' memory, as it is mapped here. `lock` is held while it is used, so that a place that has
/// become another's can be unmapped.
struct View {
    uint32_t number;
    bool known;
    uint8_t *base; ///< of Memory::address; nullptr: only the kernel can reach it
    uint8_t *mapped;
    size_t bytes;
};
struct Views {
    Lock lock;
    uint32_t pid;
    View view[kMemories];
};
Views views{};

uint32_t own_pid() noexcept {
    if (views.pid == 0) {
        static bool watched = [] {
            pthread_atfork(nullptr, nullptr, [] {
                views.pid = 0;
                views.lock.give(); // a thread that the child has not may have had it
            });
            return true;
        }();
        (void)watched;
        views.pid = static_cast<uint32_t>(getpid());
    }
    return views.pid;
}

void map_view(const Memory &m, View &v) noexcept {
    v.base = v.mapped = nullptr;
    if (m.fd < 0)
        return;
    char name[64];
    snprintf(name, sizeof name, "/proc/%u/fd/%d", m.pid, m.fd);
    const int fd = open(name, O_RDWR | O_CLOEXEC);
    if (fd < 0)
        return;
    const uint64_t begin = m.file_offset & ~uint64_t{4095};
    v.bytes = m.file_offset - begin + m.length;
    void *p = mmap(nullptr, v.bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd,
                   static_cast<off_t>(begin));
    close(fd);
    if (p == MAP_FAILED)
        return;
    v.mapped = static_cast<uint8_t *>(p);
    v.base = v.mapped + (m.file_offset - begin);
}

/// With the views' lock: where the address is here; nullptr: nowhere.
uint8_t *here(Fabric &f, uint32_t memory, uint64_t address) noexcept {
    const Memory &m = f.memory[memory];
    if (m.pid == own_pid())
        return reinterpret_cast<uint8_t *>(address);
    View &v = views.view[memory];
    const uint32_t number = m.number.load(std::memory_order_relaxed);
    if (!v.known || v.number != number) {
        if (v.known && v.mapped)
            munmap(v.mapped, v.bytes);
        map_view(m, v);
        v.number = number;
        v.known = true;
    }
    return v.base ? v.base + (address - m.address) : nullptr;
}

bool through_kernel(bool writing, uint32_t pid, uint64_t there, void *near, uint32_t n) noexcept {
    const iovec local = {near, n}, remote = {reinterpret_cast<void *>(there), n};
    const auto p = static_cast<pid_t>(pid);
    return (writing ? process_vm_writev(p, &local, 1, &remote, 1, 0)
                    : process_vm_readv(p, &local, 1, &remote, 1, 0)) == static_cast<ssize_t>(n);
}

/// A device has no descriptor for a piece of memory: a program does not find this one among its own numbers.
int out_of_the_way(int fd) noexcept {
    constexpr int kHigh = 700; // below the usual limit
    const int high = fd < 0 ? -1 : fcntl(fd, F_DUPFD_CLOEXEC, kHigh);
    if (high < 0)
        return fd;
    close(fd);
    return high;
}

} // namespace

int file_behind(uint64_t address, uint64_t length, uint64_t *offset) noexcept {
    FILE *maps = fopen("/proc/self/maps", "re");
    if (!maps)
        return -1;
    char line[512];
    unsigned major = 0, minor = 0;
    unsigned long inode = 0, begin = 0, end = 0;
    bool found = false;
    while (!found && fgets(line, sizeof line, maps)) {
        unsigned long at;
        char rights[8];
        if (sscanf(line, "%lx-%lx %7s %lx %x:%x %lu", &begin, &end, rights, &at, &major, &minor, &inode) == 7 &&
            address >= begin && address + length <= end && rights[3] == 's' && inode != 0) {
            *offset = at + (address - begin);
            found = true;
        }
    }
    fclose(maps);
    if (!found)
        return -1;
    // Its owner may have closed it; who has the rights can open it all the same.
    char mapping[80];
    snprintf(mapping, sizeof mapping, "/proc/self/map_files/%lx-%lx", begin, end);
    int fd = open(mapping, O_RDWR | O_CLOEXEC);
    DIR *d = fd < 0 ? opendir("/proc/self/fd") : nullptr;
    if (!d)
        return out_of_the_way(fd);
    while (const dirent *e = readdir(d)) {
        const int candidate = atoi(e->d_name);
        struct stat s;
        if (candidate != dirfd(d) && e->d_name[0] != '.' && fstat(candidate, &s) == 0 && s.st_ino == inode &&
            s.st_dev == makedev(major, minor)) {
            fd = fcntl(candidate, F_DUPFD_CLOEXEC, 0);
            break;
        }
    }
    closedir(d);
    return out_of_the_way(fd);
}

bool copy_between(Fabric &f, uint32_t from_memory, uint64_t from, const uint8_t *local, uint32_t to_memory,
                  uint64_t to, uint32_t n) noexcept {
    Guard g(views.lock);
    const uint8_t *source = local ? local : here(f, from_memory, from);
    uint8_t *target = here(f, to_memory, to);
    if (source && target) {
        memcpy(target, source, n);
        return true;
    }
    f.through_kernel.fetch_add(n, std::memory_order_relaxed);
    uint8_t between[16384];
    for (uint32_t done = 0; done < n;) {
        const uint32_t m = n - done < sizeof between ? n - done : sizeof between;
        if (source)
            memcpy(between, source + done, m);
        else if (!through_kernel(false, f.memory[from_memory].pid, from + done, between, m))
            return false;
        if (target)
            memcpy(target + done, between, m);
        else if (!through_kernel(true, f.memory[to_memory].pid, to + done, between, m))
            return false;
        done += m;
    }
    return true;
}

} // namespace sd::fake_verbs
