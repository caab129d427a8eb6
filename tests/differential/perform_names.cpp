// Steps that make, name and connect sockets.
#include "tests/differential/actor.hpp"

#include <arpa/inet.h>
#include <cerrno>
#include <cstring>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

namespace sd::differential {

namespace {

struct Address {
    sockaddr_storage storage{};
    socklen_t length = 0;
    const sockaddr *where = reinterpret_cast<const sockaddr *>(&storage);

    Address(int form, int port) {
        const auto four = [&](const char *host) {
            auto *in = reinterpret_cast<sockaddr_in *>(&storage);
            in->sin_family = AF_INET;
            in->sin_port = htons(static_cast<uint16_t>(port));
            inet_pton(AF_INET, host, &in->sin_addr);
            length = sizeof *in;
        };
        const auto six = [&](const char *host) {
            auto *in = reinterpret_cast<sockaddr_in6 *>(&storage);
            in->sin6_family = AF_INET6;
            in->sin6_port = htons(static_cast<uint16_t>(port));
            inet_pton(AF_INET6, host, &in->sin6_addr);
            length = sizeof *in;
        };
        switch (form) {
        case v6_loopback:
            six("::1");
            break;
        case v6_any:
            six("::");
            break;
        case mapped:
            six("::ffff:127.0.0.1");
            break;
        case v4_any:
            four("0.0.0.0");
            break;
        case v4_other:
            four("127.0.0.2");
            break;
        case v4_foreign:
            four("203.0.113.77");
            break;
        case v4_near:
            four("10.77.0.1");
            break;
        case v4_far:
            four("10.77.0.2");
            break;
        case v6_near:
            six("fd77::1");
            break;
        case v6_far:
            six("fd77::2");
            break;
        case mapped_near:
            six("::ffff:10.77.0.1");
            break;
        case mapped_far:
            six("::ffff:10.77.0.2");
            break;
        default:
            four("127.0.0.1");
        }
        if (form == bad_family) {
            storage.ss_family = 77;
        } else if (form == unspecified) {
            storage.ss_family = AF_UNSPEC;
        } else if (form == short_length) {
            length = 4;
        } else if (form == null_address) {
            length = 0;
        } else if (form == bad_pointer) {
            where = static_cast<const sockaddr *>(forbidden_page());
        }
    }
};

// The port, for steps that connect to it later; not compared as a number.
void note_port(int fd, Observation &o) {
    sockaddr_storage name{};
    socklen_t length = sizeof name;
    if (getsockname(fd, reinterpret_cast<sockaddr *>(&name), &length) == 0) {
        // The same place in sockaddr_in6
        o.reply.port = ntohs(reinterpret_cast<sockaddr_in *>(&name)->sin_port);
    }
}

// Variants of an answer's buffer: 0 fits, 1 short, 2 none, 3 bad pointer, 4 bad length pointer, 5 length of
// -1.
struct NameBuffer {
    sockaddr_storage storage;
    socklen_t length = sizeof storage;
    sockaddr *where = reinterpret_cast<sockaddr *>(&storage);
    socklen_t *length_at = &length;

    explicit NameBuffer(int variant) {
        memset(&storage, 'n', sizeof storage);
        if (variant == 1) {
            length = 6;
        } else if (variant == 2) {
            length = 0;
        } else if (variant == 3) {
            where = static_cast<sockaddr *>(forbidden_page());
        } else if (variant == 4) {
            length_at = static_cast<socklen_t *>(forbidden_page());
        } else if (variant == 5) {
            length = static_cast<socklen_t>(-1);
        }
    }
    void say(Observation &o, int variant) const {
        if (variant == 0) {
            say_name(o, storage, length);
        } else if (variant < 3) {
            o.say(" length %u", length);
        }
    }
};

void take(int fd, int variant, int flags, Observation &o) {
    if (variant == 6 || variant == 7) { // no name wanted
        return o.made(variant == 6 && flags == 0 ? accept(fd, nullptr, nullptr)
                                                 : accept4(fd, nullptr, nullptr, flags));
    }
    NameBuffer name(variant);
    const int made =
        flags == 0 ? accept(fd, name.where, name.length_at) : accept4(fd, name.where, name.length_at, flags);
    o.made(made);
    if (made >= 0) {
        name.say(o, variant);
    }
}

} // namespace

void say_name(Observation &o, const sockaddr_storage &name, socklen_t length) {
    char host[INET6_ADDRSTRLEN] = "?";
    if (name.ss_family == AF_INET && length >= sizeof(sockaddr_in)) {
        const auto *in = reinterpret_cast<const sockaddr_in *>(&name);
        inet_ntop(AF_INET, &in->sin_addr, host, sizeof host);
        o.say(" %s {%d} length %u", host, ntohs(in->sin_port), length);
    } else if (name.ss_family == AF_INET6 && length >= sizeof(sockaddr_in6)) {
        const auto *in = reinterpret_cast<const sockaddr_in6 *>(&name);
        inet_ntop(AF_INET6, &in->sin6_addr, host, sizeof host);
        o.say(" [%s] {%d} length %u scope %u", host, ntohs(in->sin6_port), length, in->sin6_scope_id);
    } else {
        o.say(" family %d length %u", name.ss_family, length);
    }
}

bool perform_names(Op op, int, Arguments a, Observation &o) {
    switch (op) {
    case Op::socket:
        o.made(socket(a[0], a[1], a[2]));
        return true;
    case Op::bind: {
        const Address address(a[1], a[2]);
        const int r = bind(a[0], address.where, address.length);
        o.result(r);
        if (r == 0) {
            note_port(a[0], o);
        }
        return true;
    }
    case Op::listen: {
        const int r = listen(a[0], a[1]);
        o.result(r);
        if (r == 0) {
            note_port(a[0], o);
        }
        return true;
    }
    case Op::connect: {
        const Address address(a[1], a[2]);
        o.result(connect(a[0], address.where, address.length));
        return true;
    }
    case Op::accept:
        take(a[0], a[1], a[2], o);
        return true;
    case Op::shutdown:
        o.result(shutdown(a[0], a[1]));
        return true;
    case Op::getsockname:
    case Op::getpeername: {
        NameBuffer name(a[1]);
        const int r = op == Op::getsockname ? getsockname(a[0], name.where, name.length_at)
                                            : getpeername(a[0], name.where, name.length_at);
        o.result(r);
        if (r == 0) {
            name.say(o, a[1]);
        }
        return true;
    }
    default:
        return false;
    }
}

} // namespace sd::differential
