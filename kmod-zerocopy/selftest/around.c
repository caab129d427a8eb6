// SPDX-License-Identifier: GPL-2.0
/* One fault for many pages, and memory to which writes wait. */
#include "selftest.h"

static long faults(void)
{
	struct rusage now;

	getrusage(RUSAGE_THREAD, &now);
	return now.ru_minflt;
}

void one_fault_for_many_pages(void)
{
	int pool = pool_open(), end[2];
	const size_t pages = 512;
	char *from = map(pool, pages * PAGE), *to = map(pool, pages * PAGE);
	long before, copies;
	uint64_t handle;

	REQUIRE(make_channel(pool, end) == 0);
	fill(from, pages * PAGE, 1);
	/* Nobody has them any more: no copies. */
	REQUIRE(give(end[0], from, pages * PAGE, 0, &handle, NULL) == 0 && drop(end[1], handle) == 0);
	copies = counter("cow_copies"); /* which has faults of its own */
	before = faults();
	fill(from, pages * PAGE, 2);
	REQUIRE(faults() - before < 20 && counter("cow_copies") == copies);
	REQUIRE(holds(from, pages * PAGE, 2));
	/* The receiver still has them. */
	REQUIRE(give(end[0], from, pages * PAGE, 0, &handle, NULL) == 0);
	REQUIRE(take(end[1], handle, 0, to, pages * PAGE, 0, NULL) == 0);
	before = faults();
	fill(from, pages * PAGE, 3);
	REQUIRE(faults() - before < 40 && counter("cow_copies") == copies + (long)pages);
	REQUIRE(holds(from, pages * PAGE, 3) && holds(to, pages * PAGE, 2));
	/* Reading after a give; then writing what was read. */
	REQUIRE(give(end[0], from, pages * PAGE, 0, &handle, NULL) == 0);
	before = faults();
	REQUIRE(holds(from, pages * PAGE, 3) && faults() - before < 64);
	before = faults();
	for (size_t i = 0; i < pages * PAGE; i += 64)
		from[i]++;
	REQUIRE(faults() - before < 40);
	REQUIRE(take(end[1], handle, 0, to, pages * PAGE, SDZC_TAKE_POPULATE, NULL) == 0 && holds(to, pages * PAGE, 3));
	/* One page here and one there: nothing around is copied. */
	REQUIRE(give(end[0], from, pages * PAGE, 0, &handle, NULL) == 0);
	copies = counter("cow_copies");
	for (size_t i = 1; i < pages; i += 7)
		from[i * PAGE] = 1;
	REQUIRE(counter("cow_copies") == copies + (long)(pages + 5) / 7);
}

/* At random: parts are given, kept or taken or dropped, forked, and written; each side has what it should. */
void around_a_fault_nothing_shows(void)
{
	int pool = pool_open(), end[2], held[2];
	const size_t pages = 160;
	char *from = map(pool, pages * PAGE), *to = map(pool, pages * PAGE);
	char *model = calloc(pages, PAGE), *given = calloc(pages, PAGE);
	uint64_t handle;

	REQUIRE(make_channel(pool, end) == 0 && pipe(held) == 0);
	srandom(7);
	for (int round = 0; round < 300; round++) {
		const size_t at = random() % pages, n = 1 + random() % (pages - at);
		const size_t write_at = random() % pages, writes = 1 + random() % (pages - write_at);
		const bool takes = random() % 2, forks = random() % 8 == 0, splices = random() % 4 == 0;
		char *was = given + at * PAGE;

		memcpy(was, model + at * PAGE, n * PAGE);
		REQUIRE(give(end[0], from + at * PAGE, n * PAGE, 0, &handle, NULL) == 0);
		if (splices) { /* an old reference */
			struct iovec piece = { from + at * PAGE, PAGE };

			REQUIRE(vmsplice(held[1], &piece, 1, 0) == (ssize_t)PAGE);
		}
		if (takes)
			REQUIRE(take(end[1], handle, 0, to + at * PAGE, n * PAGE, random() % 2, NULL) == 0);
		else if (splices)
			REQUIRE(drop(end[1], handle) == 0);
		if (forks)
			IN_CHILD(memset(from, 0x7e, pages * PAGE); REQUIRE(!takes || !memcmp(to + at * PAGE, was, n * PAGE)));
		for (size_t i = write_at; i < write_at + writes; i += 1 + (round % 3 == 0)) {
			memset(from + i * PAGE + round % 512, round, PAGE / 2);
			memset(model + i * PAGE + round % 512, round, PAGE / 2);
		}
		REQUIRE(memcmp(from, model, pages * PAGE) == 0);
		if (takes)
			REQUIRE(memcmp(to + at * PAGE, was, n * PAGE) == 0);
		if (splices) {
			char page[PAGE];

			REQUIRE(read(held[0], page, PAGE) == (ssize_t)PAGE && memcmp(page, was, PAGE) == 0);
		} else if (!takes) {
			char *copy = malloc(n * PAGE);

			REQUIRE(read_out(end[1], handle, 0, copy, n * PAGE) == 0 && memcmp(copy, was, n * PAGE) == 0);
			REQUIRE(drop(end[1], handle) == 0);
			free(copy);
		}
	}
}

/* Writes words that only grow, one to each page, again and again. */
struct writer {
	char *memory;
	size_t pages;
	atomic_bool stop;
	atomic_ulong rounds; /* complete ones */
};

static void *writes_on(void *argument)
{
	struct writer *writer = argument;

	while (!atomic_load(&writer->stop)) {
		unsigned long next = atomic_load(&writer->rounds) + 1;

		for (size_t i = 0; i < writer->pages; i++)
			*(volatile unsigned long *)(writer->memory + i * PAGE) = next;
		atomic_store(&writer->rounds, next);
	}
	return NULL;
}

static void wait_for_rounds(struct writer *writer, unsigned long more)
{
	unsigned long begun = atomic_load(&writer->rounds);

	while (atomic_load(&writer->rounds) < begun + more)
		usleep(1000);
}

void frozen_memory_waits(void)
{
	int pool = pool_open(), memory_file;
	const size_t pages = 32;
	struct writer writer = { .memory = map(pool, pages * PAGE), .pages = pages };
	char *copy = malloc(pages * PAGE);
	pthread_t thread;

	REQUIRE(pthread_create(&thread, NULL, writes_on, &writer) == 0);
	for (int i = 0; i < 20; i++) {
		wait_for_rounds(&writer, 3);
		REQUIRE(freeze(pool, writer.memory, pages * PAGE, 0) == 0);
		memcpy(copy, writer.memory, pages * PAGE);
		usleep(5000);
		REQUIRE(memcmp(copy, writer.memory, pages * PAGE) == 0);
		IN_CHILD(memset(writer.memory, 1, pages * PAGE)); /* a child does not wait */
		REQUIRE(memcmp(copy, writer.memory, pages * PAGE) == 0);
		REQUIRE(freeze(pool, writer.memory, pages * PAGE, SDZC_FREEZE_THAW) == 0);
	}
	/* A write for which the kernel cannot wait */
	memory_file = open("/proc/self/mem", O_RDWR);
	REQUIRE(memory_file >= 0 && freeze(pool, writer.memory + PAGE, PAGE, 0) == 0);
	REQUIRE(pwrite(memory_file, "x", 1, (off_t)(uintptr_t)(writer.memory + PAGE)) == -1);
	/* What is unmapped is frozen no longer: the thread gets what is there instead. */
	REQUIRE(mmap(writer.memory, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) ==
		writer.memory);
	wait_for_rounds(&writer, 3);
	atomic_store(&writer.stop, true);
	pthread_join(thread, NULL);
	for (size_t i = 0; i < pages; i++)
		REQUIRE(*(unsigned long *)(writer.memory + i * PAGE) == atomic_load(&writer.rounds));
}

void freezing_is_refused(void)
{
	int pool = pool_open(), end[2], held[2];
	char *memory = map(pool, 8 * PAGE), *other = map(pool, PAGE), *plain = malloc(8 * PAGE);
	struct iovec piece = { memory + PAGE, PAGE };
	uint64_t handle;

	REQUIRE(make_channel(pool, end) == 0 && pipe(held) == 0);
	fill(memory, 8 * PAGE, 1);
	REQUIRE(freeze(pool, memory, 8 * PAGE, 2) == -1 && errno == EINVAL);
	REQUIRE(freeze(pool, memory + 1, PAGE, 0) == -1 && errno == EINVAL);
	REQUIRE(freeze(pool, memory, 8 * PAGE, SDZC_FREEZE_THAW) == -1 && errno == EINVAL);
	REQUIRE(freeze(pool, plain, PAGE, 0) == -1);
	/* The kernel uses a page, and could write to it. */
	REQUIRE(vmsplice(held[1], &piece, 1, 0) == (ssize_t)PAGE);
	REQUIRE(freeze(pool, memory, 8 * PAGE, 0) == -1 && errno == EBUSY);
	REQUIRE(read(held[0], plain, PAGE) == (ssize_t)PAGE);
	REQUIRE(freeze(pool, memory, 4 * PAGE, 0) == 0);
	REQUIRE(freeze(pool, memory + 4 * PAGE, PAGE, 0) == -1 && errno == EBUSY);
	REQUIRE(freeze(pool, memory, 3 * PAGE, SDZC_FREEZE_THAW) == -1 && errno == EINVAL);
	/* It can be read, and given; not replaced. */
	REQUIRE(give(end[0], memory, 8 * PAGE, 0, &handle, NULL) == 0);
	REQUIRE(take(end[1], handle, 0, memory + 3 * PAGE, PAGE, 0, NULL) == -1 && errno == EBUSY);
	REQUIRE(take(end[1], handle, 0, other, PAGE, 0, NULL) == 0);
	REQUIRE(discard(pool, memory, 2 * PAGE) == -1 && errno == EBUSY);
	REQUIRE(discard(pool, memory + 4 * PAGE, PAGE) == 0);
	REQUIRE(holds(memory, 4 * PAGE, 1) && is_zero(memory + 4 * PAGE, PAGE));
	REQUIRE(freeze(pool, memory, 4 * PAGE, SDZC_FREEZE_THAW) == 0);
	fill(memory, 8 * PAGE, 2);
	REQUIRE(holds(memory, 8 * PAGE, 2));
	/* With a copy, also of what may not be read, and to where none can be */
	REQUIRE(discard(pool, memory + PAGE, PAGE) == 0 && mprotect(memory, 8 * PAGE, PROT_NONE) == 0);
	memset(plain, 0x11, 8 * PAGE);
	REQUIRE(freeze_and_copy(pool, memory, 8 * PAGE, plain) == 0);
	REQUIRE(mprotect(memory, 8 * PAGE, PROT_READ | PROT_WRITE) == 0 && plain[PAGE] == 0x11);
	REQUIRE(memcmp(plain, memory, PAGE) == 0 && memcmp(plain + 2 * PAGE, memory + 2 * PAGE, 6 * PAGE) == 0);
	REQUIRE(freeze(pool, memory, 8 * PAGE, SDZC_FREEZE_THAW) == 0);
	REQUIRE(freeze_and_copy(pool, memory, 8 * PAGE, (void *)8) == -1 && errno == EFAULT);
	fill(memory, 8 * PAGE, 3);
}

/*
 * What it is for: other memory is put in the place of the device's, with threads that write to it all the
 * time.
 */
void frozen_memory_is_replaced(void)
{
	int pool = pool_open();
	const size_t pages = 64, part = 8;
	long had = counter("pages");

	for (int round = 0; round < 10; round++) {
		struct writer writers[2] = { { .memory = map(pool, pages * PAGE), .pages = pages / 2 } };
		pthread_t thread[2];
		char *memory = writers[0].memory;

		writers[1] = (struct writer){ .memory = memory + pages / 2 * PAGE, .pages = pages / 2 };
		for (int i = 0; i < 2; i++) {
			REQUIRE(pthread_create(&thread[i], NULL, writes_on, &writers[i]) == 0);
			wait_for_rounds(&writers[i], 1);
		}
		for (size_t at = 0; at < pages; at += part) {
			char *place = memory + at * PAGE;
			char *copy = mmap(NULL, part * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

			REQUIRE(freeze_and_copy(pool, place, part * PAGE, copy) == 0);
			REQUIRE(mremap(copy, part * PAGE, part * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, place) == place);
			wait_for_rounds(&writers[0], 2);
			wait_for_rounds(&writers[1], 2);
		}
		for (int i = 0; i < 2; i++) {
			atomic_store(&writers[i].stop, true);
			pthread_join(thread[i], NULL);
		}
		for (size_t i = 0; i < pages; i++)
			REQUIRE(*(unsigned long *)(memory + i * PAGE) == atomic_load(&writers[i >= pages / 2].rounds));
		REQUIRE(counter("pages") == had); /* none of the device's is left */
		munmap(memory, pages * PAGE);
	}
}
