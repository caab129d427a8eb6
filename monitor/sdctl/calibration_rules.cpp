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

namespace {

/// Of a message of that size, or the next smaller one that was measured.
double page_copy(const Primitives &p, uint64_t bytes) {
    double cost = p.page_copy.empty() ? 0 : p.page_copy.front().page;
    for (const Primitives::Copy &copy : p.page_copy) {
        if (copy.bytes <= bytes) {
            cost = copy.page;
        }
    }
    return cost;
}

} // namespace

Predicted predicted(const Primitives &p, uint64_t bytes) {
    constexpr uint64_t kPage = 4096, kCall = 1 << 20;
    constexpr double kWords = 8; // that the module changes for each page, at both ends together
    const uint64_t whole_pages = bytes / kPage, whole_calls = (bytes + kCall - 1) / kCall;
    const auto pages = static_cast<double>(whole_pages), calls = static_cast<double>(whole_calls);
    Predicted out{};
    out.copy = pages * (2 * page_copy(p, bytes) + p.access);
    // Of a sender that does not touch them again no pages are mapped, but for that with the word. The
    // receiver's are unmapped, and those that come are mapped. Owners, references, stocks and counters are
    // words that other processors change as well.
    out.give = calls * 2 * (p.call + p.flush + p.object) +
               pages * (p.unmap + p.map + p.access + kWords * p.atomic) + p.fault_copy;
    out.rewritten = out.give + pages * (p.unmap + p.map + page_copy(p, bytes));
    return out;
}

} // namespace sd::ctl
