// What init and raw need of the signal layer, and its two parts of each other.
#pragma once
#include <atomic>
#include <csignal>
#include <cstdint>
#include <cstring>

namespace sd {

/// Upward::run_deferred.
void run_put_off() noexcept;
/// The table's lock belongs to a thread that does not exist in the child.
void reset_signals_in_child() noexcept;
/// Puts the handler that lets bad pointers end in EFAULT in front of the program's for SIGSEGV and SIGBUS;
/// once, when first needed (Upward::expect_faults).
void install_fault_handler() noexcept;
/// Whether that is done. Never undone.
extern constinit std::atomic<bool> fault_handler_installed;
/// The kernel's part of a sigset_t; contexts on the signal stack hold no more than that.
inline uint64_t word_of(const sigset_t &s) noexcept {
    uint64_t w;
    memcpy(&w, &s, sizeof w);
    return w;
}
inline void set_word(sigset_t &s, uint64_t w) noexcept { memcpy(&s, &w, sizeof w); }

} // namespace sd
