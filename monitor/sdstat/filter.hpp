// Which sockets to show, in the language of ss(8): "state established ( dport = :6379 or dst 10.0.0.0/8 )".
#pragma once
#include "monitor/sdstat/sockets.hpp"

#include <functional>
#include <string>
#include <vector>

namespace sd::stat {

class Filter {
  public:
    /// Throws Failure, which names the word that cannot be understood. No words: everything that is neither
    /// listening nor closed.
    explicit Filter(const std::vector<std::string> &words);

    bool matches(const Socket &socket) const;
    /// Does one of its two ends match?
    bool matches(const Snapshot &snapshot, const monitor::ConnectionRow &row) const;
    /// Nothing was asked for.
    bool is_empty() const { return is_empty_; }

  private:
    using Test = std::function<bool(const Socket &)>;
    class Parser;
    unsigned states_ = 0; ///< a bit for each State
    Test test_;           ///< empty: all
    bool is_empty_ = true;
};

} // namespace sd::stat
