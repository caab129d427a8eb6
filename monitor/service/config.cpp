// The monitor's configuration file.
#include "monitor/service/config.hpp"
#include "monitor/peers/peer_config.hpp"
#include "monitor/service/config_reader.hpp"
#include "monitor/service/metrics_server.hpp"

#include <algorithm>
#include <string_view>

namespace sd::monitor {

namespace {

void read_policy(const Reader &reader, const toml::table &table, Policy &policy) {
    reader.only(table, "policy.", {"default", "birth", "rule"});
    if (const toml::node *node = table.get("default")) {
        policy.fallback = reader.verdict(*node, "policy.default");
    }
    if (const toml::node *node = table.get("birth")) {
        policy.birth = reader.birth(*node, "policy.birth");
    }
    const toml::node *rules = table.get("rule");
    if (rules == nullptr) {
        return;
    }
    if (!rules->is_array()) {
        reader.fail(rules->source(), "policy.rule", "must be written as [[policy.rule]]");
    }
    size_t count = 0;
    for (const toml::node &node : *rules->as_array()) {
        const std::string name = "policy.rule[" + std::to_string(++count) + "]";
        if (!node.is_table()) {
            reader.fail(node.source(), name, "must be a table");
        }
        policy.rules.push_back(reader.rule(*node.as_table(), name + "."));
    }
}

void read_paths(const Reader &reader, const toml::table &table, Paths &paths) {
    reader.only(table, "paths.", {"discovery", "group", "networks", "tenants", "between_tenants"});
    reader.flag(table, "discovery", "paths.", paths.discovery);
    reader.flag(table, "between_tenants", "paths.", paths.between_tenants);
    reader.text(table, "group", "paths.", paths.group);
    if (const toml::node *node = table.get("group")) {
        if (const char *reason = paths.group == "/" ? nullptr : objection_to_tenant(paths.group)) {
            reader.fail(node->source(), "paths.group", reason);
        }
    }
    if (table.get("networks") != nullptr) {
        paths.networks.clear();
    }
    reader.each(table, "networks", [&](const toml::node &node) {
        const auto network = AddressMatch::parse(reader.text(node, "paths.networks"));
        if (!network) {
            reader.fail(node.source(), "paths.networks",
                        "must be an IP address, or one with a prefix length as in \"10.0.0.0/8\"");
        }
        paths.networks.push_back(*network);
    });
    reader.each(table, "tenants", [&](const toml::node &node) {
        paths.tenants.push_back(reader.text(node, "paths.tenants"));
        if (const char *reason = objection_to_tenant(paths.tenants.back())) {
            reader.fail(node.source(), "paths.tenants", reason);
        }
    });
}

} // namespace

Config load_config(const std::string &file, Config config) {
    const toml::table root = Reader::parse(file);
    const Reader reader(file);
    config.file = file;
    reader.only(root, "", {"monitor", "limits", "policy", "metrics", "paths", "peers", "peer"});
    if (const toml::table *table = reader.table(root, "monitor", "")) {
        reader.only(*table, "monitor.", {"socket", "containers_socket", "log_level"});
        reader.text(*table, "socket", "monitor.", config.socket);
        reader.text(*table, "containers_socket", "monitor.", config.containers_socket);
        reader.text(*table, "log_level", "monitor.", config.log_level);
        const toml::node *level = table->get("log_level");
        constexpr std::string_view levels[] = {"debug", "info", "warning", "error"};
        if (level != nullptr &&
            std::find(std::begin(levels), std::end(levels), config.log_level) == std::end(levels)) {
            reader.fail(level->source(), "monitor.log_level",
                        "must be \"debug\", \"info\", \"warning\" or \"error\"");
        }
    }
    if (const toml::table *table = reader.table(root, "limits", "")) {
        reader.only(*table, "limits.",
                    {"clients",
                     "bridges",
                     "links_per_client",
                     "links_per_server",
                     "listeners_per_client",
                     "bells_per_client",
                     "segments_per_client",
                     "clients_per_user",
                     "links_per_user",
                     "listeners_per_user",
                     "bells_per_user",
                     "segments_per_user",
                     "parcels_per_user",
                     "clients_per_cgroup",
                     "links_per_cgroup",
                     "listeners_per_cgroup",
                     "bells_per_cgroup",
                     "segments_per_cgroup",
                     "parcels_per_cgroup",
                     "pools_per_user",
                     "pools_per_cgroup",
                     "offers_per_user",
                     "offers_per_cgroup"});
        for (unsigned i = 0; i < kResources; ++i) {
            const std::string name = resource_name(static_cast<Resource>(i));
            reader.number(*table, (name + "_per_user").c_str(), "limits.", config.limits.per_user[i]);
            reader.number(*table, (name + "_per_cgroup").c_str(), "limits.", config.limits.per_cgroup[i]);
        }
        reader.number(*table, "clients", "limits.", config.limits.clients);
        reader.number(*table, "bridges", "limits.", config.limits.bridges);
        reader.number(*table, "links_per_client", "limits.", config.limits.links_per_client);
        reader.number(*table, "links_per_server", "limits.", config.limits.links_per_server);
        reader.number(*table, "listeners_per_client", "limits.", config.limits.listeners_per_client);
        reader.number(*table, "bells_per_client", "limits.", config.limits.bells_per_client);
        reader.number(*table, "segments_per_client", "limits.", config.limits.segments_per_client);
    }
    if (const toml::table *table = reader.table(root, "policy", "")) {
        read_policy(reader, *table, config.policy);
    }
    if (const toml::table *table = reader.table(root, "metrics", "")) {
        reader.only(*table, "metrics.", {"listen", "programs"});
        reader.text(*table, "listen", "metrics.", config.metrics.listen);
        const toml::node *listen = table->get("listen");
        if (const char *reason = listen == nullptr ? nullptr : objection_to_metrics(config.metrics.listen)) {
            reader.fail(listen->source(), "metrics.listen", reason);
        }
        reader.flag(*table, "programs", "metrics.", config.metrics.programs);
    }
    if (const toml::table *table = reader.table(root, "paths", "")) {
        read_paths(reader, *table, config.paths);
    }
    read_peers(reader, root, config.peers);
    if (const toml::node *rdma = root["peers"]["rdma"].node();
        rdma != nullptr && config.peers.rdma != UseRdma::never && !config.paths.discovery) {
        reader.fail(rdma->source(), "peers.rdma",
                    "needs paths.discovery = true: connections between hosts are joined by what it finds");
    }
    return config;
}

} // namespace sd::monitor
