// What init and raw need of the signal layer.
#pragma once

namespace sd {

/// Sets the hooks of the layers below; from the constructor.
void init_signals() noexcept;
/// The table's lock belongs to a thread that does not exist in the child.
void reset_signals_in_child() noexcept;
/// Puts the handler that lets bad pointers end in EFAULT in front of the program's for SIGSEGV and SIGBUS; once, when first needed.
void install_fault_handler() noexcept;

/// rt_sigprocmask as the system call is. For raw.cpp.
long change_kernel_mask(int how, const void *set, void *old) noexcept;

} // namespace sd
