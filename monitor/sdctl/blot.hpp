// Names and addresses out of text that goes to strangers: each becomes a word with a number, the same one
// wherever it stands.
#pragma once
#include <map>
#include <string>

namespace sd::ctl {

class Blotter {
  public:
    /// A name of a host, user, program or unit, wherever it stands as a word of its own. Names of our own
    /// programs, and those of one letter, stay.
    void add_name(const std::string &name);
    std::string blot(const std::string &text);

  private:
    std::string stand_in(const char *kind, const std::string &what);
    std::map<std::string, std::string> names_; ///< by name, what stands in for it
    std::map<std::string, std::string> given_; ///< by kind and text
    std::map<std::string, unsigned> count_;    ///< by kind
};

} // namespace sd::ctl
