// One direction of a connection in ordinary memory, for the tests of the ring.
#pragma once

#include "libsd/queue/ring.hpp"

#include <memory>
#include <vector>

struct Direction {
    std::unique_ptr<uint8_t[]> inline_ring{new uint8_t[sd::kInlineRing + 64]()};
    std::vector<uint8_t> region = std::vector<uint8_t>(sd::kRegionSize + 64);
    std::atomic<uint64_t> consumed{0};
    sd::HeldBack back{};
    sd::TxState tx{};
    sd::RxState rx{};
    sd::ring::Place place() {
        auto align = [](uint8_t *p) {
            return reinterpret_cast<uint8_t *>(sd::align_up(reinterpret_cast<uintptr_t>(p), 64));
        };
        return {align(inline_ring.get()), align(region.data())};
    }
    bool send(const std::vector<uint8_t> &v) {
        if (!sd::ring::refresh_credit(tx, consumed) || sd::ring::room(tx) < 8 + sd::ring::pad8(v.size()))
            return false;
        return sd::ring::put(tx, place(), v.data(), static_cast<uint32_t>(v.size())) == 0;
    }
    long receive(std::vector<uint8_t> &out, size_t n) {
        sd::ring::Record rec{};
        int r = sd::ring::next_record(rx, place(), consumed, &rec);
        if (r <= 0)
            return r;
        out.resize(n);
        long got = sd::ring::take(rx, place(), rec, out.data(), n);
        out.resize(static_cast<size_t>(got));
        consumed.store(sd::ring::read_up_to(rx), std::memory_order_release);
        return got;
    }
};

inline std::vector<uint8_t> pattern(size_t n, uint8_t seed) {
    std::vector<uint8_t> v(n);
    for (size_t i = 0; i < n; ++i)
        v[i] = static_cast<uint8_t>(seed + i * 7);
    return v;
}
