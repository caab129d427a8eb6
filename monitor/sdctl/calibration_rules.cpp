// What follows from what was measured.
#include "monitor/sdctl/calibrate.hpp"

#include <algorithm>

namespace sd::ctl {

uint64_t crossing(const std::vector<Costs> &costs, double Costs::*copied, double Costs::*paged) {
    constexpr double kClearly = 0.95; // what is about the same is copied: pages cost others something, too
    uint64_t from = kNeverPays;
    for (auto it = costs.rbegin(); it != costs.rend() && (*it).*paged < (*it).*copied * kClearly; ++it) {
        from = it->bytes;
    }
    return from;
}

Predicted predicted(const Primitives &p, uint64_t bytes) {
    constexpr uint64_t kPage = 4096, kCall = 1 << 20;
    const uint64_t whole_pages = bytes / kPage, whole_calls = (bytes + kCall - 1) / kCall;
    const auto pages = static_cast<double>(whole_pages), calls = static_cast<double>(whole_calls);
    Predicted out{};
    out.copy = pages * (2 * p.page_copy + p.access);
    // The sender's pages are unmapped, then the receiver's; those that come are mapped.
    out.give = calls * 2 * (p.call + p.flush) + pages * (2 * p.unmap + p.map + p.access) + p.fault_copy;
    out.rewritten = out.give + pages * p.fault_copy;
    return out;
}

} // namespace sd::ctl
