// The sections [peers] and [[peer]] of the configuration.
#pragma once
#include "monitor/peers/peer_settings.hpp"
#include "monitor/service/config_reader.hpp"

namespace sd::monitor {

/// Reads them, and the files of keys and certificates that they name. Throws ConfigError.
void read_peers(const Reader &reader, const toml::table &root, PeersSettings &settings);

} // namespace sd::monitor
