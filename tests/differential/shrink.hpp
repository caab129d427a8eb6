// Delta debugging: from a list that fails to a short list that still fails.
#pragma once

#include <cstddef>
#include <vector>

namespace sd::differential {

/// `fails` is asked about shorter and shorter lists, at most `budget` times; the result is the shortest that
/// failed. Removing any single item of it makes it pass (if the budget lasted).
template <class T, class Fails> std::vector<T> shrink(std::vector<T> items, Fails fails, int budget) {
    size_t chunk = items.size() / 2;
    while (chunk >= 1 && budget > 0) {
        bool shorter = false;
        // From the end: later items depend on earlier ones, not the other way round.
        for (size_t end = items.size(); end > 0 && budget > 0;) {
            const size_t begin = end > chunk ? end - chunk : 0;
            std::vector<T> rest;
            rest.reserve(items.size() - (end - begin));
            rest.insert(rest.end(), items.begin(), items.begin() + static_cast<std::ptrdiff_t>(begin));
            rest.insert(rest.end(), items.begin() + static_cast<std::ptrdiff_t>(end), items.end());
            --budget;
            if (fails(rest)) {
                items = std::move(rest);
                shorter = true;
            }
            end = begin;
        }
        if (!shorter || chunk > items.size()) {
            if (chunk == 1) {
                break;
            }
            chunk /= 2;
        }
    }
    return items;
}

} // namespace sd::differential
