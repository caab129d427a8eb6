// What a process has of a fabric: the file itself, the files by which it is told of events, and who lives.
#pragma once
#include "tests/fake_verbs/fabric.hpp"

namespace sd::fake_verbs {

/// CLOCK_MONOTONIC, in ns.
uint64_t now_ns() noexcept;
/// A number that nobody chose, below `limit`.
uint32_t draw(Fabric &f, uint32_t limit) noexcept;

/// The file KIND.N of the fabric, made if it is not there. -1: errno.
int open_file(const char *kind, uint32_t index) noexcept;
/// A pipe of that name. Writers never wait; readers do unless `flags` has O_NONBLOCK. -1: errno.
int open_pipe(const char *kind, uint32_t index, int flags) noexcept;
/// Writes a few bytes to a pipe of that name, whoever made it.
void tell(const char *kind, uint32_t index, const void *what, size_t bytes) noexcept;

/// Does a process still have the context's descriptor? A process that has been killed and not been waited for
/// has not; a child of one that lives on has.
bool alive(uint32_t context) noexcept;

/// A free entry of a table, for `context`; those of contexts that have died are taken. -1: all are in use.
template <class T, size_t N> int64_t take_entry(Fabric &f, T (&table)[N], uint32_t context) noexcept {
    Guard g(f.lock);
    for (bool dead : {false, true})
        for (uint32_t i = 0; i < N; ++i) {
            T &e = table[i];
            if (e.used.load(std::memory_order_acquire) && !(dead && !alive(e.context)))
                continue;
            e.context = context;
            e.number.fetch_add(1, std::memory_order_relaxed);
            e.used.store(1, std::memory_order_release);
            return i;
        }
    return -1;
}

} // namespace sd::fake_verbs
