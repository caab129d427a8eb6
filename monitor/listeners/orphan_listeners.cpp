// Listeners that no process with libsd holds any more, but which the kernel still has: in the queue of a Unix
// socket they were sent over, mostly.
//
// The connections that wait there to be accepted go on waiting, as in the kernel, until somebody with libsd
// takes the listener out and registers it. New ones are the kernel's meanwhile. In the hands of somebody
// without libsd nobody would ever accept them, so they are reset.
#include "monitor/kernel/listening.hpp"
#include "monitor/operations/monitor.hpp"
#include "monitor/service/log.hpp"

#include <algorithm>

namespace sd::monitor {

namespace {

constexpr std::chrono::milliseconds kFirstOrphanLook{2};
constexpr unsigned kMostOrphanDoublings = 8;
/// Looks in which only the kernel is asked: whoever takes the listener out of a queue is given 60 ms to
/// register it.
constexpr unsigned kPatientLooks = 4;

bool has_waiting_connections(const Listener &listener) {
    return std::any_of(listener.place.begin(), listener.place.end(),
                       [](const Link *link) { return link != nullptr && link->has_pending_syn(); });
}

ino_t inode_of(const Listener &listener) {
    return look_up_listening(listener.address, listener.cookie, listener.ns->cookie).inode;
}

} // namespace

/// Nobody holds the listener: ends it, or waits for somebody to take it up again. An end of a process, or an
/// exec, may close its channel a moment before its listeners.
void Monitor::abandon(Listener &listener) {
    // One that was taken out of the directory before is with somebody who does not accept our connections.
    if (listener.directory_index < 0) {
        close_listener(listener);
        return;
    }
    // First: a client that came between our look and the end would be reset, although the kernel's socket may
    // go on listening.
    listener.unlist();
    if (!has_waiting_connections(listener) || inode_of(listener) == 0) {
        close_listener(listener);
        return;
    }
    log::debug("listener {} on port {} is held by nobody, and waits", listener.id, listener.address.port);
    listener.orphan = true;
    listener.looks = 0;
    look_for_holder_later(listener);
}

void Monitor::look_for_holder_later(Listener &listener) {
    const auto pause = kFirstOrphanLook * (1 << std::min(listener.looks, kMostOrphanDoublings));
    listener.timer = loop_.after(pause, [this, id = listener.id] {
        const auto it = listeners_.find(id);
        if (it == listeners_.end()) {
            return;
        }
        Listener &found = *it->second;
        found.timer = 0;
        ++found.looks;
        const ino_t inode = inode_of(found);
        bool over = inode == 0 || !has_waiting_connections(found);
        if (!over && found.looks > kPatientLooks) {
            const auto hands = look_at_descriptors(inode);
            over = hands == InHands::stranger;
            found.looks -= hands ? 0 : 1; // it is to be told soon
        }
        if (over) {
            close_listener(found);
        } else {
            look_for_holder_later(found);
        }
    });
}

/// Somebody has registered it, again or as one of several. Whether nobody had it before.
bool Monitor::take_up(Listener &listener, uint32_t backlog) {
    if (!listener.orphan) {
        return false;
    }
    loop_.cancel(listener.timer);
    listener.timer = 0;
    listener.orphan = false;
    listener.directory_index =
        listener.ns->directory.insert(listener.id, listener.address, listener.cookie, backlog, listener.owner);
    return true;
}

/// Nobody is left in the namespace who could wait or accept.
void Monitor::close_orphans(const Namespace &ns) {
    std::vector<Listener *> orphans;
    for (const auto &[id, listener] : listeners_) {
        if (listener->ns == &ns) {
            orphans.push_back(listener.get());
        }
    }
    for (Listener *listener : orphans) {
        close_listener(*listener);
    }
}

} // namespace sd::monitor
