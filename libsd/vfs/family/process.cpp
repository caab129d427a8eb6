// The process as a whole.
#include "libsd/vfs/family/process.hpp"
#include "libsd/base/start_section.hpp"
#include "libsd/control/client.hpp"
#include "libsd/control/fork_sections.hpp"
#include "libsd/control/forking.hpp"
#include "libsd/control/kernel_sockets/kernel_listener.hpp"
#include "libsd/control/libc_threads.hpp"
#include "libsd/control/memory.hpp"
#include "libsd/control/sandbox_state.hpp"
#include "libsd/queue/thread_liveness.hpp"
#include "libsd/rdma/transport.hpp"
#include "libsd/vfs/connections/connect.hpp"
#include "libsd/vfs/connections/listener.hpp"
#include "libsd/vfs/descriptors/cleanup_stack.hpp"
#include "libsd/vfs/descriptors/import.hpp"
#include "libsd/vfs/descriptors/unconnected.hpp"
#include "libsd/vfs/family/crossing.hpp"
#include "libsd/vfs/family/fork_pattern.hpp"
#include "libsd/vfs/family/memory_lock.hpp"
#include "libsd/vfs/options/option_records.hpp"
#include "libsd/vfs/paths/inherited.hpp"
#include "libsd/vfs/paths/leave.hpp"
#include "libsd/vfs/paths/moves.hpp"
#include "libsd/vfs/paths/offer.hpp"
#include "libsd/vfs/pools/channels.hpp"
#include "libsd/vfs/pools/pools.hpp"
#include "libsd/vfs/readiness/epoll.hpp"
#include "libsd/vfs/sharing/descriptor_passing.hpp"
#include "libsd/vfs/sharing/moved.hpp"
#include "libsd/vfs/streams/ring_shrink.hpp"
#include "libsd/vfs/streams/sendfile.hpp"
#include "libsd/vfs/vfs.hpp"
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <pthread.h>
#include <sys/stat.h>

extern "C" {
// What pthread_atfork is, whose own code is linked in statically.
int __register_atfork(void (*prepare)(), void (*parent)(), void (*child)(), void *library) noexcept;
extern void *__dso_handle [[gnu::visibility("hidden")]];
}

namespace sd {

namespace {

char stats_path[256];
SD_START_STATE pthread_key_t thread_key = 0;
SD_START_STATE bool thread_key_made = false, wants_stats = false;
SD_FORK_STATE std::atomic<bool> stats_written{false};
SD_FORK_STATE bool channel_left_out_of_child = false; ///< between the two halves of a fork

void thread_exit(void *) noexcept {
    CleanupStack::give_back_all(); // of calls that handlers jumped out of
    unregister_thread();
}

} // namespace

void watch_this_thread() noexcept {
    if (thread_key_made) // any non-null value makes the destructor run
        libc_threads.setspecific(thread_key, &self);
}

SD_START_CODE void threads_begin() noexcept {
    if (!find_libc_threads())
        return;
    thread_key_made = libc_threads.key_create(&thread_key, thread_exit) == 0;
    watch_this_thread();
}

SD_START_CODE void init_process() noexcept {
    control::read_environment();
    if (const char *p = getenv("SD_STATS_FILE"); p && *p && strlen(p) < sizeof stats_path) {
        memcpy(stats_path, p, strlen(p) + 1);
        wants_stats = true;
    }
    const char *presence = getenv("SD_CONTROL_FD");
    if (const int fd = presence ? control::handed_channel(presence) : -1; fd >= 0) {
        // sdrun's presence channel: stays open for as long as somebody descended from it lives
        mark_hidden(fd);
        control::set_door(fd);
    }
    threads_begin();
    __register_atfork(vfs::fork_prepare, vfs::fork_parent, vfs::fork_child, &__dso_handle);
}

namespace vfs {

constinit thread_local bool child_starts_program = false;

SD_FORK_CODE void fork_prepare() noexcept {
    if (!enabled())
        return;
    if (rdma::remote_links.load(std::memory_order_relaxed) != 0) [[unlikely]]
        leave_device(!child_starts_program);
    rdma::before_fork();
    share_unconnected(child_starts_program);
    fetch_bells_for_child();
    offers_fork_prepare();
    epoll_fork_prepare();
    listeners_fork_prepare();
    // Who greets the monitor has the channel's lock and may make the segment; who makes the segment may ask
    // the monitor. So neither is waited for with the other one in hand.
    for (control::fork_lock(); !segments_fork_lock(); control::fork_lock()) {
        control::fork_unlock();
        sys::sched_yield();
    }
    channel_left_out_of_child = child_needs_no_channel();
    wire::Fork message;
    segments_fork_prepare(&message, channel_left_out_of_child);
    identity_fork_prepare(control::connected() && !channel_left_out_of_child);
    control::fork_prepare(channel_left_out_of_child ? nullptr : &message);
}

SD_FORK_CODE void fork_parent() noexcept {
    if (!enabled())
        return;
    control::fork_parent();
    segments_fork_parent();
    listeners_fork_parent();
    epoll_fork_parent();
    offers_fork_parent();
}

// The list of all that is done in a child, however it was made: fork() runs it as a handler, api calls it for
// _Fork(), clone() and syscall(), and vfork() forks where memory cannot be shared. A lock may have been held
// by a thread that is not there any more, so each of the library is in here (tests/unit/fork_locks_test.py).
SD_FORK_CODE void fork_child() noexcept {
    child_starts_program = false;
    upward.reset_in_child();
    if (!enabled()) {
        end_vfork_in_child(); // where nothing of ours had been used
        return;
    }
    channel_left_out = channel_left_out_of_child;
    identity_fork_child();
    segments_fork_child();
    reset_link_locks_in_child();
    rdma::device_in_child();
    rdma::close_devices_in_child();
    const bool calls_were_pinned = files_fork_child();
    listeners_fork_child();
    crossing_fork_child();
    import_fork_child();
    connect_fork_child();
    control::kernel_listener_fork_child();
    ring_shrink_fork_child();
    options_fork_child();
    spare_numbers_fork_child();
    memory_lock_fork_child();
    sendfile_fork_child();
    pools_fork_child();
    channels_fork_child();
    taken_pools_fork_child();
    descriptor_passing_fork_child();
    moved_fork_child();
    if (stats_written.load(std::memory_order_relaxed))
        stats_written.store(false);
    control::fork_child();
    drop_bells_in_child();
    epoll_fork_child();
    inherited_fork_child();
    offers_fork_child();
    if (calls_were_pinned)
        drop_uncounted_files();
}

namespace {

[[gnu::noinline]] void write_stats() noexcept {
    const SegmentStats &s = stats();
    char line[4096];
    int n = snprintf(line, sizeof line,
                     "{\"pid\":%ld,\"accelerated_connects\":%lu,\"accelerated_accepts\":%lu,\"fallbacks\":{",
                     sys::getpid(), s.connects.load(), s.accepts.load());
    const char *comma = "";
    for (unsigned i = 0; i < kMaxCauses && n < 1900; ++i)
        if (uint64_t c = s.fallbacks[i].load()) {
            n += snprintf(line + n, sizeof line - static_cast<size_t>(n), "%s\"%s\":%lu", comma,
                          cause_name(i), c);
            comma = ",";
        }
    n += snprintf(line + n, sizeof line - static_cast<size_t>(n), "}");
    if (all_begin_in_kernel() || connections_joined.load() != 0)
        n += write_move_counts(line + n, sizeof line - static_cast<size_t>(n));
    n += snprintf(line + n, sizeof line - static_cast<size_t>(n), "}\n");
    long fd =
        sys::call(SYS_openat, AT_FDCWD, sys::arg(stats_path), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0644);
    struct stat st {};
    if (fd >= 0) {
        if (sys::call(SYS_fstat, fd, sys::arg(&st)) == 0 &&
            control::file_may_be(static_cast<uint64_t>(st.st_size) + sizeof line))
            sys::write(static_cast<int>(fd), line, static_cast<size_t>(n));
        sys::close(static_cast<int>(fd));
    }
}

} // namespace

SD_START_CODE void at_exit() noexcept {
    if (wants_stats && !sandboxed() && !stats_written.exchange(true)) [[unlikely]]
        write_stats();
}

} // namespace vfs

} // namespace sd

namespace {
__attribute__((destructor)) void write_stats_at_exit() { sd::vfs::at_exit(); }
} // namespace
