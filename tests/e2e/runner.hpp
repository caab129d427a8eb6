// Runs programs with and without acceleration and compares what they print. The kernel is the oracle.
//
// SD_BUILD_DIR names the top of the build directory. With SD_E2E_SELF_CHECK set nothing is accelerated in
// either run, which shows that the programs print the same twice. With SD_E2E_STRANGERS=UID, as root, the
// processes that a program forks with spawn() become that user in both runs (tests/programs/crossing.hpp):
// the two sides are strangers to each other. With SD_TEST_PATHS connections begin in the kernel
// (docs/design/paths-tests.md), and statistics are not looked at.
#pragma once

#include "tests/programs/expect.hpp"

#include <chrono>
#include <string>
#include <sys/types.h>
#include <vector>

namespace sd::e2e {

enum class Mode {
    kernel,   ///< as it is
    sdrun,    ///< started through sdrun
    preloaded ///< with LD_PRELOAD only: nobody starts a monitor for it
};

using sdtest::Expect;

struct Outcome {
    std::string output, errors;
    int status = 0; ///< as waitpid tells it
    bool timed_out = false;
};

/// Sums over the lines that libsd left in SD_STATS_FILE.
struct Statistics {
    long connects = 0, accepts = 0, processes = 0;
    bool fallbacks = false;
    std::string text;
};

/// A directory of the test's own, removed with all that is in it.
class TemporaryDirectory {
  public:
    TemporaryDirectory();
    ~TemporaryDirectory();
    TemporaryDirectory(const TemporaryDirectory &) = delete;
    TemporaryDirectory &operator=(const TemporaryDirectory &) = delete;

    std::string file(const std::string &name) const { return path_ + "/" + name; }
    const std::string &path() const { return path_; }

  private:
    std::string path_;
};

/// One running program and all that it starts.
class Process {
  public:
    /// `environment` holds NAME=VALUE entries that are added to the test's own environment.
    Process(std::vector<std::string> arguments, Mode mode, std::vector<std::string> environment = {});
    ~Process();
    Process(const Process &) = delete;
    Process &operator=(const Process &) = delete;

    /// Waits until the program and everybody who holds its output has finished; kills them when that takes
    /// too long.
    Outcome finish(std::chrono::seconds limit = std::chrono::seconds(20));

    pid_t pid() const { return pid_; }

  private:
    pid_t pid_ = -1;
    int output_ = -1, errors_ = -1;
};

std::string build_file(const std::string &name);
std::string program(const std::string &name);
bool self_check();

Statistics read_statistics(const std::string &path);
/// A file for them in `directory` that processes of all users can write.
std::string make_statistics(const TemporaryDirectory &directory);

/// Empty when equal; else the first line that differs, with the line before it.
std::string difference(const std::string &kernel, const std::string &other);

/// Runs one behaviour both ways and checks everything that must hold.
void same_as_kernel(const char *program_name, const char *behaviour, Expect expect);

/// Checks that a run ended well.
void require_success(const Outcome &outcome);

} // namespace sd::e2e
