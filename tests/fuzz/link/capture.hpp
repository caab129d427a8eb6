// What sddump does to a process that it looks at (libsd/layout/capture_layout.hpp), and what somebody could
// who writes over its words.
#pragma once
#include "libsd/cpu/instructions.hpp"
#include "libsd/vfs/streams/capture.hpp"
#include "tests/fuzz/input.hpp"
#include "tests/fuzz/process.hpp"

namespace sdfuzz {

using namespace sd;

class Capture {
  public:
    /// Of this connection, and in every other run of those that are made from now on.
    void begin(const File &f, bool newborn) {
        segment_ = f.seg;
        const MappedSegment &m = segments[segment_];
        CaptureArea &area = capture_area(m.view);
        memset(static_cast<void *>(&area), 0, sizeof area);
        area.proc = m.proc;
        area.ring_size = kCaptureMinRing;
        area.snap = 256;
        area.looked = cpu::cycles();
        m.view.header().capture = static_cast<uint32_t>(newborn ? CaptureMode::newborn : CaptureMode::marked);
        is_on_ = true;
        mark(f);
    }
    ~Capture() {
        if (is_on_) {
            const MappedSegment &m = segments[segment_];
            m.view.header().capture = 0;
            memset(capture_ring(m.view), 0, kCaptureMinRing * 2);
        }
    }
    Capture() = default;
    Capture(const Capture &) = delete;
    Capture &operator=(const Capture &) = delete;

    bool is_on() const { return is_on_; }
    void act(Input &in, const File *f) {
        const MappedSegment &m = segments[segment_];
        CaptureArea &area = capture_area(m.view);
        switch (in.below(8)) {
        case 0: // reads it all
        case 1:
        case 2:
            area.head = area.tail.load();
            area.looked = cpu::cycles();
            break;
        case 3: // has not looked for long
            area.looked = 1;
            break;
        case 4:
            area.ring_size = in.below(2) != 0 ? kCaptureMinRing << in.below(2) : in.take<uint32_t>();
            area.snap = in.take<uint16_t>();
            break;
        case 5:
            (in.below(2) != 0 ? area.tail : area.head) = in.take<uint64_t>();
            break;
        case 6:
            m.view.header().capture = in.below(3);
            area.proc = in.below(4) != 0 ? m.proc : in.take<uint32_t>();
            break;
        default:
            if (f != nullptr && f->kind == FileKind::stream && f->seg == segment_) {
                mark(*f);
            }
        }
    }

  private:
    static void mark(const File &f) {
        f.ofd->tx_block.fetch_or(kTxCapture);
        f.ofd->rcvlowat.fetch_or(kCaptureLowat);
    }
    unsigned segment_ = 0;
    bool is_on_ = false;
};

} // namespace sdfuzz
