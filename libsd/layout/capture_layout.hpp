// Where a process copies what it sends and receives for sddump: a ring at the end of the family segment, and
// some words in the segment's first page.
//
// sddump gets the segment's descriptor from the kernel, which lets it have one (pidfd_getfd) only if it may
// trace the process. It prepares the area, marks the Ofds, and then says so in SegmentHeader::capture. The
// marks (kTxCapture, kCaptureLowat) send whoever sends or receives the long way round, where it is copied;
// without them nothing here is looked at. Only threads of the process that was chosen copy, though others may
// have the Ofd as well.
//
// The ring has many writers and one reader. A writer reserves by moving `tail`, fills the record, and stores
// its first word last. The reader zeroes what it has read before it moves `head`, so that a first word of 0
// says: not complete yet. Where there is no room the record is counted as dropped: nobody waits.
//
// The process ends the capture itself, before an exec or a change of credentials, by clearing
// SegmentHeader::capture; so does a writer that finds no room and a reader that has not looked for a while.
// Who then finds a mark takes it away. The content is untrusted to both: positions are masked, lengths are
// checked.
#pragma once
#include "libsd/layout/segment_layout.hpp"

namespace sd {

constexpr uint32_t kCaptureMinRing = 4096, kCaptureMaxRing = 16u << 20; ///< both powers of two

/// SegmentHeader::capture
enum class CaptureMode : uint32_t {
    off = 0,
    marked = 1, ///< what is marked
    newborn = 2 ///< also connections that the process makes from now on
};

enum class CaptureEnd : uint32_t { none = 0, exec = 1, credentials = 2, abandoned = 3 };

/// Reader's time stamps older than this (cpu::cycles(), 2 to 10 s): there is no reader any more.
constexpr uint64_t kCaptureAbandoned = 10'000'000'000;

struct CaptureArea {
    // Of sddump, before it sets SegmentHeader::capture
    uint32_t proc;                          ///< ProcRecord of the process that was chosen
    uint32_t ring_size;                     ///< bytes, a power of two
    uint32_t snap;                          ///< of each record at most so many bytes are kept
    std::atomic<uint32_t> ended;            ///< CaptureEnd: who cleared SegmentHeader::capture, and why
    std::atomic<uint64_t> looked;           ///< when the reader has looked last, cpu::cycles()
    alignas(64) std::atomic<uint64_t> tail; ///< positions count bytes, and do not go back
    alignas(64) std::atomic<uint64_t> head; ///< of the reader
    alignas(64) std::atomic<uint64_t> dropped, dropped_bytes; ///< records for which there was no room
};
constexpr size_t kCaptureAreaOffset = 3072;
static_assert(sizeof(SegmentHeader) <= kCaptureAreaOffset);
static_assert(kCaptureAreaOffset + sizeof(CaptureArea) <= 4096 && kCaptureMaxRing == kSegCaptureBytes);

enum class CaptureKind : uint8_t {
    data = 1,
    urgent = 2, ///< data, of which the last byte is urgent
    fin = 3,
    reset = 4,
    born = 5, ///< a connection that the capture saw from its beginning
};

struct CaptureRecord {
    std::atomic<uint64_t> first; ///< 0: not complete; else bytes of the record, a multiple of 8
    uint64_t when;               ///< cpu::cycles()
    uint64_t position;           ///< bytes of this direction before it
    uint64_t other;              ///< bytes of the other direction then; a hint
    uint64_t link;
    uint32_t slot;
    uint32_t length, kept; ///< payload, and how much of it follows
    CaptureKind kind;
    uint8_t side;     ///< of the process: 0 client, 1 server
    uint8_t received; ///< 0: the process sent it
    uint8_t pad;
    SlotAddress client, server;
};
static_assert(sizeof(CaptureRecord) == 96 && sizeof(CaptureRecord) % 8 == 0);

/// Takes the marks off an Ofd. Whoever finds them without a capture, and sddump at its end; at any time.
inline void unmark_captured(Ofd &o) noexcept {
    int32_t low = o.rcvlowat.load(std::memory_order_relaxed);
    while (low != kMovedLowat && (low & kCaptureLowat) != 0 &&
           !o.rcvlowat.compare_exchange_weak(low, low & ~kCaptureLowat, std::memory_order_relaxed)) {
    }
    o.tx_block.fetch_and(~uint32_t{kTxCapture}, std::memory_order_relaxed);
}

inline CaptureArea &capture_area(const SegmentView &v) {
    return *reinterpret_cast<CaptureArea *>(v.base + kCaptureAreaOffset);
}
inline uint8_t *capture_ring(const SegmentView &v) { return v.base + kSegCaptureOffset; }

} // namespace sd
