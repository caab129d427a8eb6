// The socket options that steps set and read, and the values they are given.
#pragma once

#include <linux/in6.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

namespace sd::differential {

enum class OptionKind { number, time, linger, text, tcp_info };

struct Option {
    int level, name;
    const char *text;
    OptionKind kind;
    int values[4];
    bool compared; ///< false: what is read back depends on timers or on the kernel's own measurements
};

#define SD_OPTION(level, name, ...)                                                                          \
    { level, name, #level ", " #name, __VA_ARGS__ }
constexpr Option kOptions[] = {
    SD_OPTION(SOL_SOCKET, SO_REUSEADDR, OptionKind::number, {0, 1, 1, 7}, true),
    SD_OPTION(SOL_SOCKET, SO_KEEPALIVE, OptionKind::number, {0, 1, 1, -1}, true),
    SD_OPTION(SOL_SOCKET, SO_LINGER, OptionKind::linger, {0, 1, 0, 1}, true),
    SD_OPTION(SOL_SOCKET, SO_OOBINLINE, OptionKind::number, {0, 1, 1, 1}, true),
    SD_OPTION(SOL_SOCKET, SO_BROADCAST, OptionKind::number, {0, 1, 1, 2}, true),
    SD_OPTION(SOL_SOCKET, SO_DONTROUTE, OptionKind::number, {0, 0, 0, 0}, true),
    SD_OPTION(SOL_SOCKET, SO_PRIORITY, OptionKind::number, {0, 1, 6, -1}, true),
    // What libsd makes of buffer sizes that were not asked for: LIMITS.md, "buffering".
    SD_OPTION(SOL_SOCKET, SO_RCVBUF, OptionKind::number, {1, 10000, 100000, 70000}, false),
    SD_OPTION(SOL_SOCKET, SO_SNDBUF, OptionKind::number, {1, 10000, 100000, 70000}, false),
    SD_OPTION(SOL_SOCKET, SO_RCVLOWAT, OptionKind::number, {1, 0, 10, 100}, true),
    SD_OPTION(SOL_SOCKET, SO_SNDLOWAT, OptionKind::number, {1, 0, 10, 100}, true),
    SD_OPTION(SOL_SOCKET, SO_RCVTIMEO, OptionKind::time, {0, 20, 20, -1}, true),
    SD_OPTION(SOL_SOCKET, SO_SNDTIMEO, OptionKind::time, {0, 20, 20, 2000000}, true),
    SD_OPTION(SOL_SOCKET, SO_ERROR, OptionKind::number, {0, 1, 1, 1}, true),
    SD_OPTION(SOL_SOCKET, SO_TYPE, OptionKind::number, {0, 1, 1, 1}, true),
    SD_OPTION(SOL_SOCKET, SO_DOMAIN, OptionKind::number, {0, 1, 1, 1}, true),
    SD_OPTION(SOL_SOCKET, SO_PROTOCOL, OptionKind::number, {0, 1, 1, 1}, true),
    SD_OPTION(SOL_SOCKET, SO_ACCEPTCONN, OptionKind::number, {0, 1, 1, 1}, true),
    SD_OPTION(SOL_SOCKET, SO_ZEROCOPY, OptionKind::number, {0, 1, 2, -1}, true),
    SD_OPTION(SOL_SOCKET, SO_REUSEPORT, OptionKind::number, {0, 1, 1, 1}, true),
    SD_OPTION(IPPROTO_TCP, TCP_NODELAY, OptionKind::number, {0, 1, 1, 5}, true),
    SD_OPTION(IPPROTO_TCP, TCP_CORK, OptionKind::number, {0, 1, 0, 1}, true),
    // Never 0: it puts acknowledgements off, and with them what Nagle's algorithm holds back until they come.
    SD_OPTION(IPPROTO_TCP, TCP_QUICKACK, OptionKind::number, {1, 1, 1, 1}, false),
    SD_OPTION(IPPROTO_TCP, TCP_KEEPIDLE, OptionKind::number, {0, 1, 60, 40000}, true),
    SD_OPTION(IPPROTO_TCP, TCP_KEEPINTVL, OptionKind::number, {0, 1, 60, 40000}, true),
    SD_OPTION(IPPROTO_TCP, TCP_KEEPCNT, OptionKind::number, {0, 1, 9, 128}, true),
    SD_OPTION(IPPROTO_TCP, TCP_SYNCNT, OptionKind::number, {0, 1, 9, 300}, true),
    SD_OPTION(IPPROTO_TCP, TCP_LINGER2, OptionKind::number, {0, 1, 60, 30}, true),
    SD_OPTION(IPPROTO_TCP, TCP_USER_TIMEOUT, OptionKind::number, {0, 30000, 60000, -1}, true),
    SD_OPTION(IPPROTO_TCP, TCP_NOTSENT_LOWAT, OptionKind::number, {0, 1000000, 2000000, -1}, true),
    SD_OPTION(IPPROTO_TCP, TCP_CONGESTION, OptionKind::text, {0, 0, 0, 0}, true),
    SD_OPTION(IPPROTO_TCP, TCP_INFO, OptionKind::tcp_info, {0, 0, 0, 0}, true),
    SD_OPTION(IPPROTO_IP, IP_TOS, OptionKind::number, {0, 16, 8, 300}, true),
    SD_OPTION(IPPROTO_IP, IP_TTL, OptionKind::number, {1, 64, 0, 256}, true),
    SD_OPTION(IPPROTO_IP, IP_RECVTOS, OptionKind::number, {0, 1, 1, 1}, true),
    SD_OPTION(IPPROTO_IPV6, IPV6_V6ONLY, OptionKind::number, {0, 1, 0, 1}, true),
    SD_OPTION(IPPROTO_IPV6, IPV6_UNICAST_HOPS, OptionKind::number, {1, 64, -1, 256}, true),
    SD_OPTION(IPPROTO_IPV6, IPV6_TCLASS, OptionKind::number, {0, 16, -1, 256}, true),
    SD_OPTION(SOL_SOCKET, 9999, OptionKind::number, {0, 1, 2, 3}, true),
    SD_OPTION(77, 1, OptionKind::number, {0, 1, 2, 3}, true),
};
#undef SD_OPTION
constexpr int kOptionCount = sizeof kOptions / sizeof *kOptions;

} // namespace sd::differential
