// The other side of link_fuzz's link: what an honest peer does, or one that is not, and who writes anywhere.
#pragma once
#include "libsd/queue/cork.hpp"
#include "tests/fuzz/input.hpp"
#include "tests/fuzz/process.hpp"

#include <array>
#include <condition_variable>
#include <mutex>
#include <thread>

namespace sdfuzz {

using namespace sd;

/// The side that is not to be trusted: it knows how an honest one would go on, and does so or not.
struct Peer {
    LinkMap *link;
    unsigned side;
    uint32_t slot;
    TxState tx{};
    RxState rx{};

    Slot &words() const { return link->view.slot(slot); }
    void speak(Input &in) {
        Slot &s = words();
        const ring::Place place{s.ring[side]};
        const auto &receiver = s.side[1 - side].credit;
        static const std::array<char, 512> data{};
        auto &back = s.side[side].control.back;
        const uint32_t n = 1 + in.below(255) * 2;
        (void)ring::refresh_credit(tx, s.side[1 - side].credit.consumed);
        if (place.settle(tx.cls) < 0) {
            return;
        }
        switch (in.below(8)) {
        case 0:
            if (const unsigned cls = 1 + in.below(kRingClasses - 1);
                cls > tx.cls && ring::may_grow(tx) && provide_ring(*link, slot, cls)) {
                (void)ring::change_class(tx, place, cls);
            }
            break;
        case 1:
            if (!ring::is_corked(back, receiver) && ring::room(tx) >= 8 + ring::pad8(n) && n <= kInlineRing &&
                ring::copy_in(tx, place, data.data(), n) == 0) {
                ring::cork(tx, place, back, receiver, n, in.below(2) != 0 ? 1 : sys::now_ns(), 0);
            }
            break;
        case 2:
            (void)ring::uncork(tx, place, back, receiver);
            break;
        case 3:
            if (ring::room(tx) >= 16) {
                s.side[side].control.oob = tx.tail << 9 | 'u' << 1 | 1;
                ring::put_urgent(tx, place, 'u');
            }
            break;
        default:
            if (ring::room(tx) >= 8 + ring::pad8(n) && n <= data.size()) {
                (void)ring::put(tx, place, data.data(), n);
            }
        }
    }
    void listen(Input &in) {
        Slot &s = words();
        const ring::Place place{s.ring[1 - side]};
        auto &consumed = s.side[side].credit.consumed;
        if (place.settle(rx.cls) < 0) {
            return;
        }
        for (unsigned n = in.below(16); n > 0; --n) {
            ring::Record r{};
            const int got = ring::next_record(rx, place, consumed, &r);
            if (got == ring::kUrgentNext) {
                ring::skip_urgent(rx);
            } else if (got == 1 || got == ring::kHandleNext) {
                (void)ring::skip(rx, r, r.length);
            } else {
                return;
            }
            consumed = ring::read_up_to(rx);
        }
    }
    /// Hands bytes over that lie in its pool, or nowhere.
    void hand_over(Input &in) {
        Slot &s = words();
        const ring::Place place{s.ring[side]};
        (void)ring::refresh_credit(tx, s.side[1 - side].credit.consumed);
        if (in.below(4) == 0) {
            s.side[side].credit.pool = in.below(3); // it announces one
        }
        if (place.settle(tx.cls) < 0 || ring::room(tx) < ring::kHandleFootprint) {
            return;
        }
        const uint64_t offset = in.below(4) != 0 ? uint64_t{in.take<uint8_t>()} << 6 : in.take<uint16_t>();
        const uint64_t buffer = in.below(8) != 0 ? in.below(4) : in.take<uint16_t>();
        const ring::HandleRecord where{1 + in.below(3), offset | buffer << ring::kHandleOffsetBits};
        ring::put_handle(tx, place, where, 1 + in.take<uint16_t>() % (in.below(2) != 0 ? 512 : ring::kMaxHandle));
    }
    /// Ends, in any of the ways there are.
    void end(Input &in) { words().side[side].control.flags.fetch_or(in.take<uint8_t>() & 63); }
};

/// Any word of the link that a connection, its waiters or an acceptor look at.
inline void scribble(Input &in, const LinkView &v) {
    const uint32_t slot = kFirstSlot + in.below(2);
    uint64_t value = 0;
    switch (in.below(6)) {
    case 0:
        break;
    case 1:
        value = ~uint64_t{0};
        break;
    case 2:
        value = in.take<uint8_t>();
        break;
    case 3: { // a header where it might belong
        const uint64_t at = uint64_t{in.below(255)} * 8;
        value = ring::make_header(static_cast<ring::RecordKind>(in.below(5)), in.take<uint16_t>(), at);
        break;
    }
    default:
        value = in.take<uint64_t>();
    }
    switch (in.below(10)) {
    case 0: {
        auto *words = reinterpret_cast<std::atomic<uint64_t> *>(&v.header().side[in.below(2)]);
        words[in.below(sizeof(LinkHeader::Side) / 8)] = value;
        break;
    }
    case 1:
        v.header().bell_generation[in.below(2)][in.below(kDoorbells)] = static_cast<uint32_t>(value);
        break;
    case 2:
        v.syn(in.below(kSynUsed)) = static_cast<uint32_t>(value);
        break;
    case 3: {
        const unsigned side = in.below(2), bell = in.below(8);
        (in.below(2) != 0 ? v.ready_summary(side, bell) : v.ready_word(side, bell, in.below(2))) = value;
        break;
    }
    case 4:
        v.piece(slot, in.below(2), 1 + in.below(kRingClasses - 1)) = static_cast<uint32_t>(value);
        break;
    case 5: { // the words of either side
        auto *words = reinterpret_cast<std::atomic<uint64_t> *>(&v.slot(slot).side[in.below(2)]);
        words[in.below(sizeof(SlotSide) / 8)] = value;
        break;
    }
    default: {
        auto *words = reinterpret_cast<std::atomic<uint64_t> *>(&v.slot(slot));
        words[in.take<uint8_t>() % (sizeof(Slot) / 8)] = value;
    }
    }
}

/// The second thread. It begins and ends with a run; what it writes follows from the seed, but not when.
class Scribbler {
  public:
    explicit Scribbler(LinkView v) : view_(v), thread_([this] { work(); }) { thread_.detach(); }
    void begin(uint64_t seed) {
        const std::lock_guard g(mutex_);
        seed_ = seed | 1;
        on_.store(true);
        wake_.notify_one();
    }
    void end() {
        on_.store(false);
        const std::lock_guard g(mutex_); // it holds it while it writes
    }

  private:
    void work() {
        std::unique_lock lock(mutex_);
        for (;;) {
            wake_.wait(lock, [this] { return on_.load(); });
            uint64_t x = seed_;
            while (on_.load()) {
                std::array<uint64_t, 64> bytes;
                for (uint64_t &b : bytes) {
                    x ^= x << 13;
                    x ^= x >> 7;
                    x ^= x << 17;
                    b = x;
                }
                Input in(reinterpret_cast<const uint8_t *>(bytes.data()), sizeof bytes);
                while (!in.empty() && on_.load()) {
                    scribble(in, view_);
                }
            }
        }
    }
    LinkView view_;
    std::mutex mutex_;
    std::condition_variable wake_;
    std::atomic<bool> on_{false};
    uint64_t seed_ = 1;
    std::thread thread_;
};

} // namespace sdfuzz
