// Mappings of the program's own.
#include "tests/pages/torture.hpp"

#include <csetjmp>
#include <csignal>
#include <initializer_list>
#include <sys/wait.h>

using namespace torture;

namespace {

constexpr int kReadWrite = PROT_READ | PROT_WRITE, kPrivate = MAP_PRIVATE | MAP_ANONYMOUS;

char *map(size_t length) {
    void *p = mmap(nullptr, length, kReadWrite, kPrivate, -1, 0);
    REQUIRE(p != MAP_FAILED && zero(p, length < 65536 ? length : 65536));
    return static_cast<char *>(p);
}

sigjmp_buf back;
void jump_back(int) { siglongjmp(back, 1); }

bool faults(volatile char *at) {
    signal(SIGSEGV, jump_back);
    if (sigsetjmp(back, 1))
        return true;
    (void)*at;
    return false;
}

} // namespace

TORTURE(large_mappings_are_the_devices) {
    char *p = map(kLarge);
    REQUIRE_OF_DEVICE(p);
    REQUIRE(munmap(p, kLarge) == 0);
    p = map(200001);
    REQUIRE_OF_DEVICE(p);
    REQUIRE(munmap(p, 200001) == 0);
    p = map(64 << 10);
    REQUIRE(!of_device(p));
    p = static_cast<char *>(mmap(nullptr, kLarge, PROT_NONE, kPrivate, -1, 0));
    REQUIRE(p != MAP_FAILED && !of_device(p));
    p = static_cast<char *>(mmap(nullptr, kLarge, kReadWrite, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
    REQUIRE(p != MAP_FAILED && !of_device(p));
}

TORTURE(discarded_memory_is_zero) {
    for (const int advice : {MADV_DONTNEED, MADV_FREE}) {
        char *p = map(8 * kLarge);
        fill(p, 8 * kLarge, 1);
        REQUIRE(madvise(p + kLarge, 2 * kLarge, advice) == 0);
        REQUIRE(holds(p, kLarge, 1));
        REQUIRE(advice == MADV_FREE || zero(p + kLarge, 2 * kLarge));
        REQUIRE(!zero(p + 3 * kLarge, kLarge));
        fill(p, 8 * kLarge, 2);
        REQUIRE(holds(p, 8 * kLarge, 2));
        errno = 0;
        REQUIRE(madvise(p + 1, kLarge, advice) == -1 && errno == EINVAL);
        // With a hole, and with other memory in it
        REQUIRE(munmap(p + kLarge, kPage) == 0);
        REQUIRE(mmap(p + 2 * kLarge, kPage, kReadWrite, kPrivate | MAP_FIXED, -1, 0) == p + 2 * kLarge);
        p[2 * kLarge] = 5;
        errno = 0;
        if (advice == MADV_DONTNEED) {
            REQUIRE(madvise(p, 8 * kLarge, advice) == -1 && errno == ENOMEM);
            REQUIRE(zero(p, kLarge) && zero(p + kLarge + kPage, 7 * kLarge - kPage));
        }
    }
}

TORTURE(parts_are_unmapped) {
    for (int round = 0; round < 300; ++round) {
        char *p = map(16 * kPage + kLarge);
        fill(p, 16 * kPage + kLarge, static_cast<uint64_t>(round));
        // As allocators do it to get an alignment: the head, then the tail
        REQUIRE(munmap(p, 4 * kPage) == 0);
        REQUIRE(munmap(p + kLarge + 4 * kPage, 12 * kPage) == 0);
        REQUIRE(faults(p) && faults(p + kLarge + 4 * kPage));
        REQUIRE(!faults(p + 4 * kPage) && !faults(p + kLarge + 4 * kPage - 1));
        if (round % 3 == 0) {
            REQUIRE(munmap(p + 100 * kPage, kPage) == 0);
            REQUIRE(faults(p + 100 * kPage) && !faults(p + 99 * kPage) && !faults(p + 101 * kPage));
        }
        REQUIRE(munmap(p + 4 * kPage, kLarge) == 0);
        REQUIRE(faults(p + 4 * kPage));
        REQUIRE(munmap(p, kLarge) == 0); // nothing is there: no error
    }
}

// More than there are places for mappings of that size.
TORTURE(places_are_used_again) {
    constexpr int kRounds = 5000;
    int ours = 0;
    for (int i = 0; i < kRounds; ++i) {
        void *p = mmap(nullptr, 300000, kReadWrite, kPrivate, -1, 0);
        REQUIRE(p != MAP_FAILED);
        ours += i >= kRounds - 100 && of_device(p);
        static_cast<char *>(p)[5] = 1;
        REQUIRE(munmap(p, 300000) == 0);
    }
    REQUIRE(device_there ? ours > 90 : ours == 0);
}

TORTURE(mappings_grow_and_shrink) {
    char *p = map(kLarge);
    fill(p, kLarge, 1);
    char *q = static_cast<char *>(mremap(p, kLarge, 4 * kLarge, MREMAP_MAYMOVE));
    REQUIRE(q != MAP_FAILED && holds(q, kLarge, 1) && zero(q + kLarge, 3 * kLarge));
    REQUIRE(q == p || faults(p));
    fill(q, 4 * kLarge, 2);
    p = static_cast<char *>(mremap(q, 4 * kLarge, 8 * kLarge, MREMAP_MAYMOVE));
    REQUIRE(p != MAP_FAILED && holds(p, 4 * kLarge, 2));
    REQUIRE(mremap(p, 8 * kLarge, kLarge, 0) == p && !faults(p + kLarge - 1) && faults(p + kLarge));

    p = map(2 * kLarge);
    fill(p, 2 * kLarge, 3);
    REQUIRE(mremap(p, 2 * kLarge, kLarge, 0) == p && holds(p, kLarge, 3) && faults(p + kLarge));
    q = static_cast<char *>(mremap(p, kLarge, 2 * kLarge, 0));
    REQUIRE(q == p || (q == MAP_FAILED && errno == ENOMEM));

    // To a place of the program's choice, over what is there
    p = map(2 * kLarge);
    fill(p, 2 * kLarge, 4);
    q = static_cast<char *>(mmap(nullptr, 4 * kLarge, PROT_NONE, kPrivate, -1, 0));
    REQUIRE(mremap(p, 2 * kLarge, 2 * kLarge, MREMAP_MAYMOVE | MREMAP_FIXED, q) == q);
    REQUIRE(holds(q, 2 * kLarge, 4) && faults(p) && faults(q + 2 * kLarge));
    fill(q, 2 * kLarge, 5);
    REQUIRE(madvise(q, kLarge, MADV_DONTNEED) == 0 && zero(q, kLarge) && !zero(q + kLarge, kLarge));

    // What is protected stays so
    p = map(kLarge);
    fill(p, kLarge, 6);
    REQUIRE(mprotect(p, kLarge, PROT_READ) == 0);
    p = static_cast<char *>(mremap(p, kLarge, 2 * kLarge, MREMAP_MAYMOVE));
    REQUIRE(p != MAP_FAILED && holds(p, kLarge, 6) && zero(p + kLarge, kLarge));
    const pid_t child = fork();
    if (child == 0) {
        signal(SIGSEGV, SIG_DFL);
        p[0] = 1;
        _exit(0);
    }
    int status = 0;
    REQUIRE(waitpid(child, &status, 0) == child && WIFSIGNALED(status));

    errno = 0;
    p = map(kLarge);
    REQUIRE(mremap(p, 0, kLarge, MREMAP_MAYMOVE) == MAP_FAILED && errno == EINVAL);
    errno = 0;
    REQUIRE(mremap(p + 1, kLarge, 2 * kLarge, MREMAP_MAYMOVE) == MAP_FAILED && errno == EINVAL);
}

TORTURE(others_are_mapped_over_it) {
    char *p = map(kLarge);
    fill(p, kLarge, 1);
    REQUIRE(mmap(p + 16 * kPage, 16 * kPage, kReadWrite, kPrivate | MAP_FIXED, -1, 0) == p + 16 * kPage);
    REQUIRE(zero(p + 16 * kPage, 16 * kPage) && !zero(p, kPage) && !zero(p + 32 * kPage, kPage));
    const int file = memfd_create("over", 0);
    REQUIRE(file >= 0 && write(file, "hello", 5) == 5);
    REQUIRE(mmap(p, kPage, PROT_READ, MAP_SHARED | MAP_FIXED, file, 0) == p && memcmp(p, "hello", 5) == 0);
    REQUIRE(munmap(p, kLarge) == 0 && faults(p));

    // Over a block: the next owner has ordinary memory all the same
    for (int i = 0; i < 20; ++i) {
        void *b = nullptr;
        REQUIRE(posix_memalign(&b, kPage, kLarge) == 0);
        memset(b, 9, kLarge);
        if (device_there)
            REQUIRE(mmap(b, kPage, PROT_READ, MAP_SHARED | MAP_FIXED, file, 0) == b);
        free(b);
    }
}

TORTURE(protection) {
    char *p = map(kLarge);
    fill(p, kLarge, 1);
    REQUIRE(mprotect(p + 8 * kPage, 8 * kPage, PROT_NONE) == 0);
    REQUIRE(faults(p + 8 * kPage) && !faults(p + 16 * kPage));
    REQUIRE(mprotect(p, kLarge, kReadWrite) == 0 && holds(p, kLarge, 1));
    // A compiler's output
    p[0] = static_cast<char>(0xc3); // ret
    REQUIRE(mprotect(p, kPage, PROT_READ | PROT_EXEC) == 0);
    reinterpret_cast<void (*)()>(p)();
    REQUIRE(mprotect(p, kPage, kReadWrite) == 0);
    p[0] = 1;
    REQUIRE(munmap(p, kLarge) == 0);
}

TORTURE(memory_is_wiped_in_a_child) {
    char *p = map(kLarge);
    fill(p, kLarge, 1);
    REQUIRE(madvise(p, kLarge, MADV_WIPEONFORK) == 0 && holds(p, kLarge, 1));
    const pid_t child = fork();
    if (child == 0)
        _exit(zero(p, kLarge) ? 0 : 1);
    int status = -1;
    REQUIRE(waitpid(child, &status, 0) == child && status == 0 && holds(p, kLarge, 1));
}

TORTURE(random_changes_are_those_of_a_model) {
    // Pages of one area: what each holds, or that it is not mapped. Byte 0 of a page tells.
    constexpr int kPages = 512;
    const char *said = getenv("PAGES_SEEDS");
    const uint64_t seeds = said ? strtoul(said, nullptr, 10) : 20;
    for (uint64_t seed = 1; seed <= seeds; ++seed) {
        Random random{seed};
        unsigned char model[kPages];
        bool mapped[kPages];
        char *p = map(kPages * kPage);
        for (int i = 0; i < kPages; ++i) {
            model[i] = 0;
            mapped[i] = true;
        }
        for (int step = 0; step < 300; ++step) {
            const int from = static_cast<int>(random.below(kPages));
            const int n =
                1 + static_cast<int>(random.below(static_cast<size_t>(kPages - from)) >> random.below(6));
            char *const at = p + static_cast<size_t>(from) * kPage;
            const size_t length = static_cast<size_t>(n) * kPage;
            const unsigned what = random() % 12;
            if (what == 0 && step > 100) {
                REQUIRE(munmap(at, length) == 0);
                for (int i = from; i < from + n; ++i)
                    mapped[i] = false;
            } else if (what == 1) {
                REQUIRE(mmap(at, length, kReadWrite, kPrivate | MAP_FIXED, -1, 0) == at);
                for (int i = from; i < from + n; ++i) {
                    mapped[i] = true;
                    model[i] = 0;
                }
            } else if (what <= 4) {
                bool hole = false;
                for (int i = from; i < from + n; ++i) {
                    hole = hole || !mapped[i];
                    model[i] = 0;
                }
                REQUIRE(madvise(at, length, MADV_DONTNEED) == (hole ? -1 : 0));
            } else {
                for (int i = from; i < from + n; ++i)
                    if (mapped[i])
                        p[static_cast<size_t>(i) * kPage] =
                            static_cast<char>(model[i] = static_cast<unsigned char>(step));
            }
            for (int i = 0; i < kPages; ++i)
                REQUIRE(!mapped[i] || static_cast<unsigned char>(p[static_cast<size_t>(i) * kPage]) == model[i]);
        }
        REQUIRE(munmap(p, kPages * kPage) == 0);
    }
}
