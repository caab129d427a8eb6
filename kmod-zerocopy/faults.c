// SPDX-License-Identifier: GPL-2.0
/*
 * What happens when memory of a region is touched, and how its pages are unmapped before they change.
 */
#include "region.h"

#include <linux/highmem.h>
#include <linux/pagemap.h>
#include <linux/sched.h>

/* Steps 2 and 3 for some entries: afterwards they are mapped nowhere in this region. The lock is held. */
void sdzc_unmap(struct sdzc_region *region, unsigned long at, unsigned long pages)
{
	unsigned long i;

	lockdep_assert_held(&region->lock);
	for (i = at; i < at + pages; i++) {
		if (sdzc_has_page(region->table[i]))
			wait_on_page_locked(region->table[i]);
	}
	/* What such a fault mapped is seen by the walk below. */
	smp_mb();
	unmap_mapping_pages(region->pool->inode->i_mapping, region->first + at, pages, true);
}

/* Step 4, for a page that has been unmapped and that the caller is an owner of. */
enum sdzc_use sdzc_page_use(struct page *page)
{
	long state = atomic_long_read_acquire(sdzc_state(page));
	bool only_ours;

	/*
	 * After the page tables have been cleared: get_user_pages_fast() looks at them after it took its
	 * reference.
	 */
	smp_mb();
	only_ours = page_ref_count(page) == 1;
	if (!(state & SDZC_SHARED))
		return only_ours ? SDZC_OURS : SDZC_IN_IO;
	if (state == (SDZC_SHARED | 1) && only_ours) {
		atomic_long_set(sdzc_state(page), 1);
		return SDZC_OURS;
	}
	return SDZC_OTHERS_TOO;
}

/* A copy of a page, with one owner. */
struct page *sdzc_page_copy(struct sdzc_pool *pool, struct page *page, gfp_t gfp)
{
	struct page *copy = sdzc_page_new(pool, gfp, false);

	if (copy)
		copy_highpage(copy, page);
	return copy;
}

void sdzc_thaw(struct sdzc_region *region)
{
	lockdep_assert_held(&region->lock);
	WRITE_ONCE(region->frozen_pages, 0);
	wake_up_all(&region->thawed);
}

/*
 * A write to what is frozen: the lock is held, and given back. mmap_lock is given back as well, so that what
 * is here can be replaced; then the access is tried again. A shared mapping without map_pages() has no faults
 * under the lock of the mapping alone.
 */
static vm_fault_t sdzc_wait_until_thawed(struct sdzc_region *region, struct vm_fault *vmf)
{
	struct mm_struct *mm = vmf->vma->vm_mm;

	if (!(vmf->flags & FAULT_FLAG_ALLOW_RETRY)) {
		mutex_unlock(&region->lock);
		return VM_FAULT_SIGBUS;
	}
	if (vmf->flags & FAULT_FLAG_RETRY_NOWAIT) {
		mutex_unlock(&region->lock);
		return VM_FAULT_RETRY;
	}
	kref_get(&region->ref);
	mutex_unlock(&region->lock);
	mmap_read_unlock(mm);
	(void)wait_event_killable(region->thawed, !READ_ONCE(region->frozen_pages));
	kref_put(&region->ref, sdzc_region_release);
	return VM_FAULT_RETRY;
}

/*
 * Puts a copy, with one owner, in the place of a page that others have as well. region->lock and the page's
 * lock are held; where it succeeds the caller unlocks the page and disowns it.
 */
static struct page *sdzc_copy_on_write(struct sdzc_region *region, unsigned long at, struct page *page)
{
	struct page *copy = sdzc_page_copy(region->pool, page, SDZC_GFP_FAULT);

	lockdep_assert_held(&region->lock);
	if (!copy)
		return NULL;
	atomic_long_or(SDZC_REWRITTEN, sdzc_state(copy));
	region->table[at] = copy;
	unmap_mapping_pages(region->pool->inode->i_mapping, region->first + at, 1, true);
	sdzc_count(SDZC_cow_copies, 1);
	return copy;
}

/* At most so many pages are mapped with the one that a fault is about. */
#define SDZC_AROUND_READ 16
#define SDZC_AROUND_WRITE 64

/*
 * As vm_insert_pages(), but for writing if "prot" says so: a shared mapping whose first writes somebody wants
 * to hear of has page protection for reading. Where something is mapped already it stops; faults do the rest.
 */
static void sdzc_insert(const struct vm_area_struct *vma, unsigned long address, struct page **page, unsigned long pages,
			pgprot_t prot)
{
	struct vm_area_struct as = *vma;

	as.vm_page_prot = prot;
	vm_insert_pages(&as, address, page, &pages);
}

/* The pages on one side of a fault's, of the same mapping and the same page table: no other is needed. */
static unsigned long sdzc_room(struct vm_fault *vmf, bool down)
{
	const unsigned long here = vmf->address & PAGE_MASK;

	if (down)
		return (here - max(here & PMD_MASK, vmf->vma->vm_start)) >> PAGE_SHIFT;
	return (pmd_addr_end(here, vmf->vma->vm_end) - here - PAGE_SIZE) >> PAGE_SHIFT;
}

/* Who reads a page that was unmapped (by a give, by a fork) will read those behind it. The lock is held. */
static void sdzc_read_around(struct sdzc_region *region, struct vm_fault *vmf, unsigned long at)
{
	const unsigned long first = at + 1, left = sdzc_room(vmf, false);
	struct page *page[SDZC_AROUND_READ];
	unsigned long n = 0;

	lockdep_assert_held(&region->lock);
	while (n < SDZC_AROUND_READ && n < left && sdzc_has_page(region->table[first + n])) {
		page[n] = region->table[first + n];
		n++;
	}
	if (n)
		sdzc_insert(vmf->vma, (vmf->address & PAGE_MASK) + PAGE_SIZE, page, n, vmf->vma->vm_page_prot);
}

/*
 * How many entries beside "at" become writable with it, at most "most": pages that were shared, and ones that
 * nobody has touched yet. "fresh" says how many of those; of them no more than were written one after the
 * other before, so that at least half of what is there was asked for, and none where another process writes,
 * which would be charged with them. The lock is held.
 */
static unsigned long sdzc_beside(struct sdzc_region *region, unsigned long at, bool down, unsigned long most,
				 unsigned long *fresh)
{
	unsigned long before = down ? region->run_from - at : at - region->run_from, n;

	lockdep_assert_held(&region->lock);
	if (region->mm != current->mm)
		before = 0;
	*fresh = 0;
	for (n = 0; n < most; n++) {
		const unsigned long next = down ? at - 1 - n : at + 1 + n;
		struct page *page = region->table[next];

		if (sdzc_is_frozen(region, next, 1))
			break;
		if (!page && *fresh < before)
			++*fresh;
		else if (!sdzc_has_page(page) || !sdzc_page_is_shared(page))
			break;
	}
	return n;
}

/* A page for an entry beside one that is written, which may be written without more ado; or none. */
static struct page *sdzc_writable(struct sdzc_region *region, unsigned long at)
{
	struct page *was = region->table[at], *page;

	if (!was) {
		page = sdzc_page_new(region->pool, SDZC_GFP_AHEAD, true);
		if (page)
			sdzc_count(SDZC_fresh, 1);
	} else if (sdzc_page_use(was) == SDZC_OTHERS_TOO) {
		page = sdzc_page_copy(region->pool, was, SDZC_GFP_CALL);
		if (page) {
			atomic_long_or(SDZC_REWRITTEN, sdzc_state(page));
			sdzc_page_disown(was);
			sdzc_count(SDZC_cow_copies, 1);
		}
	} else {
		page = was;
		sdzc_count(SDZC_cow_reuses, 1);
	}
	if (page)
		region->table[at] = page;
	return page;
}

/*
 * Who writes one page after the other, up or down (as memmove() does), and they were shared or not there,
 * will write the next ones, too: more of them each time, they become writable with one fault. Pages that the
 * others have let go of are the region's own again, without a copy. The lock is held, and no page's.
 */
static void sdzc_write_around(struct sdzc_region *region, struct vm_fault *vmf, unsigned long at)
{
	const bool alone = at != region->next_up && at != region->next_down, down = !alone && at != region->next_up;
	struct page *page[SDZC_AROUND_WRITE];
	unsigned long n, fresh, done;

	lockdep_assert_held(&region->lock);
	if (at == region->last_write && region->ahead)
		return; /* it comes again */
	region->last_write = at;
	if (alone) {
		region->around = 0;
		region->run_from = at;
	} else {
		region->around = min_t(unsigned long, region->around * 4 ?: 4, SDZC_AROUND_WRITE);
	}
	n = sdzc_beside(region, at, down, min(region->around, sdzc_room(vmf, down)), &fresh);
	if (n > fresh)
		sdzc_unmap(region, down ? at - n : at + 1, n);
	for (done = 0; done < n; done++) { /* the nearest first */
		struct page *next = sdzc_writable(region, down ? at - 1 - done : at + 1 + done);

		if (!next)
			break;
		page[down ? n - 1 - done : done] = next;
	}
	if (done) {
		const unsigned long here = vmf->address & PAGE_MASK;

		sdzc_insert(vmf->vma, down ? here - done * PAGE_SIZE : here + PAGE_SIZE, page + (down ? n - done : 0), done,
			    vm_get_page_prot(vmf->vma->vm_flags));
		sdzc_count(SDZC_around, done);
	}
	region->ahead = done;
	region->next_up = down ? SDZC_NOWHERE : at + 1 + done;
	region->next_down = alone || down ? at - 1 - done : SDZC_NOWHERE;
}

vm_fault_t sdzc_fault(struct vm_fault *vmf)
{
	struct sdzc_region *region = vmf->vma->vm_private_data;
	unsigned long at;
	struct page *page;

	if (!region || vmf->pgoff < region->first || vmf->pgoff - region->first >= region->pages)
		return VM_FAULT_SIGBUS;
	at = vmf->pgoff - region->first;
	mutex_lock(&region->lock);
	if (vmf->flags & FAULT_FLAG_WRITE && sdzc_is_frozen(region, at, 1))
		return sdzc_wait_until_thawed(region, vmf);
	page = region->table[at];
	if (!page) {
		page = sdzc_page_new(region->pool, SDZC_GFP_FAULT, true);
		if (!page) {
			mutex_unlock(&region->lock);
			return VM_FAULT_OOM;
		}
		region->table[at] = page;
	} else if (page == SDZC_LOST) {
		mutex_unlock(&region->lock);
		return VM_FAULT_SIGBUS;
	}
	/* A write, that would have sdzc_page_mkwrite() make the copy, and then come again. */
	if (vmf->flags & FAULT_FLAG_WRITE && atomic_long_read(sdzc_state(page)) > (SDZC_SHARED | 1)) {
		struct page *shared = page;

		lock_page(shared);
		page = sdzc_copy_on_write(region, at, shared);
		unlock_page(shared);
		if (!page) {
			mutex_unlock(&region->lock);
			return VM_FAULT_OOM;
		}
		sdzc_page_disown(shared);
	}
	if (!(vmf->flags & FAULT_FLAG_WRITE))
		sdzc_read_around(region, vmf, at);
	/* The caller keeps the page locked until it is mapped. */
	get_page(page);
	lock_page(page);
	mutex_unlock(&region->lock);
	sdzc_count(SDZC_faults, 1);
	vmf->page = page;
	return VM_FAULT_LOCKED;
}

/*
 * Before a page becomes writable. It is mapped for reading, or about to be mapped; the caller has a reference
 * of its own in either case.
 */
vm_fault_t sdzc_page_mkwrite(struct vm_fault *vmf)
{
	struct sdzc_region *region = vmf->vma->vm_private_data;
	struct page *page = vmf->page, *copy;
	unsigned long at;
	long state;
	int refs;

	if (!region || vmf->pgoff < region->first || vmf->pgoff - region->first >= region->pages)
		return VM_FAULT_SIGBUS;
	at = vmf->pgoff - region->first;
	mutex_lock(&region->lock);
	/*
	 * It was replaced meanwhile: the access is tried again, and finds the other. Or it is to wait, for
	 * which sdzc_fault() is the place.
	 */
	if (region->table[at] != page || sdzc_is_frozen(region, at, 1)) {
		unmap_mapping_pages(region->pool->inode->i_mapping, vmf->pgoff, 1, true);
		mutex_unlock(&region->lock);
		return VM_FAULT_NOPAGE;
	}
	/* Not where a copy is made here: the access comes again with the copy. */
	if (atomic_long_read(sdzc_state(page)) <= (SDZC_SHARED | 1))
		sdzc_write_around(region, vmf, at);
	lock_page(page);
	state = atomic_long_read_acquire(sdzc_state(page));
	if (!(state & SDZC_SHARED))
		goto writable;
	if (state == (SDZC_SHARED | 1)) {
		/*
		 * The others are gone, and have unmapped it first. What they may have left is a reference:
		 * through it they would see what is written now. Ours, the caller's, and one of each mapping,
		 * which can only become fewer; so they are looked at last.
		 */
		refs = page_ref_count(page);
		smp_rmb();
		if (refs == 2 + atomic_read(&page->_mapcount) + 1) {
			atomic_long_set(sdzc_state(page), SDZC_REWRITTEN | 1);
			sdzc_count(SDZC_cow_reuses, 1);
			goto writable;
		}
	}
	copy = sdzc_copy_on_write(region, at, page);
	unlock_page(page);
	if (copy)
		sdzc_page_disown(page);
	mutex_unlock(&region->lock);
	if (!copy)
		return VM_FAULT_OOM;
	return VM_FAULT_NOPAGE; /* the access is tried again, and finds the copy */

writable:
	mutex_unlock(&region->lock);
	sdzc_count(SDZC_write_faults, 1);
	return VM_FAULT_LOCKED;
}
