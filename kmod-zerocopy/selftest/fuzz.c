// SPDX-License-Identifier: GPL-2.0
/*
 * fuzz CALLS [SEED]: makes about that many calls, most of them nearly right and the rest at random, by
 * several processes of two users with several threads each, that share pools and channels, fork, and are
 * killed at random. It fails if something is left in the module afterwards; what the kernel says meanwhile is
 * for the caller to look at.
 */
#include "common.h"

#include <setjmp.h>

#define WORKERS 4
#define THREADS 3
#define ENDS 8
#define SLOTS 12
#define HANDLES 64
#define SLOT_PAGES 24

/* What all processes share. */
static struct shared {
	atomic_ulong calls;
	atomic_int processes;
	_Atomic uint64_t handle[HANDLES];
	_Atomic int waits_at[HANDLES]; /* the end */
	atomic_ulong given, taken, read; /* with success */
} *shared;

/* What the threads of a process share; a child has its own. Nothing is locked: races are what is wanted. */
static int pool[2], end[ENDS];
static _Atomic(char *) slot[SLOTS];
static char *place; /* where mappings are put, so that they meet each other */

static __thread uint64_t state;
static __thread sigjmp_buf landing;
static __thread volatile sig_atomic_t may_land;

static uint64_t any(void)
{
	state ^= state << 13;
	state ^= state >> 7;
	state ^= state << 17;
	return state * 0x2545F4914F6CDD1Dull;
}

static uint64_t below(uint64_t n)
{
	return (any() >> 16) % n;
}

static bool one_in(uint64_t n)
{
	return below(n) == 0;
}

static void on_fault(int signal)
{
	if (may_land)
		siglongjmp(landing, 1);
	_exit(128 + signal);
}

/* Mostly pages of a slot, sometimes of another place. */
static char *some_address(void)
{
	switch (below(24)) {
	case 0:
		return (char *)any();
	case 1:
		return place + below(4096 * SLOT_PAGES);
	case 2:
		return NULL;
	default:
		return slot[below(SLOTS)] + below(SLOT_PAGES) * PAGE;
	}
}

static size_t some_length(void)
{
	switch (below(24)) {
	case 0:
		return any();
	case 1:
		return below(3 * PAGE);
	case 2:
		return 0;
	default:
		return (1 + below(one_in(4) ? SLOT_PAGES : 3)) * PAGE;
	}
}

/* A handle, and mostly the end that it waits at. */
static uint64_t some_handle(int *fd)
{
	int i = below(HANDLES);

	if (!one_in(8))
		*fd = end[shared->waits_at[i] & (ENDS - 1)];
	return one_in(32) ? any() : shared->handle[i];
}

static unsigned int some_flags(void)
{
	return one_in(12) ? (unsigned int)any() : (unsigned int)below(2);
}

static int some_fd(void)
{
	switch (below(32)) {
	case 0:
		return (int)any();
	case 1:
		return (int)below(40);
	case 2:
		return pool[below(2)];
	default:
		return end[below(ENDS)];
	}
}

static void touch(char *address, bool store)
{
	may_land = 1;
	if (sigsetjmp(landing, 1) == 0) {
		if (store)
			*(volatile uint64_t *)address = any();
		else
			(void)*(volatile uint64_t *)address;
	}
	may_land = 0;
}

static void map_slot(void)
{
	int i = below(SLOTS);
	char *at = place + (size_t)i * SLOT_PAGES * PAGE;

	if (one_in(4))
		at = place + below(SLOTS * 2) * SLOT_PAGES * PAGE / 2;
	if (mmap(at, SLOT_PAGES * PAGE, PROT_READ | (one_in(8) ? 0 : PROT_WRITE), MAP_SHARED | MAP_FIXED, pool[below(2)], 0) !=
	    MAP_FAILED)
		slot[i] = at;
}

static void change_mapping(void)
{
	char *address = slot[below(SLOTS)] + below(SLOT_PAGES) * PAGE, *to;
	size_t length = (1 + below(8)) * PAGE;

	switch (below(8)) {
	case 0:
		munmap(address, length);
		break;
	case 1:
		mprotect(address, length, (int)below(4));
		break;
	case 2: {
		static const int advice[] = { MADV_DONTNEED, MADV_WILLNEED, MADV_COLD, MADV_PAGEOUT, MADV_DONTFORK, MADV_DOFORK,
					      MADV_HUGEPAGE, MADV_MERGEABLE, MADV_POPULATE_READ, MADV_POPULATE_WRITE };

		madvise(address, length, advice[below(sizeof(advice) / sizeof(advice[0]))]);
		break;
	}
	case 3:
	case 4:
		to = place + below(SLOTS * SLOT_PAGES) * PAGE;
		mremap(address, length, length, MREMAP_MAYMOVE | MREMAP_FIXED, to);
		break;
	case 5:
		mmap(address, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
		break;
	case 6:
		mlock(address, length);
		break;
	default:
		map_slot();
	}
}

static void renew_channel(void)
{
	int made[2], i = below(ENDS / 2) * 2;

	if (one_in(2)) {
		close(end[i + below(2)]);
	} else if (make_channel(pool[below(2)], made) == 0) {
		close(end[i]);
		close(end[i + 1]);
		end[i] = made[0];
		end[i + 1] = made[1];
	}
}

/* The kernel gets hold of pages for a moment, or for as long as they are in a pipe. */
static void use_for_io(void)
{
	struct iovec piece = { some_address(), (1 + below(4)) * PAGE }, plain;
	static __thread char buffer[8 * PAGE];
	static __thread int held[2] = { -1, -1 };

	if (held[0] < 0 && pipe2(held, O_NONBLOCK))
		return;
	plain = (struct iovec){ buffer, piece.iov_len };
	switch (below(4)) {
	case 0:
		(void)!vmsplice(held[1], &piece, 1, SPLICE_F_NONBLOCK);
		break;
	case 1:
		(void)!read(held[0], buffer, sizeof(buffer));
		break;
	case 2:
		(void)!process_vm_readv(getpid(), &plain, 1, &piece, 1, 0);
		break;
	default:
		(void)!process_vm_writev(getpid(), &plain, 1, &piece, 1, 0);
	}
}

/* For a moment. Who has moved what is frozen meanwhile would leave those who wait there for ever. */
static void freeze_some(void)
{
	char *address = some_address();
	size_t length = some_length();

	if (one_in(4) ? freeze_and_copy(pool[below(2)], address, length, some_address()) :
			freeze(pool[below(2)], address, length, one_in(16) ? (unsigned int)any() : 0))
		return;
	if (one_in(2))
		sched_yield();
	if (freeze(pool[0], address, length, SDZC_FREEZE_THAW))
		mmap(place, 2ul * SLOTS * SLOT_PAGES * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
}

static void call(void)
{
	uint64_t handle;
	int fd = some_fd(), which = below(ENDS), i;

	atomic_fetch_add(&shared->calls, 1);
	switch (below(16)) {
	case 0: case 1: case 2: case 3: case 4:
		if (give(one_in(8) ? fd : end[which], some_address() + (one_in(16) ? below(PAGE) : 0), some_length(), some_flags() | (unsigned int)below(4) << 1, &handle, NULL) == 0) {
			i = below(HANDLES);
			shared->handle[i] = handle;
			shared->waits_at[i] = which ^ 1;
			atomic_fetch_add(&shared->given, 1);
		}
		break;
	case 5: case 6: case 7: case 8:
		handle = some_handle(&fd);
		if (take(fd, handle, one_in(2) ? 0 : below(6) * PAGE, some_address(), some_length(), some_flags(), NULL) == 0)
			atomic_fetch_add(&shared->taken, 1);
		break;
	case 9:
		handle = some_handle(&fd);
		if (read_out(fd, handle, below(3 * PAGE), some_address() + below(2), some_length() + below(2)) == 0)
			atomic_fetch_add(&shared->read, 1);
		break;
	case 10:
		handle = some_handle(&fd);
		if (one_in(4))
			drop(fd, handle);
		break;
	case 11: case 12:
		discard(pool[below(2)], some_address(), some_length());
		break;
	case 13:
		ioctl(fd, _IOC(below(4), SDZC_MAGIC, 0x60 + below(16), below(128)), one_in(2) ? (void *)some_address() : &handle);
		break;
	case 14:
		if (one_in(16))
			renew_channel();
		else if (one_in(8))
			freeze_some();
		break;
	default: { /* the struct itself lies in memory of the device */
		struct sdzc_give *in_device = (void *)(slot[below(SLOTS)] + below(SLOT_PAGES) * PAGE + 40 * below(100));

		may_land = 1;
		if (sigsetjmp(landing, 1) == 0)
			*in_device = (struct sdzc_give){ .address = (uintptr_t)some_address(), .length = some_length() };
		may_land = 0;
		ioctl(fd, SDZC_GIVE, in_device);
	}
	}
}

static void step(void)
{
	switch (below(16)) {
	case 0:
		if (one_in(2))
			map_slot();
		else
			change_mapping();
		break;
	case 1: case 2: case 3: case 4:
		touch(some_address(), true);
		break;
	case 5:
		touch(some_address(), false);
		break;
	case 6:
		use_for_io();
		break;
	default:
		call();
	}
}

/* A child, and sometimes a bomb of them. */
static void fork_some(int depth)
{
	if (atomic_fetch_add(&shared->processes, 1) < 48) {
		pid_t child = fork();

		if (child == 0) {
			uint64_t steps = below(60);

			state += getpid();
			for (uint64_t i = 0; i < steps; i++)
				step();
			if (depth < 4 && one_in(2)) {
				fork_some(depth + 1);
				fork_some(depth + 1);
			}
			atomic_fetch_sub(&shared->processes, 1);
			if (one_in(4))
				raise(SIGKILL);
			_exit(0);
		}
		if (child > 0) {
			if (one_in(3))
				kill(child, SIGKILL); /* "processes" is too high then, for a while */
			waitpid(child, NULL, one_in(2) ? WNOHANG : 0);
			return;
		}
	}
	atomic_fetch_sub(&shared->processes, 1);
}

static void *works(void *seed)
{
	state = (uintptr_t)seed | 1;
	for (;;) {
		step();
		if (one_in(400))
			fork_some(0);
		while (waitpid(-1, NULL, WNOHANG) > 0)
			;
	}
	return NULL;
}

static void work(uint64_t seed)
{
	struct sigaction action = { .sa_handler = on_fault, .sa_flags = SA_NODEFER };
	pthread_t thread;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	setpgid(0, 0);
	sigaction(SIGSEGV, &action, NULL);
	sigaction(SIGBUS, &action, NULL);
	state = seed | 1;
	if (one_in(2))
		(void)!setresuid(65534, 65534, 65534);
	if (one_in(2)) { /* a pool of its own, so that only the channels are common */
		close(pool[1]);
		pool[1] = pool_open();
	}
	for (int i = 0; i < SLOTS; i++) {
		slot[i] = place + (size_t)i * SLOT_PAGES * PAGE;
		map_slot();
	}
	for (uintptr_t i = 1; i < THREADS; i++)
		pthread_create(&thread, NULL, works, (void *)(seed * 7 + i * 1000003));
	works((void *)(seed * 5));
}

int main(int argc, char **argv)
{
	unsigned long calls = argc > 1 ? strtoul(argv[1], NULL, 10) : 10000, said = 0;
	uint64_t seed = argc > 2 ? strtoull(argv[2], NULL, 10) : now_ns();
	static const char *const leftovers[] = { "pools", "regions", "channels", "handles", "pages", "stock", "accounts" };
	pid_t worker[WORKERS] = { 0 };
	int failed = 0;

	printf("# fuzz %lu %llu\n", calls, (unsigned long long)seed);
	fflush(stdout);
	state = seed | 1;
	shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	place = mmap(NULL, 2ul * SLOTS * SLOT_PAGES * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	pool[0] = pool_open();
	pool[1] = pool_open();
	if (pool[0] < 0 || pool[1] < 0)
		return 2;
	for (int i = 0; i < ENDS; i += 2)
		make_channel(pool[0], end + i);
	while (atomic_load(&shared->calls) < calls) {
		int i = below(WORKERS);

		if (worker[i]) {
			kill(-worker[i], SIGKILL);
			kill(worker[i], SIGKILL);
			waitpid(worker[i], NULL, 0);
			atomic_store(&shared->processes, 0);
		}
		worker[i] = fork();
		if (worker[i] == 0)
			work(seed + any());
		usleep(20000 + below(200000));
		if (atomic_load(&shared->calls) > said + 1000000) {
			said = atomic_load(&shared->calls);
			printf("# %lu calls\n", said);
			fflush(stdout);
		}
	}
	for (int i = 0; i < WORKERS; i++) {
		if (worker[i] > 0) {
			kill(-worker[i], SIGKILL);
			kill(worker[i], SIGKILL);
			waitpid(worker[i], NULL, 0);
		}
	}
	for (int i = 0; i < ENDS; i++)
		close(end[i]);
	close(pool[0]);
	close(pool[1]);
	printf("# of %lu calls these succeeded: %lu gave, %lu took, %lu read\n", atomic_load(&shared->calls),
	       atomic_load(&shared->given), atomic_load(&shared->taken), atomic_load(&shared->read));
	/* One that never gets so far as to hand something over tests nothing. */
	if (calls >= 10000 && (!atomic_load(&shared->taken) || !atomic_load(&shared->read)))
		failed = 1;
	for (size_t i = 0; i < sizeof(leftovers) / sizeof(leftovers[0]); i++) {
		for (int tries = 0; tries < 250 && counter(leftovers[i]) != 0; tries++)
			usleep(20000);
		if (counter(leftovers[i]) != 0) {
			printf("  %ld %s are left\n", counter(leftovers[i]), leftovers[i]);
			failed = 1;
		}
	}
	return failed;
}
