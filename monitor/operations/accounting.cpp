// Who pays for what a request has the monitor hold.
#include "monitor/kernel/process_info.hpp"
#include "monitor/operations/monitor.hpp"

namespace sd::monitor {

Payer Monitor::payer_of(const ucred &who) {
    const UniqueFd pidfd = who.pid > 0 ? open_pidfd(who.pid) : UniqueFd();
    return accounts_.payer(who.uid, group_of(who.pid, pidfd.get()));
}

Charge Monitor::charge(const Payer &payer, Holding what, unsigned descriptors) {
    std::string over;
    Charge made = accounts_.charge(payer, what, descriptors, &over);
    if (!made) {
        throw OverShare(over);
    }
    return made;
}

/// A channel may have been opened by another process than the one that says hello on it.
void Monitor::pay_as(Client &client, const ucred &sender) {
    if (client.payer_pid == sender.pid && client.who.uid == sender.uid) {
        return;
    }
    Payer payer = payer_of(sender);
    client.charge = charge(payer, Holding::clients, kDescriptorsOfClient);
    client.payer = std::move(payer);
    client.payer_pid = sender.pid;
}

} // namespace sd::monitor
