// The screen of "sdstat --watch": rates between two looks, for connections, processes or units.
#pragma once
#include "monitor/sdstat/filter.hpp"
#include "monitor/sdstat/view.hpp"

#include <array>
#include <deque>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace sd::stat {

/// What is shown, out of the snapshots that it is given; knows nothing of terminals.
class Watch {
  public:
    explicit Watch(const Filter &filter) : filter_(filter) {}

    void take(Snapshot snapshot);
    /// A key was pressed. False: it was the one that ends.
    bool key(char c);
    bool is_paused() const { return is_paused_; }
    /// At most `height` lines of at most `width` characters. `note`: what is wrong now, or empty.
    Lines screen(size_t width, size_t height, const std::string &note) const;

  private:
    enum class Group { connections, processes, units };
    enum class Sort { rate, bytes, connections, age, queue, name };
    struct Entry {
        std::string name, detail; ///< detail: what only a connection has
        std::string path, ring, asleep, id;
        unsigned count = 0, processes = 0, stalled = 0;
        double sent = 0, received = 0, messages = 0; ///< per second
        double sleeps = 0, takeovers = 0;            ///< per second
        double bytes = 0, queue = 0, since = 0;
    };
    struct Counts {
        double bytes[2], messages[2];
    };
    struct Causes {
        double when;
        std::map<unsigned, double> count;
    };
    std::vector<Entry> entries() const;
    std::vector<Entry> of_connections() const;
    std::vector<Entry> of_processes() const;
    Lines entries_table(size_t width, size_t room) const;
    Lines causes_table(size_t width) const;
    Counts rate(const monitor::ConnectionRow &row) const;
    static Lines help();

    Filter filter_;
    Snapshot now_;
    /// Of the look before: by connection id and beginning, by pid
    std::map<std::pair<std::string, double>, Counts> counts_;
    std::map<uint32_t, Process> former_processes_;
    double elapsed_ = 0; ///< since that look; 0: there was none
    std::deque<Causes> history_;
    Group group_ = Group::connections;
    Sort sort_ = Sort::rate;
    bool is_paused_ = false, is_help_ = false;
};

} // namespace sd::stat
