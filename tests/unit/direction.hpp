// One direction of a connection in a link of the test's own, for the tests of the ring.
#pragma once

#include "libsd/queue/ring.hpp"
#include "libsd/transport/slots.hpp"

#include <catch2/catch.hpp>
#include <sys/mman.h>
#include <unistd.h>
#include <vector>

/// The client's side of a link that nobody else has.
inline sd::LinkMap &own_link() {
    static sd::LinkMap *link = [] {
        const int memfd = memfd_create("link", MFD_CLOEXEC | MFD_ALLOW_SEALING);
        REQUIRE(ftruncate(memfd, static_cast<off_t>(sd::kLinkBytes)) == 0);
        sd::LinkHeader h{};
        h.magic = sd::kLinkMagic;
        h.version = sd::kLayoutVersion;
        h.slots = sd::kLinkSlots;
        h.link_id = 1;
        h.side[1].arena_open = sd::kArenaBytes;
        REQUIRE(pwrite(memfd, &h, sizeof h, 0) == sizeof h);
        REQUIRE(fcntl(memfd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0);
        long error = 0;
        sd::LinkMap *l = sd::map_link(memfd, 1, 0, 0, sd::LinkPeer::own, &error);
        REQUIRE(l != nullptr);
        return l;
    }();
    return *link;
}

/// From client to server, over a slot of that link with rings of all classes.
struct Direction {
    uint32_t slot = 0;
    Direction() {
        const int64_t taken = sd::take_slot(own_link());
        REQUIRE(taken >= 0);
        slot = static_cast<uint32_t>(taken);
        for (unsigned cls = 1; cls < sd::kRingClasses; ++cls)
            REQUIRE(sd::provide_ring(own_link(), slot, cls));
    }
    ~Direction() { sd::give_slot_back(own_link(), slot); }
    Direction(const Direction &) = delete;
    Direction &operator=(const Direction &) = delete;
    sd::SlotSide::Credit receiver{};
    std::atomic<uint64_t> &consumed = receiver.consumed;
    sd::Corked back{};
    sd::TxState tx{};
    sd::RxState rx{};
    sd::ring::Place place() const { return {own_link().view.slot(slot).ring[0]}; }
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
