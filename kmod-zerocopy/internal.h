/* SPDX-License-Identifier: GPL-2.0 */
/*
 * What the files of the module share. README.md has the words and the locks:
 *
 *   mmap_lock -> region->lock -> a page's lock -> i_mmap_rwsem -> page tables
 *   end->lock, pool->lock, sdzc_pools_lock, sdzc_accounts_lock: see each
 */
#ifndef SDZC_INTERNAL_H
#define SDZC_INTERNAL_H

#include <linux/fs.h>
#include <linux/kref.h>
#include <linux/list.h>
#include <linux/mm.h>
#include <linux/mutex.h>
#include <linux/spinlock.h>
#include <linux/types.h>
#include <linux/uaccess.h>
#include <linux/uidgid.h>

#include "include/linux/socksdirect_zerocopy.h"

/* ------------------------------------------------------------------ counters */

#define SDZC_COUNTERS(X)                                                                               \
	/* what there is now */                                                                       \
	X(pools) X(regions) X(channels) X(handles) X(pages) X(stock) X(accounts)                       \
	/* what has happened */                                                                       \
	X(faults) X(write_faults) X(around) X(fresh) X(cow_copies) X(cow_reuses) X(forks) X(fork_copies)                  \
	X(given) X(given_copied) X(copied_in) X(taken) X(taken_copied) X(read) X(exchanged) X(discarded) X(frozen) X(shrunk)  \
	X(refused)

enum sdzc_counter {
#define X(c) SDZC_##c,
	SDZC_COUNTERS(X)
#undef X
	SDZC_COUNTERS_END
};

extern atomic_long_t sdzc_counters[SDZC_COUNTERS_END];

static inline void sdzc_count(enum sdzc_counter which, long by)
{
	atomic_long_add(by, &sdzc_counters[which]);
}

/* -------------------------------------------------------------------- limits */

extern unsigned long sdzc_max_map, sdzc_max_give, sdzc_max_channel, sdzc_max_process, sdzc_max_user;
extern unsigned long sdzc_least_give, sdzc_least_copy; /* told to programs, and not used here */
#define SDZC_MAX_HANDLES 4096 /* that wait at one end */

enum sdzc_account_kind { SDZC_PROCESS, SDZC_USER };

/* What one user, or one process, has. Found by kind and key; lives as long as something counts on it. */
struct sdzc_account {
	struct hlist_node node;
	refcount_t refs;
	enum sdzc_account_kind kind;
	unsigned long key; /* the user's id, or the process's mm, which is only compared */
	atomic_long_t mapped, given; /* pages */
};

struct sdzc_account *sdzc_account_get(enum sdzc_account_kind kind, unsigned long key);
void sdzc_account_put(struct sdzc_account *account);
bool sdzc_charge(atomic_long_t *counter, unsigned long pages, unsigned long limit);

/* --------------------------------------------------------------------- pools */

/* An open device file: where mappings belong, and where pages come back to. */
struct sdzc_pool {
	struct kref ref;
	struct inode *inode; /* its i_mmap has the mappings of this pool and no others; gone when dead */
	atomic64_t next; /* the first page offset that no mapping has had */
	atomic_long_t mapped; /* pages that regions can have */
	struct list_head node; /* sdzc_pools_lock */
	spinlock_t lock; /* inside sdzc_pools_lock: the following */
	struct list_head stock; /* pages to be used again, with what somebody left in them */
	unsigned long stocked;
	bool dead; /* the file is closed */
};

struct sdzc_pool *sdzc_pool_new(void);
void sdzc_pool_close(struct sdzc_pool *pool);
void sdzc_pool_put(struct sdzc_pool *pool);
int sdzc_pools_init(void);
void sdzc_pools_exit(void);

/* --------------------------------------------------------------------- pages */

/*
 * A page of ours has one reference that is ours, and in page->private how many have it ("owners": entries of
 * regions' tables, entries of handles) and whether it is, or was, shared. Only an owner makes more owners.
 *
 * A page that is not marked as shared has one owner, and may be mapped writable there. One that is marked is
 * mapped for reading only, so nothing in the kernel can have got hold of it for writing.
 */
#define SDZC_SHARED (1L << 62)
/* Of a page that is not shared: it was, or stands for one that is, and was written to since. region->lock. */
#define SDZC_REWRITTEN (1L << 61)

static inline atomic_long_t *sdzc_state(struct page *page)
{
	BUILD_BUG_ON(sizeof(page->private) != sizeof(atomic_long_t));
	return (atomic_long_t *)&page->private;
}

static inline bool sdzc_page_is_shared(struct page *page)
{
	return atomic_long_read(sdzc_state(page)) & SDZC_SHARED;
}

#define SDZC_GFP_FAULT (GFP_USER | __GFP_ACCOUNT) /* as for anonymous memory */
/* Fails rather than have anybody killed. */
#define SDZC_GFP_CALL (SDZC_GFP_FAULT | __GFP_NORETRY | __GFP_NOWARN)
/* For what nobody has asked for yet: what is free, and what the control group may have without reclaim. */
#define SDZC_GFP_AHEAD (SDZC_GFP_CALL & ~__GFP_DIRECT_RECLAIM)

struct page *sdzc_page_new(struct sdzc_pool *pool, gfp_t gfp, bool zero);
void sdzc_page_share(struct page *page);
void sdzc_page_disown(struct page *page);
void sdzc_page_stock(struct sdzc_pool *pool, struct page *page);

/* ------------------------------------------------------------------- regions */

int sdzc_mmap(struct file *file, struct vm_area_struct *vma);
int sdzc_region_give(u64 address, unsigned long pages, bool move, struct page **to, struct sdzc_pool **origin,
		     u32 *copied, u32 *rewritten);
int sdzc_region_take(u64 address, unsigned long pages, struct page **from, struct sdzc_pool *origin,
		     bool populate, u32 *copied);
int sdzc_region_discard(u64 address, unsigned long pages);
int sdzc_region_freeze(u64 address, unsigned long pages, bool thaw);
int sdzc_region_copy_out(u64 address, unsigned long pages, u64 to);

/* ------------------------------------------------------------------ channels */

long sdzc_channel_new(struct sdzc_pool *pool, void __user *argument);

/* ---------------------------------------------------------------- everything */

long sdzc_get_info(void __user *argument);

/* Whether address and length are whole pages, at least one, at most "most". */
static inline bool sdzc_whole_pages(u64 address, u64 length, unsigned long most)
{
	return length && length <= most && PAGE_ALIGNED(address | length) && address + length > address;
}

#endif
