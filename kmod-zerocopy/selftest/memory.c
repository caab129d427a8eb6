// SPDX-License-Identifier: GPL-2.0
/* What else programs do with memory: as with ordinary memory, or as is documented. */
#include "selftest.h"

#include <linux/userfaultfd.h>

void parts_are_unmapped(void)
{
	int pool = pool_open();
	long pages = counter("pages");
	char *memory = map(pool, 16 * PAGE);

	fill(memory, 16 * PAGE, 1);
	REQUIRE(counter("pages") == pages + 16);
	REQUIRE(munmap(memory + 4 * PAGE, 4 * PAGE) == 0);
	REQUIRE(counter("pages") == pages + 12);
	REQUIRE(signal_of(read_from, memory + 4 * PAGE) == SIGSEGV);
	REQUIRE(holds(memory, 4 * PAGE, 1));
	/* Over a part of it: ordinary memory, then the device's again. */
	REQUIRE(mmap(memory, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == memory);
	REQUIRE(is_zero(memory, PAGE) && counter("pages") == pages + 11);
	REQUIRE(mmap(memory + PAGE, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, pool, 0) == memory + PAGE);
	REQUIRE(is_zero(memory + PAGE, PAGE));
	IN_CHILD(fill(memory, 4 * PAGE, 3); fill(memory + 8 * PAGE, 8 * PAGE, 4); munmap(memory + 9 * PAGE, PAGE));
	REQUIRE(is_zero(memory, 2 * PAGE));
	REQUIRE(munmap(memory, 16 * PAGE) == 0 && counter("pages") == pages);
}

void memory_is_moved(void)
{
	int pool = pool_open(), end[2];
	char *memory = map(pool, 16 * PAGE), *other = map(pool, 16 * PAGE);
	char *place = mmap(NULL, 64 * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	long pages;
	uint64_t handle;

	REQUIRE(make_channel(pool, end) == 0);
	fill(memory, 16 * PAGE, 1);
	pages = counter("pages");
	REQUIRE(mremap(memory, 16 * PAGE, 16 * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, place) == place);
	REQUIRE(holds(place, 16 * PAGE, 1) && counter("pages") == pages);
	REQUIRE(signal_of(read_from, memory) == SIGSEGV);
	/* A part of it elsewhere, and back. */
	REQUIRE(mremap(place + 4 * PAGE, 4 * PAGE, 4 * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, place + 32 * PAGE) == place + 32 * PAGE);
	REQUIRE(signal_of(read_from, place + 4 * PAGE) == SIGSEGV);
	REQUIRE(give(end[0], place + 32 * PAGE, 4 * PAGE, 0, &handle, NULL) == 0);
	fill(place + 32 * PAGE, 4 * PAGE, 2);
	REQUIRE(mremap(place + 32 * PAGE, 4 * PAGE, 4 * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, place + 4 * PAGE) == place + 4 * PAGE);
	REQUIRE(holds(place + 4 * PAGE, 4 * PAGE, 2) && holds(place, 4 * PAGE, 1));
	REQUIRE(take(end[1], handle, 0, other, 4 * PAGE, 0, NULL) == 0);
	fill(memory = map(pool, 16 * PAGE), 16 * PAGE, 1);
	REQUIRE(memcmp(other, memory + 4 * PAGE, 4 * PAGE) == 0);
	IN_CHILD(REQUIRE(holds(place + 4 * PAGE, 4 * PAGE, 2)); fill(place, 16 * PAGE, 5));
	REQUIRE(holds(place + 4 * PAGE, 4 * PAGE, 2));
	/* Smaller, but never larger or twice. */
	REQUIRE(mremap(place + 8 * PAGE, 8 * PAGE, 4 * PAGE, 0) == place + 8 * PAGE);
	REQUIRE(mremap(place + 8 * PAGE, 4 * PAGE, 8 * PAGE, MREMAP_MAYMOVE) == MAP_FAILED);
	REQUIRE(mremap(place + 8 * PAGE, 0, 4 * PAGE, MREMAP_MAYMOVE) == MAP_FAILED);
	REQUIRE(mremap(place + 8 * PAGE, PAGE, PAGE, MREMAP_MAYMOVE | MREMAP_DONTUNMAP) == MAP_FAILED);
	REQUIRE(munmap(place, 64 * PAGE) == 0 && munmap(other, 16 * PAGE) == 0 && munmap(memory, 16 * PAGE) == 0);
}

void protection(void)
{
	int pool = pool_open(), end[2];
	char *memory = map(pool, 8 * PAGE), *to = map(pool, 8 * PAGE);
	uint64_t handle;

	REQUIRE(make_channel(pool, end) == 0);
	fill(memory, 8 * PAGE, 1);
	REQUIRE(mprotect(memory + 2 * PAGE, 2 * PAGE, PROT_READ) == 0);
	REQUIRE(signal_of(write_to, memory + 2 * PAGE) == SIGSEGV && holds(memory, 8 * PAGE, 1));
	REQUIRE(give(end[0], memory + 2 * PAGE, 2 * PAGE, 0, &handle, NULL) == 0);
	REQUIRE(take(end[1], handle, 0, to, 2 * PAGE, 0, NULL) == 0);
	REQUIRE(mprotect(memory, 8 * PAGE, PROT_READ | PROT_WRITE) == 0);
	fill(memory, 8 * PAGE, 2); /* allowed again, but still to a copy */
	memory[2 * PAGE] ^= 1;
	fill(memory + 2 * PAGE, PAGE, 3);
	char *was = map(pool, 8 * PAGE);

	fill(was, 8 * PAGE, 1);
	REQUIRE(memcmp(to, was + 2 * PAGE, 2 * PAGE) == 0);
	REQUIRE(mprotect(memory, PAGE, PROT_NONE) == 0 && signal_of(read_from, memory) == SIGSEGV);
}

void advice(void)
{
	int pool = pool_open();
	char *memory = map(pool, 4 * PAGE);

	fill(memory, 4 * PAGE, 1);
	REQUIRE(madvise(memory, 4 * PAGE, MADV_DONTNEED) == 0 && holds(memory, 4 * PAGE, 1)); /* documented */
	REQUIRE(discard(pool, memory, 2 * PAGE) == 0 && is_zero(memory, 2 * PAGE));
	REQUIRE(madvise(memory, 4 * PAGE, MADV_FREE) == -1);
	REQUIRE(madvise(memory, 4 * PAGE, MADV_REMOVE) == -1);
	REQUIRE(madvise(memory, 4 * PAGE, MADV_WIPEONFORK) == -1);
	madvise(memory, 4 * PAGE, MADV_MERGEABLE);
	madvise(memory, 4 * PAGE, MADV_HUGEPAGE);
	madvise(memory, 4 * PAGE, MADV_COLD);
	madvise(memory, 4 * PAGE, MADV_PAGEOUT);
	REQUIRE(msync(memory, 4 * PAGE, MS_SYNC) == 0);
	REQUIRE(mlock(memory, 4 * PAGE) == 0 && munlock(memory, 4 * PAGE) == 0);
	REQUIRE(madvise(memory, 4 * PAGE, MADV_DONTFORK) == 0);
	REQUIRE(signal_of(read_from, memory) == SIGSEGV);
	REQUIRE(madvise(memory, 4 * PAGE, MADV_DOFORK) == 0 && signal_of(read_from, memory) == 0);
	fill(memory, 4 * PAGE, 2);
	REQUIRE(holds(memory, 4 * PAGE, 2));
}

void other_processes_look(void)
{
	int pool = pool_open(), end[2], ready[2], go[2];
	char *memory = map(pool, 4 * PAGE), *plain = malloc(4 * PAGE), path[64], byte;
	uint64_t handle;

	REQUIRE(make_channel(pool, end) == 0 && pipe(ready) == 0 && pipe(go) == 0);
	pid_t child = fork();

	if (child == 0) {
		char *to = map(pool, 4 * PAGE);

		fill(memory, 4 * PAGE, 1);
		REQUIRE(give(end[0], memory, 4 * PAGE, 0, &handle, NULL) == 0);
		REQUIRE(write(ready[1], "", 1) == 1 && read(go[0], &byte, 1) == 1);
		/* Others have written to it; what was given is as it was. */
		REQUIRE(memory[0] == 0x11 && memory[PAGE] == 0x22);
		REQUIRE(take(end[1], handle, 0, to, 4 * PAGE, 0, NULL) == 0 && holds(to, 4 * PAGE, 1));
		_exit(0);
	}
	REQUIRE(read(ready[0], &byte, 1) == 1);
	struct iovec here = { plain, 4 * PAGE }, there = { memory, 4 * PAGE };

	REQUIRE(process_vm_readv(child, &here, 1, &there, 1, 0) == (ssize_t)(4 * PAGE) && holds(plain, 4 * PAGE, 1));
	memset(plain, 0x11, PAGE);
	here.iov_len = there.iov_len = PAGE;
	REQUIRE(process_vm_writev(child, &here, 1, &there, 1, 0) == (ssize_t)PAGE);
	snprintf(path, sizeof(path), "/proc/%d/mem", child);
	int fd = open(path, O_RDWR);

	REQUIRE(fd >= 0 && pread(fd, plain, PAGE, (uintptr_t)memory) == (ssize_t)PAGE && plain[17] == 0x11);
	memset(plain, 0x22, PAGE);
	REQUIRE(pwrite(fd, plain, PAGE, (uintptr_t)memory + PAGE) == (ssize_t)PAGE);
	REQUIRE(write(go[1], "", 1) == 1);
	int status;

	REQUIRE(waitpid(child, &status, 0) == child && status == 0);
	REQUIRE(is_zero(memory, 4 * PAGE));
}

void core_dumps_have_it(void)
{
	static const char in_dump[] = "remember-this-", hidden[] = "forget-this-one-";
	int pool = pool_open(), status;

	REQUIRE(put_text("/proc/sys/kernel/core_pattern", "/tmp/core-of-selftest"));
	unlink("/tmp/core-of-selftest");
	pid_t child = fork();

	if (child == 0) {
		struct rlimit all = { RLIM_INFINITY, RLIM_INFINITY };
		char *memory = map(pool, 4 * PAGE), *secret = map(pool, PAGE);

		setrlimit(RLIMIT_CORE, &all);
		/* The words in two pieces: else they are found in the program itself. */
		memcpy(memory + PAGE, in_dump, sizeof(in_dump) - 1);
		memcpy(memory + PAGE + sizeof(in_dump) - 1, "always", 6);
		memcpy(secret, hidden, sizeof(hidden) - 1);
		memcpy(secret + sizeof(hidden) - 1, "please", 6);
		madvise(secret, PAGE, MADV_DONTDUMP);
		raise(SIGABRT);
	}
	waitpid(child, &status, 0);
	REQUIRE(WIFSIGNALED(status) && WCOREDUMP(status));
	int fd = open("/tmp/core-of-selftest", O_RDONLY);
	off_t size = lseek(fd, 0, SEEK_END);
	char *core = mmap(NULL, size, PROT_READ, MAP_PRIVATE, fd, 0), word[64];

	snprintf(word, sizeof(word), "%salways", in_dump);
	REQUIRE(memmem(core, size, word, strlen(word)));
	snprintf(word, sizeof(word), "%splease", hidden);
	REQUIRE(!memmem(core, size, word, strlen(word)));
	unlink("/tmp/core-of-selftest");
}

void userfaultfd_is_refused(void)
{
	int pool = pool_open(), fd = syscall(__NR_userfaultfd, O_CLOEXEC);
	struct uffdio_api api = { .api = UFFD_API };
	char *memory = map(pool, PAGE);
	struct uffdio_register range = { .range = { (uintptr_t)memory, PAGE }, .mode = UFFDIO_REGISTER_MODE_MISSING };

	if (fd < 0)
		SKIP("no userfaultfd");
	REQUIRE(ioctl(fd, UFFDIO_API, &api) == 0);
	REQUIRE(ioctl(fd, UFFDIO_REGISTER, &range) == -1 && errno == EINVAL);
}
