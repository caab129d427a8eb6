// Copies for sddump; see capture.hpp.
#include "libsd/vfs/streams/capture.hpp"
#include "libsd/control/sys.hpp"
#include "libsd/cpu/copy.hpp"
#include "libsd/cpu/instructions.hpp"
#include "libsd/queue/ring.hpp"

namespace sd {

namespace {

/// Others may be changing it: it is read once.
template <class Word> Word now_of(const Word &word) noexcept {
    return *const_cast<const volatile Word *>(&word);
}

/// Where a record's bytes lie; two pieces where the ring they are in wraps.
struct Payload {
    const uint8_t *piece[2];
    uint32_t length[2];
};

Payload payload_at(const ring::Place &place, uint32_t cls, uint64_t offset, uint32_t n) noexcept {
    const uint8_t *from = place.at(cls);
    if (!from)
        return {};
    const uint32_t size = kRingSize[cls], at = static_cast<uint32_t>(offset) & (size - 1), first = size - at;
    if (n <= first)
        return {{from + at, nullptr}, {n, 0}};
    return {{from + at, from}, {first, n - first}};
}

/// The capture's ring as this process has it mapped, for one record.
class Writer {
  public:
    /// False: nothing is to be written, because the capture is over, or is another process's.
    bool begin(const File &f) noexcept {
        const MappedSegment &m = segments[f.seg];
        if (m.view.header().capture.load(std::memory_order_acquire) == 0) {
            unmark_captured(*f.ofd);
            return false;
        }
        area_ = &capture_area(m.view);
        ring_ = capture_ring(m.view);
        size_ = now_of(area_->ring_size);
        return area_->proc == m.proc && size_ >= kCaptureMinRing && size_ <= kCaptureMaxRing &&
               (size_ & (size_ - 1)) == 0;
    }
    uint32_t snap() const noexcept { return now_of(area_->snap); }

    /// Room for `bytes`; false: there is none.
    bool reserve(uint32_t bytes) noexcept {
        at_ = area_->tail.load(std::memory_order_relaxed);
        for (;;) {
            const uint64_t used = at_ - area_->head.load(std::memory_order_acquire);
            const bool room = used <= size_ && bytes <= size_ - used;
            if (room && area_->tail.compare_exchange_weak(at_, at_ + bytes, std::memory_order_relaxed))
                return true;
            // The reader may be past what was the tail a moment ago.
            const uint64_t now = area_->tail.load(std::memory_order_relaxed);
            if (!room && now == at_)
                return false;
            at_ = now;
        }
    }
    void put(uint32_t offset, const void *from, uint32_t n) const noexcept {
        const uint32_t at = static_cast<uint32_t>(at_ + offset) & (size_ - 1);
        const uint32_t first = n < size_ - at ? n : size_ - at;
        if (sd_copy(ring_ + at, from, first) == 0 && first < n)
            (void)sd_copy(ring_, static_cast<const uint8_t *>(from) + first, n - first);
    }
    void publish(uint32_t bytes) const noexcept {
        ring::word(ring_, at_ & (size_ - 8)).store(bytes, std::memory_order_release);
    }
    void drop(const File &f, uint32_t n, uint64_t now) noexcept {
        area_->dropped.fetch_add(1, std::memory_order_relaxed);
        area_->dropped_bytes.fetch_add(n, std::memory_order_relaxed);
        const uint64_t looked = area_->looked.load(std::memory_order_relaxed);
        if (now > looked && now - looked > kCaptureAbandoned) { // nobody reads any more
            area_->ended.store(static_cast<uint32_t>(CaptureEnd::abandoned), std::memory_order_relaxed);
            segments[f.seg].view.header().capture.store(0, std::memory_order_release);
            unmark_captured(*f.ofd);
        }
    }

  private:
    CaptureArea *area_ = nullptr;
    uint8_t *ring_ = nullptr;
    uint32_t size_ = 0;
    uint64_t at_ = 0;
};

struct What {
    CaptureKind kind;
    bool received;
    uint64_t position;
    uint32_t length;
    Payload payload;
};

void write(const File &f, const What &what) noexcept {
    Writer w;
    if (!w.begin(f))
        return;
    const Ofd &o = *f.ofd;
    const uint32_t snap = w.snap(), kept = what.length < snap ? what.length : snap;
    const uint32_t bytes = static_cast<uint32_t>(sizeof(CaptureRecord) + ring::pad8(kept));
    const uint64_t now = cpu::cycles();
    if (!w.reserve(bytes)) {
        w.drop(f, what.length, now);
        return;
    }
    CaptureRecord record{};
    record.when = now;
    record.position = what.position;
    record.other = now_of(what.received ? o.tx.s.bytes : o.rx.s.bytes);
    record.link = o.link_id; // the link itself may be gone, for who has no token
    record.slot = o.slot;
    record.length = what.length;
    record.kept = kept;
    record.kind = what.kind;
    record.side = o.side;
    record.received = what.received;
    record.client = f.stream.client;
    record.server = f.stream.server;
    // All but the first word, which stays 0 until everything is there.
    w.put(8, reinterpret_cast<const uint8_t *>(&record) + 8, sizeof record - 8);
    uint32_t offset = sizeof record;
    for (unsigned i = 0; i < 2; ++i) {
        const uint32_t left = static_cast<uint32_t>(sizeof record) + kept - offset;
        const uint32_t n = what.payload.length[i] < left ? what.payload.length[i] : left;
        if (n != 0)
            w.put(offset, what.payload.piece[i], n);
        offset += n;
    }
    w.publish(bytes);
}

} // namespace

void capture_sending(const File &f, uint32_t n) noexcept {
    const TxState &s = f.ofd->tx.s;
    write(f, {CaptureKind::data, false, s.bytes, n, payload_at(f.tx_place, s.cls, s.tail - s.base + 8, n)});
}

void capture_urgent(const File &f, unsigned char byte) noexcept {
    write(f, {CaptureKind::urgent, false, f.ofd->tx.s.bytes, 1, {{&byte, nullptr}, {1, 0}}});
}

void capture_received(const File &f, uint64_t from, uint32_t n, bool urgent) noexcept {
    const RxState &s = f.ofd->rx.s;
    const CaptureKind kind = urgent ? CaptureKind::urgent : CaptureKind::data;
    write(f, {kind, true, s.bytes - n, n, payload_at(f.rx_place, s.cls, from, n)});
}

void capture_handed(const File &f, const uint8_t *from, uint32_t n) noexcept {
    write(f, {CaptureKind::data, true, f.ofd->rx.s.bytes - n, n, {{from, nullptr}, {n, 0}}});
}

void capture_end(const File &f, bool received, CaptureKind kind) noexcept {
    const Ofd &o = *f.ofd;
    write(f, {kind, received, now_of(received ? o.rx.s.bytes : o.tx.s.bytes), 0, {}});
}

void capture_close(const File &f, uint32_t flags) noexcept {
    const uint32_t theirs = f.peer->control.flags.load(std::memory_order_acquire);
    if ((flags & kFlagReset) != 0) {
        capture_end(f, false, CaptureKind::reset);
        return;
    }
    if ((theirs & kFlagWriteShut) != 0)
        capture_end(f, true, CaptureKind::fin);
    if ((flags & kFlagWriteShut) != 0)
        capture_end(f, false, CaptureKind::fin);
}

void capture_newborn(const SegmentView &v, uint32_t proc, Ofd &o) noexcept {
    if (v.header().capture.load(std::memory_order_acquire) != static_cast<uint32_t>(CaptureMode::newborn) ||
        capture_area(v).proc != proc)
        return;
    o.tx_block.store(kTxCapture, std::memory_order_relaxed);
    o.rcvlowat.store(kCaptureLowat | 1, std::memory_order_relaxed);
}

void capture_born(const File &f) noexcept { write(f, {CaptureKind::born, false, 0, 0, {}}); }

void end_capture(CaptureEnd why) noexcept {
    const auto me = static_cast<uint32_t>(sys::getpid()); // a vfork's child has its parent's memory
    for (uint32_t i = 0, n = segment_count.load(std::memory_order_acquire); i < n; ++i) {
        const MappedSegment &m = segments[i];
        if (m.fd < 0 || m.proc >= kSegProcs || m.view.header().capture.load(std::memory_order_acquire) == 0)
            continue;
        CaptureArea &area = capture_area(m.view);
        if (area.proc != m.proc || m.view.proc(m.proc).pid.load(std::memory_order_relaxed) != me)
            continue;
        area.ended.store(static_cast<uint32_t>(why), std::memory_order_relaxed);
        m.view.header().capture.store(0, std::memory_order_release);
    }
}

} // namespace sd
