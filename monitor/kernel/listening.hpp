// Whether a listening socket exists still, whoever has it: the kernel's socket table tells.
#pragma once
#include "libsd/layout/link_layout.hpp"
#include "monitor/records/directory.hpp"

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <sys/types.h>
#include <tuple>
#include <unordered_map>
#include <vector>

namespace sd::monitor {

struct Listening {
    bool known = false; ///< false: the table of its network namespace is not ours to see
    ino_t inode = 0;    ///< 0: it does not listen there
};

/// The table as it is when a port is first asked about: one look for all that listen there.
class ListeningSockets {
  public:
    Listening find(const ListenAddress &address, uint64_t cookie, uint64_t netns);
    /// All that would take a connection to this name; sockets of IPv6 count for both families. Nothing: the
    /// table is not ours to see. `inside`: a process of that namespace, where we look if it is not our own.
    std::optional<std::vector<ino_t>> taking(const SlotAddress &name, uint64_t netns, pid_t inside);

  private:
    struct Socket {
        std::array<uint8_t, 16> ip; ///< of an IPv4 address, the first four
        ino_t inode;
    };
    using ByCookie = std::unordered_map<uint64_t, Socket>;
    static std::optional<ByCookie> read(uint8_t family, uint16_t port, uint64_t netns, pid_t inside);
    const std::optional<ByCookie> &all(uint8_t family, uint16_t port, uint64_t netns, pid_t inside);
    std::map<std::tuple<uint64_t, uint8_t, uint16_t>, std::optional<ByCookie>> ports_;
};

/// Looks for the socket with this SO_COOKIE that listens at this address.
Listening look_up_listening(const ListenAddress &address, uint64_t cookie, uint64_t netns);

} // namespace sd::monitor
