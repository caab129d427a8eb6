// SPDX-License-Identifier: GPL-2.0
/*
 * measure: what it costs to hand over a message of each size, by remapping and by copying, in one thread: the
 * sum of what both sides do, without their waiting for each other.
 *
 * copy      into a ring of 256 KiB and out of it, in turns, as over shared memory
 * idle      give and take; nobody touches the pages
 * read      give, take, and the receiver reads a word of each page; "p" with SDZC_TAKE_POPULATE
 * stream    the sender writes all of its buffer anew, give, take, the receiver reads a word of each page
 * move      the same with SDZC_GIVE_MOVE: each page is a new one to the sender
 * eager     as stream; right after the give all pages are copied and mapped in one call
 *           (MADV_POPULATE_WRITE), so that the sender's writes fault no more
 * once      as stream with SDZC_GIVE_COPY: one copy, in the call, and the sender's pages stay mapped
 * (copy+w   the sender's writing included in copying, to compare with stream, move, eager and once)
 */
#include "common.h"

#define RING (256ul << 10)
#define ROUNDS 10

static int pool, end[2];
static char *from, *to, *ring;
static volatile uint64_t sink;

static void copies(size_t size)
{
	for (size_t at = 0; at < size; at += RING) {
		size_t n = size - at < RING ? size - at : RING;

		memcpy(ring, from + at, n);
		__asm__ volatile("" : : "r"(ring) : "memory");
		memcpy(to + at, ring, n);
		__asm__ volatile("" : : "r"(to) : "memory");
	}
}

static void writes(size_t size)
{
	memset(from, (int)sink + 1, size);
	__asm__ volatile("" : : "r"(from) : "memory");
}

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

static void reads(size_t size)
{
	for (size_t at = 0; at < size; at += PAGE)
		sink += *(volatile char *)(to + at);
}

static void hands_over(size_t size, unsigned int give_flags, unsigned int take_flags)
{
	uint64_t handle;

	if (give(end[0], from, size, give_flags, &handle, NULL) || take(end[1], handle, 0, to, size, take_flags, NULL)) {
		perror("give and take");
		exit(1);
	}
}

static void copy(size_t size) { copies(size); }
static void copy_written(size_t size) { writes(size); copies(size); }
static void idle(size_t size) { hands_over(size, 0, 0); }
static void read_faulting(size_t size) { hands_over(size, 0, 0); reads(size); }
static void read_populated(size_t size) { hands_over(size, 0, SDZC_TAKE_POPULATE); reads(size); }
static void stream(size_t size) { writes(size); hands_over(size, 0, SDZC_TAKE_POPULATE); reads(size); }
static void move(size_t size) { writes(size); hands_over(size, SDZC_GIVE_MOVE, SDZC_TAKE_POPULATE); reads(size); }

static void eager(size_t size)
{
	uint64_t handle;

	writes(size);
	if (give(end[0], from, size, 0, &handle, NULL) || madvise(from, size, MADV_POPULATE_WRITE) ||
	    take(end[1], handle, 0, to, size, SDZC_TAKE_POPULATE, NULL)) {
		perror("give, populate and take");
		exit(1);
	}
	reads(size);
}
static void once(size_t size) { writes(size); hands_over(size, SDZC_GIVE_COPY, SDZC_TAKE_POPULATE); reads(size); }

static const struct {
	const char *name;
	void (*run)(size_t size);
	bool remaps;
} ways[] = {
	{ "copy", copy, false }, { "copy+w", copy_written, false }, { "idle", idle, true }, { "read", read_faulting, true },
	{ "read p", read_populated, true }, { "stream", stream, true }, { "move", move, true },
	{ "eager", eager, true }, { "once", once, true },
};
#define WAYS (sizeof(ways) / sizeof(ways[0]))

/* The processors' interrupts for flushing each other's TLBs, so far. */
static long tlb_interrupts(void)
{
	FILE *file = fopen("/proc/interrupts", "r");
	char line[512];
	long sum = 0;

	while (file && fgets(line, sizeof(line), file)) {
		char *word = strstr(line, "TLB:");

		if (!word)
			continue;
		for (word = strtok(word + 4, " "); word && *word >= '0' && *word <= '9'; word = strtok(NULL, " "))
			sum += atol(word);
	}
	if (file)
		fclose(file);
	return sum;
}

/* Another thread of the process, on the other processor: flushes have to reach it. */
static atomic_bool stop;

static void *spins(void *unused)
{
	while (!atomic_load_explicit(&stop, memory_order_relaxed))
		;
	return unused;
}

static void table(void)
{
	printf("# us for each message, and copying's cost divided by it\n");
	printf("# %9s", "KiB");
	for (size_t w = 0; w < WAYS; w++)
		printf(" %15s", ways[w].name);
	printf("\n");
	for (size_t size = PAGE; size <= 64ul << 20; size *= 2) {
		double cost[WAYS];

		/* In turns, and the least: what else the machine does only adds to it. */
		for (int round = 0; round < ROUNDS; round++) {
			for (size_t w = 0; w < WAYS; w++) {
				uint64_t begun, n = 0;
				double taken;

				ways[w].run(size);
				begun = now_ns();
				do {
					ways[w].run(size);
					n++;
				} while (now_ns() - begun < 5000000);
				taken = (double)(now_ns() - begun) / n / 1000;
				if (round == 0 || taken < cost[w])
					cost[w] = taken;
			}
		}
		printf("# %9zu", size >> 10);
		for (size_t w = 0; w < WAYS; w++)
			printf(" %9.1f %5.2f", cost[w], (w == 1 || w >= 5 ? cost[1] : cost[0]) / cost[w]);
		printf("\n");
		fflush(stdout);
	}
}

static void events(void)
{
	const size_t size = 4 << 20;
	const int rounds = 8;

	printf("# for each MiB, in messages of 4 MiB: page faults, and interrupts to flush the other processor's TLB\n");
	for (size_t w = 0; w < WAYS; w++) {
		struct rusage before, after;
		long interrupts;

		ways[w].run(size);
		getrusage(RUSAGE_SELF, &before);
		interrupts = tlb_interrupts();
		for (int i = 0; i < rounds; i++)
			ways[w].run(size);
		interrupts = tlb_interrupts() - interrupts;
		getrusage(RUSAGE_SELF, &after);
		printf("# %9s %7.1f %7.2f\n", ways[w].name, (double)(after.ru_minflt - before.ru_minflt) / (rounds * 4),
		       (double)interrupts / (rounds * 4));
	}
}

/* What the others are made of. */
static void primitives(void)
{
	const size_t size = 4 << 20;
	uint64_t begun;
	struct sdzc_info info;
	char *plain = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	begun = now_ns();
	for (int i = 0; i < 20000; i++)
		ioctl(pool, SDZC_INFO, &info);
	printf("# a call %.2f us", (now_ns() - begun) / 20000 / 1e3);
	begun = now_ns();
	for (size_t at = 0; at < size; at += PAGE)
		plain[at] = 1;
	printf(", first write to a page of anonymous memory %.2f us", (now_ns() - begun) / (size / PAGE) / 1e3);
	discard(pool, from, size);
	begun = now_ns();
	for (size_t at = 0; at < size; at += PAGE)
		from[at] = 1;
	printf(", of the device's %.2f us", (now_ns() - begun) / (size / PAGE) / 1e3);
	begun = now_ns();
	for (int i = 0; i < 2000; i++)
		memcpy(ring + PAGE, plain + PAGE * (i % 8), PAGE);
	printf(", copy of a page %.2f us\n", (now_ns() - begun) / 2000 / 1e3);
	munmap(plain, size);
}

int main(void)
{
	pthread_t thread;

	pool = pool_open();
	if (pool < 0 || make_channel(pool, end)) {
		perror(DEVICE);
		return 1;
	}
	from = map(pool, 64 << 20);
	to = map(pool, 64 << 20);
	ring = mmap(NULL, RING, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (from == MAP_FAILED || to == MAP_FAILED || ring == MAP_FAILED) {
		perror("mmap");
		return 1;
	}
	memset(from, 1, 64 << 20);
	memset(to, 1, 64 << 20);
	memset(ring, 1, RING);
	primitives();
	table();
	pthread_create(&thread, NULL, spins, NULL);
	events();
	atomic_store(&stop, true);
	pthread_join(thread, NULL);
	return 0;
}
