// A bare single-producer single-consumer byte ring with the record format of libsd and nothing around it.
//
// A record is a header word (its size, or 0 for "nothing yet") and the bytes, padded to 8; it may wrap
// around. The producer clears the header behind a record before it publishes the record, so the consumer
// writes nothing but its credits. Longer messages are several records.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace sd::bench {

using RingWord = std::atomic<std::uint64_t>;

// The shape of a ring: its bytes, a power of two, and how many bytes of payload a record has at most.
struct AnyShape {
    std::size_t ring;
    std::size_t record;
};
template <std::size_t kRing> struct FixedShape {
    static constexpr std::size_t ring = kRing;
    static constexpr std::size_t record = kRing / 4;
};

// What producer and consumer know alike: where the ring is and how far they have got.
template <typename Shape> class RingEnd {
  public:
    RingEnd(RingWord *words, RingWord *credits, const Shape &shape)
        : words_(words), credits_(credits), shape_(shape) {}

  protected:
    RingWord &word(std::uint64_t position) { return words_[(position & (shape_.ring - 1)) / 8]; }
    char *byte(std::uint64_t position) {
        return reinterpret_cast<char *>(words_) + (position & (shape_.ring - 1));
    }
    [[nodiscard]] std::size_t until_wrap(std::uint64_t position) const {
        return shape_.ring - (position & (shape_.ring - 1));
    }
    static constexpr std::size_t padded(std::size_t size) { return (size + 7) & ~std::size_t{7}; }

    RingWord *words_;
    RingWord *credits_; // bytes consumed
    std::uint64_t position_ = 0;
    std::uint64_t credit_ = 0; // last read by the producer, last told by the consumer
    [[no_unique_address]] Shape shape_;
};

template <typename Shape> class Producer : public RingEnd<Shape> {
  public:
    using RingEnd<Shape>::RingEnd;
    // One record of the message; the bytes it took, 0 when there is no room.
    __attribute__((noinline)) std::size_t push(const char *data, std::size_t left) {
        const std::size_t size = left < this->shape_.record ? left : this->shape_.record;
        const std::size_t record = 8 + this->padded(size);
        if (this->position_ + record + 8 - this->credit_ > this->shape_.ring) {
            this->credit_ = this->credits_->load(std::memory_order_acquire);
            if (this->position_ + record + 8 - this->credit_ > this->shape_.ring) {
                return 0;
            }
        }
        const std::size_t first = this->until_wrap(this->position_ + 8);
        if (size <= first) {
            std::memcpy(this->byte(this->position_ + 8), data, size);
        } else {
            std::memcpy(this->byte(this->position_ + 8), data, first);
            std::memcpy(this->byte(0), data + first, size - first);
        }
        this->word(this->position_ + record).store(0, std::memory_order_relaxed);
        this->word(this->position_).store(size, std::memory_order_release);
        this->position_ += record;
        return size;
    }
};

template <typename Shape> class Consumer : public RingEnd<Shape> {
  public:
    using RingEnd<Shape>::RingEnd;
    // One record; its size, 0 when there is none.
    __attribute__((noinline)) std::size_t pop(char *data) {
        const std::size_t size = this->word(this->position_).load(std::memory_order_acquire);
        if (size == 0) {
            return 0;
        }
        const std::size_t first = this->until_wrap(this->position_ + 8);
        if (size <= first) {
            std::memcpy(data, this->byte(this->position_ + 8), size);
        } else {
            std::memcpy(data, this->byte(this->position_ + 8), first);
            std::memcpy(data + first, this->byte(0), size - first);
        }
        this->position_ += 8 + this->padded(size);
        if (this->position_ - this->credit_ >= this->shape_.ring / 8) {
            this->credit_ = this->position_;
            this->credits_->store(this->position_, std::memory_order_release);
        }
        return size;
    }
};

} // namespace sd::bench
