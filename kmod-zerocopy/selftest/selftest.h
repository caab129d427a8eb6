/* SPDX-License-Identifier: GPL-2.0 */
/*
 * For the checks of selftest: what memory holds, and children that look. Each check runs in a process of its
 * own.
 */
#ifndef SDZC_SELFTEST_H
#define SDZC_SELFTEST_H

#include "common.h"

/* All checks, in the order in which they run. */
#define SDZC_CHECKS(X) \
	X(info) X(mapping_rules) X(contents_are_handed_over) X(populated_memory_is_copied_on_write) \
	X(moved_pages_leave) X(copies_in_the_call) X(rewritten_pages_are_counted) \
	X(one_fault_for_many_pages) X(around_a_fault_nothing_shows) X(frozen_memory_waits) X(freezing_is_refused) \
	X(frozen_memory_is_replaced) X(one_fault_for_fresh_pages) X(fresh_pages_are_asked_for) \
	X(fresh_pages_end_at_edges) X(fresh_pages_are_forked) X(fresh_pages_show_nothing) X(fresh_pages_kill_nobody) \
	X(parts_of_a_handle) X(bad_arguments) X(handles_belong_to_one_end) \
	X(ends_that_close) X(the_giver_may_die) X(nothing_of_others_shows) X(fork_gives_copies) \
	X(fork_with_threads_that_write) X(give_with_threads_that_write) X(take_with_threads_that_read) \
	X(fork_shares_what_was_taken) X(pages_in_a_pipe_are_copied) X(old_references_show_nothing_new) \
	X(device_writes_while_giving) X(device_writes_while_taking) X(device_writes_while_forking) \
	X(io_uring_refuses_to_register) X(parts_are_unmapped) X(memory_is_moved) X(protection) X(advice) \
	X(other_processes_look) X(core_dumps_have_it) X(userfaultfd_is_refused) X(limits) \
	X(a_hoarder_pays_itself) X(stocks_shrink) X(callers_of_32_bits) X(unloading_in_use_is_refused)

#define X(name) void name(void);
SDZC_CHECKS(X)
#undef X

#define SKIP(why)                                                                                      \
	do {                                                                                           \
		printf("  %s\n", why);                                                                 \
		fflush(stdout);                                                                        \
		_exit(77);                                                                             \
	} while (0)

static inline void fill(void *memory, size_t length, unsigned int seed)
{
	uint32_t *word = memory;

	for (size_t i = 0; i < length / 4; i++)
		word[i] = seed * 2654435761u + (uint32_t)i;
}

static inline bool holds(const void *memory, size_t length, unsigned int seed)
{
	const uint32_t *word = memory;

	for (size_t i = 0; i < length / 4; i++)
		if (word[i] != seed * 2654435761u + (uint32_t)i)
			return false;
	return true;
}

static inline bool is_zero(const void *memory, size_t length)
{
	const uint64_t *word = memory;

	for (size_t i = 0; i < length / 8; i++)
		if (word[i])
			return false;
	return true;
}

/* Whether a child that does this to an address is killed by a signal, and which. */
static inline int signal_of(void (*access)(volatile char *), void *address)
{
	int status;
	pid_t child = fork();

	if (child == 0) {
		access(address);
		_exit(0);
	}
	waitpid(child, &status, 0);
	return WIFSIGNALED(status) ? WTERMSIG(status) : 0;
}

static inline void write_to(volatile char *at)
{
	*at = 1;
}

static inline void read_from(volatile char *at)
{
	(void)*at;
}

/* Ends with the status of a child that ran these checks. */
#define IN_CHILD(...)                                                                                  \
	do {                                                                                           \
		int status_;                                                                           \
		pid_t child_ = fork();                                                                 \
		if (child_ == 0) {                                                                     \
			__VA_ARGS__;                                                                   \
			_exit(0);                                                                      \
		}                                                                                      \
		REQUIRE(waitpid(child_, &status_, 0) == child_ && status_ == 0);                       \
	} while (0)

static inline uint64_t sum(const void *memory, size_t length)
{
	uint64_t sum = 0;

	for (size_t i = 0; i < length / 8; i++)
		sum = sum * 31 + ((const volatile uint64_t *)memory)[i];
	return sum;
}

#endif
