// Processes in a sandbox (a seccomp filter). A filter decides on system calls and not on memory that is
// mapped, nor on what is written to a descriptor: so what is within reach that way is decided here.
#include "monitor/operations/monitor.hpp"

#include <algorithm>
#include <cerrno>

namespace sd::monitor {

namespace {

using wire::Op;

/// What the connections need that it has, and its children for theirs. `image`: those that stay open over an
/// exec.
constexpr Op kWhenSandboxed[] = {Op::ring,      Op::carry, Op::peer_bell, Op::bell,   Op::unbell,
                                 Op::drop_link, Op::moved, Op::let_go,    Op::fork,   Op::child,
                                 Op::image,     Op::leave, Op::withdraw,  Op::sandbox};

} // namespace

bool Monitor::is_answered_when_sandboxed(Op op) {
    return std::find(std::begin(kWhenSandboxed), std::end(kWhenSandboxed), op) != std::end(kWhenSandboxed);
}

/// By whichever channel: sdrun's, or one that was kept (Op::stay), is in the hands of all that come after.
/// Who has more filters than its maker had is in a sandbox, whether we were told or not: a child of one
/// that we know has another number. A new program in the same process that comes by a channel of its own is
/// judged by its filter.
bool Monitor::is_sandboxed(const Client &client, const ucred &sender) const {
    if (client.kind == Client::Kind::process || client.kind == Client::Kind::expected) {
        return client.sandboxed;
    }
    if (sender.pid <= 0 || (client.kind != Client::Kind::presence && !client.stays)) {
        return false;
    }
    const UniqueFd pidfd = open_pidfd(sender.pid);
    const unsigned filters = read_domain(sender.pid).filters;
    return filters > client.filters || !is_alive(pidfd) || // of one that has ended, nothing is known
           std::any_of(clients_.begin(), clients_.end(), [&sender](const auto &entry) {
               return entry.second->sandboxed && entry.second->pid == sender.pid;
           });
}

Reply Monitor::withdraw(Client &client, Request &request) {
    const auto body = request.as<wire::LinkRef>();
    Link *link = client.link(body.link_id, body.side);
    if (link == nullptr) {
        return Reply::error(ENOENT);
    }
    if (body.side == 0) {
        link->withdraw_requests();
    } else {
        stop_requests(*link);
    }
    return {};
}

Reply Monitor::sandbox(Client &client, Request &) {
    client.sandboxed = true;
    client.bell_domain.reset(); // it is another one with the filter
    return {};
}

} // namespace sd::monitor
