// Sockets at whose other end is a client, or that a client has handed over.
#pragma once
#include "monitor/kernel/descriptor_kind.hpp"

namespace sd::monitor {

/// As UniqueFd, but for how it is closed.
template <void (*Close)(UniqueFd)> class ClosedBy {
  public:
    ClosedBy() = default;
    ClosedBy(UniqueFd fd) : fd_(std::move(fd)) {}
    ClosedBy(ClosedBy &&other) noexcept = default;
    ClosedBy &operator=(ClosedBy &&other) noexcept {
        reset();
        fd_ = std::move(other.fd_);
        return *this;
    }
    ~ClosedBy() { reset(); }

    void reset() {
        if (fd_) {
            Close(std::move(fd_));
        }
    }
    int get() const { return fd_.get(); }
    explicit operator bool() const { return static_cast<bool>(fd_); }

  private:
    UniqueFd fd_;
};

using ClientSocket = ClosedBy<close_client_socket>;
using ClientChannel = ClosedBy<close_channel>;

} // namespace sd::monitor
