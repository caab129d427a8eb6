// The library's side of the control channel.
#include "libsd/control/client.hpp"
#include "libsd/base/start_section.hpp"
#include "libsd/base/upward.hpp"
#include "libsd/control/channel.hpp"
#include "libsd/control/fork_sections.hpp"
#include "libsd/control/hidden_fd.hpp"
#include "libsd/control/packets.hpp"
#include "libsd/control/sandbox_state.hpp"
#include "libsd/layout/link_layout.hpp"
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <sys/stat.h>
#include <sys/un.h>

namespace sd::control {

SD_FORK_STATE constinit Lock call_lock;
SD_FORK_STATE std::atomic<int> chan{-1};
SD_FORK_STATE std::atomic<int> retired{-1};
std::atomic<uint32_t> epoch_count{0};
std::atomic<uint64_t> my_id{0};
constinit Profile profile;

namespace {

constexpr int64_t kRetryNs = 500'000'000;

std::atomic<const Directory *> dir{nullptr};
std::atomic<int64_t> next_try{0};
std::atomic<uint8_t> last_cause{0};
bool greeted_before = false;
// Read once: getenv is not safe while the program changes its environment, and there are programs that empty
// it before they listen.
SD_START_STATE char env_path[108];
char run_directory[80] = "/tmp";
SD_START_STATE bool env_read = false;

// See set_door(). Many processes may have the same one, so nothing is ever received from it.
std::atomic<int> door{-1};
bool own_door = false; ///< opened by keep_door(), not handed over by name

/// Only root's or the user's own monitor is believed: anybody can make a directory in /tmp, and SD_MONITOR
/// stays what it was when somebody becomes another user by su. Who is root may have no number in this user
/// namespace; a path that was named is taken for his then.
bool trusted_listener(int fd) noexcept {
    constexpr uid_t kWithoutNumber = 65534;
    ucred peer{};
    socklen_t n = sizeof peer;
    return sys::getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &n) == 0 &&
           (peer.uid == 0 || static_cast<long>(peer.uid) == sys::call(SYS_getuid) ||
            (env_path[0] && peer.uid == kWithoutNumber));
}

/// A monitor that is stopped must not stop us.
void limit_waiting(int fd) noexcept {
    timeval limit{2, 0};
    sys::setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    sys::setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
}

/// A connection to the monitor at `path`, at a low number; or -errno.
long connect_monitor(const char *path) noexcept {
    sockaddr_un a{};
    a.sun_family = AF_UNIX;
    memcpy(a.sun_path, path, strlen(path) + 1);
    long fd = sys::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return fd;
    limit_waiting(static_cast<int>(fd));
    long r = sys::connect(static_cast<int>(fd), &a, sizeof a);
    if (r == 0 && !trusted_listener(static_cast<int>(fd)))
        r = -EPERM;
    if (r == 0)
        return fd;
    sys::close(static_cast<int>(fd));
    return r;
}

/// Whether the door is one to the monitor at `path`, which may be bound to the name it had before it was
/// ready.
bool door_leads_to(int fd, const char *path) noexcept {
    struct {
        sockaddr_un a;
        char end;
    } peer{};
    socklen_t n = sizeof peer.a;
    const size_t length = strlen(path);
    return sys::call(SYS_getpeername, fd, sys::arg(&peer.a), sys::arg(&n)) == 0 &&
           peer.a.sun_family == AF_UNIX && strncmp(peer.a.sun_path, path, length) == 0 &&
           (!peer.a.sun_path[length] || strcmp(peer.a.sun_path + length, ".new") == 0) && trusted_listener(fd);
}

/// As connect_monitor, without looking for the path again. The answer comes on a socket of this request's
/// own, as the door is one for many processes.
long pass_door(const char *path) noexcept {
    const int through = door.load(std::memory_order_acquire);
    if (through < 0 || !(own_door || door_leads_to(through, path)))
        return -ECONNREFUSED;
    int ends[2];
    if (long r = sys::call(SYS_socketpair, AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sys::arg(ends)); r < 0)
        return r;
    limit_waiting(ends[0]);
    const wire::Header h = make_header(wire::Op::enter, wire::kNoAnswer, 0, 1);
    const long sent = send_packet(through, h, nullptr, &ends[1], MSG_DONTWAIT);
    sys::close(ends[1]);
    Reply r;
    const bool answered = sent >= 0 && receive_answer(ends[0], h.sequence, &r) == 0;
    sys::close(ends[0]);
    if (answered && r.status == 0 && r.fds == 1) {
        limit_waiting(r.fd[0]);
        return r.fd[0];
    }
    close_received(r);
    return -ECONNREFUSED;
}

long open_channel() noexcept {
    read_environment();
    char path[108];
    long last = -ENOENT;
    for (unsigned i = 0; socket_path(i, path); ++i) {
        long r = connect_monitor(path);
        if (r < 0)
            if (const long through = pass_door(path); through >= 0)
                r = through;
        if (r >= 0)
            return hide_fd(static_cast<int>(r));
        last = r;
    }
    return last;
}

bool hung_up(int fd) noexcept {
    pollfd p{fd, 0, 0};
    timespec zero{0, 0};
    return sys::ppoll(&p, 1, &zero, nullptr) > 0 && (p.revents & (POLLHUP | POLLERR | POLLNVAL));
}

/// The answer to hello or image: maps the directory, and the channel is the one that is used. False: the
/// channel is closed.
bool welcome(int fd, Reply &r, Cause *why) noexcept {
    void *p = sys::mmap(nullptr, sizeof(Directory), PROT_READ, MAP_SHARED, r.fd[0], 0);
    struct stat st {};
    sys::call(SYS_fstat, r.fd[0], sys::arg(&st));
    sys::close(r.fd[0]);
    auto *d = static_cast<const Directory *>(p);
    if (!p || static_cast<size_t>(st.st_size) < sizeof(Directory) || d->magic != kDirectoryMagic ||
        d->version != kLayoutVersion) {
        close_hidden(fd);
        *why = p ? Cause::monitor_version : Cause::no_memory;
        if (p)
            sys::munmap(p, sizeof(Directory));
        return false;
    }
    const auto &hello = r.as<wire::HelloReply>();
    my_id.store(hello.client_id, std::memory_order_relaxed);
    profile.spin.store(hello.spin, std::memory_order_relaxed);
    profile.most_ring.store(hello.most_ring - 1u < kRingClasses ? hello.most_ring - 1u : kRingClasses - 1,
                            std::memory_order_relaxed);
    const bool has_bound = hello.arenas != 0 && hello.arenas != st.st_size;
    profile.arenas.store(has_bound ? hello.arenas * wire::kArenasUnit : kArenasUnbounded,
                         std::memory_order_relaxed);
    // The old directory stays mapped: another thread may be reading it.
    dir.store(d, std::memory_order_release);
    chan.store(fd, std::memory_order_release);
    epoch_count.fetch_add(1, std::memory_order_release);
    return true;
}

/// With the lock held and no channel: connect, say hello, map the directory.
bool greet(Cause *why) noexcept {
    Identity id{};
    const long fd = open_channel();
    if (fd < 0) {
        *why = fd == -EMFILE || fd == -ENFILE ? Cause::no_descriptor : Cause::no_monitor;
        return false;
    }
    *why = Cause::no_memory;
    if (!upward.identity(&id, static_cast<int>(fd))) {
        close_hidden(static_cast<int>(fd));
        return false;
    }
    wire::Hello hello{kLayoutVersion, static_cast<uint32_t>(sys::getpid()), id.proc_index,
                      wire::folded(client_id())};
    int fds[2] = {id.segment_fd, id.namespace_socket};
    Reply r;
    int e = exchange(static_cast<int>(fd), wire::Op::hello, &hello, sizeof hello, fds, 2, &r);
    if (e < 0 || r.status < 0 || r.fds != 1 || r.length != sizeof(wire::HelloReply)) {
        close_received(r);
        close_hidden(static_cast<int>(fd));
        *why = cause_of(r, e < 0 ? Cause::no_monitor : Cause::monitor_version);
        return false;
    }
    return welcome(static_cast<int>(fd), r, why);
}

} // namespace

void drop_channel() noexcept {
    bool gone = false;
    if (int fd = chan.exchange(-1); fd >= 0 && !sandboxed()) {
        gone = hung_up(fd);
        sys::call(SYS_shutdown, fd, SHUT_RDWR);
        if (int old = retired.exchange(fd); old >= 0)
            close_hidden(old);
    }
    // After a monitor that has gone the next may be there already. One that does not answer is left alone.
    next_try.store(gone ? 0 : sys::now_ns() + kRetryNs, std::memory_order_relaxed);
}

void close_received(Reply &r) noexcept {
    for (unsigned i = 0; i < r.fds; ++i)
        sys::close(r.fd[i]);
    r.fds = 0;
}

bool connected() noexcept { return chan.load(std::memory_order_acquire) >= 0; }
void channel_moved(int from, int to) noexcept {
    int expected = from;
    chan.compare_exchange_strong(expected, to);
    expected = from;
    retired.compare_exchange_strong(expected, to);
    expected = from;
    door.compare_exchange_strong(expected, to);
}
int channel() noexcept { return chan.load(std::memory_order_acquire); }
uint32_t epoch() noexcept { return epoch_count.load(std::memory_order_acquire); }
const Directory *directory() noexcept { return dir.load(std::memory_order_acquire); }
SD_FORK_CODE uint64_t client_id() noexcept { return my_id.load(std::memory_order_relaxed); }

SD_START_CODE void read_environment() noexcept {
    if (env_read)
        return;
    env_read = true;
    if (const char *e = getenv("SD_MONITOR"); e && strlen(e) < sizeof env_path)
        memcpy(env_path, e, strlen(e) + 1);
    if (const char *e = getenv("XDG_RUNTIME_DIR"); e && *e && strlen(e) < sizeof run_directory)
        memcpy(run_directory, e, strlen(e) + 1);
}

void set_door(int fd) noexcept { door.store(fd, std::memory_order_release); }

int handed_channel(const char *text) noexcept {
    int fd = 0;
    const char *at = text;
    for (; *at >= '0' && *at <= '9' && fd < 100'000'000; ++at)
        fd = fd * 10 + (*at - '0');
    int domain = 0, type = 0;
    sockaddr_un peer{};
    socklen_t n = sizeof domain, length = sizeof peer;
    const bool channel = at != text && *at == '\0' &&
                         sys::getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &n) == 0 && domain == AF_UNIX &&
                         sys::getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &n) == 0 && type == SOCK_SEQPACKET &&
                         sys::getpeername(fd, &peer, &length) == 0;
    return channel ? fd : -1;
}

void keep_door() noexcept {
    LockGuard g(call_lock);
    const int now = door.load(std::memory_order_relaxed);
    if (sandboxed() || (now >= 0 && !hung_up(now)))
        return;
    read_environment();
    SpareNumbers spare;
    char path[108];
    for (unsigned i = 0; socket_path(i, path); ++i) {
        long fd = connect_monitor(path);
        if (fd < 0 || (fd = hide_fd(static_cast<int>(fd))) < 0)
            continue;
        // One that has ended meanwhile is found out when the door is used.
        (void)send_packet(static_cast<int>(fd), make_header(wire::Op::stay, wire::kNoAnswer, 0, 0), nullptr,
                          nullptr, 0);
        door.store(static_cast<int>(fd), std::memory_order_release);
        if (own_door)
            close_hidden(now);
        own_door = true;
        return;
    }
}

bool socket_path(unsigned i, char *path) noexcept {
    if (env_path[0]) {
        if (i == 0)
            memcpy(path, env_path, sizeof env_path);
        return i == 0;
    }
    if (i == 0) {
        memcpy(path, "/run/socksdirect/monitor.sock", 30);
        return true;
    }
    if (i != 1)
        return false;
    int n = snprintf(path, 108, "%s/socksdirect-%ld/monitor.sock", run_directory, sys::call(SYS_getuid));
    return n > 0 && n < 108;
}

bool ensure(Cause *why) noexcept {
    if (connected())
        return true;
    if (sandboxed() || sys::now_ns() < next_try.load(std::memory_order_relaxed)) {
        *why = static_cast<Cause>(last_cause.load(std::memory_order_relaxed));
        return false;
    }
    bool again = false;
    {
        LockGuard g(call_lock);
        if (connected())
            return true;
        SpareNumbers spare;
        Cause refusal; // where there is none, *why stays what it was
        if (!greet(&refusal)) {
            last_cause.store(static_cast<uint8_t>(refusal), std::memory_order_relaxed);
            *why = refusal;
            next_try.store(sys::now_ns() + kRetryNs, std::memory_order_relaxed);
            return false;
        }
        again = greeted_before;
        greeted_before = true;
    }
    if (again)
        upward.restore();
    return true;
}

Reply request(wire::Op op, const void *body, size_t length, const int *fds, unsigned nfds) noexcept {
    Reply r;
    LockGuard g(call_lock);
    int fd = channel();
    if (fd < 0) {
        r.status = -ECONNREFUSED;
        r.cause = Cause::no_monitor;
        return r;
    }
    if (sandboxed() && nfds) {
        r.status = -EPERM;
        return r;
    }
    const auto asked = [&] {
        return sandboxed() ? exchange_sandboxed(fd, op, body, length, &r)
                           : exchange(fd, op, body, length, fds, nfds, &r);
    };
    int failed;
    if (wire::brings_descriptors(op)) {
        SpareNumbers spare(fd); // those that do not fit would be lost
        failed = asked();
    } else {
        failed = asked();
    }
    if (failed < 0) {
        drop_channel();
        if (r.status == 0)
            r.status = -ECONNRESET;
        if (r.cause == Cause::none)
            r.cause = Cause::no_monitor;
    }
    return r;
}

void tell(wire::Op op, const void *body, size_t length) noexcept {
    LockGuard g(call_lock);
    const int fd = channel();
    PlainPacket packet{};
    if (fd >= 0 && length <= sizeof packet.body && packet.send(fd, op, wire::kNoAnswer, body, length) < 0)
        drop_channel();
}

bool maintain() noexcept {
    int fd = channel();
    if (fd >= 0) {
        if (!hung_up(fd))
            return true;
        LockGuard g(call_lock);
        if (channel() == fd)
            drop_channel();
    }
    Cause why;
    return ensure(&why);
}

void resume(int channel_fd, uint64_t client, int table_fd) noexcept {
    LockGuard g(call_lock);
    greeted_before = true; // so that a new monitor is told of everything
    my_id.store(client, std::memory_order_relaxed);
    const long socket = upward.network();
    if (channel_fd < 0)
        return;
    if (socket < 0) {
        close_hidden(channel_fd);
        return;
    }
    wire::Image msg{kLayoutVersion, static_cast<uint32_t>(sys::getpid())};
    const int fds[2] = {table_fd, static_cast<int>(socket)};
    Reply r;
    SpareNumbers spare;
    Cause why;
    if (exchange(channel_fd, wire::Op::image, &msg, sizeof msg, fds, 2, &r) == 0 && r.status == 0 &&
        r.fds == 1 && r.length == sizeof(wire::HelloReply)) {
        welcome(channel_fd, r, &why);
        return;
    }
    close_received(r);
    close_hidden(channel_fd);
}

} // namespace sd::control
