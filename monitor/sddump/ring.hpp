// The area of a family segment into which a process copies, and the marks that have it do so.
#pragma once
#include "libsd/layout/capture_layout.hpp"
#include "monitor/kernel/unique_fd.hpp"
#include "monitor/sddump/packets.hpp"

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

namespace sd::dump {

/// A family segment, mapped. Throws where it is none, or of another version.
class SegmentMap {
  public:
    explicit SegmentMap(monitor::UniqueFd fd);
    SegmentMap(SegmentMap &&other) noexcept;
    SegmentMap &operator=(SegmentMap &&) = delete;
    ~SegmentMap();
    const SegmentView &view() const { return view_; }
    /// Not while the program is still about to make it.
    bool is_ready() const { return view_.header().magic != 0; }
    int fd() const { return fd_.get(); }

  private:
    monitor::UniqueFd fd_;
    SegmentView view_;
};

/// Which connections of a process.
struct Choice {
    bool all = false;
    uint32_t link = 0, slot = 0; ///< as in their ids
    std::optional<unsigned> side;
};

class Ring {
  public:
    /// Captures nothing yet. `proc`: the process's record in the segment. Throws Failure where another sddump
    /// has the segment.
    Ring(SegmentMap segment, unsigned proc, uint32_t bytes, uint32_t snap);
    Ring(Ring &&) = default;
    Ring &operator=(Ring &&) = delete;
    ~Ring(); ///< ends the capture

    /// From here on, marked connections of the process are copied. How many were marked.
    unsigned start(const Choice &choice);
    void stop();
    /// Gives each complete record to `take`, whose payload is valid during the call; false stops. `ns_of`:
    /// what a time stamp of the processor stands for. True: there was at least one.
    bool read(const std::function<uint64_t(uint64_t)> &ns_of, const std::function<bool(const Captured &)> &take);

    /// Why the process has ended the capture, or none.
    CaptureEnd ended() const;
    uint64_t dropped() const { return area().dropped.load(std::memory_order_relaxed); }
    uint64_t dropped_bytes() const { return area().dropped_bytes.load(std::memory_order_relaxed); }
    const SegmentMap &segment() const { return segment_; }

  private:
    CaptureArea &area() const { return capture_area(segment_.view()); }
    void copy_out(uint64_t at, void *to, size_t n) const;
    void clear(uint64_t at, size_t n) const;

    SegmentMap segment_;
    monitor::UniqueFd lock_; ///< a description of our own, whose lock ends with us
    unsigned proc_;
    uint32_t bytes_;
    bool is_started_ = false;
    std::string payload_;
};

} // namespace sd::dump
