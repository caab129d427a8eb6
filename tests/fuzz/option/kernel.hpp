// The kernel for the BPF programs of discovery, as far as they see it: sockets with storage, maps, and the
// options of a TCP header. `monitor_discovery_wire_test` gives the same headers to the real one.
#pragma once
#include "monitor/discovery/option_layout.h"
#include "tests/fuzz/option/find_option.hpp"

#include <array>
#include <cstdint>
#include <linux/bpf.h>
#include <map>
#include <memory>
#include <string>

namespace sdfuzz::kernel {

/// A map. A value lies in memory of its own, of just its size.
class Map {
  public:
    Map(size_t key, size_t value, size_t most) : key_(key), value_(value), most_(most) {}
    void *find(const void *key);
    void *find_network(const void *key); ///< by the longest prefix
    long put(const void *key, const void *value);
    long erase(const void *key);
    /// As a full LRU map does at any time.
    void forget_one(unsigned which);

  private:
    std::string name(const void *key) const { return {static_cast<const char *>(key), key_}; }
    size_t key_, value_, most_;
    std::map<std::string, std::unique_ptr<uint8_t[]>> values_;
};

/// One start of one host's monitor.
struct Host {
    std::array<uint64_t, 4> keys{};
    Map listeners{sizeof(sd_listener), 1, 8}, requests{sizeof(sd_request_key), sizeof(sd_request), 8};
    Map shy{sizeof(sd_destination), 8, 8}, networks{sizeof(sd_network), 1, 64}, counts{4, 8, SD_STATES};
};

struct Socket {
    bpf_sock seen{}; ///< first: it is what a program has of it
    std::unique_ptr<sd_end> end;
    uint32_t flags = 0;      ///< bpf_sock_ops_cb_flags
    bool others_use = false; ///< another program has set the flag for writing options
};

/// One call of a program for TCP events.
struct Call {
    bpf_sock_ops ops{}; ///< first
    Host *host = nullptr;
    Socket *socket = nullptr;      ///< null: there is a request only
    const Bytes *syn = nullptr;    ///< the options of the SYN that is answered
    const Bytes *packet = nullptr; ///< of what has come
    uint32_t room = 0;             ///< in the header that is made
    uint32_t reserved = 0;
    Bytes written;
};

/// Each input has the same times and random numbers.
void restart_clock();
void run_option_program(Call &call);
/// What setsockopt() of a program comes to: false for EPERM.
bool run_mark_program(Host &host, Socket &socket, bpf_sockopt &context);

} // namespace sdfuzz::kernel
