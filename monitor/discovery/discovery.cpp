// Joining what the BPF programs have found.
#include "monitor/discovery/discovery.hpp"
#include "monitor/discovery/bridges.hpp"
#include "monitor/discovery/option_hash.h"
#include "monitor/kernel/connected_socket.hpp"
#include "monitor/kernel/unique_fd.hpp"

#include <algorithm>
#include <cstring>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

namespace sd::monitor {

namespace {

constexpr std::chrono::seconds kLookAtInterfaces{2}; ///< at a namespace's interfaces
constexpr size_t kMostNamespaces = 4096;             ///< that are remembered

/// SO_NETNS_COOKIE of a TCP socket that is connected in both directions; 0 of any other.
uint64_t connected_in(int socket) {
    int type = 0, protocol = 0;
    tcp_info info{};
    uint64_t cookie = 0;
    const bool is_connected = read_option(socket, SOL_SOCKET, SO_TYPE, type) && type == SOCK_STREAM &&
                              read_option(socket, SOL_SOCKET, SO_PROTOCOL, protocol) &&
                              protocol == IPPROTO_TCP && read_option(socket, IPPROTO_TCP, TCP_INFO, info) &&
                              info.tcpi_state == TCP_ESTABLISHED;
    constexpr int kNetnsCookie = 71; // SO_NETNS_COOKIE, which the headers of Debian 12's C library lack
    return is_connected && read_option(socket, SOL_SOCKET, kNetnsCookie, cookie) ? cookie : 0;
}

} // namespace

Paths::Paths() {
    for (const char *text : {"127.0.0.0/8", "10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "169.254.0.0/16",
                             "100.64.0.0/10", "::1", "fc00::/7", "fe80::/10"}) {
        networks.push_back(*AddressMatch::parse(text));
    }
}

Discovery::Discovery(Paths paths) : paths_(std::move(paths)) { start(); }

void Discovery::start() {
    if (!paths_.discovery) {
        why_off_ = "the configuration does not turn it on";
        return;
    }
    const std::string top = unified_top();
    try {
        programs_ = std::make_unique<OptionPrograms>(top.empty() ? "" : top + paths_.group, paths_.networks);
        why_off_.clear();
    } catch (const DiscoveryUnavailable &why) {
        why_off_ = why.what();
    }
}

void Discovery::reconfigure(Paths paths) {
    const bool was_on = is_on();
    if (was_on && paths.discovery) {
        paths.group = paths_.group;
    }
    paths_ = std::move(paths);
    if (!paths_.discovery) {
        programs_.reset();
    }
    if (!was_on || !paths_.discovery) {
        start();
        return;
    }
    try {
        programs_->ask(paths_.networks);
    } catch (const DiscoveryUnavailable &why) {
        programs_.reset();
        why_off_ = why.what();
    }
}

Cause Discovery::examine(int socket, uint64_t netns, DiscoveredEnd &end) {
    return examine_in(socket, is_on() ? connected_in(socket) : 0, netns, end);
}

Cause Discovery::examine_in(int socket, uint64_t here, uint64_t netns, DiscoveredEnd &end) {
    if (!is_on()) {
        return Cause::discovery_off;
    }
    if (here == 0 || here != netns) {
        return Cause::foreign_namespace; // handed about between namespaces
    }
    const auto kept = programs_->end_of(socket);
    if (!kept || kept->state != SD_PAIRED) {
        return Cause::undiscovered;
    }
    end.has_connected = kept->role == SD_ROLE_CONNECTED;
    end.pair = {kept->nonce, kept->answer, end.has_connected ? kept->own_isn : kept->peer_isn,
                end.has_connected ? kept->peer_isn : kept->own_isn};
    end.netns = here;
    end.bridges = bridges_of(socket, here);
    return Cause::none;
}

std::optional<ForeignEnd> Discovery::foreign(int socket, uint64_t here, uint64_t netns) const {
    const auto kept = is_on() && here != 0 && here == netns ? programs_->end_of(socket) : std::nullopt;
    if (!kept || kept->state != SD_OTHER_HOST) {
        return std::nullopt;
    }
    ForeignEnd end;
    end.has_connected = kept->role == SD_ROLE_CONNECTED;
    end.pair = {kept->nonce, kept->answer, end.has_connected ? kept->own_isn : kept->peer_isn,
                end.has_connected ? kept->peer_isn : kept->own_isn};
    std::copy(std::begin(kept->proof), std::end(kept->proof), end.proof.begin());
    return end;
}

bool ForeignEnd::is_of(const ProofKey &key) const {
    const uint64_t made =
        sd_hash(key[0], key[1], pair.nonce, has_connected ? SD_USE_ANSWER_PROOF : SD_USE_SYN_PROOF);
    return memcmp(proof.data(), &made, proof.size()) == 0; // as the option has it: its first bytes
}

std::optional<ProofKey> Discovery::proof_key() const {
    return is_on() ? std::optional(programs_->proof_key()) : std::nullopt;
}

/// What is on the bridges does not change with every connection.
const std::set<unsigned> &Discovery::bridges_of(int socket, uint64_t netns) {
    const auto now = std::chrono::steady_clock::now();
    if (attached_.size() > kMostNamespaces) {
        attached_.clear();
    }
    Attached &attached = attached_[netns];
    if (attached.read == decltype(attached.read){} || now - attached.read > kLookAtInterfaces) {
        const UniqueFd ns(ioctl(socket, SIOCGSKNS)); // takes CAP_NET_ADMIN there
        const auto number = ns ? namespace_number(ns.get()) : std::nullopt;
        attached = {number ? bridges_to(*number) : std::set<unsigned>{}, now};
    }
    return attached.bridges;
}

Party Discovery::party_of(const DiscoveredEnd &end, pid_t pid, int pidfd) {
    Party party = read_party(pid, pidfd);
    party.bridges = end.bridges;
    return party;
}

Cause Discovery::objection(const DiscoveredEnd &a, const Party &party_a, const DiscoveredEnd &b,
                           const Party &party_b) const {
    if (a.pair != b.pair || a.has_connected == b.has_connected) {
        return Cause::undiscovered; // not two ends of one connection
    }
    // Within one namespace the two meet anyway.
    return a.netns == b.netns || paths_.between_tenants || same_tenant(party_a, party_b, paths_.tenants)
               ? Cause::none
               : Cause::other_tenant;
}

} // namespace sd::monitor
