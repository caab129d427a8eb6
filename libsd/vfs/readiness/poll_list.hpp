// The descriptors of one poll or select: its arrays, and the sockets it keeps open while it sleeps.
#pragma once
#include "libsd/vfs/descriptors/cleanup_stack.hpp"
#include "libsd/vfs/descriptors/file.hpp"
#include "libsd/vfs/readiness/sleep.hpp"
#include <poll.h>

namespace sd {

/// One call's descriptors. The arrays are the caller's, `n` long.
struct PollList {
    pollfd *all;    ///< events in, revents out
    File **file;    ///< ours, or nullptr
    pollfd *kernel; ///< room for the kernel's part, n + kWakers long
    LinkMap **link; ///< links of the connections kept open while we sleep
    uint32_t *from; ///< kernel[k] belongs to all[from[k]]
    enum class Keep : uint8_t {
        not_at_all,
        open,  ///< as a whole, not only its link
        spent, ///< the same, but what it had to say has been told, see look_anew()
    };
    Keep *keep;
    size_t n;
};

/// Keeps the sockets of a list open from the first sleep on, should another thread close one meanwhile, as
/// the kernel does. For one thread.
class PinnedList {
  public:
    explicit PinnedList(PollList &l) noexcept : l_(l) {}
    ~PinnedList() { end(); }
    PinnedList(const PinnedList &) = delete;
    PinnedList &operator=(const PinnedList &) = delete;

    /// Only the first one does anything. False: a number stands for something else than when the list was
    /// sorted, so that there is nothing of it to wait for. Of a list too long for that stack the links are
    /// kept mapped, nothing else: a handler that jumps out of the call must not leave connections that never
    /// end.
    [[nodiscard]] bool begin() noexcept;
    void end() noexcept;
    /// Puts the numbers under which the listeners are to be found by now into the `n` entries of `kernel`.
    void find_listeners(size_t n) noexcept;
    /// Did ppoll look at kernel[k] under a number that is not the listener's any more?
    bool missed(size_t k) const noexcept;

    bool spent(size_t i) const noexcept { return on_ && l_.keep[i] == PollList::Keep::spent; }
    /// Has another thread taken the number from the socket that is waited for?
    bool taken_away(size_t i) const noexcept {
        return on_ && l_.keep[i] != PollList::Keep::not_at_all && file_of(l_.all[i].fd) != l_.file[i];
    }
    /// The events of what the number stands for now. The kernel, too, wakes up by the socket that it has and
    /// then looks at the number; the socket says nothing more after that.
    short look_anew(size_t i) noexcept;
    /// The same for all such numbers, at the end of the time. How many of them have events.
    [[nodiscard]] long look_anew() noexcept;

  private:
    bool kept(size_t i) const noexcept { return l_.keep[i] != PollList::Keep::not_at_all; }
    PollList &l_;
    bool on_ = false;
    unsigned mark_ = 0;
};

/// Scratch arrays for a list: on the stack for the usual sizes, mapped for large ones. For one call.
class PollSpace {
  public:
    explicit PollSpace(size_t n) noexcept;
    ~PollSpace();
    explicit operator bool() const noexcept { return list.all != nullptr; }
    PollSpace(const PollSpace &) = delete;
    PollSpace &operator=(const PollSpace &) = delete;
    PollList list{};

  private:
    static constexpr size_t kInline = 64;
    static constexpr size_t kEach =
        kWakers * sizeof(pollfd) + 2 * sizeof(void *) + sizeof(uint32_t) + sizeof(PollList::Keep);
    alignas(8) unsigned char here_[kEach * kInline + kWakers * sizeof(pollfd)];
    void *mapped_ = nullptr;
    size_t bytes_ = 0;
    unsigned mark_ = 0;
};

} // namespace sd
