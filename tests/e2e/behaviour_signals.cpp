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
BEHAVES("interrupted: every call", interrupted, every_call, accelerated)
BEHAVES("interrupted: every call with timeouts", interrupted, every_call_with_timeouts, accelerated)
BEHAVES("interrupted after a part was done", interrupted, after_a_part, accelerated)
BEHAVES("interrupted: one of two threads", interrupted, one_of_two_threads, accelerated)
BEHAVES("interrupted by a handler that uses the socket", interrupted, handler_uses_the_socket, accelerated)
BEHAVES("interrupted: amounts are right", interrupted, amounts_are_right, accelerated)
BEHAVES("disturbed: the socket of a blocked call is closed", disturbed, closed, accelerated)
BEHAVES("disturbed: another file under the number of a blocked call", disturbed, replaced, accelerated)
BEHAVES("disturbed: the socket of a blocked call is shut down", disturbed, shut_down, accelerated)
BEHAVES("abandoned: jumps out of every call", abandoned, jumps, accelerated)
BEHAVES("abandoned: every call cancelled", abandoned, cancellations, accelerated)
BEHAVES("abandoned: jumps leave nothing", abandoned, jumps_leave_nothing, accelerated)
BEHAVES("abandoned: cancellations leave nothing", abandoned, cancellations_leave_nothing, accelerated)
BEHAVES("abandoned: jumps out of polls of long lists", abandoned, jumps_out_of_long_lists, accelerated)
