// Connections that waited to be accepted when the former monitor ended, and whose server has not come back.
//
// They wait as in the kernel: as long as somebody has a socket that listens there. Whoever has libsd brings
// it with his next call, which may be long in coming: he is stopped, or computes. So the kernel is asked now
// and then whether a socket listens there still, and in whose hands it is. In those of somebody without libsd
// nobody would ever accept, so such clients are reset; so are those whose server's listener is not taken in
// (policy, limits), and those in a namespace that is not ours to look into.
//
// The address is the client's word. Who names another one waits longer, on a link that he pays for.
#include "monitor/kernel/listening.hpp"
#include "monitor/operations/monitor.hpp"
#include "monitor/service/log.hpp"

#include <cstdlib>

namespace sd::monitor {

namespace {

using namespace std::chrono_literals;

/// How long it goes without a look: programs come back within half a second.
constexpr std::chrono::milliseconds kListenersComeBack = 10s;

} // namespace

/// How long one waits for who was there before a restart: what is usual, or what a test says.
std::chrono::milliseconds patience_after_restart(std::chrono::milliseconds usual) {
    const char *said = std::getenv("SD_TEST_COME_BACK");
    return said == nullptr ? usual : std::chrono::milliseconds(std::strtoul(said, nullptr, 10));
}

/// Its requests were made under a former monitor, and no acceptor has taken the link yet: the one whom they
/// are for is known by his listener only, which he shows when he finds us.
void Monitor::await_listener(Link &link) {
    if (link.awaits_listener || give_to_listener(link)) {
        return;
    }
    link.awaits_listener = true;
    look_for_listeners_after(patience_after_restart(kListenersComeBack));
}

void Monitor::look_for_listeners_after(std::chrono::milliseconds pause) {
    if (listeners_look_ == 0) {
        listeners_look_ = loop_.after(pause, [this] {
            listeners_look_ = 0;
            look_for_listeners();
        });
    }
}

/// One look for all links that wait: who has many costs no more than one who has one.
void Monitor::look_for_listeners() {
    const auto patience = patience_after_restart(kListenersComeBack);
    ListeningSockets sockets;
    std::map<ino_t, std::optional<InHands>> seen; // what is asked once more is looked for once more
    std::vector<FileId> over;
    bool any = false, all_known = true;
    for (const auto &[file, link] : links_) {
        if (!link->awaits_listener) {
            continue;
        }
        any = true;
        if (EventLoop::Clock::now() - link->adopted < patience) {
            continue;
        }
        const std::optional<bool> comes = may_be_accepted(*link, sockets, seen);
        all_known = all_known && comes;
        if (comes && !*comes) {
            over.push_back(file);
        }
    }
    if (any) {
        look_for_listeners_after(all_known ? patience / 4 : soon_after(next_look_));
    }
    for (const FileId &file : over) {
        give_up_waiting(file);
    }
}

/// Whether somebody with libsd has a socket that listens where the requests were made to. Nothing: it is not
/// known yet in whose hands that is.
std::optional<bool> Monitor::may_be_accepted(const Link &link, ListeningSockets &sockets,
                                             std::map<ino_t, std::optional<InHands>> &seen) {
    const auto request = link.first_request();
    if (!request) {
        return false;
    }
    if (link.side[0].attached.empty()) {
        return true; // who had it is waited for himself
    }
    const Client &client = **link.side[0].attached.begin();
    for (const auto &[id, listener] : listeners_) {
        if (listener->ns == client.ns && !listener->orphan && takes(listener->address, request->first)) {
            return false; // it is there, and does not get the link
        }
    }
    const auto inodes = sockets.taking(request->first, client.ns->cookie, client.pid);
    if (!inodes) {
        return false;
    }
    bool all_known = true;
    for (const ino_t inode : *inodes) {
        const auto [it, is_new] = seen.try_emplace(inode);
        if (is_new) {
            it->second = look_at_descriptors(inode);
        }
        if (it->second && *it->second != InHands::stranger) {
            return true;
        }
        all_known = all_known && it->second;
    }
    return all_known ? std::optional(false) : std::nullopt;
}

/// Nobody accepts what was asked for on this link.
void Monitor::give_up_waiting(const FileId &file) {
    const auto it = links_.find(file);
    if (it != links_.end() && it->second->awaits_listener) {
        it->second->awaits_listener = false;
        side_changed(*it->second, 1);
    }
}

/// A listener has been shown, and is not taken in: its process goes on without us.
void Monitor::turn_away(const Namespace &ns, const ListenAddress &address) {
    std::vector<FileId> over;
    for (const auto &[file, link] : links_) {
        const auto request = link->awaits_listener ? link->first_request() : std::nullopt;
        if (request && !link->side[0].attached.empty() && (*link->side[0].attached.begin())->ns == &ns &&
            takes(address, request->first)) {
            over.push_back(file);
        }
    }
    for (const FileId &file : over) {
        give_up_waiting(file);
    }
}

/// All that is asked of a new link is asked of it, since the client alone says what it is.
bool Monitor::give_to_listener(Link &link) {
    const auto request = link.first_request();
    if (!request || link.side[0].attached.empty()) {
        return false;
    }
    const Client &client = **link.side[0].attached.begin();
    for (const auto &[id, listener] : listeners_) {
        if (listener->ns != client.ns || listener->orphan || !takes(listener->address, request->first)) {
            continue;
        }
        if (client.detached || listener->is_detached ||
            !config_.policy.allows(client.who, listener->identity(), listener->address) ||
            birth_objects(client, *listener, wire::kOtherAddresses, true) != Cause::none ||
            !has_room(client, *listener)) {
            return false;
        }
        link.maker = client.payer.user ? client.payer.user : client.payer.group;
        if (!listener->add(link, request->second)) {
            return false;
        }
        link.awaits_listener = false;
        link.for_each_view([id = id](LinkView view) {
            std::atomic_ref<uint32_t>(view.header().listener_id).store(id, std::memory_order_release);
        });
        listener->ring_accept_bells();
        return true;
    }
    return false;
}

/// A listener has been shown.
void Monitor::take_waiting_links() {
    for (const auto &[file, link] : links_) {
        if (link->awaits_listener) {
            give_to_listener(*link);
        }
    }
}

} // namespace sd::monitor
