// Programs under resource limits, compared with the kernel.
#include "tests/e2e/runner.hpp"

#include <catch2/catch.hpp>

BEHAVES("no file may grow (RLIMIT_FSIZE)", limited, no_file_may_grow, accelerated)
BEHAVES("an exec while no file may grow", limited, exec_while_no_file_may_grow, accelerated)
BEHAVES("a sandbox made of limits", limited, sandbox_by_limits, accelerated)
BEHAVES("no descriptor at all (RLIMIT_NOFILE)", limited, no_descriptor_at_all, accelerated)
BEHAVES("limits that connections have nothing to do with", limited, limits_of_no_consequence, accelerated)
BEHAVES("no further process (RLIMIT_NPROC)", limited, no_further_process, accelerated)
BEHAVES("a fork that fails", limited, fork_that_fails, any)
BEHAVES("no signal may be queued (RLIMIT_SIGPENDING)", limited, no_signal_may_be_queued, accelerated)
BEHAVES("little data (RLIMIT_DATA)", limited, little_data, accelerated)
BEHAVES("little address space (RLIMIT_AS)", limited, little_address_space, all_accelerated)
BEHAVES("little stack (RLIMIT_STACK)", limited, little_stack, accelerated)
BEHAVES("all memory locked", limited, all_memory_locked, accelerated)
BEHAVES("little memory may be locked (RLIMIT_MEMLOCK)", limited, little_memory_may_be_locked, accelerated)
