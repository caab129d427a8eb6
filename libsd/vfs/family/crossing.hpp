// Giving up rights: parting from what is shared with those who keep theirs.
#pragma once

namespace sd {

/// Does a thread give up rights just now (vfs::Crossing)? Links would be given to whom the process was: none
/// is asked for meanwhile, and no connection begins in shared memory. Any thread.
[[nodiscard]] bool crossing_under_way() noexcept;
/// The thread that does is not in the child.
void crossing_fork_child() noexcept;

namespace vfs {

/// The call by which the process becomes another trust domain's, for good. Its beginning parts the process
/// from what it shares with those who stay; where it cannot, that is counted (Cause::still_shared). Its end
/// comes when the call has returned. Any thread.
class Crossing {
  public:
    /// `is_one`: else nothing is done. `everything`: parts from connections that nobody else has, too.
    explicit Crossing(bool is_one, bool everything = false) noexcept;
    ~Crossing();
    Crossing(const Crossing &) = delete;
    Crossing &operator=(const Crossing &) = delete;

  private:
    bool parted_;
};

} // namespace vfs

} // namespace sd
