// Kernel TCP with a BPF sockmap: what one socket sends goes straight into the other's receive queue.
#pragma once

#include <cstdint>

namespace sd::bench {

// The map and its program for one connection. Made before the fork; each end then puts its own socket in.
// Needs CAP_BPF and CAP_NET_ADMIN.
class Sockmap {
  public:
    Sockmap() = default;
    // Loads the program: what is sent from `server_port` goes to the client's socket, everything else to the
    // server's.
    void load(std::uint16_t server_port);
    enum class End : std::uint32_t { client = 0, server = 1 };
    void insert(End end, int fd) const;
    // Whether both ends are in, which they have to be before the first byte. Meant to be asked again and
    // again.
    [[nodiscard]] bool complete() const;

  private:
    int map_ = -1;
    struct Shared;
    Shared *shared_ = nullptr;
};

} // namespace sd::bench
