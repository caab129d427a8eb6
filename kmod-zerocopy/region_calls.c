// SPDX-License-Identifier: GPL-2.0
/* What calls do with memory of regions: give, take, discard, freeze. region.h has the order of the steps. */
#include "region.h"

#include <linux/highmem.h>
#include <linux/sched.h>
#include <linux/sched/signal.h>
#include <linux/slab.h>

/*
 * The region that memory of the caller belongs to, all in one mapping that allows what "flags" says. On
 * success mmap_lock is held for reading, so that mapping and region stay.
 */
static struct sdzc_region *sdzc_region_lock(u64 address, unsigned long pages, unsigned long flags,
					    struct vm_area_struct **in, unsigned long *at)
{
	struct mm_struct *mm = current->mm;
	struct vm_area_struct *vma;

	if (mmap_read_lock_killable(mm))
		return ERR_PTR(-EINTR);
	vma = vma_lookup(mm, address);
	if (!vma || vma->vm_ops != &sdzc_vm_ops || !vma->vm_private_data || (vma->vm_flags & flags) != flags ||
	    pages > (vma->vm_end - address) >> PAGE_SHIFT) {
		mmap_read_unlock(mm);
		return ERR_PTR(-EFAULT);
	}
	*in = vma;
	*at = vma->vm_pgoff + ((address - vma->vm_start) >> PAGE_SHIFT) -
	      ((struct sdzc_region *)vma->vm_private_data)->first;
	return vma->vm_private_data;
}

/* Makes "to" an owner of the caller's pages, and the region that they are in an owner no longer (move). */
int sdzc_region_give(u64 address, unsigned long pages, bool move, struct page **to, struct sdzc_pool **origin,
		     u32 *copied, u32 *rewritten)
{
	struct vm_area_struct *vma;
	struct sdzc_region *region;
	unsigned long at, i;
	int error = 0;

	region = sdzc_region_lock(address, pages, VM_READ, &vma, &at);
	if (IS_ERR(region))
		return PTR_ERR(region);
	mutex_lock(&region->lock);
	sdzc_unmap(region, at, pages);
	for (i = 0; i < pages; i++) {
		struct page **entry = &region->table[at + i], *page = *entry;

		cond_resched();
		if (page == SDZC_LOST) {
			error = -EFAULT;
			break;
		}
		if (!page) { /* not touched yet: zeros */
			page = sdzc_page_new(region->pool, SDZC_GFP_CALL, true);
			if (!page) {
				error = -ENOMEM;
				break;
			}
			if (!move) {
				*entry = page;
				sdzc_page_share(page);
			}
			to[i] = page;
			continue;
		}
		if (atomic_long_read(sdzc_state(page)) & SDZC_REWRITTEN) {
			atomic_long_andnot(SDZC_REWRITTEN, sdzc_state(page));
			++*rewritten;
		}
		if (sdzc_page_use(page) == SDZC_IN_IO) {
			to[i] = sdzc_page_copy(region->pool, page, SDZC_GFP_CALL);
			if (!to[i]) {
				error = -ENOMEM;
				break;
			}
			++*copied;
			continue;
		}
		to[i] = page;
		if (move)
			*entry = NULL;
		else
			sdzc_page_share(page);
	}
	if (error) {
		while (i-- > 0) {
			if (move && !region->table[at + i])
				region->table[at + i] = to[i];
			else
				sdzc_page_disown(to[i]);
			to[i] = NULL;
		}
	} else {
		kref_get(&region->pool->ref);
		*origin = region->pool;
	}
	mutex_unlock(&region->lock);
	mmap_read_unlock(current->mm);
	return error;
}

/*
 * Puts the pages into the caller's memory, which is then the owner that "from" was. For each one that does,
 * a page that the caller is charged with goes to the stock of "origin".
 */
int sdzc_region_take(u64 address, unsigned long pages, struct page **from, struct sdzc_pool *origin,
		     bool populate, u32 *copied)
{
	struct vm_area_struct *vma;
	struct sdzc_region *region;
	struct page **spare;
	unsigned long at, i, left;

	spare = kvcalloc(pages, sizeof(*spare), GFP_KERNEL_ACCOUNT);
	if (!spare)
		return -ENOMEM;
	region = sdzc_region_lock(address, pages, VM_READ | VM_WRITE, &vma, &at);
	if (IS_ERR(region)) {
		kvfree(spare);
		return PTR_ERR(region);
	}
	mutex_lock(&region->lock);
	if (sdzc_is_frozen(region, at, pages)) {
		mutex_unlock(&region->lock);
		mmap_read_unlock(current->mm);
		kvfree(spare);
		return -EBUSY;
	}
	sdzc_unmap(region, at, pages);

	/* What the caller has there may be no page of its own: then it gives a new one. All that can fail. */
	for (i = 0; i < pages; i++) {
		struct page *old = region->table[at + i];

		cond_resched();
		if (old == from[i] || (sdzc_has_page(old) && sdzc_page_use(old) != SDZC_OTHERS_TOO))
			continue;
		spare[i] = sdzc_page_new(NULL, SDZC_GFP_CALL, false);
		if (spare[i])
			continue;
		while (i-- > 0) {
			if (spare[i])
				sdzc_page_disown(spare[i]);
		}
		mutex_unlock(&region->lock);
		mmap_read_unlock(current->mm);
		kvfree(spare);
		return -ENOMEM;
	}

	for (i = 0; i < pages; i++) {
		struct page **entry = &region->table[at + i], *old = *entry;

		cond_resched();
		if (old == from[i]) {
			sdzc_page_disown(old);
		} else if (spare[i]) {
			*entry = from[i];
			if (sdzc_has_page(old))
				sdzc_page_disown(old);
			sdzc_page_stock(origin, spare[i]);
			sdzc_count(SDZC_exchanged, 1);
		} else if (sdzc_page_use(old) == SDZC_OURS) {
			*entry = from[i];
			sdzc_page_stock(origin, old);
			sdzc_count(SDZC_exchanged, 1);
		} else { /* I/O goes on there, and the program will look for its result there */
			copy_highpage(old, from[i]);
			sdzc_page_disown(from[i]);
			++*copied;
		}
	}
	if (populate) { /* where it fails, a fault does it */
		left = pages;
		for (i = 0; i < pages; i++)
			from[i] = region->table[at + i];
		vm_insert_pages(vma, address, from, &left);
	}
	mutex_unlock(&region->lock);
	mmap_read_unlock(current->mm);
	kvfree(spare);
	return 0;
}

int sdzc_region_discard(u64 address, unsigned long pages)
{
	struct vm_area_struct *vma;
	struct sdzc_region *region;
	unsigned long at, i;

	region = sdzc_region_lock(address, pages, 0, &vma, &at);
	if (IS_ERR(region))
		return PTR_ERR(region);
	mutex_lock(&region->lock);
	if (sdzc_is_frozen(region, at, pages)) {
		mutex_unlock(&region->lock);
		mmap_read_unlock(current->mm);
		return -EBUSY;
	}
	sdzc_unmap(region, at, pages);
	for (i = at; i < at + pages; i++) {
		struct page *page = region->table[i];

		cond_resched();
		if (sdzc_has_page(page) && sdzc_page_use(page) == SDZC_IN_IO) {
			clear_highpage(page);
			continue;
		}
		region->table[i] = NULL;
		if (sdzc_has_page(page))
			sdzc_page_disown(page);
	}
	mutex_unlock(&region->lock);
	mmap_read_unlock(current->mm);
	sdzc_count(SDZC_discarded, pages);
	return 0;
}

/*
 * Writes to these pages wait from now on, and what has begun is done: nobody has them mapped for writing, and
 * nothing in the kernel writes to them.
 */
int sdzc_region_freeze(u64 address, unsigned long pages, bool thaw)
{
	struct vm_area_struct *vma;
	struct sdzc_region *region;
	unsigned long at, i;
	int error = 0;

	region = sdzc_region_lock(address, pages, 0, &vma, &at);
	if (IS_ERR(region))
		return PTR_ERR(region);
	mutex_lock(&region->lock);
	if (thaw) {
		if (region->frozen_pages && region->frozen == at && region->frozen_pages == pages)
			sdzc_thaw(region);
		else
			error = -EINVAL;
		goto unlock;
	}
	if (region->frozen_pages) {
		error = -EBUSY;
		goto unlock;
	}
	sdzc_unmap(region, at, pages);
	for (i = at; i < at + pages && !error; i++) {
		cond_resched();
		if (region->table[i] == SDZC_LOST)
			error = -EFAULT;
		else if (region->table[i] && sdzc_page_use(region->table[i]) == SDZC_IN_IO)
			error = -EBUSY;
	}
	if (!error) {
		region->frozen = at;
		WRITE_ONCE(region->frozen_pages, pages);
		sdzc_count(SDZC_frozen, pages);
	}
unlock:
	mutex_unlock(&region->lock);
	mmap_read_unlock(current->mm);
	return error;
}

#define SDZC_COPY_AT_ONCE 16

/* What is there, to any memory of the caller; what was never touched is left out. */
int sdzc_region_copy_out(u64 address, unsigned long pages, u64 to)
{
	struct page *page[SDZC_COPY_AT_ONCE];
	struct vm_area_struct *vma;
	struct sdzc_region *region;
	unsigned long at, done, n, i;
	int error = 0;

	for (done = 0; done < pages && !error; done += n) {
		n = min_t(unsigned long, pages - done, SDZC_COPY_AT_ONCE);
		/* With references of its own to the pages it need not hold the locks while it copies. */
		region = sdzc_region_lock(address + done * PAGE_SIZE, n, 0, &vma, &at);
		if (IS_ERR(region))
			return PTR_ERR(region);
		mutex_lock(&region->lock);
		for (i = 0; i < n; i++) {
			page[i] = sdzc_has_page(region->table[at + i]) ? region->table[at + i] : NULL;
			if (page[i])
				get_page(page[i]);
		}
		mutex_unlock(&region->lock);
		mmap_read_unlock(current->mm);

		for (i = 0; i < n; i++) {
			void *from;

			if (!page[i])
				continue;
			from = kmap_local_page(page[i]);
			if (!error && copy_to_user(u64_to_user_ptr(to + (done + i) * PAGE_SIZE), from, PAGE_SIZE))
				error = -EFAULT;
			kunmap_local(from);
			put_page(page[i]);
		}
		if (fatal_signal_pending(current))
			error = -EINTR;
		cond_resched();
	}
	return error;
}
