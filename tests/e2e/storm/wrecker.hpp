// A process whose threads use each other's numbers without agreement.
#pragma once

#include "tests/e2e/storm/board.hpp"

namespace storm {

/// Until Board::stop; then closes everything. `channel`: an AF_UNIX socket to the other wrecker, for passing
/// descriptors. `program`: this program's path. Returns 0, or 1 if something is left open.
int wreck(Board &board, int index, uint64_t seed, int channel, const char *program);
/// The program that a wrecker executes with one number handed on.
int inherit(int fd);
/// A connection to one of the board's addresses, maybe still being made; -1.
int connect_somewhere(const Board &board, uint64_t random);

} // namespace storm
