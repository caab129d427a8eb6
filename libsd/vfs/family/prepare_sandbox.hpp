// Before a process limits itself, and before it goes to another network namespace.
#pragma once
#include <cstdint>

namespace sd::vfs {

/// Before and after the calling thread goes to another network namespace.
void prepare_namespace_change() noexcept;
void namespace_has_changed() noexcept;

enum class Sandbox : uint8_t {
    fewer_numbers, ///< a limit on descriptors
    filter,        ///< of system calls
    no_calls       ///< of ours: nothing may stay accelerated
};
/// Makes the calling thread's doorbell; before a filter also registers it with every link, takes listeners
/// out of the directory, parts from what others have (Crossing), and gives up what only new
/// connections need.
void prepare_sandbox(Sandbox how) noexcept;
/// The filter is in force: the monitor answers nothing more but what living connections need.
void sandboxed_now() noexcept;

} // namespace sd::vfs
