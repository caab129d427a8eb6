// The device's memory becomes anonymous memory while threads use it in every way.
#include "libsd/layout/page_calls.hpp"
#include "tests/pages/torture.hpp"

#include <atomic>
#include <dlfcn.h>
#include <pthread.h>
#include <sys/wait.h>

using namespace torture;

namespace {

constexpr unsigned kThreads = 3;
std::atomic<bool> stop{false};
std::atomic<unsigned long> rounds[kThreads];

const sd::PageCalls *calls_of_pages() {
    const auto calls =
        reinterpret_cast<const sd::PageCalls *(*)()>(dlsym(RTLD_DEFAULT, "socksdirect_page_calls"));
    return calls ? calls() : nullptr;
}

/// Lines of a file under /proc/self, or names that links in a folder have, that speak of the device.
int speaks_of_device(const char *command) {
    char text[200];
    snprintf(text, sizeof text, command, static_cast<int>(getpid()));
    FILE *out = popen(text, "r");
    int n = -1;
    REQUIRE(out && fscanf(out, "%d", &n) == 1);
    pclose(out);
    return n;
}

void wait_for_rounds(unsigned long more) {
    for (auto &round : rounds)
        for (const unsigned long begun = round.load(); round.load() < begun + more;)
            usleep(1000);
}

/// Not what lies between: another thread may have it by now.
void unmap_both_sides(char *m) {
    REQUIRE(munmap(m, 16 * kPage) == 0 && munmap(m + 24 * kPage, 40 * kPage) == 0);
}

/// Memory that stays, to which it writes all the time, and memory that comes and goes.
void *uses_memory(void *argument) {
    const auto number = reinterpret_cast<uintptr_t>(argument);
    Random random{number + 1};
    constexpr size_t kStays = 40;
    auto *stays = static_cast<char *>(malloc(kStays * kPage));
    memset(stays, 0, kStays * kPage);
    for (unsigned long round = 1; !stop.load(); ++round) {
        for (size_t i = 0; i < kStays; ++i) {
            auto *word = reinterpret_cast<unsigned long *>(stays + i * kPage);
            REQUIRE(__atomic_load_n(word, __ATOMIC_RELAXED) == round - 1);
            __atomic_store_n(word, round, __ATOMIC_RELAXED);
        }
        const size_t size = 150000 + random.below(1 << 20);
        void *p = malloc(size);
        REQUIRE(p);
        fill(p, size, size);
        auto *m = static_cast<char *>(
            mmap(nullptr, 64 * kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
        REQUIRE(m != MAP_FAILED);
        fill(m, 64 * kPage, round);
        REQUIRE(munmap(m + 16 * kPage, 8 * kPage) == 0);
        REQUIRE(madvise(m + 32 * kPage, 8 * kPage, MADV_DONTNEED) == 0);
        REQUIRE(holds(p, size, size) && holds(m, 16 * kPage, round) && zero(m + 32 * kPage, 8 * kPage));
        REQUIRE(mprotect(m, 4 * kPage, PROT_READ) == 0 && holds(m, 16 * kPage, round));
        p = realloc(p, size + 300000);
        REQUIRE(p && holds(p, size, size));
        if (number == 0 && round % 4 == 0) {
            const pid_t child = fork();
            REQUIRE(child >= 0);
            if (child == 0) {
                REQUIRE(holds(p, size, size) && holds(m, 16 * kPage, round));
                memset(p, 1, size);
                memset(stays, 1, kStays * kPage);
                free(p);
                free(malloc(300000));
                unmap_both_sides(m);
                _exit(0);
            }
            int status = -1;
            REQUIRE(waitpid(child, &status, 0) == child && status == 0);
        }
        free(p);
        unmap_both_sides(m);
        rounds[number].store(round);
    }
    return nullptr;
}

} // namespace

TORTURE(memory_is_left_with_threads_running) {
    const sd::PageCalls *calls = calls_of_pages();
    // What is played has private memory, which is not looked for.
    if (!device_there || dlsym(RTLD_DEFAULT, "fake_device_owns"))
        return;
    REQUIRE(calls && calls->size >= sizeof(sd::PageCalls));
    auto *p = static_cast<char *>(malloc(5 << 20));
    auto *untouched =
        static_cast<char *>(mmap(nullptr, 64 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    auto *m =
        static_cast<char *>(mmap(nullptr, kLarge, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    fill(p, 5 << 20, 1);
    fill(m, kLarge, 2);
    REQUIRE_OF_DEVICE(p);
    REQUIRE_OF_DEVICE(m);
    REQUIRE(munmap(m + 20 * kPage, 3 * kPage) == 0);
    REQUIRE(mprotect(m + 40 * kPage, 5 * kPage, PROT_READ) == 0 &&
            mprotect(m + 50 * kPage, kPage, PROT_NONE) == 0);
    pthread_t thread[kThreads];
    for (uintptr_t i = 0; i < kThreads; ++i)
        REQUIRE(pthread_create(&thread[i], nullptr, uses_memory, reinterpret_cast<void *>(i)) == 0);
    wait_for_rounds(3);
    long left = -1;
    for (unsigned tries = 0; (left = calls->leave()) != 0 && tries < 200; ++tries)
        wait_for_rounds(1);
    REQUIRE(left == 0);
    wait_for_rounds(3);
    stop.store(true);
    for (auto &t : thread)
        REQUIRE(pthread_join(t, nullptr) == 0);
    REQUIRE(speaks_of_device("grep -c socksdirect-zerocopy /proc/%d/maps") == 0);
    REQUIRE(speaks_of_device("ls -l /proc/%d/fd | grep -c socksdirect-zerocopy") == 0);
    REQUIRE(holds(p, 5 << 20, 1) && holds(m, 20 * kPage, 2) && zero(untouched, 4096));
    REQUIRE(mprotect(m + 50 * kPage, kPage, PROT_READ) == 0);
    fill(p, 5 << 20, 3);
    REQUIRE(holds(p, 5 << 20, 3));
    free(p);
    void *later = malloc(kLarge);
    REQUIRE(later && !of_device(later));
    free(later);
    REQUIRE(munmap(m, 20 * kPage) == 0 && munmap(untouched, 64 << 20) == 0);
}
