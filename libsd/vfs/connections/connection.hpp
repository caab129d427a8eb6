// The life of an accelerated connection in this process: from a link's slot to its end.
#pragma once
#include "libsd/control/client.hpp"
#include "libsd/control/libc_threads.hpp"
#include "libsd/vfs/descriptors/cleanup_stack.hpp"
#include "libsd/vfs/descriptors/file.hpp"
#include "libsd/vfs/sharing/moved.hpp"

namespace sd {

/// Binds a File to (link, slot) with a fresh Ofd: the File becomes kind stream. The link's users count goes
/// up. False: no Ofd left.
[[nodiscard]] bool bind_stream(File &f, LinkMap &l, uint32_t slot, unsigned family) noexcept;
/// Takes bind_stream() back: the File is fresh again. Of a connection whose other end has not seen it, and
/// does not. The caller has a reference to the link besides the File's, and the slot is his again; but
/// where a child that was forked meanwhile has the connection: false.
[[nodiscard]] bool unbind_stream(File &f) noexcept;
/// Makes the File a handle of an Ofd that exists and that this process holds. The link's users count goes up.
/// `slot` and `family` are the Ofd's as the caller has read and checked them: it is not asked again.
void join_stream(File &f, LinkMap &l, unsigned seg, uint32_t ofd_index, uint32_t slot, unsigned family) noexcept;
/// The last descriptor in this process was closed. Where no other process holds the connection, it ends as
/// the kernel would end it: FIN, or RST if data was left unread or SO_LINGER says 0. `reset`: in any case a
/// reset, for connect(AF_UNSPEC).
void close_stream(File &f, bool reset = false) noexcept;
/// Points the File's data pointers at a dummy connection, so that a thread that still holds the File touches
/// valid memory.
void bury(File &f) noexcept;

/// Peer's flags with what follows from them applied (pending error, blocked sending). Any thread, no token
/// needed.
uint32_t absorb_flags(File &f) noexcept;
/// Sets flags of our side, among them FIN or reset: for epoll's order they stand behind what this thread sent
/// before.
inline void set_ended(SlotSide &mine, uint32_t flags) noexcept {
    auto &c = mine.control;
    // Else it came before
    if ((flags & kFlagReset) || !(c.flags.load(std::memory_order_relaxed) & kFlagWriteShut))
        c.ended_at.store(ring::order_now(), std::memory_order_relaxed);
    c.flags.fetch_or(flags, std::memory_order_seq_cst);
}
/// Takes the pending error; 0 when there is none.
[[nodiscard]] int take_error(Ofd &o) noexcept;

/// Ring classes below this one grow as soon as they are full; larger ones only rather than let a blocking
/// sender sleep.
constexpr uint32_t kGrowFreely = 3;
/// The largest class that SO_SNDBUF, or else the program's profile, allows; a ring of 64 KiB always is.
inline uint32_t most_class(const Ofd &o) noexcept {
    const int32_t bound = o.opt.sndbuf.load(std::memory_order_relaxed);
    uint32_t cls = control::profile.most_ring.load(std::memory_order_relaxed);
    if (bound != 0) [[unlikely]]
        while (cls > 2 && kRingSize[cls] > static_cast<uint32_t>(bound))
            --cls;
    return cls;
}
inline uint32_t freely_up_to(const Ofd &o) noexcept {
    const uint32_t most = most_class(o);
    return most < kGrowFreely ? most : kGrowFreely;
}

/// A reference to the link goes; the last one unmaps it.
void link_unuse(LinkMap &l) noexcept;
/// The link as this process has it mapped already, with a reference for the caller; null: it has not.
[[nodiscard]] LinkMap *link_in_use(uint64_t id, unsigned side) noexcept;
/// map_link() of a hidden descriptor, which is closed where that fails.
LinkMap *map_hidden_link(int memfd, uint64_t id, unsigned side, uint8_t reach, LinkPeer peer) noexcept;

/// Keeps the connection open for as long as a call is blocked on it, as the kernel does when another thread
/// closes the descriptor.
class Pin {
  public:
    Pin() = default;
    ~Pin() { drop(); }
    /// False: the number stands for something else by now. Where the thread has too much noted the File is
    /// not held.
    [[nodiscard]] bool acquire(File &f, int fd) noexcept {
        if (noted_)
            return true;
        CleanupStack::drop_abandoned();
        CleanupStack::drop_abandoned_like(this);
        if (!pin(f))
            return false;
        // It may be a part of a call that holds it
        if (file_of(fd) != &f && !CleanupStack::is_noted(unpin, &f)) {
            unpin(&f, 0);
            return false;
        }
        mark_ = CleanupStack::mark();
        noted_ = CleanupStack::push(unpin, &f, 0, this);
        if (!noted_)
            unpin(&f, 0);
        return true;
    }
    /// The same for a call that does not block: in a program of one thread nobody but its own handlers could
    /// close the number meanwhile, and these come between two looks of the call at worst.
    [[nodiscard]] bool acquire_among_threads(File &f, int fd) noexcept {
        return one_thread() || acquire(f, fd);
    }
    void drop() noexcept {
        if (!noted_)
            return;
        noted_ = false;
        CleanupStack::give_back_to(mark_);
    }
    Pin(const Pin &) = delete;
    Pin &operator=(const Pin &) = delete;

  private:
    unsigned mark_ = 0;
    bool noted_ = false;
};

/// What the number of a call that does not block stands for. Among several threads it is kept from being
/// closed, and from becoming another's, until the call ends.
class PinnedFile {
  public:
    explicit PinnedFile(int fd) noexcept {
        while ((file_ = still_ours(fd, file_of(fd))) && !pin_.acquire_among_threads(*file_, fd)) {
        }
    }
    /// The same where it has been looked up already; null afterwards, if the number stands for something else
    /// by now.
    PinnedFile(int fd, File *f) noexcept : file_(f && pin_.acquire_among_threads(*f, fd) ? f : nullptr) {}
    File *file() const noexcept { return file_; }

  private:
    Pin pin_; // first: what file_ is may depend on it
    File *file_;
};

inline bool is_nonblocking(const File &f, int flags) noexcept {
    return (flags & MSG_DONTWAIT) || (f.ofd->status.load(std::memory_order_relaxed) & O_NONBLOCK);
}

} // namespace sd
