/* SPDX-License-Identifier: GPL-2.0 WITH Linux-syscall-note */
/*
 * /dev/socksdirect-zerocopy: pages that change hands.
 *
 * A program opens the device (that is a pool) and maps memory from it: mmap() with MAP_SHARED and offset 0.
 * Such memory behaves like private anonymous memory, over fork() too. Two programs that hold the two ends of
 * a channel can hand pages of such memory over: one gives them and gets a handle, a random number; the other
 * takes them by the handle, into memory of its own.
 *
 * All structs have the same layout for 32-bit and 64-bit callers. Fields named "flags" take only the bits
 * that are defined here, fields named "reserved" must be 0: anything else is EINVAL, so that later versions
 * can give them a meaning. Addresses, offsets and lengths are in bytes and must be whole pages unless it
 * says otherwise.
 */
#ifndef _UAPI_LINUX_SOCKSDIRECT_ZEROCOPY_H
#define _UAPI_LINUX_SOCKSDIRECT_ZEROCOPY_H

#include <linux/ioctl.h>
#include <linux/types.h>

/*
 * Raised when something is added that a program can ask for. What a version has, all later ones have: a
 * program works with any module whose version is not below the one that it needs.
 */
#define SDZC_VERSION 3

/* INFO, on any of the descriptors: what this module can do. */
struct sdzc_info {
	__u32 version;			/* SDZC_VERSION of the module */
	__u32 page_size;
	__aligned_u64 max_map;		/* longest mapping */
	__aligned_u64 max_give;		/* most that one GIVE, TAKE or READ takes */
	__aligned_u64 max_channel;	/* most that one end may have given and the other not taken */
	__aligned_u64 max_process;	/* most that one process may have mapped */
	__aligned_u64 max_user;		/* most that one user may have mapped, or given and not taken */
	/*
	 * Version 2: from which sizes on it pays on this machine to hand pages over, and to have them copied
	 * by GIVE (SDZC_GIVE_COPY), rather than to copy twice. 0: nobody has measured it; all ones: it never
	 * pays.
	 */
	__aligned_u64 least_give;
	__aligned_u64 least_copy;
};

/* CHANNEL, on a pool: makes a channel; the descriptors of its two ends, closed by exec. */
struct sdzc_channel {
	__u32 flags;			/* 0 */
	__s32 end[2];
	__u32 reserved;
};

/*
 * GIVE, on an end: hands pages to the other end. The memory must lie in one mapping of the caller, readable.
 * Its contents stay as they are: what the caller writes afterwards, it writes to a copy. With SDZC_GIVE_MOVE
 * they need not stay: afterwards the memory holds zeros, or what it held, page by page; no copy is ever made
 * of a page that is moved, except where the kernel still uses it for I/O.
 *
 * With SDZC_GIVE_COPY (version 2) the call itself copies, into pages of the pool that the channel was made
 * on. The memory may then be any that the caller can read, also not at a page; it stays mapped, so that
 * writing it again costs nothing. The receiver sees no difference.
 *
 * EPIPE: the other end is closed. EFAULT: not memory of the device, or not readable. EDQUOT: the user has
 * given too much. ENOBUFS: this end has. ENOMEM.
 */
struct sdzc_give {
	__aligned_u64 address;
	__aligned_u64 length;		/* 0 < length <= max_give */
	__u32 flags;
	/*
	 * out: pages that had to be copied, as the kernel used them for I/O. With SDZC_GIVE_COUNT (version 2)
	 * also those that became writable since they were shared last, by a copy or a page fault of their
	 * own. What one fault made writable without a copy, as nobody else had it any more, costs little and
	 * is not counted.
	 */
	__u32 copied;
	__aligned_u64 handle;		/* out */
};
#define SDZC_GIVE_MOVE	(1U << 0)
#define SDZC_GIVE_COPY	(1U << 1)	/* not with SDZC_GIVE_MOVE */
#define SDZC_GIVE_COUNT	(1U << 2)

/*
 * TAKE, on an end: moves pages of a handle, which was given at the other end, into memory of the caller.
 * What was there goes to the giver's pool in exchange. Each page of a handle can be taken once; when none is
 * left the handle is gone. The memory must lie in one mapping, readable and writable. With
 * SDZC_TAKE_POPULATE the pages are mapped at once, for reading.
 *
 * On an error nothing has changed. ENOENT: no such handle at this end, or one of the pages has been taken.
 * EINVAL: beyond its length. EFAULT: not memory of the device, or not writable. ENOMEM.
 */
struct sdzc_take {
	__aligned_u64 handle;
	__aligned_u64 offset;		/* in the handle */
	__aligned_u64 address;
	__aligned_u64 length;
	__u32 flags;
	__u32 copied;			/* out: pages that were copied, as those there are in use for I/O */
};
#define SDZC_TAKE_POPULATE	(1U << 0)

/*
 * READ, on an end: copies bytes out of a handle, to any memory. Offset, address and length may be odd. The
 * handle stays. Bytes before the first one that could not be copied may have been written.
 *
 * ENOENT, EINVAL as for TAKE; EFAULT: the memory cannot be written.
 */
struct sdzc_read {
	__aligned_u64 handle;
	__aligned_u64 offset;
	__aligned_u64 address;
	__aligned_u64 length;
	__u32 flags;			/* 0 */
	__u32 reserved;
};

/* DROP, on an end: lets go of a handle, and of the pages of it that were not taken. ENOENT. */
struct sdzc_drop {
	__aligned_u64 handle;
};

/*
 * DISCARD, on a pool: memory of the caller holds zeros afterwards, as MADV_DONTNEED does it with anonymous
 * memory. Pages that the kernel uses for I/O stay mapped and are filled with zeros. EBUSY: it is frozen.
 * (madvise(MADV_DONTNEED) itself leaves the contents alone, as with any shared mapping.)
 */
struct sdzc_discard {
	__aligned_u64 address;
	__aligned_u64 length;
	__u32 flags;			/* 0 */
	__u32 reserved;
};

/*
 * FREEZE, on a pool (version 3): until it is thawed, or unmapped, whoever writes to this memory waits; it can
 * be read. So a program with threads running can put other memory in its place (mremap). What it holds is
 * copied to "to", if that is not 0, but for pages that were never touched. The caller must not write to it
 * itself; a child of a fork does not wait: its memory is not frozen. One range of a mapping at a time.
 * Meanwhile TAKE and DISCARD fail there (EBUSY), and so do writes for which the kernel cannot wait (by a
 * debugger).
 *
 * EBUSY: something else in the mapping is frozen, or the kernel uses pages of it for I/O. EFAULT: not memory
 * of the device, in one mapping, or "to" cannot be written; then nothing is frozen.
 */
struct sdzc_freeze {
	__aligned_u64 address;
	__aligned_u64 length;
	__aligned_u64 to;
	__u32 flags;
	__u32 reserved;
};
#define SDZC_FREEZE_THAW	(1U << 0)	/* the opposite; EINVAL: it is not frozen */

#define SDZC_MAGIC	0xBA
#define SDZC_INFO	_IOR(SDZC_MAGIC, 0x60, struct sdzc_info)
#define SDZC_CHANNEL	_IOWR(SDZC_MAGIC, 0x61, struct sdzc_channel)
#define SDZC_DISCARD	_IOW(SDZC_MAGIC, 0x62, struct sdzc_discard)
#define SDZC_FREEZE	_IOW(SDZC_MAGIC, 0x63, struct sdzc_freeze)
#define SDZC_GIVE	_IOWR(SDZC_MAGIC, 0x68, struct sdzc_give)
#define SDZC_TAKE	_IOWR(SDZC_MAGIC, 0x69, struct sdzc_take)
#define SDZC_READ	_IOW(SDZC_MAGIC, 0x6a, struct sdzc_read)
#define SDZC_DROP	_IOW(SDZC_MAGIC, 0x6b, struct sdzc_drop)

#endif
