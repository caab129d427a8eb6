// sdctl peers: asks the monitor how its channels to other hosts are.
#include "monitor/sdctl/peers.hpp"
#include "monitor/sdstat/snapshot.hpp"

#include <algorithm>
#include <fmt/core.h>
#include <nlohmann/json.hpp>

namespace sd::ctl {

namespace {

using nlohmann::json;

std::string time_text(double seconds) {
    const auto whole = static_cast<long long>(seconds);
    if (whole < 120) {
        return fmt::format("{} s", whole);
    }
    return whole < 7200     ? fmt::format("{} min", whole / 60)
           : whole < 172800 ? fmt::format("{} h", whole / 3600)
                            : fmt::format("{} d", whole / 86400);
}

std::string cause_text(const json &peer) {
    const std::string cause = peer.at("cause"), text = peer.at("text"), detail = peer.at("detail");
    return cause.empty() ? "" : fmt::format("{}: {}{}", cause, text, detail.empty() ? "" : " (" + detail + ")");
}

} // namespace

Exit show_peers(bool as_json) {
    json rest;
    try {
        rest = stat::take_snapshot("").rest;
    } catch (const stat::Failure &failure) {
        throw Failure(Exit::failed, failure.what());
    }
    const auto found = rest.find("peers");
    if (found == rest.end()) {
        throw Failure(
            Exit::failed,
            "the monitor shows its peers to its own user and to root only, or is of an earlier version");
    }
    const json &all = *found;
    if (as_json) {
        fmt::print("{}\n", all.dump(2));
    } else if (all.is_null()) {
        fmt::print("No peers are configured; [[peer]] in sd-monitor.toml(5) does that.\n");
    }
    if (all.is_null()) {
        return Exit::done;
    }
    const json &peers = all.at("peers");
    const bool is_well =
        all.at("trouble").get<std::string>().empty() &&
        std::all_of(peers.begin(), peers.end(), [](const json &peer) { return peer.at("state") == "up"; });
    if (!as_json) {
        fmt::print("{:<20} {:<28} {:<11} {:<10} {:<8} {:<8} {:<7} {:<7} {:<8} {}\n", "PEER", "ADDRESS",
                   "PROOF", "STATE", "SINCE", "VERSION", "FOUND", "JOINED", "REFUSED", "LAST TROUBLE");
        for (const json &peer : peers) {
            const std::string ip = peer.at("address");
            const auto version = peer.at("version").get<unsigned>();
            fmt::print("{:<20} {:<28} {:<11} {:<10} {:<8} {:<8} {:<7} {:<7} {:<8} {}\n",
                       peer.at("name").get<std::string>(),
                       fmt::format(fmt::runtime(ip.find(':') == std::string::npos ? "{}:{}" : "[{}]:{}"), ip,
                                   peer.at("port").get<unsigned>()),
                       peer.at("proof").get<std::string>(), peer.at("state").get<std::string>(),
                       time_text(peer.at("since")), version == 0 ? "" : std::to_string(version),
                       peer.at("found").get<uint64_t>(), peer.value("joined", uint64_t{0}),
                       peer.value("refused", uint64_t{0}), cause_text(peer));
        }
        if (!all.value("rdma", true)) {
            fmt::print(
                "Connections with them stay with the kernel; rdma in sd-monitor.toml(5) changes that.\n");
        }
        if (const auto strangers = all.at("strangers").get<unsigned>(); strangers != 0) {
            fmt::print("{} connections of strangers were turned away, the last one from {}\n", strangers,
                       all.at("last_stranger").get<std::string>());
        }
        if (const std::string trouble = all.at("trouble"); !trouble.empty()) {
            fmt::print("{}\n", trouble);
        }
    }
    return is_well ? Exit::done : Exit::trouble;
}

} // namespace sd::ctl
