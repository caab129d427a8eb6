// A sequence of steps: what the generator makes, the controller performs and the shrinker shortens.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace sd::differential {

enum class Op : int {
#define OP(name, arguments, text) name,
#include "tests/differential/ops.def"
#undef OP
};

struct OpInfo {
    const char *name, *arguments, *text;
};
const OpInfo &info(Op op);

/// Who the actors are.
enum class Users {
    one,      ///< all the same
    two,      ///< the two sides, and what runs without libsd, are strangers to each other
    given_up, ///< all are root, but for the children of fork, which have given that up
};

constexpr int kMaxActors = 4;
constexpr int kMaxArguments = 7;

/// A descriptor argument: N >= 0 is what step N returned, kSecond + N the other descriptor that step N made;
/// the rest stand for themselves.
constexpr int kSecond = 1000;
constexpr int kBadFd = -1, kUnusedFd = -2, kNoFd = -3;
/// kNumber + N is the number N itself.
constexpr int kNumber = 2000;
/// A port argument: N >= 0 is the port that step N bound.
constexpr int kAnyPort = -1, kDeadPort = -2;

constexpr long kHugeBytes = 16l << 20;

enum AddressForm : int {
    v4_loopback,
    v4_any,
    v6_loopback,
    v6_any,
    mapped,
    v4_other,
    v4_foreign,
    bad_family,
    short_length,
    bad_pointer,
    unspecified,
    null_address,
    // where the actors are in two network namespaces
    v4_near,
    v4_far,
    v6_near,
    v6_far,
    mapped_near,
    mapped_far,
};

struct Step {
    int id = 0; ///< stays when others are removed, so that references keep their meaning
    int actor = 0;
    Op op = Op::socket;
    std::array<int, kMaxArguments> arguments{};
    bool finite = false; ///< ends by itself after some milliseconds
};

struct Sequence {
    uint64_t seed = 0;
    int roots = 1;           ///< actors 0..roots-1 are there from the beginning
    unsigned plain = 0;      ///< bit per root: runs without libsd on both sides
    std::vector<Step> steps; ///< by ascending id
};

/// Does one of the steps empty the connection that step `fill` filled?
inline bool is_drained(std::span<const Step> steps, int fill) {
    return std::ranges::any_of(
        steps, [=](const Step &step) { return step.op == Op::drain && step.arguments[1] == fill; });
}

/// As C text; used in reports and in the printed program.
std::string text_of(const Step &step);

} // namespace sd::differential
