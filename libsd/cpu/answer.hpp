// A short look for the answer of a peer on another core, as fast wherever the compiler puts the code around
// it.
//
// When the peer writes the word, the look that finds it waits for its cache line. Meanwhile the processor
// runs ahead: through the end of recv() and the program into the next send(), whose line it asks for. That
// makes a round trip a third shorter, but only if it expects the look to succeed. A branch is expected to go
// where it went before, which depends on the branches around it and on their addresses. A return is expected
// to go behind its call, always. So each look is a call that returns behind itself when it has found
// something, and changes its own return address when it has not: the processor always runs ahead as if the
// answer were there, and is called back after each look in vain, which costs no more than a pause.
//
// It cannot run under a shadow stack (CET), where a changed return address ends the process: libsd is not
// built for one, and the loader then switches it off for a program.
#pragma once
#include <atomic>
#include <cstdint>

extern "C" {
/// True as soon as the word is not 0; false after `looks` looks (at least 1) that found 0. Writes no memory
/// but its stack. Any number of threads may look at one word. May be interrupted by handlers and unwound like
/// any function.
[[nodiscard]] int sd_await_word(const std::atomic<uint64_t> *word, unsigned looks) noexcept;
}

namespace sd::cpu {

/// Chooses what sd_await_word() does between two looks, by the kind of processor. Costs a `cpuid` the first
/// time, which takes tens of microseconds in some virtual machines: for who is about to make a connection
/// possible. Any thread may call it at any time.
void choose_look() noexcept;

} // namespace sd::cpu
