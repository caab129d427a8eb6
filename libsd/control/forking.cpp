#include "libsd/control/forking.hpp"
#include "libsd/control/channel.hpp"
#include "libsd/control/client.hpp"
#include "libsd/control/fork_sections.hpp"
#include "libsd/control/hidden_fd.hpp"
#include "libsd/control/packets.hpp"
#include <initializer_list>

namespace sd::control {

namespace {

SD_FORK_STATE int child_channel = -1;
SD_FORK_STATE uint64_t child_id = 0;
SD_FORK_STATE uint64_t fork_mask = 0;

} // namespace

SD_FORK_CODE void fork_lock() noexcept {
    uint64_t mask;
    call_lock.lock(&mask);
    fork_mask = mask; // only now: another thread may be between its own fork's two halves
}

SD_FORK_CODE void fork_unlock() noexcept {
    const uint64_t mask = fork_mask;
    call_lock.unlock(&mask);
}

SD_FORK_CODE void fork_prepare(const wire::Fork *f) noexcept {
    child_channel = -1;
    const int fd = channel();
    if (fd < 0 || !f)
        return;
    Reply r;
    SpareNumbers spare(fd);
    if (exchange(fd, wire::Op::fork, f, sizeof *f, nullptr, 0, &r) < 0) {
        drop_channel();
        return;
    }
    if (r.status == 0 && r.fds == 1) {
        const long h = hide_fd(r.fd[0]);
        if (h >= 0) {
            child_channel = static_cast<int>(h);
            child_id = r.as<wire::ForkReply>().client_id;
        }
    }
}

SD_FORK_CODE void fork_parent() noexcept {
    if (child_channel >= 0)
        close_hidden(child_channel);
    child_channel = -1;
    fork_unlock();
}

SD_FORK_CODE void fork_child() noexcept {
    for (auto *parents : {&chan, &retired})
        if (int fd = parents->load(); fd >= 0) {
            parents->store(-1);
            close_hidden(fd);
        }
    call_lock.reset();
    if (child_channel >= 0) {
        timeval limit{2, 0};
        sys::setsockopt(child_channel, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
        // Nothing is waited for: whatever the child asks for later comes after this, and what is wrong with
        // it shows there.
        wire::Child c{static_cast<uint32_t>(sys::getpid()), 0};
        PlainPacket packet;
        if (packet.send(child_channel, wire::Op::child, wire::kNoAnswer, &c, sizeof c) >= 0) {
            chan.store(child_channel, std::memory_order_release);
            my_id.store(child_id, std::memory_order_relaxed);
            epoch_count.fetch_add(1, std::memory_order_release);
        } else {
            close_hidden(child_channel);
        }
        child_channel = -1;
    }
    sys::restore_signals(&fork_mask);
}

} // namespace sd::control
