// The library's side of the control channel.
#include "libsd/control/client.hpp"
#include "libsd/control/around_fork.hpp"
#include "libsd/control/confine.hpp"
#include "libsd/control/hidden_fd.hpp"
#include "libsd/control/lock.hpp"
#include "libsd/transport/link_layout.hpp"
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <sys/stat.h>
#include <sys/un.h>

namespace sd::control {

namespace {

constexpr int64_t kRetryNs = 500'000'000;

SD_FORK_STATE constinit Lock call_lock;
SD_FORK_STATE std::atomic<int> chan{-1};
std::atomic<uint32_t> epoch_count{0};
std::atomic<const Directory *> dir{nullptr};
std::atomic<int64_t> next_try{0};
std::atomic<uint64_t> my_id{0};
std::atomic<uint8_t> last_cause{0};
uint32_t sequence = 0;
bool greeted_before = false;
SD_FORK_STATE int child_channel = -1;
uint64_t child_id = 0;
uint64_t fork_mask = 0;
Hooks hooks{};
// Read once: getenv is not safe while the program changes its environment, and there are programs that empty it before they listen.
char env_path[108];
char run_directory[80] = "/tmp";
bool env_read = false;

// The last channel that was given up. Threads may be asleep in poll() on it: they have been woken, but look at it again by its number, which must
// not belong to something quiet by then. So it stays open, hung up, until the next one takes its place.
SD_FORK_STATE std::atomic<int> retired{-1};

// See set_door(). Many processes may have the same one, so nothing is ever received from it.
std::atomic<int> door{-1};
bool own_door = false; ///< opened by keep_door(), not handed over by name

void drop_channel() noexcept {
    if (int fd = chan.exchange(-1); fd >= 0 && !confined()) {
        sys::call(SYS_shutdown, fd, SHUT_RDWR);
        if (int old = retired.exchange(fd); old >= 0)
            close_hidden(old);
    }
    next_try.store(sys::now_ns() + kRetryNs, std::memory_order_relaxed);
}

uint32_t next_sequence() noexcept {
    if (++sequence == wire::kNoAnswer)
        ++sequence;
    return sequence;
}

wire::Header make_header(wire::Op op, uint32_t number, size_t length, unsigned nfds) noexcept {
    wire::Header h{};
    h.magic = wire::kMagic;
    h.version = wire::kVersion;
    h.op = static_cast<uint16_t>(op);
    h.sequence = number;
    h.length = static_cast<uint16_t>(length);
    h.fds = nfds;
    return h;
}

/// Sends one packet; what sendmsg says.
long send_packet(int fd, const wire::Header &h, const void *body, const int *fds, int flags = 0) noexcept {
    iovec iov[2] = {{const_cast<wire::Header *>(&h), sizeof h}, {const_cast<void *>(body), h.length}};
    alignas(cmsghdr) char ctl[CMSG_SPACE(sizeof(int) * wire::kMaxFds)];
    msghdr m{};
    m.msg_iov = iov;
    m.msg_iovlen = h.length ? 2 : 1;
    if (h.fds) {
        m.msg_control = ctl;
        m.msg_controllen = CMSG_SPACE(sizeof(int) * h.fds);
        cmsghdr *c = CMSG_FIRSTHDR(&m);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(sizeof(int) * h.fds);
        memcpy(CMSG_DATA(c), fds, sizeof(int) * h.fds);
    }
    long n;
    while ((n = sys::sendmsg(fd, &m, flags | MSG_NOSIGNAL)) == -EINTR) {
    }
    return n;
}

/// The descriptors that came with an answer nobody wants.
void close_received(Reply &r) noexcept {
    for (unsigned i = 0; i < r.fds; ++i)
        sys::close(r.fd[i]);
    r.fds = 0;
}

/// Receives the answer to the request of that number on `fd`. Transport failure: status set, -1.
int receive_answer(int fd, uint32_t number, Reply *r) noexcept {
    for (;;) {
        wire::Header rh;
        iovec riov[2] = {{&rh, sizeof rh}, {r->body, sizeof r->body}};
        alignas(cmsghdr) char ctl[CMSG_SPACE(sizeof(int) * wire::kMaxFds)];
        msghdr rm{};
        rm.msg_iov = riov;
        rm.msg_iovlen = 2;
        rm.msg_control = ctl;
        rm.msg_controllen = sizeof ctl;
        long n;
        while ((n = sys::recvmsg(fd, &rm, MSG_CMSG_CLOEXEC)) == -EINTR) {
        }
        r->fds = 0;
        if (n >= 0)
            for (cmsghdr *c = CMSG_FIRSTHDR(&rm); c; c = CMSG_NXTHDR(&rm, c))
                if (c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS) {
                    r->fds = static_cast<unsigned>((c->cmsg_len - CMSG_LEN(0)) / sizeof(int));
                    memcpy(r->fd, CMSG_DATA(c), r->fds * sizeof(int));
                }
        bool sane = n >= static_cast<long>(sizeof rh) && rh.magic == wire::kMagic &&
                    static_cast<size_t>(n) == sizeof rh + rh.length && !(rm.msg_flags & MSG_TRUNC);
        if (sane && rh.sequence == number) {
            if (rh.version != wire::kVersion) {
                r->status = -EPROTO;
                r->cause = Cause::monitor_version;
                return -1;
            }
            r->status = rh.status;
            r->cause = static_cast<Cause>(rh.cause);
            r->length = rh.length;
            if (rm.msg_flags & MSG_CTRUNC) { // no number was left for a descriptor
                close_received(*r);
                r->status = -EMFILE;
            }
            return 0;
        }
        close_received(*r);
        if (n <= 0 || !sane) { // closed, timed out, or not our protocol
            r->status = n < 0 ? n : -ECONNRESET;
            if (n > 0)
                r->cause = Cause::monitor_version;
            return -1;
        }
    }
}

/// Sends one packet and receives the answer on `fd`. Transport failure: status set, -1.
int exchange(int fd, wire::Op op, const void *body, size_t length, const int *fds, unsigned nfds,
             Reply *r) noexcept {
    const wire::Header h = make_header(op, next_sequence(), length, nfds);
    if (const long n = send_packet(fd, h, body, fds); n < 0) {
        r->status = n;
        return -1;
    }
    return receive_answer(fd, h.sequence, r);
}

/// A packet without descriptors. As everything in a process in a sandbox, with write alone.
struct PlainPacket {
    wire::Header header;
    unsigned char body[256];

    long send(int fd, wire::Op op, uint32_t number, const void *from, size_t length) noexcept {
        header = make_header(op, number, length, 0);
        if (length)
            memcpy(body, from, length);
        long n;
        while ((n = sys::write(fd, this, sizeof header + length)) == -EINTR) {
        }
        return n;
    }
};

/// The same with read and write alone, for a process in a sandbox: no descriptor goes along, and none that comes back is received.
int exchange_confined(int fd, wire::Op op, const void *body, size_t length, Reply *r) noexcept {
    PlainPacket packet{};
    r->status = -EPERM;
    if (length > sizeof packet.body)
        return 0;
    const uint32_t mine = next_sequence();
    long n = packet.send(fd, op, mine, body, length);
    while (n >= 0) {
        while ((n = sys::read(fd, &packet, sizeof packet)) == -EINTR) { // bounded by SO_RCVTIMEO
        }
        if (n < static_cast<long>(sizeof packet.header) || packet.header.sequence == mine)
            break;
    }
    if (n < static_cast<long>(sizeof packet.header) || packet.header.magic != wire::kMagic) {
        r->status = n < 0 ? n : -ECONNRESET;
        return -1;
    }
    r->status = packet.header.status;
    r->length = packet.header.length <= sizeof r->body ? packet.header.length : 0;
    memcpy(r->body, packet.body, r->length);
    return 0;
}

/// Anybody can make a directory in /tmp: at a path the user did not name, only root or the user's own monitor is believed.
bool trusted_listener(int fd) noexcept {
    ucred peer{};
    socklen_t n = sizeof peer;
    return sys::getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &n) == 0 &&
           (peer.uid == 0 || static_cast<long>(peer.uid) == sys::call(SYS_getuid));
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
    if (r == 0 && !env_path[0] && !trusted_listener(static_cast<int>(fd)))
        r = -EPERM;
    if (r == 0)
        return fd;
    sys::close(static_cast<int>(fd));
    return r;
}

/// Whether the door is one to the monitor at `path`, which may be bound to the name it had before it was ready.
bool door_leads_to(int fd, const char *path) noexcept {
    struct {
        sockaddr_un a;
        char end;
    } peer{};
    socklen_t n = sizeof peer.a;
    const size_t length = strlen(path);
    return sys::call(SYS_getpeername, fd, sys::arg(&peer.a), sys::arg(&n)) == 0 &&
           peer.a.sun_family == AF_UNIX && strncmp(peer.a.sun_path, path, length) == 0 &&
           (!peer.a.sun_path[length] || strcmp(peer.a.sun_path + length, ".new") == 0) &&
           (env_path[0] || trusted_listener(fd));
}

/// As connect_monitor, without looking for the path again. The answer comes on a socket of this request's own, as the door is one for many processes.
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

/// The answer to hello or image: maps the directory, and the channel is the one that is used. False: the channel is closed.
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
    my_id.store(r.as<wire::HelloReply>().client_id, std::memory_order_relaxed);
    // The old directory stays mapped: another thread may be reading it.
    dir.store(d, std::memory_order_release);
    chan.store(fd, std::memory_order_release);
    epoch_count.fetch_add(1, std::memory_order_release);
    return true;
}

/// With the lock held and no channel: connect, say hello, map the directory.
bool greet(Cause *why) noexcept {
    Identity id{};
    *why = Cause::no_memory;
    if (!hooks.identity || !hooks.identity(&id))
        return false;
    long fd = open_channel();
    if (fd < 0) {
        *why = fd == -EMFILE || fd == -ENFILE ? Cause::no_descriptor : Cause::no_monitor;
        return false;
    }
    wire::Hello hello{kLayoutVersion, static_cast<uint32_t>(sys::getpid()), id.proc_index, 0};
    int fds[2] = {id.segment_fd, id.namespace_socket};
    Reply r;
    int e = exchange(static_cast<int>(fd), wire::Op::hello, &hello, sizeof hello, fds, 2, &r);
    if (e < 0 || r.status < 0 || r.fds != 1 || r.length != sizeof(wire::HelloReply)) {
        close_received(r);
        close_hidden(static_cast<int>(fd));
        *why = r.cause != Cause::none ? r.cause : e < 0 ? Cause::no_monitor : Cause::monitor_version;
        return false;
    }
    return welcome(static_cast<int>(fd), r, why);
}

} // namespace

void set_hooks(const Hooks &h) noexcept { hooks = h; }
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
uint64_t client_id() noexcept { return my_id.load(std::memory_order_relaxed); }

void read_environment() noexcept {
    if (env_read)
        return;
    env_read = true;
    if (const char *e = getenv("SD_MONITOR"); e && strlen(e) < sizeof env_path)
        memcpy(env_path, e, strlen(e) + 1);
    if (const char *e = getenv("XDG_RUNTIME_DIR"); e && *e && strlen(e) < sizeof run_directory)
        memcpy(run_directory, e, strlen(e) + 1);
}

void set_door(int fd) noexcept { door.store(fd, std::memory_order_release); }

void keep_door() noexcept {
    LockGuard g(call_lock);
    const int now = door.load(std::memory_order_relaxed);
    if (confined() || (now >= 0 && !hung_up(now)))
        return;
    read_environment();
    SpareNumbers spare;
    char path[108];
    for (unsigned i = 0; socket_path(i, path); ++i) {
        long fd = connect_monitor(path);
        if (fd < 0 || (fd = hide_fd(static_cast<int>(fd))) < 0)
            continue;
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
    if (confined() || sys::now_ns() < next_try.load(std::memory_order_relaxed)) {
        *why = static_cast<Cause>(last_cause.load(std::memory_order_relaxed));
        return false;
    }
    bool again = false;
    {
        LockGuard g(call_lock);
        if (connected())
            return true;
        SpareNumbers spare;
        if (!greet(why)) {
            last_cause.store(static_cast<uint8_t>(*why), std::memory_order_relaxed);
            next_try.store(sys::now_ns() + kRetryNs, std::memory_order_relaxed);
            return false;
        }
        again = greeted_before;
        greeted_before = true;
    }
    if (again && hooks.restore)
        hooks.restore();
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
    if (confined() && nfds) {
        r.status = -EPERM;
        return r;
    }
    SpareNumbers spare; // a reply may bring descriptors, and those that do not fit would be lost
    if ((confined() ? exchange_confined(fd, op, body, length, &r)
                    : exchange(fd, op, body, length, fds, nfds, &r)) < 0) {
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
        if (channel() == fd) {
            drop_channel();
            next_try.store(0, std::memory_order_relaxed);
        }
    }
    Cause why;
    return ensure(&why);
}

void resume(int channel_fd, uint64_t client, int table_fd) noexcept {
    LockGuard g(call_lock);
    greeted_before = true; // so that a new monitor is told of everything
    my_id.store(client, std::memory_order_relaxed);
    const long socket = hooks.network ? hooks.network() : -ENOTSOCK;
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

SD_FORK_CODE void fork_prepare(const wire::Fork &f) noexcept {
    uint64_t mask;
    call_lock.lock(&mask);
    fork_mask = mask; // only now: another thread may be between its own fork's two halves
    child_channel = -1;
    int fd = channel();
    if (fd < 0)
        return;
    Reply r;
    SpareNumbers spare;
    if (exchange(fd, wire::Op::fork, &f, sizeof f, nullptr, 0, &r) < 0) {
        drop_channel();
        return;
    }
    if (r.status == 0 && r.fds == 1) {
        long h = hide_fd(r.fd[0]);
        if (h >= 0) {
            child_channel = static_cast<int>(h);
            child_id = r.as<wire::ForkReply>().client_id;
        }
    }
}

SD_FORK_CODE void fork_parent() noexcept {
    if (child_channel >= 0)
        close_hidden(child_channel);
    child_channel = -1;
    const uint64_t mask = fork_mask;
    call_lock.unlock(&mask);
}

SD_FORK_CODE void fork_child() noexcept {
    for (auto *parents : {&chan, &retired})
        if (int fd = parents->load(); fd >= 0) {
            parents->store(-1);
            close_hidden(fd);
        }
    call_lock.reset();
    if (child_channel >= 0) {
        timeval limit{2, 0};
        sys::setsockopt(child_channel, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
        // Nothing is waited for: whatever the child asks for later comes after this, and what is wrong with it shows there.
        wire::Child c{static_cast<uint32_t>(sys::getpid()), 0};
        PlainPacket packet;
        if (packet.send(child_channel, wire::Op::child, wire::kNoAnswer, &c, sizeof c) >= 0) {
            chan.store(child_channel, std::memory_order_release);
            my_id.store(child_id, std::memory_order_relaxed);
            epoch_count.fetch_add(1, std::memory_order_release);
        } else {
            close_hidden(child_channel);
        }
        child_channel = -1;
    }
    sys::restore_signals(&fork_mask);
}

} // namespace sd::control
