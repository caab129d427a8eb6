// Who changes mappings in the window, beside who exchanges its memory (leave.cpp).
#pragma once
#include <atomic>

namespace sd::pages {

extern std::atomic<int> changes; ///< under way
extern std::atomic<long> leaver; ///< the process whose thread exchanges a piece; 0

/// Waits until this process's thread is done with the piece. False: it is another process's word, that a
/// forked child has from its parent. Async-signal-safe: who is waited for has its signals blocked.
[[gnu::cold]] bool wait_for_leaver() noexcept;

/// For the length of a system call that changes what is mapped in the window (`does`; else it is nothing), or
/// that uses the device's descriptor. Any thread, in handlers too.
class Change {
  public:
    explicit Change(bool does = true) noexcept : does_(does) {
        while (does_) {
            changes.fetch_add(1, std::memory_order_seq_cst);
            if (leaver.load(std::memory_order_seq_cst) == 0) [[likely]]
                return;
            changes.fetch_sub(1, std::memory_order_seq_cst);
            if (!wait_for_leaver()) {
                changes.fetch_add(1, std::memory_order_seq_cst);
                return;
            }
        }
    }
    Change(const Change &) = delete;
    Change &operator=(const Change &) = delete;
    ~Change() {
        if (does_)
            changes.fetch_sub(1, std::memory_order_seq_cst);
    }

  private:
    const bool does_;
};

} // namespace sd::pages
