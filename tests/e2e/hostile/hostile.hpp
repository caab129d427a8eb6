// A hostile user's processes: what the parts of hostile_client have in common.
#pragma once

#include <atomic>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

namespace sd::hostile {

constexpr unsigned kOperations = 96; ///< their numbers are below that

/// Shared by all processes of one hostile client, in a memory file that is open as kBoard in each.
struct Board {
    std::atomic<uint64_t> rounds, killed, requests, answers, channels, scribbles, connections, forks;
    std::atomic<uint64_t> operation[kOperations]; ///< requests, by number
    std::atomic<uint64_t> granted[kOperations];   ///< answers without an error
};
constexpr int kBoard = 900;
Board &board();

using Random = std::mt19937_64;
inline uint64_t below(Random &random, uint64_t n) { return n < 2 ? 0 : random() % n; }
inline bool chance(Random &random, unsigned percent) { return random() % 100 < percent; }

struct Target {
    std::string monitor;           ///< its socket
    std::vector<uint16_t> servers; ///< ports of honest ones
};

/// Every operation of the monitor with anything at all, over several channels, for some thousand rounds.
void ask_anything(const Target &target, Random random);

/// Under libsd: connects to honest servers, and writes over all memory that it is given for that.
void scribble(const Target &target, Random random);

} // namespace sd::hostile
