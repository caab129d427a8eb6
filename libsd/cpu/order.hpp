// In which order others see what a thread does to memory, where that is not said by an atomic operation.
//
// Acquire and release operations of std::atomic are right on every processor. These functions mark the other
// places: those that rely on what x86-64 keeps in order by itself, and those where only the compiler has to
// be told. x86-64 moves no load in front of an earlier load, no store in front of an earlier load or store;
// only a load may come before an earlier store has been seen by others.
#pragma once
#include <atomic>

namespace sd::cpu {

/// Stores before this are seen before those after it, and loads before it are done before those after it, by
/// whoever shares the memory. Here the compiler is told and the processor does it by itself; another one
/// needs an instruction (on arm64 "dmb ish").
inline void in_order() noexcept { asm volatile("" ::: "memory"); }

/// The same for signal handlers of this thread only: no processor needs an instruction for that.
inline void in_order_for_handlers() noexcept { asm volatile("" ::: "memory"); }

/// A store before this and a load after it, where the other side stores, issues a membarrier
/// (heavy_barrier()) and then loads: at least one of the two sees the other's store. The membarrier does the
/// processor's part for both, on every processor that has it.
inline void in_order_for_membarrier() noexcept { asm volatile("" ::: "memory"); }

} // namespace sd::cpu

namespace sd {

/// For places with many such operations.
inline constexpr auto relaxed = std::memory_order_relaxed;

} // namespace sd
