// The environment of an executed program: LD_PRELOAD and what goes with it are put back where the program
// dropped them, and taken out where the new one would stumble over the library.
#pragma once
#include "libsd/api/processes/loadable.hpp"
#include <alloca.h>
#include <cstddef>

namespace sd {

/// From the constructor: notes how this library was loaded and which monitor was named.
void remember_environment() noexcept;
/// After vfs::init(): executed programs learn where sdrun's channel has gone, should it have to move.
void follow_presence() noexcept;
/// Upward::presence_moved.
void presence_moved(int from, int to) noexcept;
/// The program has put itself under Landlock: neither it nor what it executes connects past the kernel. Any
/// thread.
void remember_landlock() noexcept;
/// This library as it stands in LD_PRELOAD, or "" when it was loaded in another way. Afterwards; any thread,
/// as the next.
const char *preloaded_as() noexcept;
/// Not by LD_PRELOAD, but for every program, by the system's own list.
bool preloaded_everywhere() noexcept;

/// Works out the environment for one exec, after announce_exec(). Async-signal-safe; the caller gives the
/// memory, from its stack:
///     SD_EXEC_ENVIRONMENT(env, envp, loading);
/// A program that would stumble over the library gets the environment as given, but for this library in
/// LD_PRELOAD.
class ExecEnvironment {
  public:
    ExecEnvironment(char *const *given, Loading there) noexcept;
    size_t words() const noexcept { return words_; }
    size_t bytes() const noexcept { return bytes_; }
    /// The given environment when nothing is missing; otherwise `words` as an array of strings, of which
    /// `bytes` holds one.
    char *const *build(char **words, char *bytes) const noexcept;

  private:
    bool as_given() const noexcept {
        return !preload_missing_ && !preload_taken_out_ && !missing_ && table_ < 0 && presence_at_ < 0;
    }

    char *const *given_;
    size_t count_ = 0;
    long preload_at_ = -1;           ///< place of LD_PRELOAD, if the variable is there
    bool preload_missing_ = false;   ///< this library is not in it
    bool preload_taken_out_ = false; ///< it is in it and must not be
    long presence_at_ = -1;          ///< place of SD_CONTROL_FD, if its number is old
    unsigned missing_ = 0;           ///< one bit per remembered variable
    int table_ = -1;                 ///< what vfs::before_exec() left for the next program
    size_t words_ = 1, bytes_ = 1;
};

} // namespace sd

/// The environment for an exec, in the caller's frame.
#define SD_EXEC_ENVIRONMENT(name, given, there)                                                               \
    ExecEnvironment name##_plan(given, there);                                                                \
    char *const *name = name##_plan.build(static_cast<char **>(alloca(name##_plan.words() * sizeof(char *))), \
                                          static_cast<char *>(alloca(name##_plan.bytes())))
