/* SPDX-License-Identifier: GPL-2.0 */
/* For the programs that test the module: calls, counters, and what to say when something is wrong. */
#ifndef SDZC_COMMON_H
#define SDZC_COMMON_H

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "../include/linux/socksdirect_zerocopy.h"

#define DEVICE "/dev/socksdirect-zerocopy"
#define COUNTERS "/sys/class/misc/socksdirect-zerocopy/counters/"
#define PARAMETERS "/sys/module/socksdirect_zerocopy/parameters/"
#define PAGE 4096UL

/* Ends the process that runs a check. The harness passes on what it said. */
#define REQUIRE(condition)                                                                             \
	do {                                                                                           \
		if (!(condition)) {                                                                    \
			printf("  line %d: %s (errno %d)\n", __LINE__, #condition, errno);             \
			fflush(stdout);                                                                \
			_exit(1);                                                                      \
		}                                                                                      \
	} while (0)

static inline uint64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000ull + t.tv_nsec;
}

static inline long number_in(const char *path)
{
	char text[64];
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	ssize_t n = fd < 0 ? -1 : read(fd, text, sizeof(text) - 1);

	if (fd >= 0)
		close(fd);
	if (n <= 0)
		return -1;
	text[n] = 0;
	return strtol(text, NULL, 10);
}

static inline bool put_text(const char *path, const char *text)
{
	int fd = open(path, O_WRONLY | O_CLOEXEC);
	bool done = fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text);

	if (fd >= 0)
		close(fd);
	return done;
}

static inline long counter(const char *name)
{
	char path[128];

	snprintf(path, sizeof(path), COUNTERS "%s", name);
	return number_in(path);
}

static inline int pool_open(void)
{
	return open(DEVICE, O_RDWR | O_CLOEXEC);
}

static inline void *map(int pool, size_t length)
{
	return mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_SHARED, pool, 0);
}

/* The same where no page table ends: what one fault makes of the pages beside it ends with their table. */
static inline void *map_in_one_table(int pool, size_t length)
{
	const size_t table = 512 * PAGE;
	char *room = mmap(NULL, 2 * table, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	char *begin = room + (-(uintptr_t)room & (table - 1));

	return room == MAP_FAILED ? room :
				    mmap(begin, length, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, pool, 0);
}

static inline int make_channel(int pool, int end[2])
{
	struct sdzc_channel channel = { 0 };
	int result = ioctl(pool, SDZC_CHANNEL, &channel);

	if (result == 0) {
		end[0] = channel.end[0];
		end[1] = channel.end[1];
	}
	return result;
}

static inline int give(int end, void *address, size_t length, unsigned int flags, uint64_t *handle, unsigned int *copied)
{
	struct sdzc_give give = { .address = (uintptr_t)address, .length = length, .flags = flags };
	int result = ioctl(end, SDZC_GIVE, &give);

	*handle = give.handle;
	if (copied)
		*copied = give.copied;
	return result;
}

static inline int take(int end, uint64_t handle, size_t offset, void *address, size_t length, unsigned int flags,
		       unsigned int *copied)
{
	struct sdzc_take take = { .handle = handle, .offset = offset, .address = (uintptr_t)address, .length = length,
				  .flags = flags };
	int result = ioctl(end, SDZC_TAKE, &take);

	if (copied)
		*copied = take.copied;
	return result;
}

static inline int read_out(int end, uint64_t handle, size_t offset, void *address, size_t length)
{
	struct sdzc_read read = { .handle = handle, .offset = offset, .address = (uintptr_t)address, .length = length };

	return ioctl(end, SDZC_READ, &read);
}

static inline int drop(int end, uint64_t handle)
{
	struct sdzc_drop drop = { .handle = handle };

	return ioctl(end, SDZC_DROP, &drop);
}

static inline int freeze_and_copy(int pool, void *address, size_t length, void *to)
{
	struct sdzc_freeze freeze = { .address = (uintptr_t)address, .length = length, .to = (uintptr_t)to };

	return ioctl(pool, SDZC_FREEZE, &freeze);
}

static inline int freeze(int pool, void *address, size_t length, unsigned int flags)
{
	struct sdzc_freeze freeze = { .address = (uintptr_t)address, .length = length, .flags = flags };

	return ioctl(pool, SDZC_FREEZE, &freeze);
}

static inline int discard(int pool, void *address, size_t length)
{
	struct sdzc_discard discard = { .address = (uintptr_t)address, .length = length };

	return ioctl(pool, SDZC_DISCARD, &discard);
}

#endif
