// How long a thread looks for the answer to what it has just sent, by what came of its looks before.
#pragma once
#include <cstdint>

namespace sd {

/// A peer that is asked again and again answers within a look, and one that has nothing to answer never does:
/// a server at part load would spend a quarter of its processor time on such looks. After some in vain in a
/// row most are cut to a few, until a whole one succeeds. One of each thread. What is done where a look has
/// succeeded is nothing: that is the way of the shortest round trips.
class AnswerHope {
  public:
    static constexpr unsigned kWhole = 256; ///< looks; one to five microseconds
    static constexpr unsigned kFew = 8;
    static constexpr unsigned kRow = 8;    ///< in vain, after which most are cut
    static constexpr unsigned kEvery = 16; ///< of those that is whole

    /// A look begins.
    void begin() noexcept { ++begun_; }
    /// How many looks this one is worth.
    [[nodiscard]] unsigned looks() const noexcept {
        return vain_ < kRow || vain_ % kEvery == 0 ? kWhole : kFew;
    }
    /// The one that began last found nothing.
    void in_vain() noexcept {
        vain_ = begun_ == last_vain_ + 1 ? vain_ + 1 : 1;
        last_vain_ = begun_;
    }

  private:
    uint32_t begun_ = 0, last_vain_ = 0; ///< numbers of looks
    uint32_t vain_ = 0;                  ///< in a row, up to the one numbered last_vain_
};

} // namespace sd
