// Listeners whose kernel socket has gone, or listens elsewhere, although a process says that it has it.
//
// The kernel decides who listens: when another user's socket may have the address, no client may be led to
// the old one. Three things see to that:
//  - the end of a socket is announced (ListenerWatch), and its links are closed to new requests at once;
//  - who registers a listener makes way: all that overlap with it are looked up, before it is in the
//    directory;
//  - a client asks the kernel, for each link every few milliseconds in which it connects
//    (libsd/vfs/connections/choice.cpp), so that it does not depend on how soon we run, nor on the new
//    listener having libsd.
#include "monitor/kernel/listening.hpp"
#include "monitor/operations/monitor.hpp"
#include "monitor/service/log.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace sd::monitor {

/// Of a user's sockets that share an address, so many are looked up; of more, the end of one is announced,
/// and clients ask the kernel, but nobody else waits while each is compared with all.
constexpr auto kMostAlike = 64;

/// `socket`: a descriptor of it, which need not stay.
void Monitor::watch_listener(Listener &listener, int socket) {
    listener.watch = ends_of_listeners_.add(socket);
    if (listener.watch >= 0) {
        watched_listeners_[listener.watch] = &listener;
    } else if (may_log()) {
        log::warn("the listener on port {} cannot be watched: {}", listener.address.port, strerror(errno));
    }
}

void Monitor::forget_watch(Listener &listener) {
    if (listener.watch >= 0) {
        ends_of_listeners_.remove(listener.watch);
        watched_listeners_.erase(listener.watch);
        listener.watch = -1;
    }
}

void Monitor::take_ended_listeners() {
    const ListenerWatch::Ended ended = ends_of_listeners_.take_ended();
    for (const int watch : ended.watches) {
        if (const auto it = watched_listeners_.find(watch); it != watched_listeners_.end()) {
            end_listener(*it->second);
        }
    }
    if (!ended.lost) {
        return;
    }
    std::vector<Listener *> gone;
    ListeningSockets sockets;
    for (const auto &[id, listener] : listeners_) {
        const Listening found = sockets.find(listener->address, listener->cookie, listener->ns->cookie);
        if (found.known && found.inode == 0) {
            gone.push_back(listener.get());
        }
    }
    for (Listener *listener : gone) {
        end_listener(*listener);
    }
}

/// A socket that listens is about to be registered: what overlaps with it and does not listen any more ends.
/// Where the kernel cannot be asked, its rule answers: it lets only sockets of one user have an address at
/// the same time.
void Monitor::make_way(const Namespace &ns, const ListenProof &proof) {
    take_ended_listeners();
    const auto shares = [&](const Listener &other) {
        return other.ns == &ns && other.cookie != proof.cookie && other.owner == proof.owner &&
               overlap(other.address, proof.address);
    };
    const auto alike = std::count_if(listeners_.begin(), listeners_.end(),
                                     [&](const auto &entry) { return shares(*entry.second); });
    std::vector<Listener *> gone;
    ListeningSockets sockets;
    for (const auto &[id, other] : listeners_) {
        if (other->ns != &ns) {
            continue;
        }
        if (other->cookie == proof.cookie) {
            if (memcmp(other->address.ip, proof.address.ip, 16) != 0 ||
                other->address.port != proof.address.port) {
                gone.push_back(other.get()); // it was disconnected and listens elsewhere now
            }
        } else if (overlap(other->address, proof.address)) {
            if (alike > kMostAlike && shares(*other)) {
                continue;
            }
            const Listening found = sockets.find(other->address, other->cookie, ns.cookie);
            if (found.known ? found.inode == 0 : other->owner != proof.owner) {
                gone.push_back(other.get());
            }
        }
    }
    for (Listener *listener : gone) {
        end_listener(*listener);
    }
}

/// Requests that wait are refused, as by the kernel.
void Monitor::end_listener(Listener &listener) {
    log::debug("the socket of listener {} on port {} has ended", listener.id, listener.address.port);
    const uint64_t ns = listener.ns->cookie;
    bool elsewhere = false;
    for (Client *holder : std::exchange(listener.holders, {})) {
        holder->listeners.erase(&listener);
        elsewhere = elsewhere || holder->ns != listener.ns;
    }
    close_listener(listener);
    if (elsewhere) {
        forget_namespace(ns);
    }
}

Reply Monitor::check(Client &client, Request &request) {
    take_ended_listeners();
    const auto it = listeners_.find(request.as<wire::ListenerRef>().listener_id);
    if (it == listeners_.end() || it->second->ns != client.ns) {
        return Reply::error(ENOENT, Cause::listener_gone);
    }
    Listener &listener = *it->second;
    const Listening found = look_up_listening(listener.address, listener.cookie, client.ns->cookie);
    if (found.known && found.inode == 0) {
        end_listener(listener);
    }
    return found.inode != 0 ? Reply{} : Reply::error(ENOENT, Cause::listener_gone);
}

} // namespace sd::monitor
