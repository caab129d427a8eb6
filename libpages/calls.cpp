// What libsd calls in this library, to hand over what is sent from the device's memory.
#include "libpages/device.hpp"
#include "libpages/window.hpp"
#include "libsd/layout/page_calls.hpp"

namespace sd::pages {
namespace {

constinit PageCalls calls{
    kPageCallsVersion, sizeof(PageCalls), 0, kWindow, make_channel, call_end, 1, 0, 0, 0, leave_device};

} // namespace
} // namespace sd::pages

extern "C" const sd::PageCalls *socksdirect_page_calls() noexcept {
    const uintptr_t from = sd::pages::window.load(std::memory_order_acquire);
    if (from == sd::pages::kNowhere)
        return nullptr;
    // The window is always the same; what the module says changes when somebody measures.
    auto &calls = sd::pages::calls;
    auto &module = sd::pages::module;
    __atomic_store_n(&calls.window, from, __ATOMIC_RELAXED);
    __atomic_store_n(&calls.module_version, module.version.load(std::memory_order_relaxed), __ATOMIC_RELAXED);
    __atomic_store_n(&calls.least_give, module.least_give.load(std::memory_order_relaxed), __ATOMIC_RELAXED);
    __atomic_store_n(&calls.least_copy, module.least_copy.load(std::memory_order_relaxed), __ATOMIC_RELAXED);
    return &calls;
}
