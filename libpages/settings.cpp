#include "libpages/settings.hpp"

#include "libpages/device.hpp"
#include "libpages/next.hpp"
#include "libpages/window.hpp"

#include <cstdlib>
#include <cstring>

namespace sd::pages {

constinit std::atomic<size_t> least_block{kNever}, least_mapping{kNever};

namespace {

/// A number of bytes, in digits; `otherwise` if it is anything else.
size_t bytes_in(const char *text, size_t otherwise) noexcept {
    size_t n = 0;
    if (!text || !*text)
        return otherwise;
    for (; *text; ++text) {
        if (*text < '0' || *text > '9' || n > kNever / 16)
            return otherwise;
        n = n * 10 + static_cast<size_t>(*text - '0');
    }
    return n;
}

[[gnu::constructor]] void start() noexcept {
    const char *said = getenv("SD_ZERO_COPY");
    if (said && strcmp(said, "0") == 0)
        return;
    open_device();
    if (!in_window(window.load(std::memory_order_relaxed)))
        return;
    size_t least = bytes_in(getenv("SD_ZERO_COPY_FROM"), kDefaultLeast);
    if (least < kPage)
        least = kPage;
    least_mapping.store(least, std::memory_order_relaxed);
    if (serves_malloc())
        least_block.store(least, std::memory_order_relaxed);
}

} // namespace
} // namespace sd::pages
