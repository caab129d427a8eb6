// Programs started beside a connection, each compared with the kernel.
#include "tests/e2e/runner.hpp"

#include <catch2/catch.hpp>

BEHAVES("file actions on files and pipes", spawning, actions_on_files, accelerated)
BEHAVES("numbers in the child", spawning, numbers_in_the_child, accelerated)
BEHAVES("errors", spawning, spawn_errors, accelerated)
BEHAVES("attributes", spawning, spawn_attributes, accelerated)
BEHAVES("values of system", spawning, system_values, accelerated)
BEHAVES("a cancelled system", spawning, cancelled_system, accelerated)
BEHAVES("popen both ways", spawning, popen_both_ways, accelerated)
BEHAVES("many commands at once", spawning, many_commands, accelerated)
BEHAVES("popen without standard numbers", spawning, popen_without_standard_numbers, accelerated)
BEHAVES("several threads start programs", spawning, spawning_in_threads, accelerated)
BEHAVES("commands use the connection", spawning, commands_on_the_connection, accelerated)
