#include "tests/fake_verbs/process.hpp"
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <fcntl.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace sd::fake_verbs {

namespace {

thread_local uint32_t this_thread = 0;
char directory[200];
std::atomic<Fabric *> mapped{nullptr};

/// "late=500,early=100": words of Faults with their values.
void read_faults(Faults &f, const char *text) noexcept {
    const struct {
        const char *name;
        std::atomic<uint32_t> &value;
    } known[] = {{"device", f.device}, {"late", f.late_us}, {"reorder", f.reorder},
                 {"early", f.early},   {"cut", f.cut},      {"rnr", f.rnr}};
    while (text && *text) {
        for (const auto &k : known)
            if (const size_t n = strlen(k.name); strncmp(text, k.name, n) == 0 && text[n] == '=')
                k.value.store(static_cast<uint32_t>(strtoul(text + n + 1, nullptr, 10)));
        text = strchr(text, ',');
        if (text)
            ++text;
    }
    if (f.late_us || f.reorder || f.early || f.rnr)
        f.device.store(1);
}

Fabric *map_fabric() noexcept {
    const int fd = open_file("fabric", 0);
    if (fd < 0)
        return nullptr;
    void *p = MAP_FAILED;
    flock(fd, LOCK_EX); // who comes first makes it
    struct stat s;
    const bool is_new = fstat(fd, &s) == 0 && s.st_size == 0;
    if (!is_new || ftruncate(fd, sizeof(Fabric)) == 0)
        p = mmap(nullptr, sizeof(Fabric), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
    if (p != MAP_FAILED) {
        madvise(p, sizeof(Fabric), MADV_DONTDUMP);
        auto &f = *static_cast<Fabric *>(p);
        if (is_new) {
            read_faults(f.faults, getenv("SD_FAKE_VERBS_FAULTS"));
            f.magic.store(kMagic, std::memory_order_release);
        }
    }
    flock(fd, LOCK_UN);
    close(fd);
    return p == MAP_FAILED ? nullptr : static_cast<Fabric *>(p);
}

} // namespace

uint32_t thread_id() noexcept {
    if (this_thread == 0)
        this_thread = static_cast<uint32_t>(syscall(SYS_gettid));
    return this_thread;
}

bool has_died(uint32_t thread) noexcept {
    const int saved = errno;
    char text[128] = "";
    snprintf(text, sizeof text, "/proc/%u/stat", thread);
    const int fd = open(text, O_RDONLY | O_CLOEXEC);
    const ssize_t n = fd < 0 ? 0 : read(fd, text, sizeof text - 1);
    if (fd >= 0)
        close(fd);
    text[n > 0 ? n : 0] = 0;
    const char *name = strrchr(text, ')');
    errno = saved;
    return fd < 0 || (name && (strncmp(name, ") Z", 3) == 0 || strncmp(name, ") X", 3) == 0));
}

const char *folder() noexcept { return directory; }

Fabric *fabric() noexcept {
    if (Fabric *f = mapped.load(std::memory_order_acquire))
        return f;
    static pthread_mutex_t once = PTHREAD_MUTEX_INITIALIZER;
    pthread_mutex_lock(&once);
    Fabric *f = mapped.load(std::memory_order_acquire);
    const char *where = getenv("SD_FAKE_VERBS");
    if (!f && where && *where && strlen(where) < sizeof directory) {
        strcpy(directory, where);
        f = map_fabric();
        if (f)
            pthread_atfork(nullptr, nullptr, [] { this_thread = 0; });
        mapped.store(f, std::memory_order_release);
    }
    pthread_mutex_unlock(&once);
    return f;
}

uint64_t now_ns() noexcept {
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return static_cast<uint64_t>(t.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(t.tv_nsec);
}

uint32_t draw(Fabric &f, uint32_t limit) noexcept {
    uint32_t n = (f.draws.fetch_add(1, std::memory_order_relaxed) + 1) * 2654435761u;
    n ^= n >> 15;
    n *= 2246822519u;
    n ^= n >> 13;
    return n % limit;
}

namespace {
void name_of(char (&name)[256], const char *kind, uint32_t index) noexcept {
    snprintf(name, sizeof name, "%s/%s.%u", directory, kind, index);
}
} // namespace

int open_file(const char *kind, uint32_t index) noexcept {
    char name[256];
    name_of(name, kind, index);
    return open(name, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
}

int open_pipe(const char *kind, uint32_t index, int flags) noexcept {
    char name[256];
    name_of(name, kind, index);
    if (mkfifo(name, 0600) != 0 && errno != EEXIST)
        return -1;
    return open(name, O_RDWR | O_CLOEXEC | flags);
}

void tell(const char *kind, uint32_t index, const void *what, size_t bytes) noexcept {
    const int saved = errno;
    char name[256];
    name_of(name, kind, index);
    const int fd = open(name, O_WRONLY | O_NONBLOCK | O_CLOEXEC);
    if (fd >= 0) {
        if (write(fd, what, bytes) != static_cast<ssize_t>(bytes))
            fprintf(stderr, "fake verbs: nobody reads %s\n", name);
        close(fd);
    }
    errno = saved;
}

bool alive(uint32_t context) noexcept {
    const int saved = errno, fd = open_file("context", context);
    if (fd < 0)
        return true;
    struct flock l {};
    l.l_type = F_WRLCK;
    l.l_whence = SEEK_SET;
    const bool held = fcntl(fd, F_OFD_GETLK, &l) == 0 && l.l_type != F_UNLCK;
    close(fd);
    errno = saved;
    return held;
}

} // namespace sd::fake_verbs
