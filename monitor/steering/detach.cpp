// Processes that are back on kernel TCP: nothing new of theirs begins in shared memory, nor is joined.
#include "libsd/layout/directory_layout.hpp"
#include "monitor/operations/monitor.hpp"
#include "monitor/service/log.hpp"

#include <algorithm>
#include <unistd.h>

namespace sd::monitor {

/// Listeners of a detached process are the kernel's for everybody who holds them: who takes a connection
/// from a link cannot be told beforehand.
void Monitor::review_listing(Listener &listener) {
    const bool is_detached = std::any_of(listener.holders.begin(), listener.holders.end(),
                                         [](const Client *holder) { return holder->detached; });
    if (is_detached == listener.is_detached) {
        return;
    }
    if (is_detached) {
        if (listener.directory_index < 0) {
            return; // unlisted for good
        }
        listener.unlist();
    } else {
        listener.directory_index = listener.ns->directory.insert(listener.id, listener.address, listener.cookie,
                                                                 listener.backlog, listener.owner);
    }
    listener.is_detached = is_detached;
    listeners_changed();
}

/// Has all that the process is and has say what Client::detached says.
void Monitor::apply_detached(Client &client) {
    if (client.own && !client.detached) {
        client.detached =
            (client.own->view().header().steering.load(std::memory_order_relaxed) & kDetached) != 0 ||
            access(kDisabledFile, F_OK) == 0; // a former monitor, or the administrator, has said so
    }
    if (client.detached) {
        set_detached(client, true);
    }
}

void Monitor::set_detached(Client &client, bool is_detached) {
    if (client.detached != is_detached) {
        log::info("process {} ({}) is {}", client.pid, client.comm, is_detached ? "detached" : "attached again");
    }
    client.detached = is_detached;
    if (client.own) {
        auto &steering = client.own->view().header().steering;
        if (is_detached) {
            steering.fetch_or(kDetached, std::memory_order_seq_cst);
        } else {
            steering.fetch_and(~uint32_t{kDetached}, std::memory_order_seq_cst);
        }
    }
    for (Listener *listener : client.listeners) {
        review_listing(*listener);
    }
    for (const auto &[name, attachment] : client.links) {
        if (is_detached && attachment.side[0] && !attachment.link->joins) {
            stop_requests(*attachment.link);
        }
    }
}

} // namespace sd::monitor
