// Tells when a listening socket has been closed for good, without keeping it open.
#pragma once
#include "monitor/kernel/unique_fd.hpp"

#include <vector>

namespace sd::monitor {

/// An inotify watch on the socket's inode: the kernel queues IN_CLOSE when the last descriptor is closed,
/// before the address becomes free. So when somebody else listens there, what ended before is in the queue.
class ListenerWatch {
  public:
    ListenerWatch();
    /// For epoll; -1: this kernel has no such thing.
    int fd() const { return inotify_.get(); }
    /// A number for the socket, which may be closed afterwards; -1: it cannot be watched.
    [[nodiscard]] int add(int socket);
    /// Harmless for one that has ended.
    void remove(int watch);
    struct Ended {
        std::vector<int> watches;
        bool lost = false; ///< there were more than the kernel keeps
    };
    Ended take_ended();

  private:
    UniqueFd inotify_;
};

} // namespace sd::monitor
