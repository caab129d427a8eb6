// What controller and actors say to each other, over one SOCK_SEQPACKET channel per actor.
//
// The channels have fixed numbers below libsd's own and above the program's. Actors use them by making system
// calls themselves: an error in the library under test must not disturb the test's own conversation.
#pragma once

#include <cstddef>
#include <cstdint>
#include <sys/syscall.h>

namespace sd::differential {

constexpr int kHostChannel = 400;  ///< a host hears from the controller here
constexpr int kFirstChannel = 401; ///< actor i: kFirstChannel + i
constexpr int mailbox_in(int actor) {
    return kFirstChannel + 10 + 2 * actor;
} ///< for descriptors to that actor
constexpr int mailbox_out(int actor) { return mailbox_in(actor) + 1; }
constexpr int kLastProgramFd = 380; ///< steps that close ranges spare what is above

/// The user that the children of fork become, if any; in an actor's environment.
constexpr const char *kGivesUp = "SD_ACTOR_GIVES_UP";

struct Command {
    int32_t step = 0, op = 0;
    int32_t arguments[8]{};
};

struct Reply {
    int32_t step = 0;
    int32_t pid = 0, tid = 0;
    int32_t fd = -1, second = -1; ///< descriptors made
    int32_t port = 0;             ///< of a socket that was named
    int64_t bytes = 0;            ///< moved by a step whose amount is not compared
    char text[1024];              ///< all that is compared; ports stand in braces

    size_t size(size_t length) const { return offsetof(Reply, text) + length + 1; }
};

constexpr int32_t kBornStep = -1;               ///< the first word of a new actor
constexpr const char *kCancelled = "cancelled"; ///< the last of a thread that was
// What a drain step finds that leaves nothing of what was filled in:
constexpr const char *kAllThere = "all there";
constexpr const char *kEndOfFile = "end of file";
constexpr const char *kNothingLeft[] = {kAllThere, kEndOfFile, "ECONNRESET"};

inline long raw_call(long number, long a = 0, long b = 0, long c = 0, long d = 0) {
    long result;
    register long r10 asm("r10") = d;
    asm volatile("syscall"
                 : "=a"(result)
                 : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10)
                 : "rcx", "r11", "memory");
    return result;
}

} // namespace sd::differential
