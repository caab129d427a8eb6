// Profiles: files, each about a program or a unit.
#pragma once
#include "monitor/service/policy.hpp"

#include <string>
#include <vector>

namespace sd::monitor {

/// Reads DIRECTORY/*.toml in the order of their names; none where there is no such directory. Throws
/// ConfigError: what is not known is an error. `is_system`: those of the host, which may say that what the
/// kernel could object to is passed by. Others only narrow what the policy allows.
std::vector<Profile> load_profiles(const std::string &directory, bool is_system);

} // namespace sd::monitor
