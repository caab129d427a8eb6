// An end of a connection that the kernel carries, offered by its process to be carried otherwise.
#pragma once
#include "monitor/discovery/discovery.hpp"
#include "monitor/kernel/connected_socket.hpp"
#include "monitor/records/client.hpp"
#include "monitor/records/remote_host.hpp"

#include <memory>

namespace sd::monitor {

/// Until its process has heard of the other end. The socket itself is not kept: a descriptor elsewhere would
/// hold back the FIN that tells of the process's death.
struct Offer {
    Client *client = nullptr;
    unsigned side = 0; ///< 0: it has connected, 1: it was accepted
    ConnectedSocket socket;
    std::optional<DiscoveredEnd> discovered{}; ///< nothing: only its names are known
    /// The other end has come: by now the connection has this slot. Null: it has not, or the link has ended.
    Link *link = nullptr;
    uint32_t slot = 0;
    std::shared_ptr<Charge> charge{}; ///< of one that is kept

    /// For one whose other end is on another host (hosts/far_offers.cpp)
    RemoteHost *host = nullptr;
    uint64_t number = 0; ///< among those of `host`
    PairKey pair{};
    /// What `host` has been asked, and not answered: until then link and slot are not the process's
    std::optional<between_hosts::Joined> asked{};
    Cause refused = Cause::none; ///< why it stays with the kernel; its process has not heard
};

} // namespace sd::monitor
