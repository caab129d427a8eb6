// The descriptor table and the life of Files.
#include "libsd/vfs/descriptors/file.hpp"
#include "libsd/control/assert.hpp"
#include "libsd/control/client.hpp"
#include "libsd/control/fork_sections.hpp"
#include "libsd/control/hot_section.hpp"
#include "libsd/control/sandbox_state.hpp"
#include "libsd/vfs/connections/connection.hpp"
#include "libsd/vfs/connections/listener.hpp"
#include "libsd/vfs/descriptors/cleanup_stack.hpp"
#include "libsd/vfs/descriptors/placeholder_cache.hpp"
#include "libsd/vfs/descriptors/unconnected.hpp"
#include "libsd/vfs/options/option_records.hpp"
#include "libsd/vfs/paths/offer.hpp"
#include "libsd/vfs/readiness/epoll.hpp"
#include "libsd/vfs/vfs.hpp"

#include <initializer_list>

namespace sd {

SD_HOT_STATE std::atomic<File *> *fd_table = nullptr;
SD_HOT_STATE std::atomic<uint32_t> fd_high{0};

namespace {

SD_FORK_STATE constinit Pool<File> files;
SD_FORK_STATE constinit Lock dummy_lock;
std::atomic<int> dummy{-1};

} // namespace

bool make_fd_table() noexcept {
    if (__atomic_load_n(&fd_table, __ATOMIC_ACQUIRE)) [[likely]]
        return true;
    // Almost empty, but all of it would count for the program's RLIMIT_DATA. What may grow downwards counts
    // as a stack; the page below keeps it from growing.
    constexpr size_t kBytes = kMaxFd * sizeof(std::atomic<File *>), kGuard = 4096;
    void *room =
        sys::mmap(nullptr, kGuard + kBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (!room)
        return false;
    void *p = sys::mmap(static_cast<char *>(room) + kGuard, kBytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_GROWSDOWN | MAP_FIXED, -1, 0);
    std::atomic<File *> *none = nullptr;
    if (!p || !__atomic_compare_exchange_n(&fd_table, &none, static_cast<std::atomic<File *> *>(p), false,
                                           __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
        sys::munmap(room, kGuard + kBytes); // or another thread was faster
    return p || __atomic_load_n(&fd_table, __ATOMIC_ACQUIRE);
}

File *new_file(FileKind kind) noexcept {
    File *f = make_fd_table() ? files.allocate<QuietGuard>() : nullptr;
    if (!f)
        return nullptr;
    upward.expect_faults();
    f->refs.store(0, std::memory_order_relaxed);
    f->side = f->seg = 0;
    f->real_socket = f->inode_told = f->unconnected.bound = f->stream.carried = false;
    f->stream.connect_answer = ConnectAnswer::connected;
    f->stream.fetched = 0;
    f->exchanged.store(false, std::memory_order_relaxed);
    f->status.store(0, std::memory_order_relaxed);
    f->unconnected.refuse_cause = 0;
    f->unconnected.last_port = 0;
    f->unconnected.offer.store(0, std::memory_order_relaxed);
    f->stream.path_fd = f->stream.closing_fd = -1;
    f->stream.leftover_watch.store(0, std::memory_order_relaxed);
    f->unconnected.error.store(0, std::memory_order_relaxed);
    // What it was before stays where it is (listener, epoll): a thread that looked the File up just before it
    // was closed may be about to go there.
    bury(*f);
    f->kind = kind;
    return f;
}

namespace {

void enter(int fd, File *f, Origin origin) noexcept {
    SD_ASSERT(static_cast<unsigned>(fd) < kMaxFd && f != &cached_placeholder && f->kind != FileKind::free);
    note_origin(fd, origin);
    f->refs.fetch_add(1, std::memory_order_relaxed);
    uint32_t high = fd_high.load(std::memory_order_relaxed);
    while (high <= static_cast<uint32_t>(fd) &&
           !fd_high.compare_exchange_weak(high, static_cast<uint32_t>(fd) + 1, std::memory_order_release)) {
    }
    File *stale = fd_table[fd].exchange(f, std::memory_order_acq_rel);
    if (stale == &cached_placeholder)
        forget_cached(fd);
    else if (stale)
        release_file(stale);
    if (f->kind == FileKind::fresh)
        note_unconnected(fd);
}

} // namespace

void install_file(int fd, File *f) noexcept { enter(fd, f, Origin::other); }

void install_placeholder(int fd, File *f, bool cloexec) noexcept {
    enter(fd, f, cloexec ? Origin::placeholder_cloexec : Origin::placeholder);
}

void drop_placeholder(int fd) noexcept {
    sys::close(fd);
    number_freed(fd);
}

void discard_file(File *f) noexcept {
    SD_ASSERT(f->refs.load(std::memory_order_relaxed) == 0);
    f->refs.store(1, std::memory_order_relaxed);
    release_file(f);
}

void forget_fd(int fd) noexcept {
    if (!has_entry(fd))
        return;
    File *stale = fd_table[fd].load(std::memory_order_relaxed);
    if (stale == &cached_placeholder)
        forget_cached(fd);
    else if (stale && (stale = take_fd(fd)))
        release_file(stale);
}

SD_FORK_CODE File *take_fd(int fd) noexcept {
    if (!file_of(fd)) // also when it was kept: closed by now
        return nullptr;
    return fd_table[fd].exchange(nullptr, std::memory_order_acq_rel);
}

SD_FORK_CODE void release_file(File *f) noexcept {
    const uint32_t refs = f->refs.fetch_sub(1, std::memory_order_acq_rel);
    SD_ASSERT(refs != 0 && f != &cached_placeholder);
    if (refs != 1)
        return;
    epoll_file_closed(*f);
    SD_ASSERT(!f->items);
    switch (f->kind) {
    case FileKind::stream:
        close_stream(*f);
        break;
    case FileKind::listener:
        close_listener(f);
        break;
    case FileKind::epoll:
        epoll_destroy(*f);
        break;
    case FileKind::fresh:
        give_up_joining(*f);
        break;
    default:
        break;
    }
    if (f->unconnected.options) {
        free_fresh(f->unconnected.options);
        f->unconnected.options = nullptr;
    }
    // Nobody else has the File: what only its holders change needs no locked instruction.
    if (LinkMap *l = f->stream.undone.load(std::memory_order_relaxed)) [[unlikely]] {
        f->stream.undone.store(nullptr, std::memory_order_relaxed);
        link_unuse(*l);
    }
    f->kind = FileKind::free;
    f->generation.store(f->generation.load(std::memory_order_relaxed) + 1, std::memory_order_release);
    files.release<QuietGuard>(f);
}

namespace {

std::atomic<bool> v4_refused{false}; ///< a filter of sockets came with the process

/// A TCP socket in nobody's use, at a low number.
long plain_socket() noexcept {
    const long s = sys::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (s >= 0 || s == -EMFILE || s == -ENFILE || s == -ENOBUFS || s == -ENOMEM)
        return s;
    v4_refused.store(true, std::memory_order_relaxed);
    return sys::socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
}

/// Whether the program has sockets that placeholders stand for, or may come to have them.
bool has_tcp_sockets() noexcept {
    for (uint32_t fd = 0, n = fd_high.load(std::memory_order_acquire); fd < n; ++fd)
        if (const File *f = fd_table[fd].load(std::memory_order_acquire);
            f && f != &cached_placeholder && f->kind != FileKind::epoll)
            return true;
    return false;
}

} // namespace

long dummy_socket() noexcept {
    int fd = dummy.load(std::memory_order_acquire);
    if (fd >= 0) [[likely]]
        return fd;
    LockGuard g(dummy_lock);
    if (fd = dummy.load(std::memory_order_relaxed); fd >= 0)
        return fd;
    if (sandboxed())
        return -EPERM;
    long s = plain_socket();
    if (s < 0 || (s = hide_fd(static_cast<int>(s))) < 0)
        return s;
    dummy.store(static_cast<int>(s), std::memory_order_release);
    filler.store(static_cast<int>(s), std::memory_order_release);
    return s;
}

bool may_make_v4() noexcept { return dummy_socket() >= 0 && !v4_refused.load(std::memory_order_relaxed); }

void give_up_dummy() noexcept {
    close_all_cached();
    if (has_tcp_sockets())
        return;
    LockGuard g(dummy_lock);
    filler.store(-1, std::memory_order_release);
    if (const int former = dummy.exchange(-1); former >= 0)
        close_hidden(former);
}

void replace_dummy() noexcept {
    close_all_cached();
    LockGuard g(dummy_lock);
    const int number = dummy.load(std::memory_order_relaxed);
    if (number < 0)
        return;
    SpareNumbers spare;
    const long fresh = plain_socket();
    if (fresh >= 0) {
        (void)sys::dup3(static_cast<int>(fresh), number, O_CLOEXEC); // the number is open, so it cannot fail
        sys::close(static_cast<int>(fresh));
        return;
    }
    filler.store(-1, std::memory_order_release);
    dummy.store(-1, std::memory_order_release);
    close_hidden(number);
}

bool dummy_listened() noexcept {
    const int fd = dummy.load(std::memory_order_acquire);
    int on = 0;
    socklen_t n = sizeof on;
    if (fd < 0 || sys::getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &on, &n) < 0 || !on)
        return false;
    sys::call(SYS_shutdown, fd, SHUT_RDWR); // ends that
    return true;
}

void dummy_moved(int from, int to) noexcept {
    for (auto *holder : {&dummy, &filler}) {
        int expected = from;
        holder->compare_exchange_strong(expected, to);
    }
}

long placeholder_fd(bool cloexec) noexcept {
    if (long cached = take_cached(cloexec); cached >= 0)
        return cached;
    make_room_below();
    long d = dummy_socket();
    if (d < 0)
        return d;
    const uint64_t before = numbers_in_use.load(std::memory_order_acquire);
    long fd = sys::fcntl(static_cast<int>(d), cloexec ? F_DUPFD_CLOEXEC : F_DUPFD, 0);
    if (fd == -EMFILE && vacated())
        fd = sys::fcntl(dummy.load(std::memory_order_acquire), cloexec ? F_DUPFD_CLOEXEC : F_DUPFD, 0);
    if (fd >= static_cast<long>(kMaxFd)) {
        sys::close(static_cast<int>(fd));
        return -EMFILE;
    }
    if (fd >= 0)
        lowest_was(static_cast<int>(fd), before);
    given_out(fd);
    return fd;
}

SD_FORK_STATE std::atomic<uint32_t> pinned{0};

SD_FORK_CODE bool files_fork_child() noexcept {
    files.reset_lock();
    dummy_lock.reset();
    if (pinned.load(std::memory_order_relaxed) == 0)
        return false;
    pinned.store(0, std::memory_order_relaxed);
    // Calls of other threads are not under way in the child: what they hold there would never be given back,
    // and the connection never end. What this thread holds itself (a handler forks) is counted again.
    const uint32_t high = fd_high.load(std::memory_order_relaxed);
    const auto each = [high](auto act) {
        for (uint32_t fd = 0; fd < high; ++fd)
            if (File *f = fd_table[fd].load(std::memory_order_relaxed); f && f != &cached_placeholder)
                act(*f);
    };
    uncount_listeners(); // they may have no number any more, and so may connections
    files.for_each([](File &f) {
        if (f.kind == FileKind::stream)
            f.refs.store(0, std::memory_order_relaxed);
    });
    each([](File &f) { f.refs.store(0, std::memory_order_relaxed); });
    each([](File &f) { f.refs.fetch_add(1, std::memory_order_relaxed); });
    CleanupStack::for_each_own(unpin, [](void *f) noexcept {
        static_cast<File *>(f)->refs.fetch_add(1, std::memory_order_relaxed);
        pinned.fetch_add(1, std::memory_order_relaxed);
    });
    return true;
}

SD_FORK_CODE void drop_uncounted_files() noexcept {
    drop_uncounted_listeners();
    files.for_each([](File &f) {
        if (f.kind == FileKind::stream && f.refs.load(std::memory_order_relaxed) == 0)
            discard_file(&f);
    });
}

void unpin(void *file, size_t) noexcept {
    [[maybe_unused]] const uint32_t pins = pinned.fetch_sub(1, std::memory_order_relaxed);
    SD_ASSERT(pins != 0);
    release_file(static_cast<File *>(file));
}

} // namespace sd
