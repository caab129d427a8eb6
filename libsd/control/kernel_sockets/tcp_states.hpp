// The states of a TCP connection, as TCP_INFO says them. <netinet/tcp.h> has names for them, but cannot be
// included beside <linux/tcp.h>, which has the newer options.
#pragma once
#include <cstdint>

namespace sd {

inline constexpr uint8_t kTcpEstablished = 1, kTcpFinWait1 = 4, kTcpFinWait2 = 5, kTcpClose = 7,
                         kTcpCloseWait = 8, kTcpListen = 10;

} // namespace sd
