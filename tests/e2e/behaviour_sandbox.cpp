// Sandboxes that programs put themselves into, compared with the kernel.
#include "tests/e2e/runner.hpp"

#include <catch2/catch.hpp>

BEHAVES("a seccomp filter that allows read, write and poll", sandbox, seccomp_by_prctl, accelerated)
BEHAVES("a seccomp filter, by system call", sandbox, seccomp_by_system_call, accelerated)
BEHAVES("a limit of one descriptor", sandbox, one_descriptor_allowed, accelerated)
BEHAVES("a seccomp filter and no descriptors", sandbox, seccomp_and_no_descriptors, accelerated)
BEHAVES("a listener in a sandbox", sandbox, accepts_in_a_sandbox, any)
BEHAVES("a seccomp filter still kills", sandbox, seccomp_still_kills, accelerated)
BEHAVES("seccomp filters that are refused", sandbox, seccomp_errors, any)
BEHAVES("a connection of the process's own", sandbox, keeps_its_own_connection, all_accelerated)
BEHAVES("closing connections", sandbox, closes_what_it_has, all_accelerated)
BEHAVES("connections that are accepted afterwards", sandbox, accepted_once_it_is_inside, all_accelerated)
BEHAVES("no connection by memory alone", sandbox, makes_no_connection_by_memory, all_accelerated)
BEHAVES("a client that waited before the filter", sandbox, waited_before_the_filter, accelerated)
BEHAVES("Landlock forbids a port", sandbox, landlock_forbids_a_port, accelerated)
BEHAVES("strict mode", sandbox, seccomp_strict_mode, accelerated)
BEHAVES("little address space", sandbox, little_address_space, any)
