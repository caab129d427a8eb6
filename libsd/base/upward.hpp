// Calls upward: what a layer needs of a layer above it, in one table.
//
// The layers include and call downwards only. Where a lower one has to have something done that only a higher
// one can do, it calls a function of this table. vfs::init() fills it, once, while the program has one thread
// (libsd/vfs/family/upward.cpp, the only place), and from then on it is read without a lock. Until then, and
// in programs that link a part of the library only (the monitor, tests), the defaults stand there, which do
// what is said below.
#pragma once
#include <cstdint>

namespace sd {

struct LinkMap;
namespace control {
struct Identity;
}

struct Upward {
    // Of api.

    /// Runs the signal handlers that were put off. By queue (token.hpp), in the thread that they came to, at
    /// the end of an operation or of a scope of PutOff; nothing is held. Does nothing while the thread is
    /// inside another one. Async-signal-safe. Default: nothing was put off.
    void (*run_deferred)() noexcept;
    /// Has bad pointers of the program answered with EFAULT from now on; quick but for the first time. By vfs
    /// and api, before anything of ours can be asked about, and before memory of the program is read when
    /// there is nothing yet; nothing is held. Default: nothing.
    void (*expect_faults)() noexcept;
    /// The same for the calling thread, which may have blocked the signals of faults before. By vfs, when the
    /// thread is registered, with its signal handlers as they are. Default: nothing.
    void (*expect_faults_here)() noexcept;
    /// The number of a descriptor of ours has changed, after all of vfs has been told: sdrun's channel is
    /// named in the environment of programs to come. As hidden_moved. Default: nothing.
    void (*presence_moved)(int from, int to) noexcept;

    /// Frees in a child what other threads had locked in api. By vfs, first of all in a child, in whatever
    /// way it was made (vfs::fork_child()); signals are blocked where libsd is in use. Default: nothing.
    void (*reset_in_child)() noexcept;

    /// Opens libsd-rdma.so, which lies beside this library: its table (rdma::Plugin) of that version. By
    /// rdma, in an ordinary call. Default: nullptr.
    const void *(*open_plugin)(uint32_t version) noexcept;

    // Of vfs.

    /// Takes what has come over links to other hosts, after a sleep that Transport::sleep_on has ended. By
    /// queue, without a lock. Default: nothing.
    void (*take_events)() noexcept;
    /// Gives the calling thread a record in segment `seg`, and has it given back when the thread ends. By
    /// queue, when the thread first claims a token there, and by vfs; no token and no lock is held. False:
    /// the table is full, or there is no such segment. Default: false.
    bool (*register_thread)(unsigned seg) noexcept;
    /// The calling thread has something to give back when it ends. By queue, before it makes the thread's
    /// doorbell, and by vfs; no lock is held. Default: nothing.
    void (*watch_thread)() noexcept;
    /// Makes good what a dead thread left half done on the direction that token `id` of segment `seg`
    /// guards, and wakes who waits for it. By queue, in the thread that takes the token over, with the token;
    /// may be called when there is nothing to do, and again where a caller died in it. Default: nothing.
    void (*repair)(unsigned seg, uint64_t id) noexcept;
    /// Fetches what rings waiter `id` of the other side of a link: LinkMap::PeerBell::fd, or -errno: the
    /// monitor has rung if it can. By transport, in a thread that has published something; it may have a
    /// token, but no lock that a request to the monitor takes. Default: -ENOSYS.
    long (*fetch_peer_bell)(LinkMap &, unsigned id) noexcept;
    /// Has the monitor ring that waiter. As above. Default: nothing.
    void (*ring_through_monitor)(LinkMap &, unsigned id) noexcept;
    /// A descriptor of ours has another number from now on; every owner takes the new one. By control, when
    /// a program of one thread gets the low numbers, and by vfs, when the program wants that number (dup2),
    /// with the old number still open. Nobody may ask for a number in it. Default: nobody has one.
    void (*hidden_moved)(int from, int to) noexcept;
    /// What hello needs: who this process is. By control, with the lock of the channel; the monitor may be
    /// asked for memory on `greeting`, and for nothing else. Both descriptors stay the callee's. False:
    /// cannot, then there is no acceleration. Default: false.
    bool (*identity)(control::Identity *, int greeting) noexcept;
    /// A TCP socket of the process's network namespace, which stays the callee's, or -errno. By control, with
    /// the lock of the channel, after an exec. Default: -ENOTSOCK.
    long (*network)() noexcept;
    /// Registers everything that this process has with a monitor that knows nothing of it. By control, after
    /// each successful hello but the first; no lock is held, it may call request(). Default: nothing.
    void (*restore)() noexcept;
};
extern constinit Upward upward;

} // namespace sd
