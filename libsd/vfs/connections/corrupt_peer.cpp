#include "libsd/vfs/connections/corrupt_peer.hpp"
#include "libsd/control/client.hpp"
#include "libsd/vfs/connections/connection.hpp"
#include "libsd/vfs/streams/capture.hpp"

namespace sd {

void condemn(File &f) noexcept {
    f.mine->control.flags.fetch_or(kFlagReset, std::memory_order_seq_cst);
    notify(*f.link, f.slot, f.peer->control.rx_arm);
    notify(*f.link, f.slot, f.peer->control.tx_arm);
    if (!(f.ofd->flags_seen.fetch_or(kFlagReset | kFlagWriteShut) & kFlagReset)) {
        f.ofd->so_error.store(ECONNRESET);
        f.ofd->tx_block.fetch_or(kTxReset);
        if (is_captured(*f.ofd))
            capture_end(f, false, CaptureKind::reset);
        count_fallback(Cause::corrupt_peer, nullptr);
        wire::Log log{1, static_cast<uint16_t>(Cause::corrupt_peer), "invalid data in a ring: connection reset"};
        control::request(wire::Op::log, &log, sizeof log);
    }
}

} // namespace sd
