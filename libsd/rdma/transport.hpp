// RDMA as a transport (libsd/transport/transport.hpp): the side of libsd. The device is a plugin's
// (plugin.hpp), which is opened with the first connection that may need it.
//
// A link over it has memory for each side, of which a process maps its own. What this side writes goes out
// when it is published; what the other side has written comes by progress(), which every look makes that
// finds nothing. Both run with signal handlers put off.
//
// A process's device is its own. A child that is forked has none of its parent's (device_in_child()).
#pragma once
#include "libsd/layout/causes.hpp"
#include "libsd/rdma/plugin.hpp"
#include "libsd/transport/link.hpp"

namespace sd::rdma {

inline bool is_remote(const LinkMap &l) noexcept { return l.transport == &rdma_transport; }

/// Of the environment, once, at start: for tests, the transport of connections that begin in the kernel.
void read_test_transport(const char *text) noexcept;
/// Opens the plugin, once, and looks for devices, if the monitor says that connections may come to need one:
/// again after a second if there was none, and later each time, up to 64 s. In an ordinary connect() or
/// accept().
void open_device() noexcept;

/// Why no further connection of this process can move to another host; none: it can, as far as is known.
[[nodiscard]] Cause why_not() noexcept;

/// Makes this side's end of the queue pair for a link that was just mapped, on the device that the connection
/// in the slot goes by, or a spare one (choice.hpp), and begins the exchange with the other side. False:
/// there is no queue pair for it, which the monitor has been told. In an ordinary call.
[[nodiscard]] bool begin(LinkMap &l, uint32_t slot) noexcept;

/// Connections that stay in their sockets since the device has refused their link's queue pair to the other
/// side, and of which nobody has been told yet.
extern std::atomic<uint32_t> refusals;

/// Has the link's queue pair ended, on either side? Any thread.
[[nodiscard]] inline bool is_lost(const LinkMap &l) noexcept {
    const LinkHeader &h = l.view.header();
    return (h.side[0].flags.load(std::memory_order_acquire) | h.side[1].flags.load(std::memory_order_acquire)) &
           kLinkLost;
}
/// Links of this process of which it has been, and that are still in use here.
extern std::atomic<uint32_t> lost_links;
/// Links of this process that have a queue pair.
extern std::atomic<uint32_t> remote_links;
[[gnu::cold]] void progress_now() noexcept;
/// Takes what has come. Any thread, any time.
inline void progress() noexcept {
    if (remote_links.load(std::memory_order_relaxed)) [[unlikely]]
        progress_now();
}
/// As progress(), unless somebody did a moment ago. For a send, which learns here that the peer has ended the
/// connection, and else would not before there is no room; and for a recv that has something already.
void progress_if_due() noexcept;
/// After a sleep that the completion channel has ended. For Upward.
void take_events() noexcept;
/// A thread that may sleep until a peer of another host has something for it: counted from before it
/// announces that until the kernel has let it go, so that the completion queue is armed for it whoever takes
/// the event. What a handler jumps out of, or a cancelled thread leaves, stays counted, as does what a child
/// inherits: then the queue is armed more often than it need be.
///
/// Where RDMA is not wanted nobody is counted, which would cost each sleep of an epoll set two locked
/// instructions. Such a thread says so for good (`some_are_not`) and then looks once more whether sleeps
/// count (`all_are`); who opens the device makes them count first, and then looks for such threads. Both are
/// sequentially consistent: so either the thread counts itself, or the opener sees that there may be one,
/// and adds one for it that stays. tests/model/events.pml has this, too.
class MaySleep {
  public:
    MaySleep() = default;
    ~MaySleep() { is_awake(); }
    MaySleep(const MaySleep &) = delete;
    MaySleep &operator=(const MaySleep &) = delete;
    void begins() noexcept {
        if (!counted_ && is_to_be_counted()) {
            count.fetch_add(1, std::memory_order_seq_cst);
            counted_ = true;
        }
    }
    void is_awake() noexcept {
        if (counted_)
            count.fetch_sub(1, std::memory_order_seq_cst);
        counted_ = false;
    }
    static std::atomic<uint32_t> count;
    /// Before a device is opened.
    static void count_all() noexcept;

  private:
    static bool is_to_be_counted() noexcept;

    static std::atomic<bool> all_are, some_are_not;
    bool counted_ = false;
};
/// What the other side has sent by now has arrived after this, also what it had not posted when it was
/// killed.
void take_all() noexcept;
/// The same of a peer whose socket has ended without a word in the slot: it may have been killed.
void take_last() noexcept;
/// Can a record of kMostAtOnce bytes go out at once? See Plugin::may_send.
[[nodiscard]] bool may_send(LinkMap &l, uint32_t slot) noexcept;
/// Gives up the link's queue pair: the monitor carries what is in the rings, and both sides go on in their
/// sockets. In an ordinary call.
void end(LinkMap &l) noexcept;
/// The monitor is another one now: what it does not know of is not carried.
void monitor_has_changed() noexcept;
/// What our side has written of the slot is to be known there.
void tell(LinkMap &l, uint32_t slot) noexcept;

/// Upward::hidden_moved.
void descriptors_moved(int from, int to) noexcept;
void before_fork() noexcept;
void device_in_child() noexcept;
/// After that: they are its parent's.
void close_devices_in_child() noexcept;

/// Makes the peer's arms in our memory what they are on such a link.
void always_arm(LinkMap &l, uint32_t slot) noexcept;
/// For tests of the plugin: the link is one over it, without a monitor.
void attach_for_test(LinkMap &l, const Plugin *plugin, Host *device, Remote *remote) noexcept;

} // namespace sd::rdma
