// The channel of a child to be made.
//
// The monitor must know of a child, and what it shares, before the parent goes on: or it might take something for dead that only the child still holds. The
// first children of a process are asked for, and waited for. From then on each fork_next says two things at once: that the child it names is made now, and that
// there will be another one, whose records in the segments are claimed already. So the monitor knows that one as a member of its segments long before
// it exists, and what the parent writes into its records when it is made counts at once, whenever the monitor gets to the message. Listeners
// and attachments to links follow with the message, which comes before anything that the parent says later; where the child is heard first, the monitor turns to
// its parent's channel before it listens.
#include "libsd/control/around_fork.hpp"
#include "libsd/control/channel.hpp"
#include "libsd/control/client.hpp"
#include "libsd/control/confine.hpp"
#include "libsd/control/hidden_fd.hpp"
#include "libsd/control/packets.hpp"

namespace sd::control {

namespace {

/// Under call_lock.
struct Ahead {
    uint64_t id = 0;
    uint32_t answer = 0; ///< number of the request whose answer has not been read yet; 0: none is under way
    uint32_t epoch = 0;
    bool refused = false;
    uint32_t forks = 0; ///< most processes make one child, or none
};
SD_FORK_STATE constinit Ahead ahead;
SD_FORK_STATE std::atomic<int> next_channel{-1}; ///< of the next child; -1: not here
constexpr uint32_t kForksAlone = 2;

SD_FORK_STATE int child_channel = -1;
SD_FORK_STATE uint64_t child_id = 0;
SD_FORK_STATE uint64_t fork_mask = 0;

void keep_next_child(Reply &r) noexcept {
    ahead.answer = 0;
    ahead.refused = r.status != 0;
    if (r.status == 0 && r.fds == 1)
        if (const long h = hide_fd(r.fd[0]); h >= 0) {
            next_channel.store(static_cast<int>(h));
            ahead.id = r.as<wire::ForkReply>().client_id;
        }
    r.fds = 0;
}

} // namespace

void take_next_child(uint32_t number, Reply &r) noexcept {
    if (number == ahead.answer)
        keep_next_child(r);
    else
        close_received(r); // the former program image's
}

void next_child_moved(int from, int to) noexcept { next_channel.compare_exchange_strong(from, to); }

SD_FORK_CODE void forget_next_child() noexcept {
    close_hidden(next_channel.exchange(-1));
    ahead.answer = 0;
}

SD_FORK_CODE NextChild fork_begin() noexcept {
    uint64_t mask;
    call_lock.lock(&mask);
    fork_mask = mask; // only now: another thread may be between its own fork's two halves
    child_channel = -1;
    const int fd = channel();
    if (fd < 0 || confined() || ahead.epoch != epoch())
        forget_next_child();
    if (ahead.answer) { // it has been there for long, as a rule
        Reply r;
        SpareNumbers spare;
        if (receive_answer(fd, ahead.answer, &r) == 0)
            keep_next_child(r);
        else
            drop_channel();
        ahead.answer = 0;
    }
    NextChild result{next_channel >= 0, ahead.refused, false};
    ahead.forks = ahead.refused ? 0 : ahead.forks + 1;
    ahead.refused = false;
    result.wanted = channel() >= 0 && !confined() && ahead.forks >= kForksAlone;
    return result;
}

SD_FORK_CODE void fork_prepare(const wire::Fork &f, const wire::Fork *next) noexcept {
    const int fd = channel();
    if (fd < 0) {
        forget_next_child();
        return;
    }
    SpareNumbers spare;
    wire::ForkNext both{};
    if (next_channel >= 0) {
        child_channel = next_channel;
        both.child = child_id = ahead.id;
        next_channel.store(-1);
    } else {
        Reply r;
        if (exchange(fd, wire::Op::fork, &f, sizeof f, nullptr, 0, &r) < 0) {
            drop_channel();
            return;
        }
        if (r.status == 0 && r.fds == 1)
            if (const long h = hide_fd(r.fd[0]); h >= 0) {
                child_channel = static_cast<int>(h);
                child_id = r.as<wire::ForkReply>().client_id;
            }
    }
    if (!next && !both.child)
        return;
    if (next)
        both.next = *next;
    const wire::Header h = make_header(wire::Op::fork_next, next_sequence() | kAheadBit, sizeof both, 0);
    if (send_packet(fd, h, &both, nullptr) < 0) {
        drop_channel();
        return;
    }
    ahead.answer = h.sequence;
    ahead.epoch = epoch();
}

SD_FORK_CODE void fork_parent() noexcept {
    if (child_channel >= 0)
        close_hidden(child_channel);
    child_channel = -1;
    const uint64_t mask = fork_mask;
    call_lock.unlock(&mask);
}

SD_FORK_CODE void fork_child() noexcept {
    next_channel.store(-1, std::memory_order_relaxed);
    ahead = {};
    for (auto *parents : {&chan, &retired})
        if (int fd = parents->load(); fd >= 0) {
            parents->store(-1);
            close_hidden(fd);
        }
    call_lock.reset();
    if (child_channel >= 0) {
        timeval limit{2, 0};
        sys::setsockopt(child_channel, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
        // Nothing is waited for: whatever the child asks for later comes after this, and what is wrong with it shows there.
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
