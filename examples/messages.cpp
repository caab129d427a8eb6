// Cap'n Proto messages that are built in buffers, and read where they lie.
//
// A segment of a message is a buffer. On the wire a message is a table (the number of segments, and the words
// of each) and the segments behind it. The receiver makes a reader over the views of the segments: nothing of
// the message is ever copied.
#include "both_ends.hpp"
#include "reading.capnp.h"

#include <algorithm>
#include <capnp/message.h>
#include <capnp/serialize.h>
#include <cstring>
#include <vector>

namespace {

constexpr size_t kWord = sizeof(capnp::word);
constexpr uint32_t kMostSegments = 64;

/// Builds a message in buffers of a connection.
class BufferMessageBuilder : public capnp::MessageBuilder {
  public:
    BufferMessageBuilder(socksdirect::Buffers &buffers, size_t first_segment)
        : buffers_(buffers), next_(first_segment) {}
    kj::ArrayPtr<capnp::word> allocateSegment(capnp::uint least) override {
        const size_t bytes = std::max(next_, least * kWord) / kWord * kWord;
        segments_.push_back(buffers_.get(bytes));
        const socksdirect::Buffer &buffer = segments_.back();
        std::memset(buffer.data(), 0, bytes); // as Cap'n Proto expects it
        return {reinterpret_cast<capnp::word *>(buffer.data()), bytes / kWord};
    }
    void send() {
        const auto used = getSegmentsForOutput();
        std::vector<uint32_t> table{static_cast<uint32_t>(used.size())};
        std::vector<sd_piece> pieces(1);
        for (size_t i = 0; i < used.size(); ++i) {
            table.push_back(static_cast<uint32_t>(used[i].size()));
            pieces.push_back(segments_[i].piece(0, used[i].size() * kWord));
        }
        pieces[0] = {table.data(), table.size() * sizeof table[0], nullptr};
        buffers_.send(pieces.data(), pieces.size());
    }

  private:
    socksdirect::Buffers &buffers_;
    const size_t next_;
    std::vector<socksdirect::Buffer> segments_;
};

/// A message that has been received; false at the end of the stream.
class ReceivedMessage {
  public:
    bool receive(socksdirect::Buffers &buffers) {
        uint32_t count = 0, words[kMostSegments];
        if (!take(buffers, &count, sizeof count) || count == 0 || count > kMostSegments ||
            !take(buffers, words, count * sizeof words[0]))
            return false;
        for (uint32_t i = 0; i < count; ++i) {
            views_.push_back(buffers.receive(words[i] * kWord, MSG_WAITALL));
            if (views_.back().size() != words[i] * kWord)
                return false;
            segments_.push_back({reinterpret_cast<const capnp::word *>(views_.back().data()), words[i]});
        }
        return true;
    }
    kj::ArrayPtr<const kj::ArrayPtr<const capnp::word>> segments() const {
        return {segments_.data(), segments_.size()};
    }

  private:
    static bool take(socksdirect::Buffers &buffers, void *to, size_t size) {
        const socksdirect::View view = buffers.receive(size, MSG_WAITALL, to, size);
        if (view.size() != size)
            return false;
        if (view.data() != to)
            std::memcpy(to, view.data(), size);
        return true;
    }
    std::vector<socksdirect::View> views_;
    std::vector<kj::ArrayPtr<const capnp::word>> segments_;
};

constexpr int kMessages = 40;
constexpr size_t kImage = 1'500'000;
size_t samples_of(int i) { return 1000 + static_cast<size_t>(i) * 1000; }

void send_messages(example::Listener &listener) {
    const int fd = listener.accept();
    socksdirect::Buffers buffers(fd);
    for (int i = 0; i < kMessages; ++i) {
        BufferMessageBuilder message(buffers, 256u << 10); // larger ones take several segments
        auto reading = message.initRoot<Reading>();
        reading.setName("reading " + std::to_string(i));
        auto samples = reading.initSamples(static_cast<capnp::uint>(samples_of(i)));
        for (capnp::uint k = 0; k < samples.size(); ++k)
            samples.set(k, i + k * 0.5);
        auto image = reading.initImage(kImage);
        std::memset(image.begin(), 'a' + i % 26, image.size());
        message.send();
    }
}

void receive_messages(example::Listener &listener) {
    const int fd = listener.connect();
    socksdirect::Buffers buffers(fd);
    int messages = 0, wrong = 0;
    for (;; ++messages) {
        ReceivedMessage received;
        if (!received.receive(buffers))
            break;
        capnp::SegmentArrayMessageReader message(received.segments());
        const auto reading = message.getRoot<Reading>();
        const auto samples = reading.getSamples();
        const auto image = reading.getImage();
        bool right = std::string(reading.getName().cStr()) == "reading " + std::to_string(messages) &&
                     samples.size() == samples_of(messages) && image.size() == kImage;
        for (capnp::uint k = 0; right && k < samples.size(); ++k)
            right = samples[k] == messages + k * 0.5;
        right = right &&
                std::all_of(image.begin(), image.end(), [&](kj::byte b) { return b == 'a' + messages % 26; });
        wrong += !right;
    }
    std::printf("%d messages, %d wrong\n", messages, wrong);
    example::show_counts(buffers);
    if (messages != kMessages || wrong != 0)
        std::exit(1);
}

} // namespace

int main() { return example::run(send_messages, receive_messages); }
