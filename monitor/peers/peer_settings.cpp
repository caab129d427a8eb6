// Settings of the peer hosts, on their way to sd-peers.
#include "monitor/peers/peer_settings.hpp"

#include <nlohmann/json.hpp>

namespace sd::monitor {

using nlohmann::json;

namespace {

/// A key is no text.
std::vector<uint8_t> bytes_of(const std::string &key) { return {key.begin(), key.end()}; }

} // namespace

std::string text_of(const PeersSettings &settings) {
    json peers = json::array();
    for (const PeerSettings &peer : settings.peers) {
        peers.push_back({{"name", peer.name},
                         {"address", peer.address},
                         {"port", peer.port},
                         {"key", bytes_of(peer.key)},
                         {"certificates", peer.certificates},
                         {"addresses", peer.addresses}});
    }
    const json all{{"name", settings.name},
                   {"listen", settings.listen},
                   {"port", settings.port},
                   {"deadline", settings.deadline},
                   {"certificate", settings.certificate},
                   {"private_key", settings.private_key},
                   {"peers", std::move(peers)}};
    // A file that is no text is no PEM either.
    return all.dump(-1, ' ', false, json::error_handler_t::replace);
}

PeersSettings settings_of(const std::string &text) {
    const json all = json::parse(text);
    PeersSettings settings;
    all.at("name").get_to(settings.name);
    all.at("listen").get_to(settings.listen);
    all.at("port").get_to(settings.port);
    all.at("deadline").get_to(settings.deadline);
    all.at("certificate").get_to(settings.certificate);
    all.at("private_key").get_to(settings.private_key);
    for (const json &one : all.at("peers")) {
        PeerSettings &peer = settings.peers.emplace_back();
        one.at("name").get_to(peer.name);
        one.at("address").get_to(peer.address);
        one.at("port").get_to(peer.port);
        const auto key = one.at("key").get<std::vector<uint8_t>>();
        peer.key.assign(key.begin(), key.end());
        one.at("certificates").get_to(peer.certificates);
        one.at("addresses").get_to(peer.addresses);
    }
    return settings;
}

} // namespace sd::monitor
