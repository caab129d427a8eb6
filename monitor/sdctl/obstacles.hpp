// What in a unit's settings keeps the library from working, or would be passed by.
#pragma once
#include <map>
#include <string>
#include <vector>

namespace sd::ctl {

/// As "systemctl show" prints them; several lines of one name are joined by line breaks.
using Properties = std::map<std::string, std::string>;

/// Empty if it is not there.
std::string value(const Properties &unit, const char *name);

struct Obstacle {
    bool blocks;          ///< the unit must not be enabled; otherwise a remark
    std::string property; ///< its name in the unit
    std::string reason;
};

/// The names that find_obstacles looks at.
const std::vector<std::string> &obstacle_properties();

/// Pure: looks at nothing but its arguments. `library` is the path of libsd.so.
std::vector<Obstacle> find_obstacles(const Properties &unit, const std::string &library);

/// The value of a variable in what "systemctl show" prints as Environment=, where assignments with white
/// space are quoted; empty if it is not there. The last one counts.
std::string variable_of(const std::string &environment, const std::string &name);

/// The value of a variable in the text of an EnvironmentFile=; empty if it is not there.
std::string variable_of_file(const std::string &text, const std::string &name);

} // namespace sd::ctl
