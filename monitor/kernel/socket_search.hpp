// In whose hands a socket is: looking through the descriptor tables of all processes, in pieces.
#pragma once
#include <chrono>
#include <filesystem>
#include <optional>
#include <string>
#include <sys/types.h>

namespace sd::monitor {

enum class InHands {
    nobody,  ///< of no process
    unknown, ///< of none that we can see, but there are others
    library, ///< of processes that have libsd only
    stranger,
};

/// Looks at every descriptor of every process. How many there are is for the processes to choose, so it does
/// not go on for longer than it is told to. Keeps up to two descriptors meanwhile.
class SocketSearch {
  public:
    using Clock = std::chrono::steady_clock;

    explicit SocketSearch(ino_t inode);
    ino_t inode() const { return inode_; }
    /// Nothing: there is more to look at.
    std::optional<InHands> go_on(Clock::time_point until);

  private:
    bool go_through_descriptors(Clock::time_point until);
    ino_t inode_;
    std::string wanted_;
    std::filesystem::directory_iterator processes_, descriptors_;
    bool is_inside_ = false; ///< of a process, whose descriptors are gone through
    InHands result_ = InHands::nobody;
};

} // namespace sd::monitor
