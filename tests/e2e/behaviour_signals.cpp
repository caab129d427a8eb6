// Signals and cancellation, each compared with the kernel.
#include "tests/e2e/runner.hpp"

#include <catch2/catch.hpp>

BEHAVES("dispositions are reported as set", signals, dispositions, accelerated)
BEHAVES("masks", signals, masks, accelerated)
BEHAVES("a handler uses the socket it interrupted", signals, handler_uses_same_socket, accelerated)
BEHAVES("queued signals all arrive, in order", signals, queued_signals_all_arrive, accelerated)
BEHAVES("siglongjmp out of blocked calls", signals, jumps_out_of_calls, accelerated)
BEHAVES("close after siglongjmp out of a call", signals, close_after_a_jump, accelerated)
BEHAVES("faults of the program's own", signals, faults, accelerated)
BEHAVES("the end of the stack", signals, stack_overflow, accelerated)
BEHAVES("cancelled threads", signals, cancelled_calls, accelerated)
