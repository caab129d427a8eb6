// Memory over fork, exec and the end of descriptors.
#include "tests/pages/torture.hpp"

#include <atomic>
#include <pthread.h>
#include <sys/syscall.h>
#include <sys/wait.h>

using namespace torture;

namespace {

/// Runs `body` in a child; its status has to be 0.
template <class F> void in_child(F body) {
    const pid_t child = fork();
    REQUIRE(child >= 0);
    if (child == 0) {
        body();
        fflush(stdout);
        _exit(0);
    }
    int status = -1;
    REQUIRE(waitpid(child, &status, 0) == child && status == 0);
}

std::atomic<bool> stop{false};

void *allocate_until_told(void *seed) {
    Random random{reinterpret_cast<uintptr_t>(seed)};
    while (!stop.load()) {
        const size_t size = 150000 + random.below(1 << 20);
        void *p = malloc(size);
        REQUIRE(p);
        fill(p, size, size);
        void *m = mmap(nullptr, 256 << 10, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        REQUIRE(m != MAP_FAILED);
        REQUIRE(holds(p, size, size));
        free(p);
        REQUIRE(munmap(m, 256 << 10) == 0);
    }
    return nullptr;
}

} // namespace

TORTURE(a_child_has_copies) {
    auto *p = static_cast<char *>(malloc(kLarge));
    auto *m =
        static_cast<char *>(mmap(nullptr, kLarge, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    REQUIRE_OF_DEVICE(m);
    fill(p, kLarge, 1);
    fill(m, kLarge, 2);
    in_child([=] {
        REQUIRE(holds(p, kLarge, 1) && holds(m, kLarge, 2));
        fill(p, kLarge, 3);
        fill(m, kLarge, 4);
        REQUIRE(holds(p, kLarge, 3) && holds(m, kLarge, 4));
        in_child([=] {
            REQUIRE(holds(p, kLarge, 3) && holds(m, kLarge, 4));
            free(p);
            void *q = malloc(kLarge);
            memset(q, 5, kLarge);
            free(q);
        });
        REQUIRE(holds(p, kLarge, 3));
        free(p);
        REQUIRE(munmap(m, kLarge) == 0);
        REQUIRE(malloc(2 * kLarge));
    });
    REQUIRE(holds(p, kLarge, 1) && holds(m, kLarge, 2));
    free(p);
}

TORTURE(forks_while_threads_allocate) {
    pthread_t threads[3];
    for (uintptr_t i = 0; i < 3; ++i)
        REQUIRE(pthread_create(&threads[i], nullptr, allocate_until_told, reinterpret_cast<void *>(i + 1)) == 0);
    for (int i = 0; i < 60; ++i)
        in_child([] {
            for (int n = 0; n < 20; ++n) {
                void *p = malloc(200000), *q = calloc(1, 400000);
                REQUIRE(p && q && zero(q, 400000));
                fill(p, 200000, 1);
                REQUIRE(holds(p, 200000, 1));
                free(p);
                free(q);
            }
        });
    stop.store(true);
    for (pthread_t t : threads)
        pthread_join(t, nullptr);
}

// As daemons do it at their start.
TORTURE(the_program_closes_what_it_does_not_know) {
    auto *p = static_cast<char *>(malloc(kLarge));
    auto *m =
        static_cast<char *>(mmap(nullptr, kLarge, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    fill(p, kLarge, 1);
    fill(m, kLarge, 2);
    for (int fd = 3; fd < 5000; ++fd)
        close(fd);
    REQUIRE(holds(p, kLarge, 1) && holds(m, kLarge, 2));
    REQUIRE(madvise(m, kLarge / 2, MADV_DONTNEED) == 0);
    REQUIRE(zero(m, kLarge / 2) && m[kLarge / 2] == [] {
        static char other[kLarge];
        fill(other, kLarge, 2);
        return other[kLarge / 2];
    }());
    free(p);
    p = static_cast<char *>(malloc(3 * kLarge));
    fill(p, 3 * kLarge, 3);
    REQUIRE(holds(p, 3 * kLarge, 3));
    free(p);
    REQUIRE(munmap(m, kLarge) == 0);
}

TORTURE(exec_starts_anew) {
    void *p = malloc(kLarge);
    fill(p, kLarge, 1);
    in_child([] {
        execl("/proc/self/exe", "pages_torture", "large_blocks_are_the_devices", static_cast<char *>(nullptr));
        _exit(1);
    });
    REQUIRE(holds(p, kLarge, 1));
}

TORTURE(descriptors_have_the_numbers_they_would_have) {
    void *p = malloc(kLarge),
         *q = mmap(nullptr, kLarge, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    REQUIRE(p && q != MAP_FAILED);
    const int first = dup(0), second = dup(0);
    REQUIRE(first >= 0 && second == first + 1);
    close(first);
    REQUIRE(dup(0) == first);
}
