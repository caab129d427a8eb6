// SPDX-License-Identifier: GPL-2.0
/* Forks, and threads that write while memory is forked or handed over. */
#include "selftest.h"

void fork_gives_copies(void)
{
	int pool = pool_open(), down[2], up[2];
	char *memory = map(pool, 64 * PAGE), byte;

	REQUIRE(pipe(down) == 0 && pipe(up) == 0);
	fill(memory, 32 * PAGE, 1); /* the rest is untouched */
	pid_t child = fork();

	if (child == 0) {
		REQUIRE(holds(memory, 32 * PAGE, 1) && is_zero(memory + 32 * PAGE, 32 * PAGE));
		fill(memory, 16 * PAGE, 2);
		fill(memory + 40 * PAGE, PAGE, 3);
		REQUIRE(write(up[1], "", 1) == 1 && read(down[0], &byte, 1) == 1);
		/* The parent has written meanwhile. */
		REQUIRE(holds(memory, 16 * PAGE, 2) && is_zero(memory + 50 * PAGE, PAGE));
		IN_CHILD(fill(memory, 64 * PAGE, 7); REQUIRE(holds(memory, 64 * PAGE, 7)));
		REQUIRE(holds(memory, 16 * PAGE, 2) && holds(memory + 40 * PAGE, PAGE, 3));
		_exit(0);
	}
	REQUIRE(read(up[0], &byte, 1) == 1);
	REQUIRE(holds(memory, 32 * PAGE, 1) && is_zero(memory + 32 * PAGE, 32 * PAGE));
	fill(memory, 64 * PAGE, 4);
	REQUIRE(write(down[1], "", 1) == 1);
	int status;

	REQUIRE(waitpid(child, &status, 0) == child && status == 0);
	REQUIRE(holds(memory, 64 * PAGE, 4));
}

/* Threads of the parent write all the time: nothing that they write after the fork may reach the child. */
static atomic_bool stop_writing;

static void *writes_all_the_time(void *memory)
{
	uint64_t n = 0;

	while (!atomic_load_explicit(&stop_writing, memory_order_relaxed)) {
		for (size_t i = 0; i < 32 * PAGE / 8; i += 64)
			((volatile uint64_t *)memory)[i] = n;
		n++;
	}
	return NULL;
}

void fork_with_threads_that_write(void)
{
	int pool = pool_open();
	char *memory = map(pool, 32 * PAGE);
	pthread_t thread;

	pthread_create(&thread, NULL, writes_all_the_time, memory);
	for (int round = 0; round < 40; round++)
		IN_CHILD(uint64_t first = sum(memory, 32 * PAGE); usleep(2000); REQUIRE(sum(memory, 32 * PAGE) == first));
	atomic_store(&stop_writing, true);
	pthread_join(thread, NULL);
}

/* The same for pages that were given: they never change under the receiver. */
void give_with_threads_that_write(void)
{
	int pool = pool_open(), end[2];
	char *from = map(pool, 32 * PAGE), *to = map(pool, 32 * PAGE);
	pthread_t thread;
	uint64_t handle;

	REQUIRE(make_channel(pool, end) == 0);
	pthread_create(&thread, NULL, writes_all_the_time, from);
	for (int round = 0; round < 200; round++) {
		REQUIRE(give(end[0], from, 32 * PAGE, 0, &handle, NULL) == 0);
		if (round & 1) {
			char *plain[2] = { malloc(32 * PAGE), malloc(32 * PAGE) };

			REQUIRE(read_out(end[1], handle, 0, plain[0], 32 * PAGE) == 0);
			REQUIRE(read_out(end[1], handle, 0, plain[1], 32 * PAGE) == 0);
			REQUIRE(memcmp(plain[0], plain[1], 32 * PAGE) == 0);
			free(plain[0]);
			free(plain[1]);
		}
		REQUIRE(take(end[1], handle, 0, to, 32 * PAGE, round & 2 ? SDZC_TAKE_POPULATE : 0, NULL) == 0);
		uint64_t first = sum(to, 32 * PAGE);

		usleep(500);
		REQUIRE(sum(to, 32 * PAGE) == first);
		if (round & 4)
			fill(to, 32 * PAGE, round);
	}
	atomic_store(&stop_writing, true);
	pthread_join(thread, NULL);
}

/*
 * A receiver whose threads touch its buffer all the time sees the old contents or the new ones, at last the
 * new.
 */
static void *reads_all_the_time(void *memory)
{
	while (!atomic_load_explicit(&stop_writing, memory_order_relaxed))
		sum(memory, 8 * PAGE);
	return NULL;
}

void take_with_threads_that_read(void)
{
	int pool = pool_open(), end[2];
	char *from = map(pool, 8 * PAGE), *to = map(pool, 8 * PAGE);
	pthread_t thread[2];
	uint64_t handle;

	REQUIRE(make_channel(pool, end) == 0);
	pthread_create(&thread[0], NULL, reads_all_the_time, to);
	pthread_create(&thread[1], NULL, reads_all_the_time, from);
	for (int round = 0; round < 300; round++) {
		fill(from, 8 * PAGE, round);
		REQUIRE(give(end[0], from, 8 * PAGE, round & 1 ? SDZC_GIVE_MOVE : 0, &handle, NULL) == 0);
		REQUIRE(take(end[1], handle, 0, to, 8 * PAGE, 0, NULL) == 0);
		REQUIRE(holds(to, 8 * PAGE, round));
		REQUIRE(round & 1 || holds(from, 8 * PAGE, round));
	}
	atomic_store(&stop_writing, true);
	pthread_join(thread[0], NULL);
	pthread_join(thread[1], NULL);
}

void fork_shares_what_was_taken(void)
{
	int pool = pool_open(), end[2];
	char *from = map(pool, 8 * PAGE), *to = map(pool, 8 * PAGE);
	uint64_t handle;

	REQUIRE(make_channel(pool, end) == 0);
	fill(from, 8 * PAGE, 1);
	REQUIRE(give(end[0], from, 8 * PAGE, 0, &handle, NULL) == 0);
	IN_CHILD(REQUIRE(holds(from, 8 * PAGE, 1)); fill(from, 8 * PAGE, 2));
	IN_CHILD(REQUIRE(take(end[1], handle, 0, to, 4 * PAGE, 0, NULL) == 0); REQUIRE(holds(to, 4 * PAGE, 1));
		 fill(to, 4 * PAGE, 3));
	REQUIRE(is_zero(to, 8 * PAGE)); /* it was the child's memory that took them */
	REQUIRE(take(end[1], handle, 4 * PAGE, to, 4 * PAGE, 0, NULL) == 0);
	REQUIRE(memcmp(to, from + 4 * PAGE, 4 * PAGE) == 0 && holds(from, 8 * PAGE, 1));
}
