// Records of a slot whose queue pair has ended, out of the memory of their sender's process and into that of
// their receiver's, which are on two hosts: each monitor has one of them.
//
// Both memories are their processes', which may change them meanwhile. Each header is read once, and nothing
// is reached outside of a ring.
#pragma once
#include "libsd/layout/fake_layout.hpp"
#include "monitor/peers/link_message.hpp"

#include <string>
#include <string_view>

namespace sd::monitor {

/// Where a record begins.
struct RingPlace {
    uint32_t cls = 0;
    uint64_t position = 0, base = 0;
};

struct RecordsRead {
    std::string bytes; ///< headers and payloads, as in the ring
    bool all = false;  ///< nothing follows them, as far as its sender has got
    bool sound = true; ///< false: what follows them is no record
};
/// Those that `sender` has written from there on, up to the one that makes them `most` bytes. What is held
/// back is among them, as if it was not.
RecordsRead read_records(LinkView view, uint32_t slot, unsigned sender, RingPlace from, size_t most);

/// What `side` has written about the slot, but for its records.
between_hosts::Words read_words(LinkView view, uint32_t slot, unsigned side);
/// What counts before the records do, and what counts after them.
void put_first_words(LinkView view, uint32_t slot, unsigned side, const between_hosts::Words &words);
void put_last_words(LinkView view, uint32_t slot, unsigned side, const between_hosts::Words &words);

/// Puts the pieces of records into the ring of `sender`, from `place` on. A record shows when it is whole.
class RecordsWriter {
  public:
    RecordsWriter(uint32_t slot, unsigned sender, const RingPlace &place)
        : slot_(slot), sender_(sender), place_(place) {}
    /// A multiple of 8 bytes. False: that is no record, or there is no room for it.
    [[nodiscard]] bool add(LinkView view, std::string_view bytes);
    /// Behind the last whole record.
    const RingPlace &place() const { return place_; }
    bool is_inside() const { return header_ != 0; }

  private:
    [[nodiscard]] bool begin(LinkView view, uint64_t header);
    uint32_t slot_;
    unsigned sender_;
    RingPlace place_;
    uint64_t header_ = 0; ///< of the record that is being put; 0: none is
    uint32_t done_ = 0;   ///< bytes of its payload
};

} // namespace sd::monitor
