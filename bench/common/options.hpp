// The command line of the measuring programs: every option is `--name value`, all declared in one place.
#pragma once

#include <initializer_list>
#include <map>
#include <string>
#include <vector>

namespace sd::bench {

struct OptionSpec {
    const char *name;
    const char *value; // the default
    const char *help;
};

// Parses once at the start of main; a wrong option prints the help text and ends the program.
class Options {
  public:
    Options(int argc, char **argv, const char *purpose, std::initializer_list<OptionSpec> specs);

    [[nodiscard]] long integer(const std::string &name) const;
    [[nodiscard]] double number(const std::string &name) const;
    [[nodiscard]] const std::string &text(const std::string &name) const;
    // The processors of `--cpu A,B,...`, -1 for "leave it to the kernel"; `index` wraps around.
    [[nodiscard]] int cpu(std::size_t index) const;

  private:
    [[noreturn]] void help(int status) const;

    const char *program_;
    const char *purpose_;
    std::vector<OptionSpec> specs_;
    std::map<std::string, std::string> values_;
};

} // namespace sd::bench
