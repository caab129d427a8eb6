// The byte ring: what is put in comes out, in every size and alignment, over ring changes, and rubbish is
// refused.
#include "tests/unit/direction.hpp"
#include <catch2/catch.hpp>
#include <random>
#include <thread>

using namespace sd;

TEST_CASE("a record comes out as it went in, and then the ring is empty") {
    Direction d;
    for (size_t n : {1u, 7u, 8u, 9u, 63u, 64u, 65u, 200u, 480u}) {
        auto in = pattern(n, static_cast<uint8_t>(n));
        REQUIRE(d.send(in));
        std::vector<uint8_t> out;
        REQUIRE(d.receive(out, 4096) == static_cast<long>(n));
        REQUIRE(out == in);
        REQUIRE(d.receive(out, 4096) == 0);
    }
}

TEST_CASE("a full ring takes nothing until credit returns") {
    Direction d;
    unsigned sent = 0;
    while (d.send(pattern(8, static_cast<uint8_t>(sent))))
        ++sent;
    REQUIRE(sent == (kInlineRing - 8) / 16);
    std::vector<uint8_t> out;
    REQUIRE(d.receive(out, 8) == 8);
    REQUIRE(d.send(pattern(8, 1)));
    REQUIRE_FALSE(d.send(pattern(8, 1)));
}

TEST_CASE("a partly read record is finished by later reads") {
    Direction d;
    auto in = pattern(100, 3);
    REQUIRE(d.send(in));
    std::vector<uint8_t> all, out;
    for (size_t n : {1u, 2u, 30u, 67u}) {
        REQUIRE(d.receive(out, n) == static_cast<long>(n));
        all.insert(all.end(), out.begin(), out.end());
    }
    REQUIRE(all == in);
    REQUIRE(d.receive(out, 1) == 0);
}

TEST_CASE("a change of ring keeps the order of what was sent before and after") {
    Direction d;
    REQUIRE(d.send(pattern(300, 1)));
    REQUIRE(ring::change_class(d.tx, d.place(), 1));
    REQUIRE(d.send(pattern(5000, 2)));
    REQUIRE(ring::change_class(d.tx, d.place(), 3));
    REQUIRE(d.send(pattern(60000, 3)));
    std::vector<uint8_t> out;
    REQUIRE(ring::available(d.rx, d.place(), 1 << 20) == 65300);
    REQUIRE(d.receive(out, 1 << 20) == 300);
    REQUIRE(out == pattern(300, 1));
    REQUIRE(d.receive(out, 1 << 20) == 5000);
    REQUIRE(out == pattern(5000, 2));
    REQUIRE(d.receive(out, 1 << 20) == 60000);
    REQUIRE(out == pattern(60000, 3));
    REQUIRE(ring::refresh_credit(d.tx, d.consumed));
    REQUIRE(d.tx.credit == d.tx.tail);
    REQUIRE(ring::change_class(d.tx, d.place(), 0));
    REQUIRE(d.send(pattern(8, 9)));
    REQUIRE(d.receive(out, 8) == 8);
    REQUIRE(out == pattern(8, 9));
}

TEST_CASE("random sizes in and out over many laps, two threads") {
    Direction d;
    REQUIRE(ring::change_class(d.tx, d.place(), 1));
    constexpr size_t total = 20u << 20;
    std::thread sender([&] {
        std::mt19937 r(1);
        size_t sent = 0;
        while (sent < total) {
            size_t n = std::min<size_t>(1 + r() % 3000, total - sent);
            std::vector<uint8_t> v(n);
            for (size_t i = 0; i < n; ++i)
                v[i] = static_cast<uint8_t>((sent + i) * 2654435761u >> 24);
            while (!d.send(v))
                std::this_thread::yield();
            sent += n;
        }
    });
    std::mt19937 r(2);
    size_t got = 0, wrong = 0;
    while (got < total) {
        std::vector<uint8_t> v;
        long n = d.receive(v, 1 + r() % 5000);
        REQUIRE(n >= 0);
        if (n == 0)
            std::this_thread::yield();
        for (long i = 0; i < n; ++i)
            wrong += v[static_cast<size_t>(i)] !=
                     static_cast<uint8_t>((got + static_cast<size_t>(i)) * 2654435761u >> 24);
        got += static_cast<size_t>(n);
    }
    sender.join();
    REQUIRE(wrong == 0);
}

TEST_CASE("rubbish in the ring is refused, whatever it says") {
    std::mt19937_64 r(7);
    Direction d;
    for (int i = 0; i < 20000; ++i) {
        d.rx = RxState{};
        auto &head = ring::word(d.place().inline_ring, 0);
        switch (i % 4) {
        case 0:
            head = r() | 1;
            break;
        case 1: // right check, impossible length
            head = ring::make_header(ring::RecordKind::data,
                                     static_cast<uint32_t>(kInlineRing - 8 + r() % 100000), 0);
            break;
        case 2: // change to a ring that does not exist, or to the same
            head = ring::make_header(ring::RecordKind::change,
                                     i % 8 == 2 ? 0 : static_cast<uint32_t>(kRingClasses + r() % 1000), 0);
            break;
        default:
            head = ring::make_header(static_cast<ring::RecordKind>(i % 8 == 3    ? 3
                                                                   : i % 16 == 7 ? 5
                                                                                 : 7 + r() % 9),
                                     8, 0);
        }
        std::vector<uint8_t> out;
        REQUIRE(d.receive(out, 100000) == -EPROTO);
        REQUIRE(ring::available(d.rx, d.place(), 100000) == -EPROTO);
    }
}

TEST_CASE("credit beyond what was sent, or going backwards, is refused") {
    Direction d;
    REQUIRE(d.send(pattern(8, 1)));
    d.consumed = 1000;
    REQUIRE_FALSE(ring::refresh_credit(d.tx, d.consumed));
    d.consumed = 16;
    REQUIRE(ring::refresh_credit(d.tx, d.consumed));
    d.consumed = 8;
    REQUIRE_FALSE(ring::refresh_credit(d.tx, d.consumed));
}

TEST_CASE("copies of every small size and alignment are exact") {
    uint8_t from[1200], to[1200];
    for (size_t i = 0; i < sizeof from; ++i)
        from[i] = static_cast<uint8_t>(i * 31 + 1);
    for (const unsigned char how : {0, 1, 2})
        for (size_t n = how ? 1000 : 0; n <= 1100; ++n)
            for (size_t shift : {0u, 1u, 5u}) {
                sd_copy_how = how;
                memset(to, 0, sizeof to);
                REQUIRE(sd_copy(to + shift, from + 2 * shift, n) == 0);
                REQUIRE(memcmp(to + shift, from + 2 * shift, n) == 0);
                REQUIRE(to[shift + n] == 0);
                REQUIRE((shift == 0 || to[shift - 1] == 0));
                if (how == 0) // it has asked the processor, for a large piece, and knows from then on
                    REQUIRE((sd_copy_how != 0) == (n >= 1024));
            }
}

TEST_CASE("a sender that dies between publishing and counting a record loses and repeats nothing") {
    for (bool published : {false, true}) {
        Direction d;
        REQUIRE(d.send(pattern(20, 1)));
        const TxState before = d.tx;
        if (published)
            REQUIRE(d.send(pattern(100, 2)));
        d.tx = before; // as if it had died just before the store to `tail`
        for (int again = 0; again < 2; ++again)
            ring::recover_tx(d.tx, d.place(), d.back);
        REQUIRE(d.send(pattern(30, 3)));
        std::vector<uint8_t> out;
        REQUIRE(d.receive(out, 500) == 20);
        if (published) {
            REQUIRE(d.receive(out, 500) == 100);
            REQUIRE(out == pattern(100, 2));
        }
        REQUIRE(d.receive(out, 500) == 30);
        REQUIRE(out == pattern(30, 3));
        REQUIRE(d.receive(out, 500) == 0);
    }
}

TEST_CASE("a sender that dies anywhere in a change of ring leaves it done or not begun") {
    // The stores of change_class(), in order: changing, header, base, cls, tail, changing.
    for (int done = 0; done <= 6; ++done) {
        Direction d;
        REQUIRE(d.send(pattern(20, 1)));
        TxState s = d.tx;
        const TxState before = s;
        REQUIRE(ring::change_class(s, d.place(), 2));
        const TxState after = s;
        if (done < 2)
            ring::word(d.place().at(0), before.tail).store(0);
        d.tx = before;
        if (done >= 1)
            d.tx.changing = 3;
        if (done >= 3)
            d.tx.base = after.base;
        if (done >= 4)
            d.tx.cls = after.cls;
        if (done >= 5)
            d.tx.tail = after.tail;
        if (done >= 6)
            d.tx.changing = 0;
        for (int again = 0; again < 2; ++again)
            ring::recover_tx(d.tx, d.place(), d.back);
        REQUIRE(d.tx.changing == 0);
        REQUIRE(d.tx.cls == (done < 2 ? 0 : 2));
        REQUIRE(d.tx.tail == (done < 2 ? before.tail : after.tail));
        REQUIRE(d.send(pattern(40, 2)));
        std::vector<uint8_t> out;
        REQUIRE(d.receive(out, 500) == 20);
        REQUIRE(d.receive(out, 500) == 40);
        REQUIRE(out == pattern(40, 2));
    }
}

TEST_CASE("positions that nobody can have written lead to no place between two records") {
    Direction d;
    d.tx.tail = kInlineRing - 3;
    d.rx.base = 5;
    REQUIRE_FALSE(ring::sound(d.tx));
    REQUIRE_FALSE(ring::sound(d.rx));
    ring::recover_tx(d.tx, d.place(), d.back);
    ring::recover_rx(d.rx, d.consumed);
    REQUIRE(d.tx.tail == kInlineRing - 8);
    REQUIRE(d.rx.base == 0);
    REQUIRE(ring::sound(d.tx));
    REQUIRE(ring::sound(d.rx));
    d.rx.part = ring::part_word(0, 0, 1); // of which nothing could be read, for ever
    REQUIRE_FALSE(ring::sound(d.rx));
    d.rx.part = ring::part_word(0, 2, 1);
    REQUIRE(ring::sound(d.rx));
}

TEST_CASE("a receiver that dies leaves each byte to be read once") {
    Direction d;
    REQUIRE(d.send(pattern(100, 1)));
    REQUIRE(d.send(pattern(50, 2)));
    std::vector<uint8_t> out;
    REQUIRE(d.receive(out, 30) == 30);
    d.consumed = 0; // it died before it told the sender
    ring::recover_rx(d.rx, d.consumed);
    REQUIRE(d.consumed == 38);
    REQUIRE(d.receive(out, 70) == 70);
    // It died between the store to `head` and the one that clears `part`
    d.rx.part = ring::part_word(0, 100, 30);
    ring::recover_rx(d.rx, d.consumed);
    REQUIRE(d.consumed == 8 + 104);
    REQUIRE(d.receive(out, 500) == 50);
    REQUIRE(out == pattern(50, 2));
    REQUIRE(d.rx.part == 0);
}

TEST_CASE("a receiver that dies anywhere in a change of ring leaves it done or not begun") {
    // The stores of next_record(), in order: changing, base, cls, head, changing.
    for (int done = 0; done <= 5; ++done) {
        Direction d;
        REQUIRE(d.send(pattern(20, 1)));
        REQUIRE(ring::change_class(d.tx, d.place(), 1));
        REQUIRE(d.send(pattern(40, 2)));
        std::vector<uint8_t> out;
        REQUIRE(d.receive(out, 500) == 20);
        const uint64_t head = d.rx.head;
        if (done >= 1)
            d.rx.changing = 2;
        if (done >= 2)
            d.rx.base = head + 8;
        if (done >= 3)
            d.rx.cls = 1;
        if (done >= 4)
            d.rx.head = head + 8;
        if (done >= 5)
            d.rx.changing = 0;
        for (int again = 0; again < 2; ++again)
            ring::recover_rx(d.rx, d.consumed);
        REQUIRE(d.rx.changing == 0);
        REQUIRE(d.receive(out, 500) == 40);
        REQUIRE(out == pattern(40, 2));
    }
}

TEST_CASE("padding between records is passed over, and counts as nothing") {
    Direction d;
    std::vector<uint8_t> out;
    for (uint8_t round = 0; round < 100; ++round) {
        if (ring::room(d.tx) < 200)
            REQUIRE(ring::refresh_credit(d.tx, d.consumed));
        const uint64_t before = d.tx.bytes;
        ring::publish(d.tx, d.place().inline_ring, kInlineRing - 1, ring::RecordKind::pad, (round % 3 + 1) * 8);
        d.tx.bytes = before;
        REQUIRE(d.receive(out, 100) == 0);
        REQUIRE(d.send(pattern(24, round)));
        REQUIRE(ring::available(d.rx, d.place(), 100) == 24);
        REQUIRE(d.receive(out, 100) == 24);
        REQUIRE(out == pattern(24, round));
    }
}
