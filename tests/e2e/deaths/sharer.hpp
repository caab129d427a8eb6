// A process that shares the connection: what it does with it, and the ways in which it can come to have it.
#pragma once

#include "tests/e2e/deaths/board.hpp"

namespace deaths {

enum class Way : unsigned {
    forked,    // inherits it
    executed,  // inherits it, executes this program, and does so again now and then
    spawned,   // the same, made by posix_spawn under another number
    child,     // a relative that closed what it inherited, and is passed it over a Unix socket
    unrelated, // a program image that never had it, and is passed it
    count
};
const char *name_of(Way way);

enum class Role : unsigned { sends, receives, both, sleeps, count };

// A sharer was not passed anything because the process that was to pass it was killed first.
constexpr int kNothingCame = 7;

struct Sharer {
    pid_t pid = 0;
    pid_t courier = 0; // passes the connection to it, if that is not the parent's business
    Way way{};
    Role role{};
};

// Makes a process that shares `fd` (which is marked close-on-exec here).
Sharer make_sharer(int fd, Way way, Role role, bool by_courier, uint64_t seed, const std::string &board_path);
// Kills it, and its courier before or after; true if it can have received something that is lost with it.
void end_sharer(Sharer &sharer, uint64_t &state);

// `program sharer ...`: never returns.
[[noreturn]] void run_sharer(char **argv);

} // namespace deaths
