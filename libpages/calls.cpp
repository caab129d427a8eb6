// What libsd calls in this library, to hand over what is sent from the device's memory.
#include "libpages/device.hpp"
#include "libpages/window.hpp"
#include "libsd/layout/page_calls.hpp"

namespace sd::pages {
namespace {

constinit PageCalls calls{kPageCallsVersion, sizeof(PageCalls), 0, kWindow, make_channel, call_end};

} // namespace
} // namespace sd::pages

extern "C" const sd::PageCalls *socksdirect_page_calls() noexcept {
    const uintptr_t from = sd::pages::window.load(std::memory_order_acquire);
    if (from == sd::pages::kNowhere)
        return nullptr;
    __atomic_store_n(&sd::pages::calls.window, from, __ATOMIC_RELAXED); // always the same
    return &sd::pages::calls;
}
