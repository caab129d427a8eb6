// SPDX-License-Identifier: GPL-2.0
/* Memory that the kernel uses for I/O while it changes hands. */
#include "selftest.h"

#include <linux/io_uring.h>

/* A pipe that holds references to the pages themselves. */
static void splice_into_pipe(int pipe_end, void *memory, size_t length)
{
	struct iovec piece = { memory, length };

	REQUIRE(vmsplice(pipe_end, &piece, 1, 0) == (ssize_t)length);
}

void pages_in_a_pipe_are_copied(void)
{
	int pool = pool_open(), end[2], held[2];
	char *from = map(pool, 4 * PAGE), *to = map(pool, 4 * PAGE), *plain = malloc(4 * PAGE);
	unsigned int copied;
	uint64_t handle;

	REQUIRE(make_channel(pool, end) == 0 && pipe(held) == 0);
	fill(from, 4 * PAGE, 1);
	splice_into_pipe(held[1], from, 2 * PAGE);
	REQUIRE(give(end[0], from, 4 * PAGE, 0, &handle, &copied) == 0 && copied == 2);
	/* As vmsplice() has it, the pipe's pages are still the program's. */
	memset(from, 0x33, 4);
	REQUIRE(read_out(end[1], handle, 0, plain, 4 * PAGE) == 0 && holds(plain, 4 * PAGE, 1));
	REQUIRE(read(held[0], plain, 2 * PAGE) == (ssize_t)(2 * PAGE));
	REQUIRE(memcmp(plain, from, 2 * PAGE) == 0);

	/* The receiver's pages are in a pipe: they stay where they are, and get the contents. */
	fill(to, 4 * PAGE, 2);
	splice_into_pipe(held[1], to, PAGE);
	REQUIRE(take(end[1], handle, 0, to, 4 * PAGE, 0, &copied) == 0 && copied == 1);
	REQUIRE(holds(to, 4 * PAGE, 1));
	REQUIRE(read(held[0], plain, PAGE) == (ssize_t)PAGE && memcmp(plain, to, PAGE) == 0);

	/* Zeroed in place, so that the pipe's page is still the program's. */
	splice_into_pipe(held[1], to, PAGE);
	REQUIRE(discard(pool, to, 4 * PAGE) == 0 && is_zero(to, 4 * PAGE));
	memset(to, 0x44, 8);
	REQUIRE(read(held[0], plain, PAGE) == (ssize_t)PAGE && plain[3] == 0x44);
	/* MOVE leaves such a page where it is. */
	fill(from, PAGE, 6);
	splice_into_pipe(held[1], from, PAGE);
	REQUIRE(give(end[0], from, PAGE, SDZC_GIVE_MOVE, &handle, &copied) == 0 && copied == 1);
	REQUIRE(holds(from, PAGE, 6));
	REQUIRE(take(end[1], handle, 0, to, PAGE, 0, NULL) == 0 && holds(to, PAGE, 6));
}

/* A giver keeps a reference to what it gave. It must not see through it what the new owner writes. */
void old_references_show_nothing_new(void)
{
	int pool = pool_open(), end[2], held[2];
	char *from = map(pool, PAGE), *to = map(pool, PAGE), *plain = malloc(PAGE);
	uint64_t handle;

	REQUIRE(make_channel(pool, end) == 0 && pipe(held) == 0);
	fill(from, PAGE, 1);
	REQUIRE(give(end[0], from, PAGE, 0, &handle, NULL) == 0);
	splice_into_pipe(held[1], from, PAGE); /* the shared page */
	REQUIRE(take(end[1], handle, 0, to, PAGE, 0, NULL) == 0);
	REQUIRE(discard(pool, from, PAGE) == 0); /* the receiver is the only owner now */
	fill(to, PAGE, 2);
	REQUIRE(holds(to, PAGE, 2));
	REQUIRE(read(held[0], plain, PAGE) == (ssize_t)PAGE && holds(plain, PAGE, 1));

	/* The same with a page that comes back to the pool of pages. */
	fill(from, PAGE, 3);
	splice_into_pipe(held[1], from, PAGE);
	REQUIRE(munmap(from, PAGE) == 0);
	for (int i = 0; i < 64; i++)
		fill(map(pool, PAGE), PAGE, 4);
	REQUIRE(read(held[0], plain, PAGE) == (ssize_t)PAGE && holds(plain, PAGE, 3));
}

static const char *slow_device;

struct slow_read {
	char *to;
	atomic_bool begun;
	ssize_t result;
};

static void *reads_slowly(void *argument)
{
	struct slow_read *read = argument;
	int fd = open(slow_device, O_RDONLY | O_DIRECT);

	atomic_store(&read->begun, true);
	read->result = fd < 0 ? -1 : pread(fd, read->to, 4 * PAGE, 0);
	close(fd);
	return NULL;
}

/* Has the device write to memory for a while, beginning now. */
static pthread_t begin_slow_read(struct slow_read *read, char *to)
{
	pthread_t thread;
	char *first = aligned_alloc(PAGE, 4 * PAGE);
	int fd = open(slow_device, O_RDONLY | O_DIRECT);

	/* One after the other: these use up what the device does at once. */
	REQUIRE(fd >= 0);
	for (int i = 0; i < 2; i++)
		REQUIRE(pread(fd, first, 4 * PAGE, 0) == (ssize_t)(4 * PAGE));
	close(fd);
	free(first);
	*read = (struct slow_read){ .to = to };
	pthread_create(&thread, NULL, reads_slowly, read);
	while (!atomic_load(&read->begun))
		;
	usleep(50000);
	return thread;
}

static const char *wanted_of_device(void)
{
	char *wanted = aligned_alloc(PAGE, 4 * PAGE);
	int fd = open(slow_device, O_RDONLY);

	REQUIRE(fd >= 0 && pread(fd, wanted, 4 * PAGE, 0) == (ssize_t)(4 * PAGE));
	close(fd);
	return wanted;
}

/*
 * Whether the device was still at it shows in the number of copies. Where it was not, on a machine that is
 * busy, that shows nothing, and is tried again.
 */
static void with_slow_device(bool (*try)(int pool, const char *wanted))
{
	slow_device = getenv("SLOW_DEVICE");
	if (!slow_device)
		SKIP("no SLOW_DEVICE");
	const char *wanted = wanted_of_device();

	for (int tries = 0; tries < 10; tries++) {
		int pool = pool_open();

		if (try(pool, wanted))
			return;
		close(pool);
	}
	REQUIRE(!"the device is never slow enough");
}

/* A device writes to the giver's memory (O_DIRECT) while it is given. */
static bool tries_giving(int pool, const char *wanted)
{
	char *from = map(pool, 4 * PAGE), *to = map(pool, 4 * PAGE);
	struct slow_read slow;
	unsigned int copied;
	uint64_t handle;
	int end[2];

	REQUIRE(make_channel(pool, end) == 0);
	fill(from, 4 * PAGE, 1);
	pthread_t thread = begin_slow_read(&slow, from);

	REQUIRE(give(end[0], from, 4 * PAGE, 0, &handle, &copied) == 0);
	REQUIRE(take(end[1], handle, 0, to, 4 * PAGE, 0, NULL) == 0);
	uint64_t taken = sum(to, 4 * PAGE);

	REQUIRE(copied == 0 || holds(to, 4 * PAGE, 1));
	fill(from + 8, 8, 5); /* beside the device, to the same page */
	pthread_join(thread, NULL);
	REQUIRE(slow.result == (ssize_t)(4 * PAGE) && memcmp(from + PAGE, wanted + PAGE, 3 * PAGE) == 0);
	REQUIRE(sum(to, 4 * PAGE) == taken);
	REQUIRE(copied == 0 || memcmp(from, wanted, PAGE) == 0);
	return copied == 4;
}

void device_writes_while_giving(void)
{
	with_slow_device(tries_giving);
}

/* The same with the receiver's memory: what the device writes is found there, as if received before. */
static bool tries_taking(int pool, const char *wanted)
{
	char *from = map(pool, 4 * PAGE), *to = map(pool, 4 * PAGE);
	struct slow_read slow;
	unsigned int copied;
	uint64_t handle;
	int end[2];

	REQUIRE(make_channel(pool, end) == 0);
	fill(from, 4 * PAGE, 1);
	fill(to, 4 * PAGE, 2);
	REQUIRE(give(end[0], from, 4 * PAGE, 0, &handle, NULL) == 0);
	pthread_t thread = begin_slow_read(&slow, to);

	REQUIRE(take(end[1], handle, 0, to, 4 * PAGE, 0, &copied) == 0);
	REQUIRE(copied == 0 || holds(to, 4 * PAGE, 1));
	pthread_join(thread, NULL);
	REQUIRE(slow.result == (ssize_t)(4 * PAGE) && holds(from, 4 * PAGE, 1));
	REQUIRE(copied == 0 || memcmp(to, wanted, 4 * PAGE) == 0);
	return copied == 4;
}

void device_writes_while_taking(void)
{
	with_slow_device(tries_taking);
}

/* The same with a fork: the parent's memory gets it, the child's does not. */
static bool tries_forking(int pool, const char *wanted)
{
	char *memory = map(pool, 4 * PAGE), byte;
	long copies = counter("fork_copies");
	struct slow_read slow;
	int down[2], status;

	REQUIRE(pipe(down) == 0);
	fill(memory, 4 * PAGE, 1);
	pthread_t thread = begin_slow_read(&slow, memory);
	pid_t child = fork();

	if (child == 0) {
		uint64_t first = sum(memory, 4 * PAGE);

		close(down[1]);
		_exit(read(down[0], &byte, 1) != 1 ? 1 : sum(memory, 4 * PAGE) != first ? 2 : holds(memory, 4 * PAGE, 1) ? 0 : 3);
	}
	bool busy = counter("fork_copies") == copies + 4;

	if (busy)
		((volatile char *)memory)[PAGE] = 3; /* goes to the page that the device writes */
	pthread_join(thread, NULL);
	REQUIRE(slow.result == (ssize_t)(4 * PAGE) && memcmp(memory, wanted, 4 * PAGE) == 0);
	REQUIRE(write(down[1], "", 1) == 1 && waitpid(child, &status, 0) == child);
	REQUIRE(WIFEXITED(status) && (WEXITSTATUS(status) == 0 || (!busy && WEXITSTATUS(status) == 3)));
	close(down[0]);
	close(down[1]);
	return busy;
}

void device_writes_while_forking(void)
{
	with_slow_device(tries_forking);
}

/* Buffers that stay registered cannot be of such memory. */
void io_uring_refuses_to_register(void)
{
	struct io_uring_params parameters = { 0 };
	int pool = pool_open(), ring = syscall(__NR_io_uring_setup, 4, &parameters);
	char *memory = map(pool, PAGE);
	struct iovec piece = { memory, PAGE };

	if (ring < 0)
		SKIP("no io_uring");
	memory[0] = 1;
	REQUIRE(syscall(__NR_io_uring_register, ring, IORING_REGISTER_BUFFERS, &piece, 1) == -1);
	REQUIRE(errno == EOPNOTSUPP || errno == EFAULT);
}
