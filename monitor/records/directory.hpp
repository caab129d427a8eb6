// The directory of one network namespace: the read-only page in which clients find accelerated listeners.
#pragma once
#include "libsd/layout/directory_layout.hpp"
#include "monitor/kernel/shared_memory.hpp"

namespace sd::monitor {

struct ListenAddress {
    uint16_t port = 0; ///< host byte order
    uint8_t family = 0;
    bool v6only = false;
    uint8_t ip[16]{}; ///< v4-mapped for v4
};

class DirectoryFile {
  public:
    /// Throws std::system_error.
    explicit DirectoryFile(uint64_t epoch);

    /// Index of the entry, or -1 if the directory is full.
    [[nodiscard]] int insert(uint32_t id, const ListenAddress &address, uint64_t cookie, uint32_t backlog,
                             uint32_t owner);
    void remove(int index);
    void set_backlog(int index, uint32_t backlog);
    void monitor_gone();
    /// Clients that were refused ask anew.
    void bump_birth();
    /// libsd/layout/discovery_word.hpp
    void set_discovery(uint32_t word);
    int fd() const { return memfd_.get(); }

  private:
    Directory &directory() { return *reinterpret_cast<Directory *>(map_.base()); }
    UniqueFd memfd_;
    Mapping map_;
    unsigned live_ = 0;
};

} // namespace sd::monitor
