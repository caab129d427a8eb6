// Sockets before they are connected, and the switch to the kernel's own implementation.
#include "libsd/vfs/descriptors/socket.hpp"
#include "libsd/base/start_section.hpp"
#include "libsd/control/client.hpp"
#include "libsd/control/fork_sections.hpp"
#include "libsd/control/sandbox_state.hpp"
#include "libsd/control/text.hpp"
#include "libsd/layout/exec_table.hpp"
#include "libsd/rdma/root.hpp"
#include "libsd/rdma/transport.hpp"
#include "libsd/vfs/connections/connect.hpp"
#include "libsd/vfs/connections/connection.hpp"
#include "libsd/vfs/connections/listener.hpp"
#include "libsd/vfs/descriptors/numbers.hpp"
#include "libsd/vfs/family/orphans.hpp"
#include "libsd/vfs/family/process.hpp"
#include "libsd/vfs/family/upward.hpp"
#include "libsd/vfs/options/option_records.hpp"
#include "libsd/vfs/paths/offer.hpp"
#include "libsd/vfs/readiness/epoll.hpp"
#include "libsd/vfs/sharing/exec_resume.hpp"
#include "libsd/vfs/vfs.hpp"
#include <cstdlib>
#include <sys/stat.h>

namespace sd {

namespace {

/// No number is left but that of the placeholder itself, so the kernel gives out this one when it is closed.
/// Only while nobody else could get it. The number or -errno, and then the placeholder is there as before.
long socket_in_place(int fd, int family, int type, bool cloexec) noexcept {
    const long dummy = dummy_socket();
    if (dummy < 0 || !single_threaded())
        return -EMFILE;
    uint64_t mask;
    sys::block_signals(&mask);
    sys::close(fd);
    const long s = sys::socket(family, cloexec ? type | SOCK_CLOEXEC : type & ~SOCK_CLOEXEC, 0);
    if (s < 0)
        sys::fcntl(static_cast<int>(dummy), cloexec ? F_DUPFD_CLOEXEC : F_DUPFD, fd);
    sys::restore_signals(&mask);
    return s;
}

} // namespace

long materialise(int fd, File &f) noexcept {
    if (f.real_socket)
        return 0;
    long fl = sys::fcntl(fd, F_GETFD);
    if (fl < 0)
        return fl;
    uint32_t status = f.kind == FileKind::stream ? f.ofd->status.load() : f.status.load();
    int type = SOCK_STREAM | SOCK_CLOEXEC | (status & O_NONBLOCK ? SOCK_NONBLOCK : 0);
    SpareNumbers spare; // for the moment until it has taken the place of the placeholder
    long s = sys::socket(f.family, type, 0);
    if (s == -EMFILE)
        s = socket_in_place(fd, f.family, type, fl & FD_CLOEXEC);
    if (s < 0)
        return s;
    // Every descriptor of this File in the process becomes the same kernel socket.
    long r = 0;
    for_each_number(f, [&](int number) {
        if (r < 0 || number == s)
            return;
        if (const long done = replace_number(number, static_cast<int>(s)); done != -EBADF)
            r = done;
    });
    if (s != fd)
        sys::close(static_cast<int>(s));
    if (r < 0)
        return r;
    f.real_socket = true;
    if (f.unconnected.options)
        replay_options(fd, *f.unconnected.options);
    if (f.kind == FileKind::stream)
        return 0;
    epoll_file_became_kernel(f);
    return 0;
}

void materialise_all() noexcept {
    for (uint32_t fd = 0, n = fd_high.load(std::memory_order_acquire); fd < n; ++fd) {
        if (!has_entry(static_cast<int>(fd)))
            continue;
        const PinnedFile use(static_cast<int>(fd));
        if (File *f = use.file(); f && f->kind == FileKind::fresh)
            (void)materialise(static_cast<int>(fd), *f); // what cannot be had is asked for when it is used
    }
}

long fall_back(int fd, File *f, Cause why, const SlotAddress *to) noexcept {
    count_fallback(why, to);
    if (long r = materialise(fd, *f); r < 0)
        return r;
    for_each_number(*f, [f](int number) { give_up_number(number, *f); });
    return 0;
}

namespace vfs {

namespace {
SD_FORK_STATE bool on = false; ///< every fork reads it
SD_FORK_STATE bool vforking = false;
/// Whether the kernel has IPv6. Unknown: nobody has asked yet.
enum class Answer : int { unknown, yes, no };
std::atomic<Answer> v6{Answer::unknown};

bool may_make_v6() noexcept {
    if (v6.load(std::memory_order_relaxed) == Answer::unknown) {
        const long s = sys::socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (s >= 0)
            sys::close(static_cast<int>(s));
        else if (s != -EAFNOSUPPORT)
            return false; // no room for a descriptor now, say: asked again
        v6.store(s >= 0 ? Answer::yes : Answer::no, std::memory_order_relaxed);
    }
    return v6.load(std::memory_order_relaxed) == Answer::yes;
}
} // namespace

bool enabled() noexcept { return on; }
bool in_vfork() noexcept { return vforking; }

void begin_vfork() noexcept {
    vforking = vforking || on;
    on = false;
}

SD_FORK_CODE void end_vfork_in_child() noexcept {
    if (vforking) {
        vforking = false;
        on = true;
    }
}

SD_START_CODE void init(const ApiCalls &api) noexcept {
    fill_upward(api);
    init_process();
    const char *off = getenv("SD_DISABLE");
    if (off && *off && *off != '0')
        return;
    // Not for the rest of a program that has handed connections on: those it gets back from the monitor.
    if (!getenv("SD_EXEC_FD") && sys::call(SYS_faccessat, AT_FDCWD, sys::arg(kDisabledFile), 0) == 0)
        return;
    register_barrier();
    on = true;
    read_path_mode(getenv("SD_TEST_PATHS"));
    rdma::read_test_transport(getenv("SD_TEST_TRANSPORT"));
    rdma::remember_root();
    if (const char *table = getenv("SD_EXEC_FD"))
        resume_after_exec(decimal(table));
}

long socket(int domain, int type, int protocol) noexcept {
    if (!on || sandboxed() || (type & ~(SOCK_NONBLOCK | SOCK_CLOEXEC)) != SOCK_STREAM ||
        (protocol != 0 && protocol != IPPROTO_TCP) ||
        !(domain == AF_INET ? may_make_v4() : domain == AF_INET6 && may_make_v6()))
        return kPass;
    long fd = placeholder_fd(type & SOCK_CLOEXEC);
    if (fd < 0)
        return fd == -EMFILE || fd == -ENFILE ? fd : kPass;
    File *f = new_file(FileKind::fresh);
    if (!f) {
        drop_placeholder(static_cast<int>(fd));
        return kPass;
    }
    f->family = static_cast<uint8_t>(domain);
    f->status.store(type & SOCK_NONBLOCK ? O_NONBLOCK : 0, std::memory_order_relaxed);
    install_placeholder(static_cast<int>(fd), f, type & SOCK_CLOEXEC);
    return fd;
}

long bind(int fd, const sockaddr *a, socklen_t n) noexcept {
    const PinnedFile use(fd);
    File *f = use.file();
    if (!f || f->kind == FileKind::listener)
        return kPass;
    if (f->kind == FileKind::stream) {
        // A connected TCP socket has a name already, but the kernel looks at the address first.
        long s = sys::socket(f->family, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (s < 0)
            return -EINVAL;
        long r = sys::call(SYS_bind, s, sys::arg(a), n);
        sys::close(static_cast<int>(s));
        return r < 0 && r != -EADDRINUSE ? r : -EINVAL;
    }
    if (f->kind == FileKind::fresh) {
        if (long r = materialise(fd, *f); r < 0)
            return r;
        f->unconnected.bound = true; // if the kernel refuses, connect() sees a wildcard name and port 0
    }
    return kPass;
}

long listen(int fd, int backlog) noexcept {
    const PinnedFile use(fd);
    File *f = use.file();
    if (!f)
        return kPass;
    if (f->kind == FileKind::stream)
        return -EINVAL;
    if (f->kind != FileKind::fresh)
        return kPass; // again on a listener: the kernel changes the backlog
    if (long r = materialise(fd, *f); r < 0)
        return r;
    if (f->unconnected.refuse_cause == 0 && !namespace_changed)
        (void)mark_for_discovery(fd); // else what it accepts is the kernel's
    long r = sys::call(SYS_listen, fd, backlog);
    if (r == 0 && dummy_listened()) [[unlikely]]
        r = -EINVAL;
    if (r < 0)
        return r;
    Cause why = static_cast<Cause>(f->unconnected.refuse_cause);
    if (why == Cause::shared_early) // one that listens is a kernel socket anyway
        why = Cause::none;
    if (why != Cause::none || namespace_changed || register_listener(fd, f, backlog, &why) < 0)
        // It is a kernel socket by now, so nothing is left that could fail.
        (void)fall_back(fd, f, why == Cause::none ? Cause::foreign_namespace : why, nullptr);
    else
        epoll_file_became_listener(*f);
    return 0;
}

} // namespace vfs

} // namespace sd
