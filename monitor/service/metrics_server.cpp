// Counters for Prometheus, over HTTP.
//
// Who connects can have 16 connections kept open for ten seconds, with 16 KiB of memory each, and nothing
// else: libmicrohttpd is driven by its epoll descriptor, reads and writes without blocking, and starts no
// thread. Connections are accepted here: at its own limit the library takes the listening socket out of its
// epoll set, and puts it back in a later run that nobody may have a reason for.
#include "monitor/service/metrics_server.hpp"

#include <algorithm>
#include <arpa/inet.h>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <microhttpd.h>
#include <netinet/in.h>
#include <stdexcept>
#include <string_view>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

namespace sd::monitor {

namespace {

constexpr unsigned kConnections = 16, kSeconds = 10;
constexpr size_t kMemory = 16u << 10;

struct Place {
    sockaddr_storage name{};
    socklen_t length = 0;
};

/// Length 0: it is none.
Place place_of(const std::string &where) {
    Place place;
    if (where.starts_with('/')) {
        auto &un = reinterpret_cast<sockaddr_un &>(place.name);
        if (where.size() < sizeof un.sun_path) {
            un.sun_family = AF_UNIX;
            memcpy(un.sun_path, where.c_str(), where.size() + 1);
            place.length = sizeof un;
        }
        return place;
    }
    const size_t colon = where.rfind(':');
    unsigned port = 0;
    const char *end = where.data() + where.size();
    if (colon == std::string::npos || std::from_chars(where.data() + colon + 1, end, port).ptr != end ||
        port == 0 || port > 65535) {
        return place;
    }
    std::string host = where.substr(0, colon);
    auto &in = reinterpret_cast<sockaddr_in &>(place.name);
    auto &in6 = reinterpret_cast<sockaddr_in6 &>(place.name);
    if (inet_pton(AF_INET, host.c_str(), &in.sin_addr) == 1) {
        in.sin_family = AF_INET;
        in.sin_port = htons(static_cast<uint16_t>(port));
        place.length = sizeof in;
    } else if (host.size() > 2 && host.front() == '[' && host.back() == ']' &&
               inet_pton(AF_INET6, host.substr(1, host.size() - 2).c_str(), &in6.sin6_addr) == 1) {
        in6.sin6_family = AF_INET6;
        in6.sin6_port = htons(static_cast<uint16_t>(port));
        place.length = sizeof in6;
    }
    return place;
}

MHD_Result answer(MHD_Connection *connection, unsigned status, std::string_view text, const char *type) {
    MHD_Response *response =
        MHD_create_response_from_buffer(text.size(), const_cast<char *>(text.data()), MHD_RESPMEM_MUST_COPY);
    if (response == nullptr) {
        return MHD_NO;
    }
    MHD_add_response_header(response, MHD_HTTP_HEADER_CONTENT_TYPE, type);
    if (status == MHD_HTTP_METHOD_NOT_ALLOWED) {
        MHD_add_response_header(response, MHD_HTTP_HEADER_ALLOW, "GET, HEAD");
    }
    const MHD_Result result = MHD_queue_response(connection, status, response);
    MHD_destroy_response(response);
    return result;
}

MHD_Result handle(void *server, MHD_Connection *connection, const char *url, const char *method, const char *,
                  const char *, size_t *, void **state) {
    static char seen;
    if (*state == nullptr) { // its first call: the request is not complete yet
        *state = &seen;
        return MHD_YES;
    }
    if (strcmp(method, MHD_HTTP_METHOD_GET) != 0 && strcmp(method, MHD_HTTP_METHOD_HEAD) != 0) {
        return answer(connection, MHD_HTTP_METHOD_NOT_ALLOWED, "only GET\n", "text/plain");
    }
    if (strcmp(url, "/metrics") != 0) {
        return answer(connection, MHD_HTTP_NOT_FOUND, "see /metrics\n", "text/plain");
    }
    try {
        return answer(connection, MHD_HTTP_OK, static_cast<MetricsServer *>(server)->text()(),
                      "text/plain; version=0.0.4; charset=utf-8");
    } catch (const std::exception &) {
        return answer(connection, MHD_HTTP_INTERNAL_SERVER_ERROR, "no memory\n", "text/plain");
    }
}

} // namespace

const char *objection_to_metrics(const std::string &where) {
    const Place place = place_of(where);
    if (place.length == 0) {
        return "must be an address with a port as in \"127.0.0.1:9464\", or the absolute path of a socket";
    }
    const auto &in = reinterpret_cast<const sockaddr_in &>(place.name);
    const auto &in6 = reinterpret_cast<const sockaddr_in6 &>(place.name);
    const bool is_local =
        place.name.ss_family == AF_UNIX ||
        (place.name.ss_family == AF_INET && ntohl(in.sin_addr.s_addr) >> 24 == IN_LOOPBACKNET) ||
        (place.name.ss_family == AF_INET6 && IN6_IS_ADDR_LOOPBACK(&in6.sin6_addr));
    return is_local ? nullptr : "must be an address of this host only: of 127.0.0.0/8, or ::1";
}

UniqueFd listen_for_metrics(const std::string &where) {
    const Place place = place_of(where);
    const auto *name = reinterpret_cast<const sockaddr *>(&place.name);
    const auto fail = [&](const char *what) {
        throw std::runtime_error("metrics at " + where + ": " + what + ": " + strerror(errno));
    };
    UniqueFd fd(socket(name->sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    if (!fd) {
        fail("socket");
    }
    if (name->sa_family == AF_UNIX) {
        // One that a former monitor has left behind, and nobody else's.
        struct stat st;
        const UniqueFd probe(socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
        if (lstat(where.c_str(), &st) == 0 && S_ISSOCK(st.st_mode) &&
            connect(probe.get(), name, place.length) != 0 && errno == ECONNREFUSED) {
            unlink(where.c_str());
        }
    }
    const int on = 1;
    setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(fd.get(), name, place.length) != 0) {
        fail("bind");
    }
    if (listen(fd.get(), static_cast<int>(kConnections)) != 0) {
        fail("listen");
    }
    return fd;
}

MetricsServer::MetricsServer(EventLoop &loop, UniqueFd listening, Text text)
    : loop_(loop), text_(std::move(text)), listening_(std::move(listening)) {
    daemon_ = MHD_start_daemon(MHD_USE_EPOLL | MHD_USE_NO_LISTEN_SOCKET, 0, nullptr, nullptr, handle, this,
                               MHD_OPTION_CONNECTION_LIMIT, kConnections, MHD_OPTION_CONNECTION_TIMEOUT,
                               kSeconds, MHD_OPTION_CONNECTION_MEMORY_LIMIT, kMemory, MHD_OPTION_END);
    if (daemon_ == nullptr) {
        throw std::runtime_error("metrics: libmicrohttpd does not start");
    }
    epoll_ = MHD_get_daemon_info(daemon_, MHD_DAEMON_INFO_EPOLL_FD)->epoll_fd;
    watch_ = loop_.add(epoll_, EPOLLIN, [this](uint32_t) { run(); });
    listen_watch_ = loop_.add(listening_.get(), EPOLLIN, [this](uint32_t) { accept_waiting(); });
}

MetricsServer::~MetricsServer() {
    loop_.remove(watch_, epoll_);
    loop_.remove(listen_watch_, listening_.get());
    if (timer_ != 0) {
        loop_.cancel(timer_);
    }
    MHD_stop_daemon(daemon_);
}

unsigned MetricsServer::connections() const {
    return MHD_get_daemon_info(daemon_, MHD_DAEMON_INFO_CURRENT_CONNECTIONS)->num_connections;
}

void MetricsServer::accept_waiting() {
    bool out_of_descriptors = false;
    while (connections() < kConnections) {
        sockaddr_storage name;
        socklen_t length = sizeof name;
        auto *const peer = reinterpret_cast<sockaddr *>(&name);
        const int fd = accept4(listening_.get(), peer, &length, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd < 0) {
            out_of_descriptors = errno != EAGAIN && errno != ECONNABORTED && errno != EINTR;
            break;
        }
        MHD_add_connection(daemon_, fd, peer, length); // which closes it if it cannot have it
    }
    run(out_of_descriptors);
}

/// `rests`: nothing is accepted until the next run.
void MetricsServer::run(bool rests) {
    MHD_run(daemon_);
    const bool accepts = !rests && connections() < kConnections;
    loop_.change(listen_watch_, listening_.get(), accepts ? uint32_t{EPOLLIN} : 0);
    run_later(rests);
}

/// For connections that have been silent for too long, for what is left to do, and to accept again.
void MetricsServer::run_later(bool rests) {
    if (timer_ != 0) {
        loop_.cancel(timer_);
        timer_ = 0;
    }
    constexpr MHD_UNSIGNED_LONG_LONG kLongest = 60000, kLongestRest = 1000;
    MHD_UNSIGNED_LONG_LONG left = kLongest;
    if (MHD_get_timeout(daemon_, &left) == MHD_YES || rests) {
        timer_ = loop_.after(std::chrono::milliseconds(std::min(left, rests ? kLongestRest : kLongest)), [this] {
            timer_ = 0;
            run();
        });
    }
}

} // namespace sd::monitor
