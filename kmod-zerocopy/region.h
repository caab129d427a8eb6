/* SPDX-License-Identifier: GPL-2.0 */
/*
 * A region, for the files that are about mapped memory: regions.c (how they come and go), faults.c, and
 * region_calls.c (what calls do with them).
 *
 * The table of a region says which page is where; page tables are only made from it. To change an entry, or
 * to make a page shared:
 *   1. hold region->lock: no fault in the region gets a page from the table;
 *   2. wait for the lock of the page: faults that have got it already keep it until it is mapped;
 *   3. unmap, which flushes the processors' TLBs: nobody writes the page any more, and get_user_pages() does
 *      not find it any more;
 *   4. only then look at the page's references: one that is not ours is I/O under way.
 */
#ifndef SDZC_REGION_H
#define SDZC_REGION_H

#include "internal.h"

#include <linux/wait.h>

/*
 * What one mmap() made, or what a fork made of a mapping. A mapping that is split, or moved, stays in its
 * region; one of another process never is. Entry i of the table is the page at the page offset first + i,
 * which mremap() does not change.
 */
struct sdzc_region {
	struct kref ref; /* mappings */
	struct mutex lock; /* the table, and the state of pages in it that are not shared */
	struct sdzc_pool *pool;
	struct mm_struct *mm; /* only compared */
	struct sdzc_account *process, *user;
	pgoff_t first;
	unsigned long pages;
	/* mremap() has moved these: its munmap() of the old place is not the end of them. mmap_lock. */
	pgoff_t moved;
	unsigned long moved_pages;
	/*
	 * Writes from page to page: where they began, the last one, how many became writable with it at most
	 * and in fact, and where the next one is: above, below, or (one page alone) either. The lock.
	 */
	unsigned long run_from, last_write, around, ahead, next_up, next_down;
	/*
	 * Writes to these wait (FREEZE), without the lock. Changed with the lock, looked at by who waits
	 * without.
	 */
	unsigned long frozen, frozen_pages;
	wait_queue_head_t thawed;
	struct page *table[]; /* NULL: zeros, so far; SDZC_LOST */
};

/* A page of which a fork could not make the copy that it had to. A child that touches it gets SIGBUS. */
#define SDZC_LOST ((struct page *)ERR_PTR(-ENOMEM))

#define SDZC_NOWHERE ULONG_MAX /* of an entry */

extern const struct vm_operations_struct sdzc_vm_ops;

static inline bool sdzc_has_page(struct page *page)
{
	return page && page != SDZC_LOST;
}

static inline bool sdzc_is_frozen(struct sdzc_region *region, unsigned long at, unsigned long pages)
{
	lockdep_assert_held(&region->lock);
	return region->frozen_pages && at < region->frozen + region->frozen_pages && region->frozen < at + pages;
}

enum sdzc_use {
	SDZC_OURS, /* one owner, and no reference but ours */
	SDZC_IN_IO, /* one owner; somebody in the kernel has a reference, maybe to write to it */
	SDZC_OTHERS_TOO, /* others may read it, as an owner or through a reference; nobody can write it */
};

/* regions.c */
void sdzc_region_release(struct kref *ref);

/* faults.c */
void sdzc_unmap(struct sdzc_region *region, unsigned long at, unsigned long pages);
enum sdzc_use sdzc_page_use(struct page *page);
struct page *sdzc_page_copy(struct sdzc_pool *pool, struct page *page, gfp_t gfp);
vm_fault_t sdzc_fault(struct vm_fault *vmf);
vm_fault_t sdzc_page_mkwrite(struct vm_fault *vmf);
void sdzc_thaw(struct sdzc_region *region);

#endif
