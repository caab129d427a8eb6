// Listeners whose connections do not stay with who accepts them: they go on to a process of another trust
// domain or without libsd, and a bridge carries them. That is slower than the kernel's own TCP. So the next
// ones begin on the kernel, for a while; then it is tried again. And listeners on which processes of two
// domains wait.
#include "monitor/operations/monitor.hpp"
#include "monitor/service/log.hpp"

#include <algorithm>

namespace sd::monitor {

namespace {

using namespace std::chrono_literals;
constexpr std::chrono::milliseconds kFirstKernelPause = 30s, kLongestKernelPause = 1h;
/// One connection of so many may be bridged: a server that hands on the odd one keeps the others fast.
constexpr uint64_t kMostStay = 8;

} // namespace

bool Listener::crosses() const { return EventLoop::Clock::now() < kernel_until; }

/// Connections that have been taken from its links. A word that acceptors write: a lie concerns them alone.
uint64_t Listener::taken() const {
    uint64_t sum = taken_from_former_links;
    for (size_t i = 0; i < place.size(); ++i) {
        if (place[i] != nullptr) {
            sum += segment().link[i].syn_head.load(std::memory_order_relaxed);
        }
    }
    return sum;
}

/// A connection that was accepted goes over to a bridge.
void Monitor::note_crossing(const Link &link) {
    Listener *const listener = link.listener;
    if (listener == nullptr || listener->crosses()) {
        return;
    }
    ++listener->crossings;
    if (kMostStay * listener->crossings >= listener->taken() - listener->taken_before) {
        leave_to_kernel(*listener, 2 * listener->kernel_pause);
    }
}

/// The last one waits for clients, too. A link is of one domain: of two that wait, one would be woken for a
/// client that it may mean the other to take, as Dovecot's master does.
void Monitor::note_acceptors(Listener &listener) {
    const AcceptBell &last = listener.accept_bells.back();
    const Domain &now = last.domain;
    if (!now.known || listener.crosses()) {
        return;
    }
    for (AcceptBell &bell : listener.accept_bells) {
        if (bell.domain.shares_with(now) || same_process(*bell.owner, *last.owner)) {
            continue;
        }
        bell.domain = domain_now(*bell.owner); // it may have changed since
        if (bell.domain.known && !bell.domain.shares_with(now)) {
            leave_to_kernel(listener, kLongestKernelPause);
            return;
        }
    }
}

void Monitor::leave_to_kernel(Listener &listener, std::chrono::milliseconds pause) {
    listener.kernel_pause = std::clamp(pause, kFirstKernelPause, kLongestKernelPause);
    listener.kernel_until = EventLoop::Clock::now() + listener.kernel_pause;
    log::debug("listener {} on port {}: its connections go on to others, the next begin on the kernel",
               listener.id, listener.address.port);
    for (Link *const each : listener.place) {
        if (each != nullptr) {
            review_birth(*each, false);
        }
    }
    loop_.after(listener.kernel_pause + 1ms, [this, id = listener.id] {
        const auto it = listeners_.find(id);
        if (it == listeners_.end() || it->second->crosses()) {
            return;
        }
        it->second->crossings = 0;
        it->second->taken_before = it->second->taken();
        it->second->ns->directory.bump_birth(); // who was refused asks anew
    });
}

} // namespace sd::monitor
