// What handing over pages and copying are made of, measured with what the kernel has without the module.
#include "monitor/kernel/unique_fd.hpp"
#include "monitor/sdctl/calibrate.hpp"
#include "monitor/sdctl/measuring.hpp"

#include <algorithm>
#include <limits>
#include <linux/membarrier.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#endif

namespace sd::ctl {
namespace {

constexpr size_t kPages = kCall / kPage;
constexpr size_t kAround = 64 << 10; // the kernel's own
constexpr int kRounds = 12;

void least(double &to, double value) { to = std::min(to, value); }

/// Looks at a word of each page, or of one in so many.
void look(const char *at, size_t n, size_t step = kPage) {
    for (size_t i = 0; i < n; i += step) {
        (void)*static_cast<const volatile char *>(at + i);
    }
}
/// Writes a word of each page.
void mark(char *at, size_t n) {
    for (size_t i = 0; i < n; i += kPage) {
        *static_cast<volatile char *>(at + i) = 1;
    }
}

void measure_copies(Primitives &p, uint64_t most) {
    const Memory ring(kRing, MAP_SHARED | MAP_ANONYMOUS, -1), from(most, MAP_PRIVATE | MAP_ANONYMOUS, -1),
        to(most, MAP_PRIVATE | MAP_ANONYMOUS, -1);
    madvise(from.at(), most, MADV_NOHUGEPAGE); // which the module has none of
    madvise(to.at(), most, MADV_NOHUGEPAGE);
    memset(ring.at(), 1, kRing);
    memset(from.at(), 1, most);
    memset(to.at(), 1, most);
    for (uint64_t n = kPage; n <= most; n *= 2) {
        double cost = std::numeric_limits<double>::max();
        const auto times = static_cast<unsigned>(std::max<uint64_t>(1, (1 << 20) / n));
        for (int round = 0; round < kRounds; ++round) {
            least(cost, seconds_of([&] { copy_through(ring.at(), kRing, from.at(), to.at(), n); }, times));
        }
        const uint64_t pages = n / kPage;
        p.page_copy.push_back({n, cost / 2 / static_cast<double>(pages)});
    }
}

} // namespace

Primitives measure_primitives(uint64_t most) {
    constexpr double kNone = std::numeric_limits<double>::max();
    Primitives p{kNone, kNone, kNone, kNone, kNone, kNone, kNone, kNone, {}};
    const monitor::UniqueFd file(memfd_create("calibrate", MFD_CLOEXEC));
    if (!file || ftruncate(file.get(), kCall) != 0) {
        cannot_measure("memory");
    }
    const Memory shared(kCall, MAP_SHARED, file.get());
    memset(shared.at(), 1, kCall);
    syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED, 0, 0);
    std::atomic<uint64_t> word{0};
    for (int round = 0; round < kRounds; ++round) {
        int none = 0;
        least(p.call, seconds_of([&] { ioctl(file.get(), FIONREAD, &none); }, 200));
        least(p.flush, seconds_of([] { syscall(SYS_membarrier, MEMBARRIER_CMD_PRIVATE_EXPEDITED, 0, 0); }, 50));
        least(p.atomic, seconds_of([&] { word.fetch_add(1); }, 1000));
        least(p.unmap, seconds_of([&] { madvise(shared.at(), kCall, MADV_DONTNEED); }, 1) / kPages);
        // A fault of the kernel's own maps what is there of 64 KiB; then it is all there.
        least(p.map, seconds_of([&] { look(shared.at(), kCall, kAround); }, 1) / kPages);
        madvise(shared.at(), kCall, MADV_POPULATE_READ);
        least(p.object, seconds_of([] { close(eventfd(0, EFD_CLOEXEC)); }, 100));
        least(p.access, seconds_of([&] { look(shared.at(), kCall); }, 1) / kPages);
        const Memory own(kCall, MAP_PRIVATE, file.get());
        madvise(own.at(), kCall, MADV_POPULATE_READ);
        least(p.fault_copy, seconds_of([&] { mark(own.at(), kCall); }, 1) / kPages);
    }
    measure_copies(p, most);
    return p;
}

} // namespace sd::ctl
