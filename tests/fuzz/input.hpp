// The bytes of one fuzzed run, taken piece by piece; what is not there is 0.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

namespace sdfuzz {

class Input {
  public:
    Input(const uint8_t *data, size_t size) : at_(data), left_(size) {}
    bool empty() const { return left_ == 0; }
    template <typename T> T take() {
        static_assert(std::is_trivially_copyable_v<T>);
        T value{};
        fill(&value, sizeof value);
        return value;
    }
    /// Fills `n` bytes; how many came from the input.
    size_t fill(void *to, size_t n) {
        const size_t got = n < left_ ? n : left_;
        std::memcpy(to, at_, got);
        std::memset(static_cast<char *>(to) + got, 0, n - got);
        at_ += got;
        left_ -= got;
        return got;
    }
    /// 0 to limit - 1.
    unsigned below(unsigned limit) { return take<uint8_t>() % limit; }
    /// Once in so many times; never once the input has ended.
    bool rarely(unsigned limit) { return below(limit) == limit - 1; }

  private:
    const uint8_t *at_;
    size_t left_;
};

} // namespace sdfuzz
