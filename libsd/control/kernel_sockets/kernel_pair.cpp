// Two kernel TCP sockets of this host connected to each other.
#include "libsd/control/kernel_sockets/kernel_pair.hpp"
#include "libsd/control/sys.hpp"
#include <cstring>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <utility>

namespace sd {

namespace {

/// A sockaddr as the system calls take it.
struct Name {
    sockaddr_storage storage{};
    socklen_t length = sizeof(sockaddr_storage);

    Name() = default;
    Name(const SlotAddress &a, unsigned family, uint16_t port) noexcept {
        storage.ss_family = static_cast<sa_family_t>(family);
        if (family == AF_INET) {
            auto &v4 = reinterpret_cast<sockaddr_in &>(storage);
            v4.sin_port = htons(port);
            memcpy(&v4.sin_addr, a.ip + 12, sizeof v4.sin_addr);
            length = sizeof v4;
        } else {
            auto &v6 = reinterpret_cast<sockaddr_in6 &>(storage);
            v6.sin6_port = htons(port);
            memcpy(&v6.sin6_addr, a.ip, sizeof v6.sin6_addr);
            length = sizeof v6;
        }
    }
    bool operator==(const Name &other) const noexcept {
        return length == other.length && memcmp(&storage, &other.storage, length) == 0;
    }
};

class Socket {
  public:
    Socket() noexcept : fd_(-1) {}
    explicit Socket(unsigned family, int flags = 0) noexcept
        : fd_(static_cast<int>(
              sys::socket(static_cast<int>(family), SOCK_STREAM | SOCK_CLOEXEC | flags, IPPROTO_TCP))) {
        set(SOL_SOCKET, SO_REUSEADDR, 1);
        if (family == AF_INET6)
            set(IPPROTO_IPV6, IPV6_V6ONLY, 0); // v4-mapped names
    }
    ~Socket() {
        if (fd_ >= 0)
            sys::close(fd_);
    }
    Socket(const Socket &) = delete;
    Socket &operator=(const Socket &) = delete;

    int fd() const noexcept { return fd_; }
    void replace(int fd) noexcept {
        if (fd_ >= 0)
            sys::close(fd_);
        fd_ = fd;
    }
    int release() noexcept {
        const int fd = fd_;
        fd_ = -1;
        return fd;
    }
    long set(int level, int option, int value) const noexcept {
        return sys::setsockopt(fd_, level, option, &value, sizeof value);
    }
    long bind(const Name &n) const noexcept { return sys::bind(fd_, &n.storage, n.length); }
    long connect(const Name &n) const noexcept { return sys::connect(fd_, &n.storage, n.length); }
    Name name() const noexcept {
        Name n;
        if (sys::getsockname(fd_, &n.storage, &n.length) < 0)
            n.length = 0;
        return n;
    }

  private:
    int fd_;
};

// --- with CAP_NET_ADMIN: both ends are put into the state that a handshake would have led to

constexpr int kNoQueue = 0, kReceiveQueue = 1, kSendQueue = 2; ///< for TCP_REPAIR_QUEUE
constexpr int kOptionMss = 2, kOptionWindow = 3, kOptionSack = 4;
/// What ends on the loopback interface agree on. Timestamps are left out: they are only needed where sequence
/// numbers wrap within a segment's life time.
constexpr uint32_t kMss = 65475, kWindowScale = 7;

/// Up to the state "established", still unable to send.
long establish(const Socket &s, const Name &local, const Name &peer, uint32_t send, uint32_t receive) noexcept {
    if (long r = s.set(IPPROTO_TCP, TCP_REPAIR, TCP_REPAIR_ON); r < 0)
        return r;
    for (const auto &[queue, sequence] : {std::pair{kSendQueue, send}, std::pair{kReceiveQueue, receive}}) {
        if (long r = s.set(IPPROTO_TCP, TCP_REPAIR_QUEUE, queue); r < 0)
            return r;
        if (long r = s.set(IPPROTO_TCP, TCP_QUEUE_SEQ, static_cast<int>(sequence)); r < 0)
            return r;
    }
    if (long r = s.set(IPPROTO_TCP, TCP_REPAIR_QUEUE, kNoQueue); r < 0)
        return r;
    // A socket under repair may have any port, and its connect() sends nothing.
    if (long r = s.bind(local); r < 0)
        return r;
    if (long r = s.connect(peer); r < 0)
        return r;
    const tcp_repair_opt options[] = {
        {kOptionMss, kMss}, {kOptionWindow, kWindowScale | kWindowScale << 16}, {kOptionSack, 0}};
    return sys::setsockopt(s.fd(), IPPROTO_TCP, TCP_REPAIR_OPTIONS, options, sizeof options);
}

long get_window(const Socket &s, tcp_repair_window *w) noexcept {
    socklen_t n = sizeof *w;
    return sys::getsockopt(s.fd(), IPPROTO_TCP, TCP_REPAIR_WINDOW, w, &n);
}

/// `s` may send what `other` has room for; what `s` receives starts at `receive`.
long open_window(const Socket &s, const Socket &other, uint32_t receive) noexcept {
    tcp_repair_window mine{}, theirs{};
    if (long r = get_window(s, &mine); r < 0)
        return r;
    if (long r = get_window(other, &theirs); r < 0)
        return r;
    mine.snd_wl1 = receive;
    mine.snd_wnd = mine.max_window = theirs.rcv_wnd;
    return sys::setsockopt(s.fd(), IPPROTO_TCP, TCP_REPAIR_WINDOW, &mine, sizeof mine);
}

long craft(const SlotAddress &local, const SlotAddress &peer, unsigned family, int out[2]) noexcept {
    Socket a(family), b(family);
    if (a.fd() < 0 || b.fd() < 0)
        return a.fd() < 0 ? a.fd() : b.fd();
    uint32_t start[2] = {0x5d5d'0001, 0x5d5d'8001};
    sys::call(SYS_getrandom, sys::arg(start), sizeof start, 1 /*GRND_NONBLOCK*/);
    const Name here(local, family, local.port), there(peer, family, peer.port);
    if (long r = establish(a, here, there, start[0], start[1]); r < 0)
        return r;
    if (long r = establish(b, there, here, start[1], start[0]); r < 0)
        return r;
    if (long r = open_window(a, b, start[1]); r < 0)
        return r;
    if (long r = open_window(b, a, start[0]); r < 0)
        return r;
    for (const Socket *s : {&a, &b}) {
        if (long r = s->set(IPPROTO_TCP, TCP_REPAIR, TCP_REPAIR_OFF); r < 0)
            return r;
        s->set(SOL_SOCKET, SO_REUSEADDR,
               1); // which the end of the repair took away: listeners on the port can still be restarted
    }
    out[0] = a.release();
    out[1] = b.release();
    return 0;
}

// --- for everybody: an ordinary connection, through a listener that lives for a moment

/// Where something is left of a connection of the same names, it may take the request for its own. Names are
/// not worth waiting a second for.
constexpr int64_t kPatienceForNames = 50'000'000;
constexpr int kMostStrangers = 64; ///< others that happen to connect to the listener

long bind_near(const Socket &s, const SlotAddress &a, unsigned family, bool same_port) noexcept {
    if (same_port && s.bind(Name(a, family, a.port)) == 0)
        return 0;
    return s.bind(Name(a, family, 0));
}

/// The program's signal handlers do not end it: nobody would ask again.
long wait_for(int fd, short events, int64_t patience) noexcept {
    const int64_t end = sys::now_ns() + patience;
    for (;;) {
        const int64_t left = end - sys::now_ns();
        if (left <= 0)
            return -ETIMEDOUT;
        pollfd p{fd, events, 0};
        const timespec limit{left / 1'000'000'000, left % 1'000'000'000};
        const long r = sys::ppoll(&p, 1, &limit, nullptr);
        if (r > 0)
            return 0;
        if (r < 0 && r != -EINTR)
            return r;
    }
}

/// Sockets are told apart by name: the one whose peer is `wanted` is kept.
long accept_from(const Socket &listener, const Name &wanted, int64_t patience, Socket *accepted) noexcept {
    for (int i = 0; i < kMostStrangers; ++i) {
        if (long r = wait_for(listener.fd(), POLLIN, patience); r < 0)
            return r;
        Name from;
        const long fd = sys::accept4(listener.fd(), &from.storage, &from.length, SOCK_CLOEXEC);
        if (fd == -EAGAIN || fd == -EINTR || fd == -ECONNABORTED)
            continue;
        if (fd < 0)
            return fd;
        accepted->replace(static_cast<int>(fd));
        if (from == wanted)
            return 0;
    }
    return -ECONNREFUSED;
}

/// `same_ports`: as far as they can be had.
long connect_pair(const SlotAddress &local, const SlotAddress &peer, unsigned family, bool same_ports,
                  int64_t patience, int out[2]) noexcept {
    if (same_ports && patience > kPatienceForNames)
        patience = kPatienceForNames;
    Socket listener(family, SOCK_NONBLOCK), a(family, SOCK_NONBLOCK);
    if (listener.fd() < 0 || a.fd() < 0)
        return listener.fd() < 0 ? listener.fd() : a.fd();
    // The program's own end first: its names matter most.
    if (long r = bind_near(a, local, family, same_ports); r < 0)
        return r;
    if (long r = bind_near(listener, peer, family, same_ports); r < 0)
        return r;
    long r = sys::call(SYS_listen, listener.fd(), 8);
    if (r == -EADDRINUSE) {
        // Somebody listens on that port: that became known only now.
        listener.replace(Socket(family, SOCK_NONBLOCK).release());
        if (r = listener.bind(Name(peer, family, 0)); r == 0)
            r = sys::call(SYS_listen, listener.fd(), 8);
    }
    if (r < 0)
        return r;
    r = a.connect(listener.name());
    if (r < 0 && r != -EINPROGRESS)
        return r;
    Socket b;
    if (r = accept_from(listener, a.name(), patience, &b); r < 0)
        return r;
    if (r = wait_for(a.fd(), POLLOUT, patience); r < 0)
        return r;
    sys::fcntl(a.fd(), F_SETFL, O_RDWR);
    out[0] = a.release();
    out[1] = b.release();
    return 0;
}

/// Other names would not help.
bool is_shortage(long r) noexcept { return r == -EMFILE || r == -ENFILE || r == -ENOMEM || r == -ENOBUFS; }

} // namespace

long named_pair(const SlotAddress &local, const SlotAddress &peer, unsigned family, int out[2]) noexcept {
    return craft(local, peer, family, out);
}

long kernel_pair(const SlotAddress &local, const SlotAddress &peer, unsigned family, int out[2],
                 int64_t patience) noexcept {
    const long r = craft(local, peer, family, out);
    if (r >= 0 || is_shortage(r))
        return r;
    // A pair with just these names exists when the connection has been passed before, and that parcel lies in
    // a queue.
    if (const long again = connect_pair(local, peer, family, true, patience, out);
        again >= 0 || is_shortage(again))
        return again;
    return connect_pair(local, peer, family, false, patience, out);
}

long kernel_request(const SlotAddress &local, const SlotAddress &peer, unsigned family) noexcept {
    long r = -EADDRNOTAVAIL;
    for (const bool same_port : {true, false}) {
        Socket s(family, SOCK_NONBLOCK); // the queue may be full
        if (s.fd() < 0)
            return s.fd();
        if (r = bind_near(s, local, family, same_port); r < 0)
            continue;
        if (r = s.connect(Name(peer, family, peer.port)); r == -EINPROGRESS)
            r = wait_for(s.fd(), POLLOUT, kPairPatience);
        if (r < 0)
            continue;
        sys::fcntl(s.fd(), F_SETFL, O_RDWR);
        return s.release();
    }
    return r;
}

} // namespace sd
