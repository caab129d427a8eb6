// TCP_INFO of an accelerated connection.
#include "libsd/vfs/options/tcp_info.hpp"
#include "libsd/control/kernel_sockets/tcp_states.hpp"
#include "libsd/vfs/connections/connection.hpp"
#include "libsd/vfs/paths/moves.hpp"
#include <cstring>
#include <linux/tcp.h>

namespace sd {

int tcp_state(File &f) noexcept {
    if (has_paths(*f.ofd) && !sends_in_ring(*f.ofd) && !receives_in_ring(*f.ofd)) [[unlikely]] {
        tcp_info info{};
        socklen_t n = sizeof info;
        return sys::getsockopt(path_socket(f), IPPROTO_TCP, TCP_INFO, &info, &n) == 0 ? info.tcpi_state
                                                                                      : kTcpClose;
    }
    const uint32_t peer = absorb_flags(f), block = f.ofd->tx_block.load(std::memory_order_acquire);
    if (block & kTxReset)
        return kTcpClose;
    const bool we_shut = block & kTxShut, peer_shut = peer & kFlagWriteShut;
    // Within a host every FIN is acknowledged at once: neither FIN_WAIT1 nor LAST_ACK can be seen, and
    // TIME_WAIT reads as CLOSE.
    if (we_shut)
        return peer_shut ? kTcpClose : kTcpFinWait2;
    return peer_shut ? kTcpCloseWait : kTcpEstablished;
}

long get_tcp_info(File &f, void *value, socklen_t *n, int room) noexcept {
    // A new socket's answer tells how long the structure is in this kernel, and has all the usual settings.
    long dummy = dummy_socket();
    if (dummy < 0)
        return dummy;
    alignas(8) char buffer[1024] = {};
    socklen_t size = sizeof buffer;
    if (long r = sys::getsockopt(static_cast<int>(dummy), IPPROTO_TCP, TCP_INFO, buffer, &size); r < 0)
        return r;
    tcp_info info;
    memcpy(&info, buffer, sizeof info);
    const Ofd &o = *f.ofd;
    // Counts of another thread's work may be a little old
    const uint64_t out = o.tx.s.bytes, in = o.rx.s.bytes;
    constexpr uint32_t kMss = 32768, kMtu = 65535, kRttUs = 10;
    info.tcpi_state = static_cast<uint8_t>(tcp_state(f));
    info.tcpi_options = TCPI_OPT_TIMESTAMPS | TCPI_OPT_SACK | TCPI_OPT_WSCALE;
    info.tcpi_snd_wscale = info.tcpi_rcv_wscale = 10;
    info.tcpi_rto = 204000;
    info.tcpi_snd_mss = info.tcpi_rcv_mss = kMss;
    info.tcpi_advmss = kMtu - 52;
    info.tcpi_pmtu = kMtu;
    info.tcpi_rtt = info.tcpi_rcv_rtt = info.tcpi_min_rtt = kRttUs;
    info.tcpi_rttvar = kRttUs / 2;
    info.tcpi_rcv_space = info.tcpi_rcv_ssthresh = kMtu - 40;
    info.tcpi_bytes_acked = out + 1; // the SYN counts
    info.tcpi_bytes_sent = out;
    info.tcpi_bytes_received = in;
    info.tcpi_segs_out = info.tcpi_data_segs_out = static_cast<uint32_t>(o.tx.s.messages);
    info.tcpi_segs_in = info.tcpi_data_segs_in = static_cast<uint32_t>(o.rx.s.messages);
    info.tcpi_delivered = static_cast<uint32_t>(o.tx.s.messages) + 1;
    memcpy(buffer, &info, sizeof info < size ? sizeof info : size);
    socklen_t m = static_cast<socklen_t>(room) < size ? static_cast<socklen_t>(room) : size;
    // Here the kernel writes the length first.
    return sd_copy(n, &m, sizeof m) || sd_copy(value, buffer, m) ? -EFAULT : 0;
}

} // namespace sd
