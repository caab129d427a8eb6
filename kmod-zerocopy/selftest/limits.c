// SPDX-License-Identifier: GPL-2.0
/* Limits, who is charged, callers of 32 bits, and unloading. */
#include "selftest.h"

void limits(void)
{
	int pool = pool_open(), end[2];
	char *memory = map(pool, 64 * PAGE);
	char was[32], text[32];
	uint64_t handle;

	REQUIRE(make_channel(pool, end) == 0);
	snprintf(was, sizeof(was), "%ld", number_in(PARAMETERS "max_channel"));
	snprintf(text, sizeof(text), "%lu", 48 * PAGE);
	REQUIRE(put_text(PARAMETERS "max_channel", text));
	int first = give(end[0], memory, 32 * PAGE, 0, &handle, NULL);
	uint64_t other;
	int second = give(end[0], memory, 32 * PAGE, 0, &other, NULL), error = errno;
	int third = give(end[1], memory, 32 * PAGE, 0, &other, NULL);

	REQUIRE(put_text(PARAMETERS "max_channel", was));
	REQUIRE(first == 0 && second == -1 && error == ENOBUFS && third == 0);
	REQUIRE(drop(end[1], handle) == 0);

	/* Handles: as many as fit, then no more. */
	int n = 0;

	while (give(end[0], memory, PAGE, 0, &handle, NULL) == 0)
		n++;
	REQUIRE(errno == ENOBUFS && n == 4096);

	snprintf(was, sizeof(was), "%ld", number_in(PARAMETERS "max_process"));
	snprintf(text, sizeof(text), "%lu", 128 * PAGE);
	REQUIRE(put_text(PARAMETERS "max_process", text));
	char *fits = map(pool, 64 * PAGE), *does_not = map(pool, PAGE);

	error = errno;
	REQUIRE(put_text(PARAMETERS "max_process", was));
	REQUIRE(fits != MAP_FAILED && does_not == MAP_FAILED && error == ENOMEM);
	REQUIRE(munmap(fits, 64 * PAGE) == 0);

	snprintf(was, sizeof(was), "%ld", number_in(PARAMETERS "max_user"));
	IN_CHILD(REQUIRE(setresuid(1234, 1234, 1234) == 0); char *own = map(pool_open(), 100 * PAGE);
		 REQUIRE(own != MAP_FAILED); int pipes[2]; REQUIRE(pipe(pipes) == 0);
		 /* root's limit is its own */
		 pid_t grandchild = fork(); if (grandchild == 0) { pause(); } kill(grandchild, SIGKILL);
		 waitpid(grandchild, NULL, 0));
	snprintf(text, sizeof(text), "%lu", 80 * PAGE);
	REQUIRE(put_text(PARAMETERS "max_user", text));
	char *beyond = map(pool, 32 * PAGE);
	int given = give(end[1], memory, 64 * PAGE, 0, &handle, NULL);

	error = errno;
	REQUIRE(put_text(PARAMETERS "max_user", was));
	REQUIRE(beyond == MAP_FAILED && given == -1 && error == EDQUOT);
}

/* A receiver keeps all that it gets. The sender's group can hold a few MiB, and is not charged with it. */
void a_hoarder_pays_itself(void)
{
	const char *group = "/sys/fs/cgroup/sender";
	const size_t size = 1 << 20;
	const int rounds = 96;
	int pool = pool_open(), end[2], down[2], up[2];
	char byte, path[128], text[32];
	uint64_t handle;

	put_text("/sys/fs/cgroup/cgroup.subtree_control", "+memory");
	if (mkdir(group, 0755) && errno != EEXIST)
		SKIP("no control groups");
	snprintf(path, sizeof(path), "%s/memory.max", group);
	if (!put_text(path, "12582912"))
		SKIP("no memory controller");
	REQUIRE(make_channel(pool, end) == 0 && pipe(down) == 0 && pipe(up) == 0);
	pid_t sender = fork();

	if (sender == 0) {
		snprintf(path, sizeof(path), "%s/cgroup.procs", group);
		snprintf(text, sizeof(text), "%d", getpid());
		REQUIRE(put_text(path, text));
		int own = pool_open();
		char *from = map(own, size);

		for (int round = 0; round < rounds; round++) {
			fill(from, size, round); /* a copy of each page that is still the receiver's */
			REQUIRE(give(end[0], from, size, 0, &handle, NULL) == 0);
			REQUIRE(write(up[1], &handle, sizeof(handle)) == sizeof(handle));
			REQUIRE(read(down[0], &byte, 1) == 1);
		}
		snprintf(path, sizeof(path), "%s/memory.current", group);
		long charged = number_in(path);

		if (charged > 8 << 20)
			printf("  charged with %ld\n", charged);
		_exit(charged > 8 << 20);
	}
	close(up[1]);
	char *hoard[rounds];

	for (int round = 0; round < rounds; round++) {
		if (read(up[0], &handle, sizeof(handle)) != sizeof(handle))
			break;
		hoard[round] = map(pool, size);
		REQUIRE(take(end[1], handle, 0, hoard[round], size, 0, NULL) == 0);
		REQUIRE(holds(hoard[round], size, round));
		REQUIRE(write(down[1], "", 1) == 1);
	}
	int status;

	REQUIRE(waitpid(sender, &status, 0) == sender && status == 0);
	for (int round = 0; round < rounds; round++)
		REQUIRE(holds(hoard[round], size, round));
	for (int i = 0; i < 100 && rmdir(group); i++)
		usleep(10000);
}

/* What waits to be used again goes when memory is short. */
void stocks_shrink(void)
{
	int pool = pool_open(), end[2];
	char *from = map(pool, 256 * PAGE), *to = map(pool, 256 * PAGE);
	uint64_t handle;

	REQUIRE(make_channel(pool, end) == 0);
	fill(from, 256 * PAGE, 1);
	fill(to, 256 * PAGE, 2);
	REQUIRE(give(end[0], from, 256 * PAGE, SDZC_GIVE_MOVE, &handle, NULL) == 0);
	REQUIRE(take(end[1], handle, 0, to, 256 * PAGE, 0, NULL) == 0);
	REQUIRE(counter("stock") >= 256);
	REQUIRE(put_text("/proc/sys/vm/drop_caches", "2"));
	REQUIRE(counter("stock") == 0 && holds(to, 256 * PAGE, 1));
	close(pool);
}

/* The call as a 32-bit program makes it. All addresses must be below 4 GiB. */
static int ioctl_32(int fd, unsigned int command, void *argument)
{
	int result;

	__asm__ volatile("int $0x80" : "=a"(result) : "a"(54), "b"(fd), "c"(command), "d"((unsigned int)(uintptr_t)argument)
			 : "memory", "r8", "r9", "r10", "r11");
	return result;
}

void callers_of_32_bits(void)
{
	int pool = pool_open();
	char *low = mmap(NULL, 4 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_32BIT, -1, 0);
	char *memory = mmap(NULL, 4 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_32BIT, pool, 0);

	REQUIRE(low != MAP_FAILED && memory != MAP_FAILED);
	struct sdzc_info *info = (void *)low;

	if (ioctl_32(pool, SDZC_INFO, info) == -ENOSYS)
		SKIP("no 32-bit calls");
	REQUIRE(info->version == SDZC_VERSION);
	struct sdzc_channel *channel = memset(low, 0, PAGE);

	REQUIRE(ioctl_32(pool, SDZC_CHANNEL, channel) == 0);
	int end[2] = { channel->end[0], channel->end[1] };
	struct sdzc_give *give = memset(low, 0, PAGE);

	fill(memory, 2 * PAGE, 1);
	give->address = (uintptr_t)memory;
	give->length = 2 * PAGE;
	REQUIRE(ioctl_32(end[0], SDZC_GIVE, give) == 0 && give->handle);
	uint64_t handle = give->handle;
	struct sdzc_read *read = memset(low, 0, PAGE);

	*read = (struct sdzc_read){ .handle = handle, .address = (uintptr_t)low + PAGE, .length = PAGE };
	REQUIRE(ioctl_32(end[1], SDZC_READ, read) == 0 && holds(low + PAGE, PAGE, 1));
	struct sdzc_take *take = memset(low, 0, PAGE);

	*take = (struct sdzc_take){ .handle = handle, .address = (uintptr_t)memory + 2 * PAGE, .length = PAGE };
	REQUIRE(ioctl_32(end[1], SDZC_TAKE, take) == 0 && holds(memory + 2 * PAGE, PAGE, 1));
	struct sdzc_drop *drop = memset(low, 0, PAGE);

	drop->handle = handle;
	REQUIRE(ioctl_32(end[1], SDZC_DROP, drop) == 0 && ioctl_32(end[1], SDZC_DROP, drop) == -ENOENT);
}

void unloading_in_use_is_refused(void)
{
	REQUIRE(counter("pools") == 0);
	int pool = pool_open(), end[2];

	REQUIRE(syscall(__NR_delete_module, "socksdirect_zerocopy", O_NONBLOCK) == -1);
	REQUIRE(make_channel(pool, end) == 0);
	close(pool);
	REQUIRE(syscall(__NR_delete_module, "socksdirect_zerocopy", O_NONBLOCK) == -1);
	close(end[0]);
	close(end[1]);
	pool = pool_open();
	char *memory = map(pool, PAGE);

	*memory = 1;
	close(pool);
	REQUIRE(syscall(__NR_delete_module, "socksdirect_zerocopy", O_NONBLOCK) == -1);
	REQUIRE(*memory == 1);
}
