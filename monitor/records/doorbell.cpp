// Doorbells: which descriptors are taken for one, and ringing without being held up.
#include "monitor/records/doorbell.hpp"
#include "monitor/kernel/domain.hpp"
#include "monitor/kernel/interrupted.hpp"
#include "monitor/kernel/process_info.hpp"
#include "monitor/records/client.hpp"

#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <linux/aio_abi.h>
#include <set>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>
#include <utility>

namespace sd::monitor {

BellDomain bell_domain_of(const Domain &d) {
    return {d.uid,      d.gid,     d.permitted,
            d.user.ino, d.pid.ino, d.mount.ino,
            d.label,    d.filters, d.filters != 0 ? d.lineage : 0};
}

const BellDomain &bell_domain(const Client &client) {
    const std::pair now(client.who.uid, client.who.gid);
    if (client.bell_domain && client.bell_domain_of == now) {
        return *client.bell_domain;
    }
    Domain d = client.pid > 0 ? read_domain(client.pid) : Domain{};
    d.lineage = client.lineage;
    BellDomain &made = client.bell_domain.emplace();
    client.bell_domain_of = now;
    // With a filter of its own it shares with children that it has from now on, which get this from it.
    if (d.known && is_alive(client.pidfd) && d.filters == client.filters) {
        made = bell_domain_of(d);
    } else {
        made.alone = client.id;
    }
    return made;
}

bool may_share_bell(const Client &one, const Client &other) {
    return one.who.uid == other.who.uid && one.who.gid == other.who.gid &&
           bell_domain(one) == bell_domain(other);
}

bool is_one_user(const Client &one, const Client &other) {
    const BellDomain &a = bell_domain(one), &b = bell_domain(other);
    const auto is_seen = [](const BellDomain &d) { return d.mount != 0; };
    return one.who.uid == other.who.uid &&
           (!is_seen(a) || !is_seen(b) || (a.user == b.user && a.pid == b.pid && a.mount == b.mount));
}

bool is_eventfd(int fd) {
    char path[64], text[512];
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    const ssize_t n = readlink(path, text, sizeof text - 1);
    if (n < 0) {
        return false;
    }
    text[n] = '\0';
    return strcmp(text, "anon_inode:[eventfd]") == 0;
}

std::optional<uint64_t> eventfd_id(int fd) {
    char path[64], text[512];
    snprintf(path, sizeof path, "/proc/self/fdinfo/%d", fd);
    UniqueFd info(open(path, O_RDONLY | O_CLOEXEC));
    const ssize_t got = info ? read(info.get(), text, sizeof text - 1) : -1;
    if (got <= 0) {
        return std::nullopt;
    }
    text[got] = '\0';
    const char *id = strstr(text, "eventfd-id:");
    return id == nullptr ? std::nullopt : std::optional<uint64_t>(strtoull(id + 11, nullptr, 10));
}

namespace {

/// A kernel AIO context whose only use is its completion signal: an iocb that names an eventfd has the
/// kernel add 1 to it, which, unlike write(2), cannot block on a counter that the client has filled and
/// whose O_NONBLOCK it has taken away.
class CompletionSignal {
  public:
    CompletionSignal() : file_(memfd_create("sd-aio", MFD_CLOEXEC)) {
        usable_ = file_ && syscall(SYS_io_setup, 4, &context_) == 0;
    }
    ~CompletionSignal() {
        if (usable_) {
            syscall(SYS_io_destroy, context_);
        }
    }
    bool signal(int eventfd) {
        if (!usable_) {
            return false;
        }
        char byte;
        iocb block{};
        block.aio_lio_opcode = IOCB_CMD_PREAD; // of an empty file: completes at once with 0
        block.aio_fildes = static_cast<uint32_t>(file_.get());
        block.aio_buf = reinterpret_cast<uintptr_t>(&byte);
        block.aio_nbytes = 1;
        block.aio_flags = IOCB_FLAG_RESFD;
        block.aio_resfd = static_cast<uint32_t>(eventfd);
        iocb *list[1] = {&block};
        if (syscall(SYS_io_submit, context_, 1, list) != 1) {
            return false;
        }
        io_event event;
        timespec none{};
        syscall(SYS_io_getevents, context_, 0, 1, &event, &none);
        return true;
    }

  private:
    UniqueFd file_;
    aio_context_t context_ = 0;
    bool usable_ = false;
};

CompletionSignal &completion() {
    static CompletionSignal signal;
    return signal;
}

} // namespace

bool is_bell_socket(int fd, uid_t owner) {
    int domain = 0, type = 0;
    socklen_t length = sizeof domain;
    if (getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &length) != 0 || domain != AF_UNIX) {
        return false;
    }
    length = sizeof type;
    ucred maker{};
    socklen_t maker_length = sizeof maker;
    sockaddr_un peer{};
    socklen_t peer_length = sizeof peer;
    return getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &length) == 0 && type == SOCK_SEQPACKET &&
           getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &maker, &maker_length) == 0 && maker.uid == owner &&
           getpeername(fd, reinterpret_cast<sockaddr *>(&peer), &peer_length) == 0 &&
           peer_length == offsetof(sockaddr_un, sun_path);
}

void ring(const BellFd &bell) {
    if (!completion().signal(bell.fd.get())) { // no AIO here (a seccomp filter, say)
        const Interrupted soon;
        const uint64_t one = 1;
        [[maybe_unused]] const ssize_t n = write(bell.fd.get(), &one, sizeof one);
    }
}

namespace {

struct Noted {
    unsigned depth = 0; ///< how many RingTogether live
    std::vector<std::shared_ptr<BellFd>> bells;
};

Noted &noted() {
    static Noted all;
    return all;
}

} // namespace

RingTogether::RingTogether() { ++noted().depth; }

RingTogether::~RingTogether() {
    if (--noted().depth != 0) {
        return;
    }
    std::set<uint64_t> rung; // several clients may have registered one eventfd
    for (const auto &bell : std::exchange(noted().bells, {})) {
        bell->is_noted = false;
        if (rung.insert(bell->id).second) {
            ring(*bell);
        }
    }
}

void ring_together(const std::shared_ptr<BellFd> &bell) {
    if (noted().depth == 0) {
        ring(*bell);
    } else if (!std::exchange(bell->is_noted, true)) {
        noted().bells.push_back(bell);
    }
}

void prepare_to_ring() { completion(); }

} // namespace sd::monitor
