// A connection that stays with its kernel socket, because somebody without libsd is about to have that.
#include "libsd/vfs/descriptors/numbers.hpp"
#include "libsd/vfs/paths/moves.hpp"
#include "libsd/vfs/readiness/epoll.hpp"

namespace sd {

bool stay_in_socket(File &f) noexcept {
    Ofd &o = *f.ofd;
    const Claim tx(f.seg, o.tx.token, f.tx_token_id(), Claim::patient);
    const Claim rx(f.seg, o.rx.token, f.rx_token_id(), Claim::patient);
    // What was agreed to may be on its way already
    const PathStep reads = path_step((o.opt.*kPathRx).load(std::memory_order_relaxed));
    if (!tx || !rx || sends_in_ring(o) || reads == kPathAsked || reads == kPathRing)
        return false;
    (o.opt.*kPathStays).fetch_or(kStaysPinned, std::memory_order_release);
    return true;
}

bool leave_paths(File &f) noexcept {
    if (!stay_in_socket(f))
        return false;
    for_each_number(f, [&f](int fd) {
        epoll_file_became_kernel(f, fd);
        give_up_number(fd, f);
    });
    return true;
}

} // namespace sd
