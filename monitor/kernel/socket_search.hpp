// In whose hands sockets are: looking through the descriptor tables of all processes, in pieces.
#pragma once
#include <chrono>
#include <filesystem>
#include <map>
#include <optional>
#include <sys/types.h>

namespace sd::monitor {

enum class InHands {
    nobody,  ///< of no process
    unknown, ///< of none that we can see, but there are others
    library, ///< of processes that have libsd only
    stranger,
};

/// Looks at every descriptor of every process, once for all that are asked about: with one look for each,
/// whoever has many on their way would have everybody else wait. How many descriptors there are is for the
/// processes to choose, so it does not go on for longer than it is told to. Keeps up to two descriptors
/// meanwhile.
class SocketSearch {
  public:
    using Clock = std::chrono::steady_clock;
    using Found = std::map<ino_t, InHands>;

    /// For the keys of `wanted`.
    explicit SocketSearch(Found wanted);
    bool looks_for(ino_t inode) const { return found_.count(inode) != 0; }
    /// Nothing: there is more to look at.
    std::optional<Found> go_on(Clock::time_point until);

  private:
    bool go_through_descriptors(Clock::time_point until);
    void found_at(InHands &result, pid_t pid);
    Found found_;
    std::filesystem::directory_iterator processes_, descriptors_;
    bool is_inside_ = false;           ///< of a process, whose descriptors are gone through
    std::optional<bool> is_strangers_; ///< that process, if something was found there
    bool all_seen_ = true;
};

} // namespace sd::monitor
