// include/socksdirect/buffers.h for C++: what is held is given back by itself, and errors are thrown as
// std::system_error. Nothing here needs more than the C interface.
#ifndef SOCKSDIRECT_BUFFERS_HPP
#define SOCKSDIRECT_BUFFERS_HPP

#include "buffers.h"

#include <cerrno>
#include <cstddef>
#include <system_error>
#include <utility>

namespace socksdirect {

/// Bytes that were received; empty at the end of the stream, and where nothing was to be had without waiting.
class View {
  public:
    View() = default;
    View(View &&other) noexcept : view_(std::exchange(other.view_, sd_view{})) {}
    View &operator=(View &&other) noexcept {
        std::swap(view_, other.view_);
        return *this;
    }
    ~View() { release(); }
    void release() noexcept {
        if (view_.size != 0)
            sd_view_release(&view_);
    }

    const std::byte *data() const noexcept { return static_cast<const std::byte *>(view_.data); }
    std::size_t size() const noexcept { return view_.size; }
    bool empty() const noexcept { return view_.size == 0; }
    bool is_in_place() const noexcept { return view_.is_in_place != 0; }

  private:
    friend class Buffers;
    sd_view view_{};
};

class Buffer {
  public:
    Buffer() = default;
    explicit Buffer(sd_buffer *buffer) noexcept : buffer_(buffer) {}
    Buffer(Buffer &&other) noexcept : buffer_(std::exchange(other.buffer_, nullptr)) {}
    Buffer &operator=(Buffer &&other) noexcept {
        std::swap(buffer_, other.buffer_);
        return *this;
    }
    ~Buffer() { sd_buffer_put(buffer_); }

    std::byte *data() const noexcept { return static_cast<std::byte *>(sd_buffer_data(buffer_)); }
    std::size_t size() const noexcept { return sd_buffer_size(buffer_); }
    bool is_pooled() const noexcept { return sd_buffer_is_pooled(buffer_) != 0; }
    bool is_read() const noexcept { return sd_buffer_is_read(buffer_) != 0; }
    explicit operator bool() const noexcept { return buffer_ != nullptr; }
    /// A part of it, to be sent.
    sd_piece piece(std::size_t from, std::size_t bytes) const noexcept {
        return {data() + from, bytes, buffer_};
    }
    sd_piece piece() const noexcept { return piece(0, size()); }

  private:
    sd_buffer *buffer_ = nullptr;
};

/// One end of a connection. Buffers and views may outlive it.
class Buffers {
  public:
    explicit Buffers(int fd, std::size_t quota = 0) : buffers_(sd_buffers_open(fd, quota)) {
        if (buffers_ == nullptr)
            fail("sd_buffers_open");
    }
    ~Buffers() { sd_buffers_close(buffers_); }
    Buffers(const Buffers &) = delete;
    Buffers &operator=(const Buffers &) = delete;

    Buffer get(std::size_t size, int timeout_ms = -1) {
        sd_buffer *buffer = sd_buffers_get(buffers_, size, timeout_ms);
        if (buffer == nullptr)
            fail("sd_buffers_get");
        return Buffer(buffer);
    }
    /// As sd_buffers_send(); 0: not without waiting.
    std::size_t send(const sd_piece *pieces, std::size_t count, int flags = 0) {
        return moved(sd_buffers_send(buffers_, pieces, count, flags), "sd_buffers_send");
    }
    template <std::size_t N> std::size_t send(const sd_piece (&pieces)[N], int flags = 0) {
        return send(pieces, N, flags);
    }
    View receive(std::size_t most, int flags = 0, void *spare = nullptr, std::size_t spare_size = 0) {
        View view;
        moved(sd_buffers_recv(buffers_, most, flags, spare, spare_size, &view.view_), "sd_buffers_recv");
        return view;
    }
    sd_buffers_counts counts() const {
        sd_buffers_counts counts;
        sd_buffers_count(buffers_, &counts);
        return counts;
    }

  private:
    [[noreturn]] static void fail(const char *what) {
        throw std::system_error(errno, std::generic_category(), what);
    }
    static std::size_t moved(ssize_t result, const char *what) {
        if (result < 0 && errno != EAGAIN && errno != EWOULDBLOCK)
            fail(what);
        return result < 0 ? 0 : static_cast<std::size_t>(result);
    }
    sd_buffers *buffers_;
};

} // namespace socksdirect

#endif
