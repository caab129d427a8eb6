// SPDX-License-Identifier: GPL-2.0
/* Pages of ours, the stocks of pages to be used again, and who is charged with how many. */
#include "internal.h"

#include <linux/hash.h>
#include <linux/hashtable.h>
#include <linux/highmem.h>
#include <linux/shrinker.h>
#include <linux/slab.h>
#include <linux/version.h>

/* ----------------------------------------------------------------- accounts */

static DEFINE_HASHTABLE(sdzc_accounts, 7);
static DEFINE_MUTEX(sdzc_accounts_lock); /* the table. Taken inside mmap_lock; nothing is taken inside */

static struct sdzc_account *sdzc_account_find(enum sdzc_account_kind kind, unsigned long key)
{
	struct sdzc_account *account;

	lockdep_assert_held(&sdzc_accounts_lock);
	hash_for_each_possible(sdzc_accounts, account, node, key) {
		if (account->kind == kind && account->key == key) {
			refcount_inc(&account->refs);
			return account;
		}
	}
	return NULL;
}

struct sdzc_account *sdzc_account_get(enum sdzc_account_kind kind, unsigned long key)
{
	struct sdzc_account *account, *made;

	mutex_lock(&sdzc_accounts_lock);
	account = sdzc_account_find(kind, key);
	mutex_unlock(&sdzc_accounts_lock);
	if (account)
		return account;
	/* Not with the lock: everybody would wait while memory is looked for in the name of one. */
	made = kzalloc(sizeof(*made), GFP_KERNEL_ACCOUNT);
	if (!made)
		return NULL;
	mutex_lock(&sdzc_accounts_lock);
	account = sdzc_account_find(kind, key);
	if (!account) {
		account = made;
		made = NULL;
		refcount_set(&account->refs, 1);
		account->kind = kind;
		account->key = key;
		hash_add(sdzc_accounts, &account->node, key);
		sdzc_count(SDZC_accounts, 1);
	}
	mutex_unlock(&sdzc_accounts_lock);
	kfree(made);
	return account;
}

void sdzc_account_put(struct sdzc_account *account)
{
	if (!account || !refcount_dec_and_mutex_lock(&account->refs, &sdzc_accounts_lock))
		return;
	hash_del(&account->node);
	mutex_unlock(&sdzc_accounts_lock);
	WARN_ON_ONCE(atomic_long_read(&account->mapped) || atomic_long_read(&account->given));
	kfree(account);
	sdzc_count(SDZC_accounts, -1);
}

/* Counts pages, unless it would be more than the limit. */
bool sdzc_charge(atomic_long_t *counter, unsigned long pages, unsigned long limit)
{
	if (atomic_long_add_return(pages, counter) <= (long)limit)
		return true;
	atomic_long_sub(pages, counter);
	sdzc_count(SDZC_refused, 1);
	return false;
}

/* -------------------------------------------------------------------- pages */

/* The kernel takes it back, or does so when the last who uses it for I/O is done. */
static void sdzc_page_free(struct page *page)
{
	set_page_private(page, 0);
	put_page(page);
	sdzc_count(SDZC_pages, -1);
}

static struct page *sdzc_stock_take(struct sdzc_pool *pool)
{
	struct page *page;

	if (!READ_ONCE(pool->stocked))
		return NULL;
	spin_lock(&pool->lock);
	page = list_first_entry_or_null(&pool->stock, struct page, lru);
	if (page) {
		list_del(&page->lru);
		WRITE_ONCE(pool->stocked, pool->stocked - 1);
		sdzc_count(SDZC_stock, -1);
	}
	spin_unlock(&pool->lock);
	return page;
}

/*
 * A page with one owner. It is zeroed, or the caller overwrites all of it before anybody can see it, or it
 * goes to a stock. Charged to the caller's control group, unless it is one of the stock.
 */
struct page *sdzc_page_new(struct sdzc_pool *pool, gfp_t gfp, bool zero)
{
	struct page *page = pool ? sdzc_stock_take(pool) : NULL;

	if (page) {
		if (zero)
			clear_highpage(page);
	} else {
		page = alloc_page(gfp | (zero ? __GFP_ZERO : 0));
		if (!page)
			return NULL;
		sdzc_count(SDZC_pages, 1);
	}
	atomic_long_set(sdzc_state(page), 1);
	return page;
}

/* One owner more. The caller is an owner, and has made sure that nobody can write the page any more. */
void sdzc_page_share(struct page *page)
{
	if (!sdzc_page_is_shared(page))
		atomic_long_set(sdzc_state(page), SDZC_SHARED | 1); /* its one owner is the caller */
	atomic_long_inc(sdzc_state(page));
}

/* One owner less: the caller, which has the page mapped nowhere any more. */
void sdzc_page_disown(struct page *page)
{
	if (!(atomic_long_dec_return(sdzc_state(page)) & ~(SDZC_SHARED | SDZC_REWRITTEN)))
		sdzc_page_free(page);
}

/* For the pool to use again: a page that has the caller as its only owner, and nobody else has any use of. */
void sdzc_page_stock(struct sdzc_pool *pool, struct page *page)
{
	spin_lock(&pool->lock);
	/* More than can be mapped is of no use. */
	if (!pool->dead && pool->stocked < (unsigned long)atomic_long_read(&pool->mapped)) {
		list_add(&page->lru, &pool->stock);
		WRITE_ONCE(pool->stocked, pool->stocked + 1);
		sdzc_count(SDZC_stock, 1);
		page = NULL;
	}
	spin_unlock(&pool->lock);
	if (page)
		sdzc_page_free(page);
}

/* -------------------------------------------------------------------- pools */

static LIST_HEAD(sdzc_pools);
static DEFINE_SPINLOCK(sdzc_pools_lock);

struct sdzc_pool *sdzc_pool_new(void)
{
	struct sdzc_pool *pool = kzalloc(sizeof(*pool), GFP_KERNEL_ACCOUNT);

	if (!pool)
		return NULL;
	kref_init(&pool->ref);
	spin_lock_init(&pool->lock);
	INIT_LIST_HEAD(&pool->stock);
	spin_lock(&sdzc_pools_lock);
	list_add_tail(&pool->node, &sdzc_pools);
	spin_unlock(&sdzc_pools_lock);
	sdzc_count(SDZC_pools, 1);
	return pool;
}

static void sdzc_pages_free(struct list_head *list)
{
	struct page *page, *next;

	list_for_each_entry_safe(page, next, list, lru) {
		list_del(&page->lru);
		sdzc_page_free(page);
	}
}

/* The file is closed: no mapping is left, and nothing is kept for one. Handles may still name the pool. */
void sdzc_pool_close(struct sdzc_pool *pool)
{
	LIST_HEAD(free);

	spin_lock(&sdzc_pools_lock);
	list_del(&pool->node);
	spin_unlock(&sdzc_pools_lock);
	spin_lock(&pool->lock);
	pool->dead = true;
	list_splice_init(&pool->stock, &free);
	sdzc_count(SDZC_stock, -(long)pool->stocked);
	pool->stocked = 0;
	spin_unlock(&pool->lock);
	sdzc_pages_free(&free);
	sdzc_pool_put(pool);
}

static void sdzc_pool_release(struct kref *ref)
{
	kfree(container_of(ref, struct sdzc_pool, ref));
	sdzc_count(SDZC_pools, -1);
}

void sdzc_pool_put(struct sdzc_pool *pool)
{
	kref_put(&pool->ref, sdzc_pool_release);
}

/* ----------------------------------------------------------------- shrinker */

static unsigned long sdzc_shrink_count(struct shrinker *shrinker, struct shrink_control *control)
{
	return atomic_long_read(&sdzc_counters[SDZC_stock]) ?: SHRINK_EMPTY;
}

static unsigned long sdzc_shrink_scan(struct shrinker *shrinker, struct shrink_control *control)
{
	unsigned long freed = 0;
	struct sdzc_pool *pool;
	LIST_HEAD(free);

	spin_lock(&sdzc_pools_lock);
	list_for_each_entry(pool, &sdzc_pools, node) {
		spin_lock(&pool->lock);
		while (pool->stocked && freed < control->nr_to_scan) {
			list_move(pool->stock.next, &free);
			WRITE_ONCE(pool->stocked, pool->stocked - 1);
			sdzc_count(SDZC_stock, -1);
			freed++;
		}
		spin_unlock(&pool->lock);
		if (freed >= control->nr_to_scan)
			break;
	}
	spin_unlock(&sdzc_pools_lock);
	sdzc_pages_free(&free);
	sdzc_count(SDZC_shrunk, freed);
	return freed ?: SHRINK_STOP;
}

#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 7, 0)
static struct shrinker *sdzc_shrinker;

int sdzc_pools_init(void)
{
	sdzc_shrinker = shrinker_alloc(0, "socksdirect-zerocopy");
	if (!sdzc_shrinker)
		return -ENOMEM;
	sdzc_shrinker->count_objects = sdzc_shrink_count;
	sdzc_shrinker->scan_objects = sdzc_shrink_scan;
	shrinker_register(sdzc_shrinker);
	return 0;
}

void sdzc_pools_exit(void)
{
	shrinker_free(sdzc_shrinker);
}
#else
static struct shrinker sdzc_shrinker = {
	.count_objects = sdzc_shrink_count,
	.scan_objects = sdzc_shrink_scan,
	.seeks = DEFAULT_SEEKS,
};

int sdzc_pools_init(void)
{
	return register_shrinker(&sdzc_shrinker, "socksdirect-zerocopy");
}

void sdzc_pools_exit(void)
{
	unregister_shrinker(&sdzc_shrinker);
}
#endif
