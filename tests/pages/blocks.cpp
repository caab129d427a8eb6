// Blocks of malloc.
#include "tests/pages/torture.hpp"

#include <atomic>
#include <csignal>
#include <dlfcn.h>
#include <initializer_list>
#include <malloc.h>
#include <pthread.h>
#include <sys/time.h>

using namespace torture;

TORTURE(large_blocks_are_the_devices) {
    void *p = nullptr;
    p = malloc(kLarge);
    REQUIRE_OF_DEVICE(p);
    REQUIRE(!device_there || reinterpret_cast<uintptr_t>(p) % kPage == 0);
    free(p);
    p = calloc(1024, 1024);
    REQUIRE_OF_DEVICE(p);
    free(p);
    p = memalign(65536, kLarge);
    REQUIRE_OF_DEVICE(p);
    free(p);
    p = aligned_alloc(4096, kLarge);
    REQUIRE_OF_DEVICE(p);
    free(p);
    REQUIRE(posix_memalign(&p, 64, kLarge) == 0);
    REQUIRE_OF_DEVICE(p);
    free(p);
    p = valloc(kLarge);
    REQUIRE_OF_DEVICE(p);
    free(p);
    p = realloc(nullptr, kLarge);
    REQUIRE_OF_DEVICE(p);
    free(p);
    p = new char[kLarge];
    REQUIRE_OF_DEVICE(p);
    delete[] static_cast<char *>(p);
}

TORTURE(small_blocks_are_not) {
    void *p = malloc(1000), *q = malloc(64 << 10);
    REQUIRE(!of_device(p) && !of_device(q));
    free(p);
    free(q);
    free(nullptr);
}

TORTURE(refusals_are_those_of_the_allocator) {
    volatile size_t huge = SIZE_MAX / 2, count = SIZE_MAX / 4;
    errno = 0;
    REQUIRE(malloc(huge) == nullptr && errno == ENOMEM);
    errno = 0;
    REQUIRE(calloc(count, 8) == nullptr && errno == ENOMEM);
    void *p = malloc(kLarge);
    fill(p, kLarge, 3);
    errno = 0;
    REQUIRE(realloc(p, huge) == nullptr && errno == ENOMEM && holds(p, kLarge, 3));
    errno = 0;
    REQUIRE(reallocarray(p, count, 8) == nullptr && errno == ENOMEM && holds(p, kLarge, 3));
    void *q = p;
    volatile size_t odd = 24;
    REQUIRE(posix_memalign(&q, odd, kLarge) == EINVAL && q == p);
    errno = 77;
    free(p);
    p = malloc(kLarge);
    free(p);
    REQUIRE(errno == 77);
}

TORTURE(memory_of_calloc_is_zero) {
    for (int round = 0; round < 20; ++round) {
        void *p = malloc(kLarge + static_cast<size_t>(round) * 10000);
        memset(p, 0xee, kLarge);
        free(p);
        p = calloc(1, kLarge + static_cast<size_t>(round) * 10000);
        REQUIRE(zero(p, kLarge + static_cast<size_t>(round) * 10000));
        memset(p, 0xdd, kLarge);
        free(p);
    }
}

TORTURE(alignment_is_kept) {
    for (size_t alignment = 16; alignment <= 16 << 20; alignment *= 2)
        for (size_t size : {size_t{200000}, kLarge, size_t{5} << 20}) {
            void *p = nullptr;
            REQUIRE(posix_memalign(&p, alignment, size) == 0);
            REQUIRE(reinterpret_cast<uintptr_t>(p) % alignment == 0);
            fill(p, size, alignment);
            REQUIRE(holds(p, size, alignment));
            free(p);
        }
}

TORTURE(usable_size_can_be_used) {
    for (size_t size = 100000; size < 3000000; size += 77777) {
        void *p = malloc(size);
        const size_t usable = malloc_usable_size(p);
        REQUIRE(usable >= size);
        memset(p, 1, usable);
        free(p);
    }
}

TORTURE(realloc_over_the_threshold_and_back) {
    Random random{5};
    void *p = nullptr;
    size_t size = 0;
    for (int i = 0; i < 3000; ++i) {
        const size_t wanted = random.below(4) ? random.below(400000) + 1 : random.below(8 << 20) + 1;
        void *q = realloc(p, wanted);
        REQUIRE(q);
        if (p) {
            // What was kept: the old pattern, as far as both reach
            const size_t both = size < wanted ? size : wanted;
            for (size_t at = 0; at + 8 <= both; at += 2040) {
                const uint64_t word = static_cast<uint64_t>(i - 1) * 0x9e3779b97f4a7c15u + at;
                REQUIRE(memcmp(static_cast<char *>(q) + at, &word, 8) == 0);
            }
        }
        p = q;
        size = wanted;
        fill(p, size, static_cast<uint64_t>(i));
    }
    REQUIRE(realloc(p, 0) == nullptr);
}

TORTURE(growing_step_by_step) {
    size_t size = 1;
    auto *p = static_cast<unsigned char *>(malloc(1));
    while (size < 32 << 20) {
        const size_t more = size + size / 8 + 1;
        p = static_cast<unsigned char *>(realloc(p, more));
        REQUIRE(p);
        for (size_t i = size; i < more; i += 509)
            p[i] = static_cast<unsigned char>(i * 7);
        size = more;
    }
    REQUIRE_OF_DEVICE(p);
    free(p);
}

TORTURE(more_blocks_than_there_can_be) {
    constexpr int kMany = 12000;
    static void *at[kMany];
    int ours = 0;
    for (int round = 0; round < 2; ++round) {
        for (int i = 0; i < kMany; ++i) {
            at[i] = malloc(140000);
            REQUIRE(at[i]);
            *static_cast<int *>(at[i]) = i;
        }
        for (int i = 0; i < kMany; i += 500)
            ours += of_device(at[i]);
        for (int i = 0; i < kMany; ++i) {
            REQUIRE(*static_cast<int *>(at[i]) == i);
            free(at[i]);
        }
        REQUIRE(ours == 0 ? !device_there : device_there && ours <= 2 * kMany / 500);
    }
}

TORTURE(protection_ends_with_the_block) {
    for (int i = 0; i < 50; ++i) {
        void *p = nullptr;
        REQUIRE(posix_memalign(&p, kPage, kLarge) == 0);
        memset(p, i, kLarge);
        if (device_there) // glibc would use it again as it is
            REQUIRE(mprotect(static_cast<char *>(p) + kPage, kPage, PROT_NONE) == 0);
        free(p);
    }
}

TORTURE(what_was_had_early_can_be_freed) {
    const auto early = reinterpret_cast<void *(*)()>(dlsym(RTLD_DEFAULT, "fake_device_early_block"));
    void *p = early ? early() : malloc(1 << 20);
    if (early)
        REQUIRE(!of_device(p) && static_cast<char *>(p)[12345] == 7);
    p = realloc(p, 3 << 20);
    REQUIRE(p && (!early || static_cast<char *>(p)[12345] == 7));
    free(p);
}

// Blocks that threads hand to each other.
namespace {

constexpr int kThreads = 4, kPlaces = 64;
std::atomic<void *> places[kPlaces];

size_t size_in(const void *at) {
    size_t size = 0;
    memcpy(&size, at, sizeof size);
    return size;
}

void check_and_free(void *at) {
    const size_t size = size_in(at);
    REQUIRE(holds(static_cast<char *>(at) + 16, size - 16, size));
    free(at);
}

void *trade(void *seed) {
    Random random{reinterpret_cast<uintptr_t>(seed) * 977 + 1};
    for (int i = 0; i < 4000; ++i) {
        const size_t size = 64 + (random.below(3) ? random.below(300000) : random.below(2 << 20));
        void *at = nullptr;
        switch (random.below(4)) {
        case 0:
            at = malloc(size);
            break;
        case 1:
            at = calloc(1, size);
            break;
        case 2:
            at = realloc(malloc(size / 2 + 1), size);
            break;
        default:
            REQUIRE(posix_memalign(&at, size_t{16} << random.below(12), size) == 0);
        }
        REQUIRE(at);
        memcpy(at, &size, sizeof size);
        fill(static_cast<char *>(at) + 16, size - 16, size);
        if (void *const other = places[random.below(kPlaces)].exchange(at))
            check_and_free(other);
    }
    return nullptr;
}

std::atomic<int> handled{0};

void allocate_in_handler(int) {
    const int saved = errno;
    void *p = malloc(300000);
    if (p) {
        fill(p, 300000, 9);
        if (!holds(p, 300000, 9))
            _exit(9);
        free(p);
    }
    handled.fetch_add(1);
    errno = saved;
}

} // namespace

TORTURE(threads_hand_blocks_to_each_other) {
    pthread_t threads[kThreads];
    for (uintptr_t i = 0; i < kThreads; ++i)
        REQUIRE(pthread_create(&threads[i], nullptr, trade, reinterpret_cast<void *>(i + 1)) == 0);
    for (pthread_t t : threads)
        pthread_join(t, nullptr);
    for (auto &place : places)
        if (void *const at = place.exchange(nullptr))
            check_and_free(at);
}

// Only large blocks: what the C library does in a handler is its own affair.
TORTURE(large_blocks_in_a_signal_handler) {
    if (!device_there)
        return;
    signal(SIGALRM, allocate_in_handler);
    const itimerval often{{0, 200}, {0, 200}};
    REQUIRE(setitimer(ITIMER_REAL, &often, nullptr) == 0);
    Random random{3};
    for (int i = 0; i < 20000 || handled.load() < 200; ++i) {
        const size_t size = 200000 + random.below(300000);
        void *p = malloc(size);
        REQUIRE(p);
        fill(p, 20000, static_cast<uint64_t>(i));
        REQUIRE(holds(p, 20000, static_cast<uint64_t>(i)));
        free(p);
    }
}
