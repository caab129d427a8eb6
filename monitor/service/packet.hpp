// The monitor's end of a control channel: packets in, replies out, never blocking.
#pragma once
#include "libsd/layout/protocol.hpp"
#include "monitor/kernel/unique_fd.hpp"

#include <cstring>
#include <sys/socket.h>
#include <type_traits>
#include <vector>

namespace sd::monitor {

struct Request {
    wire::Header header{};
    alignas(8) unsigned char body[wire::kMaxBody]{};
    std::vector<UniqueFd> fds;
    ucred sender{}; ///< as the kernel says

    Request() = default;
    ~Request();
    Request(const Request &) = delete;
    Request &operator=(const Request &) = delete;
    /// Closes what has come and was not taken.
    void close_descriptors();

    /// The body as T. The length was checked against the operation before.
    template <typename T> T as() const {
        static_assert(std::is_trivially_copyable_v<T> && sizeof(T) <= wire::kMaxBody);
        T value;
        std::memcpy(&value, body, sizeof value);
        return value;
    }
};

enum class Received {
    packet,
    nothing,   ///< no packet now
    closed,    ///< the other end has gone
    truncated, ///< a packet whose descriptors found no room in the monitor's table
    malformed, ///< not a packet of this protocol; the request holds what there was of a header
};
Received receive(int channel, Request &request);

struct Reply {
    int32_t status = 0; ///< 0 or -errno
    Cause cause = Cause::none;
    uint16_t length = 0;
    alignas(8) unsigned char body[wire::kMaxBody]{};
    std::vector<int> fds;        ///< sent, and stay the caller's
    std::vector<UniqueFd> owned; ///< closed when the reply has been sent
    bool later = false;          ///< not sent now: whoever makes the client wait does it

    static Reply error(int number, Cause cause = Cause::none) {
        Reply reply;
        reply.status = -number;
        reply.cause = cause;
        return reply;
    }
    template <typename T> void set(const T &value) {
        static_assert(std::is_trivially_copyable_v<T> && sizeof(T) <= wire::kMaxBody);
        std::memcpy(body, &value, sizeof value);
        length = sizeof value;
    }
};
/// Has few bytes of replies in flight on a channel at a time; see takes_replies().
void bound_replies(int channel);
/// Whether the client has read all that it was sent, or has gone. Else it is not to be answered: nobody has
/// us keep replies, with memory and descriptors in them. The kernel bounds how many descriptors are in flight
/// for all clients together. EPOLLOUT, with EPOLLET, tells of each packet that it has read.
bool takes_replies(int channel);
/// Whether there is a request, and its sender waits for no reply to it.
bool wants_no_answer(int channel);
/// False: the client does not read its replies, or has gone.
bool send(int channel, const wire::Header &request, const Reply &reply);

} // namespace sd::monitor
