// How a process that makes no call is brought to do what its next call would (sdctl detach --force): between
// sdctl, which traces one of its threads, and the library in there.
//
// The library has an Entry among its constants, which sdctl finds by the two words at its beginning. It stops
// a thread, writes a Call, and has the thread go on in Entry::function, on a stack that belongs to the
// library. That does the work, says so in Call::state, and waits; sdctl stops the thread again there, and
// puts everything back as it was.
//
// A tracer that is killed in between must not leave the thread there: it goes on by itself, by the frame,
// once nobody has changed `beat` for a second. Then `state` stays `left`, for good: who would use the frame
// again cannot know whether it has been taken yet.
//
// For sdctl all of it is the word of a process that may be hostile. It reads as much as it knows the size of,
// and writes with the rights of the process's own mappings. Where the thread begins is of no importance: it
// is in the process in any case.
#pragma once
#include "libsd/cpu/interrupted.hpp"
#include <atomic>
#include <cstdint>

namespace sd::forced {

/// The second one is the first one's complement, so that no constant elsewhere is both.
constexpr uint64_t kMagic = 0x7065'7453'6f54'6f47ULL; // "GoToStep"
constexpr uint32_t kVersion = 1;

enum State : uint32_t {
    kFree = 0,
    kRunning = 1,
    kDone = 2, ///< the thread waits to be stopped
    kLeft = 3  ///< the thread has gone on by itself
};

enum Result : uint32_t {
    kAll = 0,    ///< each connection has done what its next call would
    kUnsafe = 1, ///< the thread is in the middle of something of the library's: nothing was done
    kBusy = 2,   ///< other threads are at work on some of the connections
    kOff = 3     ///< the library is out of use in the process, or was when its memory was its parent's
};

struct Call {
    std::atomic<uint32_t> state;
    uint32_t result;
    uint64_t beat; ///< changed by the tracer as long as it is there
    uint64_t mask; ///< of the thread's signals before it was stopped
    uint64_t unused[5];
    cpu::ReturnFrame frame;
    alignas(64) uint8_t vectors[cpu::kVectorRoom]; ///< frame.vectors points to them
};

struct Entry {
    uint64_t magic[2];
    uint32_t version, call_bytes;
    void (*function)();
    uint8_t *stack_top;
    Call *call;
};
static_assert(sizeof(Entry) == 48);

} // namespace sd::forced
