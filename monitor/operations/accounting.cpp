// Who pays for what a request has the monitor hold.
#include "monitor/kernel/process_info.hpp"
#include "monitor/operations/monitor.hpp"

#include <poll.h>

namespace sd::monitor {

/// A container's user is not the host's of the same number, and pays nothing in its name: the group pays.
Payer Monitor::payer_of(const ucred &who, bool contained) {
    const UniqueFd pidfd = who.pid > 0 ? open_pidfd(who.pid) : UniqueFd();
    const std::string group = group_of(who.pid, pidfd.get());
    if (contained) {
        if (Payer payer = accounts_.payer(0, group); payer.group != nullptr) {
            return payer;
        }
    }
    return accounts_.payer(who.uid, group);
}

Charge Monitor::charge(const Payer &payer, Resource what, unsigned descriptors) {
    std::string over;
    Charge made = accounts_.charge(payer, what, descriptors, &over);
    if (!made) {
        throw OverShare(over);
    }
    return made;
}

/// For one channel more. Those that have not said anything make way, the oldest first; but not that of
/// `asking`.
Charge Monitor::charge_client(const Payer &payer, const Client *asking) {
    for (;;) {
        std::string over;
        if (clients_.size() >= config_.limits.clients) {
            over = "limits.clients (" + std::to_string(config_.limits.clients) + ") reached";
        } else if (Charge made = accounts_.charge(payer, Resource::clients, kDescriptorsOfClient, &over)) {
            return made;
        }
        if (!drop_silent(payer, asking)) {
            throw OverShare(over);
        }
    }
}

/// Ends the oldest of those with the same payer that have connected and said nothing. False: there is none.
/// Not one made by enter: its other end lies in a queue of the asker's, until that hangs up, and he would
/// have as many of them as he likes there. The kernel counts them as the monitor's, which could send no
/// descriptor to anybody any more.
bool Monitor::drop_silent(const Payer &payer, const Client *asking) {
    const auto same = [](const auto &one, const auto &other) { return one != nullptr && one == other; };
    Client *oldest = nullptr;
    for (const auto &[id, client] : clients_) {
        if (client->kind == Client::Kind::fresh && !client->stays && !client->entered && client.get() != asking &&
            (same(client->payer.user, payer.user) || same(client->payer.group, payer.group)) &&
            (oldest == nullptr || id < oldest->id)) {
            pollfd said{client->channel.get(), POLLIN, 0};
            oldest = poll(&said, 1, 0) == 0 ? client.get() : oldest;
        }
    }
    if (oldest != nullptr) {
        gone(*oldest, "made way for another one");
    }
    return oldest != nullptr;
}

/// A channel may have been opened by another process than the one that says hello on it.
void Monitor::pay_as(Client &client, const ucred &sender) {
    if (client.payer_pid == sender.pid && client.who.uid == sender.uid) {
        return;
    }
    Payer payer = payer_of(sender, client.contained);
    client.charge = charge_client(payer, &client);
    client.payer = std::move(payer);
    client.payer_pid = sender.pid;
}

} // namespace sd::monitor
