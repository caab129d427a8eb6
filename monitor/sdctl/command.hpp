// Programs that sdctl asks: systemctl, sdstat.
#pragma once
#include "monitor/sdctl/obstacles.hpp"

#include <string>
#include <vector>

namespace sd::ctl {

struct Outcome {
    int status = 0; ///< exit status; 128 and more: ended by a signal
    std::string output, errors;
};

/// Runs a program that is found in PATH, without a shell. Throws Failure if it cannot be started.
Outcome run(std::vector<std::string> arguments);

/// Where this program stands, and the others of its installation do; without a final slash.
std::string own_directory();
/// Empty if the file cannot be read.
std::string text_of_file(const std::string &path);

/// systemctl of the system's manager, or of the user's.
class Manager {
  public:
    explicit Manager(bool user) : user_(user) {}
    bool user() const { return user_; }
    /// Where drop-ins of an administrator (or the user) are, without a final slash.
    std::string directory() const;
    /// Throws Failure with what systemctl says if it fails.
    std::string call(const std::vector<std::string> &arguments) const;
    Properties show(const std::string &unit, const std::vector<std::string> &names) const;

  private:
    bool user_;
};

} // namespace sd::ctl
