// Records of a capture as TCP packets: what was sent and received, as if it had gone over a wire.
//
// Sequence numbers are positions: a direction's first byte has number 1. A connection that was seen from its
// beginning gets a handshake, which says in a comment that there was none. What was dropped is a gap.
#pragma once
#include "libsd/layout/capture_layout.hpp"
#include "monitor/sddump/pcapng.hpp"

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>

namespace sd::dump {

/// A record as it was read from the ring, with the time that it stands for.
struct Captured {
    uint64_t ns = 0;
    uint64_t position = 0, other = 0, link = 0;
    uint32_t slot = 0, length = 0;
    CaptureKind kind = CaptureKind::data;
    uint8_t side = 0;
    bool received = false;
    SlotAddress client{}, server{};
    std::string_view payload; ///< what was kept of it
};

class Packets {
  public:
    explicit Packets(Pcapng &out) : out_(out) {}
    void add(const Captured &record);
    /// The process has ended, and with it what it had not ended before.
    void process_ended(uint64_t ns);
    uint64_t count() const { return count_; }
    uint64_t bytes() const { return bytes_; }

  private:
    struct Direction {
        uint64_t next = 0; ///< position behind what was seen
        bool is_ended = false;
    };
    struct Flow {
        SlotAddress client{}, server{};
        Direction way[2];   ///< from the client, from the server
        unsigned sides = 0; ///< bit per end that is captured
        bool is_begun = false, is_reset = false;
    };
    struct Segment {
        uint64_t ns;
        unsigned from; ///< 0: the client sends it
        uint64_t sequence;
        uint8_t flags;
        uint16_t urgent = 0;
        std::string_view payload{};
        size_t length = 0;
    };

    void begin(Flow &flow, const Captured &record);
    void data(Flow &flow, const Captured &record, unsigned from);
    void put(const Flow &flow, const Segment &segment, std::string_view comment);

    Pcapng &out_;
    std::map<std::pair<uint64_t, uint32_t>, Flow> flows_;
    uint64_t count_ = 0, bytes_ = 0;
    uint16_t id_ = 0;
};

} // namespace sd::dump
