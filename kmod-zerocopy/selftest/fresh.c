// SPDX-License-Identifier: GPL-2.0
/* One fault for many pages that nobody has touched yet: what is there, what is not, and who pays. */
#include "selftest.h"

#define PAGES 512ul

static long faults(void)
{
	struct rusage now;

	getrusage(RUSAGE_SELF, &now);
	return now.ru_minflt;
}

/* Writes a word to each of these pages, one after the other. */
static void stamp(char *memory, size_t from, size_t to)
{
	for (size_t i = from; i < to; i++)
		*(volatile uint64_t *)(memory + i * PAGE) = i + 1;
}

/* The same from the last one to the first, as memmove() does it now and then. */
static void stamp_down(char *memory, size_t from, size_t to)
{
	for (size_t i = to; i-- > from;)
		*(volatile uint64_t *)(memory + i * PAGE) = i + 1;
}

/* Each of these pages has its word and else zeros, or only zeros. */
static bool stamped(const char *memory, size_t from, size_t to, bool stamps)
{
	for (size_t i = from; i < to; i++) {
		const char *page = memory + i * PAGE;

		if (*(const uint64_t *)page != (stamps ? i + 1 : 0) || !is_zero(page + 8, PAGE - 8))
			return false;
	}
	return true;
}

void one_fault_for_fresh_pages(void)
{
	int pool = pool_open(), zeros = open("/dev/zero", O_RDONLY);
	char *memory = map(pool, PAGES * PAGE), *filled = map(pool, PAGES * PAGE);
	long before = faults();

	stamp(memory, 0, PAGES);
	REQUIRE(faults() - before < 40 && counter("pages") == (long)PAGES);
	REQUIRE(stamped(memory, 0, PAGES, true));
	/* The kernel writes, piece by piece. */
	before = faults();
	for (size_t i = 0; i < PAGES; i += 4)
		REQUIRE(read(zeros, filled + i * PAGE, 4 * PAGE) == (ssize_t)(4 * PAGE));
	REQUIRE(faults() - before < 40 && counter("pages") == 2 * (long)PAGES);
	/* As before, after it was thrown away */
	REQUIRE(discard(pool, memory, PAGES * PAGE) == 0 && counter("pages") == (long)PAGES);
	before = faults();
	stamp(memory, 0, PAGES);
	REQUIRE(faults() - before < 40 && stamped(memory, 0, PAGES, true));
	REQUIRE(discard(pool, memory, PAGES * PAGE) == 0);
	before = faults();
	stamp_down(memory, 0, PAGES);
	REQUIRE(faults() - before < 40 && stamped(memory, 0, PAGES, true));
}

/* At least half of what is there was written, and what is written here and there has nobody beside it. */
void fresh_pages_are_asked_for(void)
{
	int pool = pool_open();
	char *memory = map(pool, PAGES * PAGE);

	for (size_t i = 0; i < PAGES; i++) {
		long most = i < 64 ? 2 * (long)i + 1 : (long)i + 65;

		stamp(memory, i, i + 1);
		REQUIRE(counter("pages") <= most);
	}
	REQUIRE(discard(pool, memory, PAGES * PAGE) == 0);
	for (size_t i = 1; i < PAGES; i += 2)
		stamp(memory, i, i + 1);
	REQUIRE(counter("pages") == (long)PAGES / 2);
	REQUIRE(discard(pool, memory, PAGES * PAGE) == 0);
	for (size_t i = PAGES; i > 0; i -= 2)
		stamp(memory, i - 1, i);
	REQUIRE(counter("pages") == (long)PAGES / 2);
	REQUIRE(discard(pool, memory, PAGES * PAGE) == 0);
	for (size_t i = PAGES; i-- > 0;) {
		long done = PAGES - i;

		stamp(memory, i, i + 1);
		REQUIRE(counter("pages") <= (done < 65 ? 2 * done - 1 : done + 64));
	}
	/* What is read comes one by one, as before. */
	REQUIRE(discard(pool, memory, PAGES * PAGE) == 0 && is_zero(memory, 32 * PAGE) && counter("pages") == 32);
	/* Another process writes, and would pay. */
	REQUIRE(discard(pool, memory, PAGES * PAGE) == 0);
	pid_t parent = getpid();

	REQUIRE(prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY) == 0 || errno == EINVAL);
	IN_CHILD(char *bytes = malloc(32 * PAGE); memset(bytes, 7, 32 * PAGE); struct iovec own = { bytes, 32 * PAGE };
		 struct iovec there = { memory, 32 * PAGE };
		 REQUIRE(process_vm_writev(parent, &own, 1, &there, 1, 0) == (ssize_t)(32 * PAGE)));
	REQUIRE(counter("pages") == 32);
}

/* Writes end before what is not the mapping's, not there, protected, frozen or another's. */
void fresh_pages_end_at_edges(void)
{
	int pool = pool_open();
	const size_t edge = 100, end = 140;
	char *memory, *other;

	memory = map(pool, PAGES * PAGE); /* a hole, with something else in it */
	REQUIRE(munmap(memory + edge * PAGE, (end - edge) * PAGE) == 0);
	other = mmap(memory + (edge + 1) * PAGE, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED,
		     -1, 0);
	fill(other, PAGE, 5);
	stamp(memory, 0, edge);
	REQUIRE(counter("pages") == (long)edge && signal_of(write_to, memory + edge * PAGE) == SIGSEGV);
	REQUIRE(holds(other, PAGE, 5) && stamped(memory, end, PAGES, false) && stamped(memory, 0, edge, true));
	REQUIRE(munmap(memory, PAGES * PAGE) == 0 && counter("pages") == 0);

	memory = map(pool, PAGES * PAGE); /* from above */
	REQUIRE(munmap(memory + edge * PAGE, (end - edge) * PAGE) == 0);
	stamp_down(memory, end, PAGES);
	REQUIRE(counter("pages") == (long)(PAGES - end) && stamped(memory, 0, edge, false));
	REQUIRE(munmap(memory, PAGES * PAGE) == 0 && counter("pages") == 0);

	memory = map(pool, PAGES * PAGE); /* the mapping's ends */
	stamp(memory, PAGES - edge, PAGES);
	stamp_down(memory, 0, edge);
	REQUIRE(counter("pages") == 2 * (long)edge && stamped(memory, edge, PAGES - edge, false));
	REQUIRE(munmap(memory, PAGES * PAGE) == 0 && counter("pages") == 0);

	memory = map(pool, PAGES * PAGE);
	REQUIRE(mprotect(memory + edge * PAGE, (end - edge) * PAGE, PROT_READ) == 0);
	stamp(memory, 0, edge);
	REQUIRE(counter("pages") == (long)edge && signal_of(write_to, memory + edge * PAGE) == SIGSEGV);
	REQUIRE(mprotect(memory, PAGES * PAGE, PROT_READ | PROT_WRITE) == 0 && stamped(memory, edge, PAGES, false));
	REQUIRE(munmap(memory, PAGES * PAGE) == 0 && counter("pages") == 0);

	memory = map(pool, PAGES * PAGE);
	REQUIRE(freeze(pool, memory + edge * PAGE, 8 * PAGE, 0) == 0);
	stamp(memory, 0, edge);
	REQUIRE(counter("pages") == (long)edge);
	REQUIRE(freeze(pool, memory + edge * PAGE, 8 * PAGE, SDZC_FREEZE_THAW) == 0);
	REQUIRE(munmap(memory, PAGES * PAGE) == 0 && counter("pages") == 0);

	memory = map(pool, PAGES * PAGE); /* pages in between that have something */
	fill(memory + edge * PAGE, PAGE, 6);
	fill(memory + (edge + 9) * PAGE, PAGE, 7);
	stamp(memory, 0, edge);
	stamp_down(memory, edge + 1, edge + 9);
	stamp(memory, edge + 10, PAGES);
	REQUIRE(holds(memory + edge * PAGE, PAGE, 6) && holds(memory + (edge + 9) * PAGE, PAGE, 7));
	REQUIRE(stamped(memory, 0, edge, true) && stamped(memory, edge + 1, edge + 9, true));
	REQUIRE(stamped(memory, edge + 10, PAGES, true) && counter("pages") == (long)PAGES);
}

/* Parent and child have their own, also of what was there before it was touched. */
void fresh_pages_are_forked(void)
{
	int pool = pool_open(), end[2];
	const size_t half = 100;
	char *memory = map(pool, PAGES * PAGE);
	uint64_t handle;

	REQUIRE(make_channel(pool, end) == 0);
	stamp(memory, 0, half);
	REQUIRE(counter("pages") > (long)half); /* some are there ahead */
	IN_CHILD(REQUIRE(stamped(memory, half, PAGES, false)); memset(memory, 0x55, PAGES * PAGE));
	REQUIRE(stamped(memory, 0, half, true) && stamped(memory, half, PAGES, false));
	/* The child has some that are shared, then fresh ones; it is the parent that waits. */
	IN_CHILD(stamp(memory, half / 2, PAGES); REQUIRE(stamped(memory, 0, PAGES, true)));
	REQUIRE(stamped(memory, half, PAGES, false));
	/* What was given as zeros stays zeros. */
	REQUIRE(discard(pool, memory, PAGES * PAGE) == 0);
	stamp(memory, 0, half);
	REQUIRE(give(end[0], memory, PAGES * PAGE, 0, &handle, NULL) == 0);
	stamp(memory, 0, PAGES);
	char *got = malloc(PAGES * PAGE);

	REQUIRE(read_out(end[1], handle, 0, got, PAGES * PAGE) == 0 && drop(end[1], handle) == 0);
	REQUIRE(stamped(got, 0, half, true) && stamped(got, half, PAGES, false));
	REQUIRE(stamped(memory, 0, PAGES, true));
}

/* What came in exchange, with somebody's data, is zeroed also where it comes ahead. */
void fresh_pages_show_nothing(void)
{
	int pool = pool_open(), end[2];
	char *from = map(pool, PAGES * PAGE), *to = map(pool, PAGES * PAGE);
	uint64_t handle;

	REQUIRE(make_channel(pool, end) == 0);
	fill(from, PAGES * PAGE, 1);
	fill(to, PAGES * PAGE, 2);
	REQUIRE(give(end[0], from, PAGES * PAGE, SDZC_GIVE_MOVE, &handle, NULL) == 0);
	REQUIRE(take(end[1], handle, 0, to, PAGES * PAGE, 0, NULL) == 0);
	REQUIRE(counter("stock") == (long)PAGES);
	stamp(from, 0, PAGES);
	REQUIRE(stamped(from, 0, PAGES, true) && counter("stock") == 0);
}

/* In the group: "alone" pages with none beside them, then "row" pages one after the other. */
static void writes_in_group(const char *group, size_t alone, size_t row, atomic_ulong *written)
{
	char *apart = map(pool_open(), 16 << 20), *memory = map(pool_open(), PAGES * PAGE);
	char path[128], text[32];
	cpu_set_t one;

	/* Each processor has up to 64 pages of the group's in hand. */
	CPU_ZERO(&one);
	CPU_SET(0, &one);
	REQUIRE(sched_setaffinity(0, sizeof(one), &one) == 0);
	snprintf(path, sizeof(path), "%s/cgroup.procs", group);
	snprintf(text, sizeof(text), "%d", getpid());
	REQUIRE(put_text(path, text));
	stamp(memory, 0, 1);
	for (size_t i = 0; i < alone; i++) {
		stamp(apart, 2 * i + 1, 2 * i + 2);
		atomic_store(written, i + 1);
	}
	stamp(memory, 1, row);
	REQUIRE(stamped(memory, 0, row, true));
}

/* A group that has room for what is written, and not for what would come ahead. */
void fresh_pages_kill_nobody(void)
{
	const char *group = "/sys/fs/cgroup/writer";
	const size_t row = 40, spare = 8;
	atomic_ulong *fits = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	char path[128];
	int status;

	put_text("/sys/fs/cgroup/cgroup.subtree_control", "+memory");
	if (mkdir(group, 0755) && errno != EEXIST)
		SKIP("no control groups");
	snprintf(path, sizeof(path), "%s/memory.max", group);
	if (!put_text(path, "6291456"))
		SKIP("no memory controller");
	pid_t child = fork(); /* is killed: as many fit */

	if (child == 0)
		writes_in_group(group, 2000, 1, fits);
	REQUIRE(waitpid(child, &status, 0) == child && WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
	const size_t alone = atomic_load(fits) - row - spare;

	REQUIRE(alone < 2000 && alone > 100);
	IN_CHILD(writes_in_group(group, alone, row, fits));
	for (int i = 0; i < 100 && rmdir(group); i++)
		usleep(10000);
}
