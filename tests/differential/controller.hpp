// Performs a sequence on one side: all on kernel sockets, or under libsd.
#pragma once

#include "tests/differential/apart.hpp"
#include "tests/differential/channel.hpp"
#include "tests/differential/step.hpp"

#include <array>
#include <map>
#include <optional>
#include <string>
#include <sys/types.h>
#include <vector>

namespace sd::differential {

/// What was observed, in order: what each step gave at once, and which earlier steps ended because of it.
struct Line {
    int step; ///< the step that was performed
    std::string text;
    bool operator==(const Line &) const = default;
};
using Trace = std::vector<Line>;

/// Where the programs are, and how they are started.
struct Setting {
    std::string build;                    ///< top of the build directory
    std::string directory;                ///< for the monitor's socket
    std::vector<std::string> environment; ///< NAME=VALUE, for the accelerated side
    Users users = Users::one;
    bool apart = false;   ///< see Features
    std::string programs; ///< see provide_programs()
};

/// Puts copies of what actors are started from into the directory, for every user.
void provide_programs(Setting &setting);

class Side {
  public:
    Side(const Setting &setting, bool accelerated);
    ~Side();
    Side(const Side &) = delete;
    Side &operator=(const Side &) = delete;

    /// Ends of connections that the monitor has joined so far; 0 without one.
    long joined() const;

    /// With `patient`, a step is only called blocked after it slept for long: for use on a busy machine, to
    /// confirm a difference.
    Trace run(const Sequence &sequence, bool patient);

  private:
    enum class State { absent, starting, idle, busy, dead };
    struct Actor {
        State state = State::absent;
        pid_t pid = 0, tid = 0;
        int death = -1;  ///< pidfd
        int status = -1; ///< its stat file in /proc
        size_t step = 0; ///< index of what it is busy with
        bool finite = false;
    };
    struct Channel {
        int ours = -1, theirs = -1;
        int mail_in = -1, mail_out = -1;
    };

    void start_monitor(const Setting &setting);
    int start_host(const Setting &setting, bool accelerated, uid_t user, int place);
    void start_roots(const Sequence &sequence);
    void perform(const Sequence &sequence, size_t index);
    int resolve(char kind, int value) const;
    void settle(bool patient);
    bool take_news(long wait);
    void receive(int actor, bool &progress);
    void take_reply(int actor, const Reply &reply);
    void died(int actor);
    bool all_asleep() const;
    bool monitor_asleep() const;
    bool monitor_threads_asleep() const;
    void open_monitor_threads() const;
    void close_monitor_threads() const;
    void note(const std::string &text);
    std::string masked(const std::string &text);
    void end_all();
    void empty_channels();

    bool accelerated_;
    pid_t monitor_ = -1;
    mutable std::vector<int> monitor_threads_; ///< their stat files in /proc, opened anew when they change
    int bridges_ = -1; ///< list of the monitor's children, where connections are carried by some
    std::vector<pid_t> host_pids_;
    std::string monitor_socket_, sdstat_;
    std::optional<Apart> apart_;
    std::optional<Group> group_;
    std::vector<int> hosts_; ///< two of the side's own kind, then one or two (apart) without libsd
    std::array<Channel, kMaxActors> channels_;
    std::array<Actor, kMaxActors> actors_;

    // of the sequence being run
    const Sequence *sequence_ = nullptr;
    size_t current_ = 0;
    Trace trace_;
    std::map<int, Reply> made_;      ///< by step id: descriptors, ports and amounts
    std::map<int, int> known_ports_; ///< number to the order of its first appearance
    std::vector<std::string> finished_;
    std::string immediate_;
    bool patient_ = false;
};

} // namespace sd::differential
