// SPDX-License-Identifier: GPL-2.0
/* What can be mapped, and what is handed over to whom. */
#include "selftest.h"

void info(void)
{
	struct sdzc_info info;
	int pool = pool_open(), end[2];

	REQUIRE(pool >= 0);
	REQUIRE(ioctl(pool, SDZC_INFO, &info) == 0);
	REQUIRE(info.version == SDZC_VERSION && info.page_size == PAGE && info.max_give >= 64 << 20);
	REQUIRE(make_channel(pool, end) == 0);
	REQUIRE(ioctl(end[1], SDZC_INFO, &info) == 0 && info.version == SDZC_VERSION);
	REQUIRE(fcntl(end[0], F_GETFD) == FD_CLOEXEC && fcntl(end[1], F_GETFD) == FD_CLOEXEC);
	REQUIRE(ioctl(pool, SDZC_GIVE, &info) == -1 && errno == ENOTTY);
	REQUIRE(ioctl(end[0], SDZC_CHANNEL, &info) == -1 && errno == ENOTTY);
}

void mapping_rules(void)
{
	int pool = pool_open(), reader = open(DEVICE, O_RDONLY);

	REQUIRE(mmap(NULL, PAGE, PROT_READ, MAP_PRIVATE, pool, 0) == MAP_FAILED && errno == EINVAL);
	REQUIRE(mmap(NULL, PAGE, PROT_READ, MAP_SHARED, pool, PAGE) == MAP_FAILED && errno == EINVAL);
	REQUIRE(mmap(NULL, PAGE, PROT_READ, MAP_SHARED, reader, 0) == MAP_FAILED);
	REQUIRE(mmap(NULL, 8ul << 30, PROT_READ, MAP_SHARED | MAP_NORESERVE, pool, 0) == MAP_FAILED);

	char *memory = map(pool, 64 * PAGE);

	REQUIRE(memory != MAP_FAILED && is_zero(memory, 64 * PAGE));
	REQUIRE(map(pool, PAGE) != MAP_FAILED && map(pool, PAGE) != MAP_FAILED); /* two mappings, not one */
	fill(memory, 64 * PAGE, 1);
	REQUIRE(holds(memory, 64 * PAGE, 1));
	close(pool); /* the memory stays */
	fill(memory, 64 * PAGE, 2);
	REQUIRE(holds(memory, 64 * PAGE, 2));
}

void contents_are_handed_over(void)
{
	int pool = pool_open(), end[2];
	char *from = map(pool, 16 * PAGE), *to = map(pool, 16 * PAGE), plain[100];
	unsigned int copied;
	uint64_t handle;

	REQUIRE(make_channel(pool, end) == 0);
	fill(from, 16 * PAGE, 1);
	fill(to, 16 * PAGE, 2);
	REQUIRE(give(end[0], from, 16 * PAGE, 0, &handle, &copied) == 0 && copied == 0 && handle != 0);
	REQUIRE(holds(from, 16 * PAGE, 1)); /* as with send(): it is still there */
	memset(from, 7, PAGE); /* and what is written now does not go along */
	REQUIRE(read_out(end[1], handle, 4, plain, sizeof(plain)) == 0);
	REQUIRE(memcmp(plain, from + 4, sizeof(plain)) != 0);
	REQUIRE(take(end[1], handle, 0, to, 16 * PAGE, 0, &copied) == 0 && copied == 0);
	REQUIRE(holds(to, 16 * PAGE, 1));
	REQUIRE(take(end[1], handle, 0, to, 16 * PAGE, 0, NULL) == -1 && errno == ENOENT);
	REQUIRE(read_out(end[1], handle, 0, plain, 1) == -1 && errno == ENOENT);
	fill(from, 16 * PAGE, 3);
	REQUIRE(holds(to, 16 * PAGE, 1));
	fill(to, 16 * PAGE, 4);
	REQUIRE(holds(from, 16 * PAGE, 3));

	/* Untouched memory is zeros. */
	char *zeros = map(pool, 2 * PAGE);

	REQUIRE(give(end[0], zeros, 2 * PAGE, 0, &handle, NULL) == 0);
	REQUIRE(take(end[1], handle, 0, to, 2 * PAGE, SDZC_TAKE_POPULATE, NULL) == 0);
	REQUIRE(is_zero(to, 2 * PAGE) && is_zero(zeros, 2 * PAGE));
	/* To itself, where it was. */
	fill(from, 4 * PAGE, 5);
	REQUIRE(give(end[0], from, 4 * PAGE, 0, &handle, NULL) == 0);
	REQUIRE(take(end[1], handle, 0, from, 4 * PAGE, 0, NULL) == 0);
	REQUIRE(holds(from, 4 * PAGE, 5));
	fill(from, 4 * PAGE, 6);
	REQUIRE(holds(from, 4 * PAGE, 6));
}

void populated_memory_is_copied_on_write(void)
{
	int pool = pool_open(), end[2];
	char *from = map(pool, 64 * PAGE), *to = map(pool, 64 * PAGE);
	struct rusage before, after;
	uint64_t handle;

	REQUIRE(make_channel(pool, end) == 0);
	fill(from, 64 * PAGE, 1);
	REQUIRE(give(end[0], from, 64 * PAGE, 0, &handle, NULL) == 0);
	REQUIRE(take(end[1], handle, 0, to, 64 * PAGE, SDZC_TAKE_POPULATE, NULL) == 0);
	getrusage(RUSAGE_SELF, &before);
	REQUIRE(holds(to, 64 * PAGE, 1));
	getrusage(RUSAGE_SELF, &after);
	REQUIRE(after.ru_minflt - before.ru_minflt < 32); /* they were mapped */
	fill(to, 64 * PAGE, 2);
	REQUIRE(holds(from, 64 * PAGE, 1) && holds(to, 64 * PAGE, 2));
}

void moved_pages_leave(void)
{
	int pool = pool_open(), end[2];
	char *from = map(pool, 16 * PAGE), *to = map(pool, 16 * PAGE);
	long copies = counter("cow_copies");
	uint64_t handle;

	REQUIRE(make_channel(pool, end) == 0);
	fill(from, 16 * PAGE, 1);
	REQUIRE(give(end[0], from, 16 * PAGE, SDZC_GIVE_MOVE, &handle, NULL) == 0);
	REQUIRE(is_zero(from, 16 * PAGE));
	REQUIRE(take(end[1], handle, 0, to, 16 * PAGE, 0, NULL) == 0);
	REQUIRE(holds(to, 16 * PAGE, 1));
	fill(to, 16 * PAGE, 2);
	fill(from, 16 * PAGE, 3);
	REQUIRE(holds(to, 16 * PAGE, 2) && holds(from, 16 * PAGE, 3));
	REQUIRE(counter("cow_copies") == copies);
}

void copies_in_the_call(void)
{
	int pool = pool_open(), end[2];
	char *from = map(pool, 16 * PAGE), *to = map(pool, 16 * PAGE), *plain = malloc(17 * PAGE);
	long copies = counter("cow_copies"), faults;
	uint64_t handle;

	REQUIRE(make_channel(pool, end) == 0);
	/* Memory of the device stays mapped, and is its owner's alone. */
	fill(from, 16 * PAGE, 1);
	fill(to, 16 * PAGE, 2);
	REQUIRE(give(end[0], from, 16 * PAGE, SDZC_GIVE_COPY, &handle, NULL) == 0);
	faults = counter("faults");
	fill(from, 16 * PAGE, 3);
	REQUIRE(counter("faults") == faults && counter("cow_copies") == copies);
	REQUIRE(take(end[1], handle, 0, to, 16 * PAGE, SDZC_TAKE_POPULATE, NULL) == 0);
	REQUIRE(holds(to, 16 * PAGE, 1) && holds(from, 16 * PAGE, 3));
	fill(to, 16 * PAGE, 4);
	REQUIRE(holds(from, 16 * PAGE, 3) && counter("cow_copies") == copies);
	/* Any memory will do, at any address; what came in exchange is used, and shows nothing. */
	for (size_t i = 0; i < 17 * PAGE; i++)
		plain[i] = (char)(i * 7);
	REQUIRE(give(end[0], plain + 5, 16 * PAGE, SDZC_GIVE_COPY, &handle, NULL) == 0);
	REQUIRE(take(end[1], handle, 0, to, 16 * PAGE, 0, NULL) == 0);
	REQUIRE(memcmp(to, plain + 5, 16 * PAGE) == 0);
	REQUIRE(give(end[0], plain, 16 * PAGE, SDZC_GIVE_COPY, &handle, NULL) == 0);
	REQUIRE(drop(end[1], handle) == 0);
	/* The channel keeps its pool. */
	close(pool);
	REQUIRE(give(end[0], plain + 1, 16 * PAGE, SDZC_GIVE_COPY, &handle, NULL) == 0);
	REQUIRE(take(end[1], handle, 0, to, 16 * PAGE, 0, NULL) == 0);
	REQUIRE(memcmp(to, plain + 1, 16 * PAGE) == 0);
}

void rewritten_pages_are_counted(void)
{
	int pool = pool_open(), end[2];
	char *from = map_in_one_table(pool, 16 * PAGE), *to = map(pool, 16 * PAGE);
	unsigned int count;
	uint64_t handle;

	REQUIRE(make_channel(pool, end) == 0);
	fill(from, 16 * PAGE, 1);
	REQUIRE(give(end[0], from, 16 * PAGE, SDZC_GIVE_COUNT, &handle, &count) == 0 && count == 0);
	REQUIRE(take(end[1], handle, 0, to, 16 * PAGE, 0, NULL) == 0);
	memset(from, 1, 5 * PAGE); /* copies, and of the page behind, with one fault */
	REQUIRE(give(end[0], from, 16 * PAGE, SDZC_GIVE_COUNT, &handle, &count) == 0 && count == 6);
	REQUIRE(drop(end[1], handle) == 0);
	memset(from, 2, 3 * PAGE); /* nobody has them any more: no copies, but two faults */
	REQUIRE(give(end[0], from, 16 * PAGE, SDZC_GIVE_COUNT, &handle, &count) == 0 && count == 2);
	REQUIRE(give(end[0], from, 16 * PAGE, SDZC_GIVE_COUNT, &handle, &count) == 0 && count == 0);
	memset(from, 3, 2 * PAGE);
	REQUIRE(give(end[0], from, 16 * PAGE, 0, &handle, &count) == 0 && count == 0); /* it was not asked */
	REQUIRE(give(end[0], from, 16 * PAGE, SDZC_GIVE_COUNT | SDZC_GIVE_MOVE, &handle, &count) == 0 && count == 0);
}

void parts_of_a_handle(void)
{
	int pool = pool_open(), end[2];
	char *from = map(pool, 8 * PAGE), *to = map(pool, 8 * PAGE), *plain = malloc(8 * PAGE);
	uint64_t handle;

	REQUIRE(make_channel(pool, end) == 0);
	fill(from, 8 * PAGE, 1);
	REQUIRE(give(end[0], from, 8 * PAGE, 0, &handle, NULL) == 0);
	REQUIRE(read_out(end[1], handle, 4097, plain, 3 * PAGE + 5) == 0);
	REQUIRE(memcmp(plain, from + 4097, 3 * PAGE + 5) == 0);
	REQUIRE(read_out(end[1], handle, 0, plain, 8 * PAGE) == 0 && holds(plain, 8 * PAGE, 1));
	REQUIRE(read_out(end[1], handle, 1, plain, 8 * PAGE) == -1 && errno == EINVAL);
	REQUIRE(read_out(end[1], handle, 8 * PAGE, plain, 0) == 0);
	REQUIRE(read_out(end[1], handle, 0, NULL, PAGE) == -1 && errno == EFAULT);
	REQUIRE(take(end[1], handle, 6 * PAGE, to, 3 * PAGE, 0, NULL) == -1 && errno == EINVAL);
	REQUIRE(take(end[1], handle, 2 * PAGE, to, 4 * PAGE, 0, NULL) == 0);
	REQUIRE(memcmp(to, from + 2 * PAGE, 4 * PAGE) == 0);
	REQUIRE(take(end[1], handle, 5 * PAGE, to, 2 * PAGE, 0, NULL) == -1 && errno == ENOENT);
	REQUIRE(read_out(end[1], handle, PAGE, plain, 2 * PAGE) == -1 && errno == ENOENT);
	REQUIRE(read_out(end[1], handle, 0, plain, 2 * PAGE) == 0);
	REQUIRE(take(end[1], handle, 0, to, 2 * PAGE, 0, NULL) == 0);
	REQUIRE(take(end[1], handle, 6 * PAGE, to, 2 * PAGE, 0, NULL) == 0);
	REQUIRE(drop(end[1], handle) == -1 && errno == ENOENT);
}

void bad_arguments(void)
{
	int pool = pool_open(), end[2];
	char *from = map(pool, 8 * PAGE), *ordinary = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	uint64_t handle, other;

	REQUIRE(make_channel(pool, end) == 0);
	fill(from, 8 * PAGE, 1);
	REQUIRE(give(end[0], ordinary, PAGE, 0, &handle, NULL) == -1 && errno == EFAULT);
	REQUIRE(give(end[0], from + 1, PAGE, 0, &handle, NULL) == -1 && errno == EINVAL);
	REQUIRE(give(end[0], from, 0, 0, &handle, NULL) == -1 && errno == EINVAL);
	REQUIRE(give(end[0], from, PAGE / 2, 0, &handle, NULL) == -1 && errno == EINVAL);
	REQUIRE(give(end[0], from, PAGE, 8, &handle, NULL) == -1 && errno == EINVAL);
	REQUIRE(give(end[0], from, PAGE, SDZC_GIVE_MOVE | SDZC_GIVE_COPY, &handle, NULL) == -1 && errno == EINVAL);
	REQUIRE(give(end[0], NULL, PAGE, SDZC_GIVE_COPY, &handle, NULL) == -1 && errno == EFAULT);
	REQUIRE(give(end[0], from, PAGE / 2, SDZC_GIVE_COPY, &handle, NULL) == -1 && errno == EINVAL);
	REQUIRE(give(end[0], (void *)-PAGE, PAGE, SDZC_GIVE_COPY, &handle, NULL) == -1);
	REQUIRE(give(end[0], from, 9 * PAGE, 0, &handle, NULL) == -1 && errno == EFAULT);
	REQUIRE(give(end[0], (void *)-PAGE, PAGE, 0, &handle, NULL) == -1);
	REQUIRE(give(end[0], from, 1ul << 40, 0, &handle, NULL) == -1 && errno == EINVAL);
	REQUIRE(give(end[0], from, PAGE, 0, &handle, NULL) == 0);
	REQUIRE(take(end[1], handle, 0, ordinary, PAGE, 0, NULL) == -1 && errno == EFAULT);
	REQUIRE(take(end[1], handle, 1, from, PAGE, 0, NULL) == -1 && errno == EINVAL);
	REQUIRE(take(end[1], handle, 1ul << 60, from, PAGE, 0, NULL) == -1 && errno == EINVAL);
	REQUIRE(mprotect(from + PAGE, PAGE, PROT_READ) == 0 && mprotect(from + 2 * PAGE, PAGE, PROT_NONE) == 0);
	REQUIRE(take(end[1], handle, 0, from + PAGE, PAGE, 0, NULL) == -1 && errno == EFAULT);
	REQUIRE(give(end[0], from + 2 * PAGE, PAGE, 0, &other, NULL) == -1 && errno == EFAULT);
	REQUIRE(take(end[1], handle, 0, from + 3 * PAGE, PAGE, 0, NULL) == 0); /* after all that */
	REQUIRE(holds(from + 3 * PAGE, PAGE, 1));
	REQUIRE(ioctl(end[0], SDZC_GIVE, NULL) == -1 && errno == EFAULT);
	REQUIRE(ioctl(end[0], SDZC_TAKE, NULL) == -1 && errno == EFAULT);
	REQUIRE(ioctl(end[0], SDZC_READ, NULL) == -1 && errno == EFAULT);
	REQUIRE(ioctl(end[0], SDZC_DROP, NULL) == -1 && errno == EFAULT);
	REQUIRE(ioctl(pool, SDZC_CHANNEL, NULL) == -1 && errno == EFAULT);
	REQUIRE(ioctl(pool, SDZC_DISCARD, NULL) == -1 && errno == EFAULT);
}

void handles_belong_to_one_end(void)
{
	int pool = pool_open(), end[2], other[2];
	char *memory = map(pool, 2 * PAGE);
	uint64_t handle;

	REQUIRE(make_channel(pool, end) == 0 && make_channel(pool, other) == 0);
	REQUIRE(give(end[0], memory, PAGE, 0, &handle, NULL) == 0);
	REQUIRE(take(end[0], handle, 0, memory, PAGE, 0, NULL) == -1 && errno == ENOENT);
	REQUIRE(take(other[0], handle, 0, memory, PAGE, 0, NULL) == -1 && errno == ENOENT);
	REQUIRE(take(other[1], handle, 0, memory, PAGE, 0, NULL) == -1 && errno == ENOENT);
	REQUIRE(read_out(other[1], handle, 0, memory, 1) == -1 && errno == ENOENT);
	REQUIRE(drop(end[0], handle) == -1 && errno == ENOENT);
	for (int i = -1000; i < 1000; i++)
		REQUIRE(take(end[1], handle + (i ?: 1000), 0, memory, PAGE, 0, NULL) == -1 && errno == ENOENT);
	REQUIRE(drop(end[1], handle) == 0);
	REQUIRE(take(end[1], handle, 0, memory, PAGE, 0, NULL) == -1 && errno == ENOENT);
}

void ends_that_close(void)
{
	int pool = pool_open(), end[2];
	char *from = map(pool, 4 * PAGE), *to = map(pool, 4 * PAGE);
	long handles = counter("handles"), channels = counter("channels");
	uint64_t handle;

	REQUIRE(make_channel(pool, end) == 0);
	fill(from, 4 * PAGE, 1);
	REQUIRE(give(end[0], from, 4 * PAGE, 0, &handle, NULL) == 0);
	close(end[0]); /* what was sent still arrives */
	REQUIRE(take(end[1], handle, 0, to, 2 * PAGE, 0, NULL) == 0 && holds(to, 2 * PAGE, 1));
	REQUIRE(give(end[1], from, PAGE, 0, &handle, NULL) == -1 && errno == EPIPE);
	REQUIRE(counter("handles") == handles + 1);
	close(end[1]);
	REQUIRE(counter("handles") == handles && counter("channels") == channels);

	REQUIRE(make_channel(pool, end) == 0);
	REQUIRE(give(end[0], from, 4 * PAGE, 0, &handle, NULL) == 0);
	close(end[1]);
	REQUIRE(counter("handles") == handles);
	REQUIRE(give(end[0], from, PAGE, 0, &handle, NULL) == -1 && errno == EPIPE);
}

/* Between two processes, of different users, one of which dies in between. */
void the_giver_may_die(void)
{
	int pool = pool_open(), end[2], tell[2];
	uint64_t handle;

	REQUIRE(make_channel(pool, end) == 0 && pipe(tell) == 0);
	pid_t child = fork();

	if (child == 0) {
		int own = pool_open();
		char *from = map(own, 8 * PAGE);

		REQUIRE(setresuid(65534, 65534, 65534) == 0);
		fill(from, 8 * PAGE, 9);
		REQUIRE(give(end[0], from, 8 * PAGE, 0, &handle, NULL) == 0);
		REQUIRE(write(tell[1], &handle, sizeof(handle)) == sizeof(handle));
		raise(SIGKILL);
	}
	close(end[0]);
	waitpid(child, NULL, 0);
	REQUIRE(read(tell[0], &handle, sizeof(handle)) == sizeof(handle));
	char *to = map(pool, 8 * PAGE);

	REQUIRE(take(end[1], handle, 0, to, 8 * PAGE, 0, NULL) == 0 && holds(to, 8 * PAGE, 9));
	fill(to, 8 * PAGE, 10);
	REQUIRE(holds(to, 8 * PAGE, 10));
}

/* What a receiver gives in exchange reaches the giver, but nothing of what it held. */
void nothing_of_others_shows(void)
{
	int pool = pool_open(), end[2], ask[2], answer[2];
	uint64_t handle;

	REQUIRE(make_channel(pool, end) == 0 && pipe(ask) == 0 && pipe(answer) == 0);
	long exchanged = counter("exchanged");
	pid_t child = fork();

	if (child == 0) {
		int own = pool_open();
		char *secret = map(own, 256 * PAGE);

		while (read(ask[0], &handle, sizeof(handle)) == sizeof(handle) && handle) {
			memset(secret, 0x5e, 256 * PAGE);
			REQUIRE(take(end[1], handle, 0, secret, 256 * PAGE, 0, NULL) == 0);
			REQUIRE(write(answer[1], "", 1) == 1);
		}
		_exit(0);
	}
	char byte;

	for (int round = 0; round < 20; round++) {
		char *from = map(pool, 256 * PAGE);

		REQUIRE(from != MAP_FAILED && is_zero(from, 256 * PAGE));
		memset(from, round + 1, 256 * PAGE);
		REQUIRE(give(end[0], from, 256 * PAGE, round & 1 ? SDZC_GIVE_MOVE : 0, &handle, NULL) == 0);
		REQUIRE(write(ask[1], &handle, sizeof(handle)) == sizeof(handle));
		REQUIRE(read(answer[0], &byte, 1) == 1);
		if (round & 1)
			REQUIRE(is_zero(from, 256 * PAGE));
		/* A new mapping, made of what came in exchange. */
		char *fresh = map(pool, 256 * PAGE);

		REQUIRE(is_zero(fresh, 256 * PAGE));
		REQUIRE(munmap(fresh, 256 * PAGE) == 0 && munmap(from, 256 * PAGE) == 0);
	}
	REQUIRE(counter("exchanged") - exchanged == 20 * 256);
	handle = 0;
	REQUIRE(write(ask[1], &handle, sizeof(handle)) == sizeof(handle));
	int status;

	REQUIRE(waitpid(child, &status, 0) == child && status == 0);
}
