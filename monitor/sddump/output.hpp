// Where the capture goes: a file of the caller's, or standard output.
#pragma once
#include "monitor/kernel/unique_fd.hpp"

#include <string>
#include <string_view>

namespace sd::dump {

class Output {
  public:
    /// "-" is standard output. A file is made, or emptied, with mode 0600. Throws Failure.
    explicit Output(const std::string &path);
    /// Throws Failure, with Exit::done where nobody reads any more. A signal that is to end sddump does not
    /// break it off unless nobody takes what is written.
    void write(std::string_view bytes) const;

  private:
    std::string name_;
    monitor::UniqueFd file_;
    int fd_;
};

} // namespace sd::dump
