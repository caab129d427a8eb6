// Turning the library on and off for units of systemd.
#pragma once
#include "monitor/sdctl/command.hpp"

#include <string>
#include <vector>

namespace sd::ctl {

/// Where the library is, and the file beside it that names it for the service manager.
struct Library {
    std::string path;        ///< libsd.so
    std::string environment; ///< a line LD_PRELOAD=path
};
/// Beside this program or in the library directory. Throws Failure if it is not there.
Library find_library();

/// "nginx" is "nginx.service". Throws Failure if it can be no unit's name, or is one that has no programs.
std::string unit_name(const std::string &text);

struct Enabling {
    bool now = false; ///< restart what runs
};
void enable(const Manager &manager, const std::string &name, const Enabling &how);
void disable(const Manager &manager, const std::string &name, bool now);
/// All units that enable() was called for. For the removal of the package: what cannot be done is said, and
/// the rest done.
void disable_all(const Manager &manager);

struct Enabled {
    std::string unit;
    std::string state;   ///< as systemctl is-active says
    int pid = 0;         ///< the main process, 0: none
    std::string library; ///< "loaded", "not loaded", "unknown", "" where nothing runs
};
std::vector<Enabled> enabled_units(const Manager &manager);

} // namespace sd::ctl
