// A socket whose lock somebody has for as long as he likes.
#pragma once
#include "tests/unit/held_call.hpp"

#include <linux/filter.h>
#include <sys/socket.h>

namespace sd::test {

/// Has a socket's lock until it goes.
struct HeldSocket : HeldCall {
    explicit HeldSocket(int socket)
        : HeldCall([socket](void *page) {
              const sock_fprog filter{1, static_cast<sock_filter *>(page)};
              setsockopt(socket, SOL_SOCKET, SO_ATTACH_FILTER, &filter, sizeof filter);
          }) {}
};

} // namespace sd::test
