// SPDX-License-Identifier: GPL-2.0
/*
 * Regions: memory that is mapped from a pool, and behaves like private anonymous memory.
 *
 * To the kernel the mapping is a shared one, so that it never puts anonymous pages there, which could not be
 * handed over. That a child gets a copy, and that a write to a page that others have as well goes to a copy,
 * is done here: pages are mapped for reading, and the first write comes to sdzc_page_mkwrite().
 *
 * The table of a region says which page is where; page tables are only made from it. To change an entry, or
 * to make a page shared:
 *   1. hold region->lock: no fault in the region gets a page from the table;
 *   2. wait for the lock of the page: faults that have got it already keep it until it is mapped;
 *   3. unmap, which flushes the processors' TLBs: nobody writes the page any more, and get_user_pages() does
 *      not find it any more;
 *   4. only then look at the page's references: one that is not ours is I/O under way.
 */
#include "internal.h"

#include <linux/cred.h>
#include <linux/highmem.h>
#include <linux/pagemap.h>
#include <linux/sched.h>
#include <linux/sched/mm.h>
#include <linux/sched/signal.h>
#include <linux/slab.h>
#include <linux/version.h>

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
	struct page *table[]; /* NULL: zeros, so far; SDZC_LOST */
};

/* A page of which a fork could not make the copy that it had to. A child that touches it gets SIGBUS. */
#define SDZC_LOST ((struct page *)ERR_PTR(-ENOMEM))

static const struct vm_operations_struct sdzc_vm_ops;

static bool sdzc_has_page(struct page *page)
{
	return page && page != SDZC_LOST;
}

static struct sdzc_region *sdzc_region_new(struct sdzc_pool *pool, struct mm_struct *mm, unsigned long pages,
					   kuid_t user)
{
	struct sdzc_region *region = kvzalloc(struct_size(region, table, pages), GFP_KERNEL_ACCOUNT);

	if (!region)
		return NULL;
	region->process = sdzc_account_get(SDZC_PROCESS, (unsigned long)mm);
	region->user = sdzc_account_get(SDZC_USER, __kuid_val(user));
	if (!region->process || !region->user) {
		sdzc_account_put(region->process);
		sdzc_account_put(region->user);
		kvfree(region);
		return NULL;
	}
	kref_init(&region->ref);
	mutex_init(&region->lock);
	kref_get(&pool->ref);
	region->pool = pool;
	region->mm = mm;
	region->pages = pages;
	sdzc_count(SDZC_regions, 1);
	return region;
}

static void sdzc_region_release(struct kref *ref)
{
	struct sdzc_region *region = container_of(ref, struct sdzc_region, ref);
	unsigned long i;

	for (i = 0; i < region->pages; i++) {
		if (sdzc_has_page(region->table[i]))
			sdzc_page_disown(region->table[i]);
		cond_resched();
	}
	sdzc_account_put(region->process);
	sdzc_account_put(region->user);
	sdzc_pool_put(region->pool);
	kvfree(region);
	sdzc_count(SDZC_regions, -1);
}

static void sdzc_region_uncharge(struct sdzc_region *region, unsigned long pages)
{
	atomic_long_sub(pages, &region->process->mapped);
	atomic_long_sub(pages, &region->user->mapped);
	atomic_long_sub(pages, &region->pool->mapped);
}

/* -------------------------------------------------- changing what is mapped */

/* Steps 2 and 3 for some entries: afterwards they are mapped nowhere in this region. The lock is held. */
static void sdzc_unmap(struct sdzc_region *region, unsigned long at, unsigned long pages)
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

enum sdzc_use {
	SDZC_OURS, /* one owner, and no reference but ours */
	SDZC_IN_IO, /* one owner; somebody in the kernel has a reference, maybe to write to it */
	SDZC_OTHERS_TOO, /* others may read it, as an owner or through a reference; nobody can write it */
};

/* Step 4, for a page that has been unmapped and that the caller is an owner of. */
static enum sdzc_use sdzc_page_use(struct page *page)
{
	long state = atomic_long_read_acquire(sdzc_state(page));
	bool only_ours;

	/* After the page tables have been cleared: get_user_pages_fast() looks at them after it took its reference. */
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
static struct page *sdzc_page_copy(struct sdzc_pool *pool, struct page *page, gfp_t gfp)
{
	struct page *copy = sdzc_page_new(pool, gfp, false);

	if (copy)
		copy_highpage(copy, page);
	return copy;
}

/* -------------------------------------------------------- what mappings do */

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

static vm_fault_t sdzc_fault(struct vm_fault *vmf)
{
	struct sdzc_region *region = vmf->vma->vm_private_data;
	unsigned long at;
	struct page *page;

	if (!region || vmf->pgoff < region->first || vmf->pgoff - region->first >= region->pages)
		return VM_FAULT_SIGBUS;
	at = vmf->pgoff - region->first;
	mutex_lock(&region->lock);
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
static vm_fault_t sdzc_page_mkwrite(struct vm_fault *vmf)
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
	if (region->table[at] != page) { /* it was replaced meanwhile: the access is tried again, and finds the other */
		unmap_mapping_pages(region->pool->inode->i_mapping, vmf->pgoff, 1, true);
		mutex_unlock(&region->lock);
		return VM_FAULT_NOPAGE;
	}
	lock_page(page);
	state = atomic_long_read_acquire(sdzc_state(page));
	if (!(state & SDZC_SHARED))
		goto writable;
	if (state == (SDZC_SHARED | 1)) {
		/*
		 * The others are gone, and have unmapped it first. What they may have left is a reference: through
		 * it they would see what is written now. Ours, the caller's, and one of each mapping, which can
		 * only become fewer; so they are looked at last.
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

/*
 * A fork: the child's mapping gets a region of its own. Both processes' mmap_lock is held for writing, so no
 * fault is under way in either. There is no way to say that it failed: what could not be had is lost to the
 * child, which gets SIGBUS where it touches it.
 */
static void sdzc_fork(struct vm_area_struct *vma, struct sdzc_region *parent)
{
	unsigned long pages = vma_pages(vma), at = vma->vm_pgoff - parent->first, i;
	struct sdzc_region *child;

	vma->vm_private_data = NULL;
	child = sdzc_region_new(parent->pool, vma->vm_mm, pages, KUIDT_INIT(parent->user->key));
	mutex_lock(&parent->lock);
	/* The child's too, where the kernel has copied them before: what is mapped is the parent's. */
	sdzc_unmap(parent, at, pages);
	if (!child) {
		mutex_unlock(&parent->lock);
		return;
	}
	child->first = vma->vm_pgoff;
	for (i = 0; i < pages; i++) {
		struct page *page = parent->table[at + i];

		cond_resched();
		if (!sdzc_has_page(page)) {
			child->table[i] = page;
			continue;
		}
		if (sdzc_page_use(page) == SDZC_IN_IO) {
			/* The I/O goes on in the parent's memory; the child has what was there until now. */
			page = sdzc_page_copy(NULL, page, SDZC_GFP_CALL);
			child->table[i] = page ?: SDZC_LOST;
			sdzc_count(SDZC_fork_copies, 1);
			continue;
		}
		sdzc_page_share(page);
		child->table[i] = page;
	}
	mutex_unlock(&parent->lock);
	/* More than the limit is allowed here; the next mmap() is refused. */
	atomic_long_add(pages, &child->process->mapped);
	atomic_long_add(pages, &child->user->mapped);
	atomic_long_add(pages, &child->pool->mapped);
	vma->vm_private_data = child;
	sdzc_count(SDZC_forks, 1);
}

/* A mapping was copied: for a fork, to be split, or to be moved. */
static void sdzc_open(struct vm_area_struct *vma)
{
	struct sdzc_region *region = vma->vm_private_data;

	if (!region)
		return;
	if (region->mm != vma->vm_mm)
		sdzc_fork(vma, region);
	else
		kref_get(&region->ref);
}

/* mremap() has moved the page tables to this new mapping. The old one, of the same pages, is closed next. */
static int sdzc_mremap(struct vm_area_struct *vma)
{
	struct sdzc_region *region = vma->vm_private_data;

	if (region) {
		region->moved = vma->vm_pgoff;
		region->moved_pages = vma_pages(vma);
	}
	return 0;
}

static void sdzc_close(struct vm_area_struct *vma)
{
	struct sdzc_region *region = vma->vm_private_data;
	unsigned long pages = vma_pages(vma), i;
	pgoff_t first = vma->vm_pgoff;

	if (!region)
		return;
	mutex_lock(&region->lock);
	if (region->moved_pages == pages && region->moved == first) {
		region->moved_pages = 0;
	} else {
		for (i = first - region->first; i < first - region->first + pages; i++) {
			struct page *page = region->table[i];

			region->table[i] = NULL;
			if (sdzc_has_page(page))
				sdzc_page_disown(page);
			cond_resched();
		}
		sdzc_region_uncharge(region, pages);
	}
	mutex_unlock(&region->lock);
	kref_put(&region->ref, sdzc_region_release);
}

/* Core dumps have what has a name, unless the program does not want it (MADV_DONTDUMP). */
static const char *sdzc_name(struct vm_area_struct *vma)
{
	return vma->vm_flags & VM_DONTDUMP ? NULL : "[socksdirect-zerocopy]";
}

static const struct vm_operations_struct sdzc_vm_ops = {
	.open = sdzc_open,
	.close = sdzc_close,
	.mremap = sdzc_mremap,
	.fault = sdzc_fault,
	.page_mkwrite = sdzc_page_mkwrite,
	.name = sdzc_name,
};

/*
 * The file's own offset, 0, is replaced by one that no other mapping of the pool has had: unmapping goes by
 * page offsets. Mappings neither grow nor merge (VM_DONTEXPAND), so that each page has one place in a process.
 */
int sdzc_mmap(struct file *file, struct vm_area_struct *vma)
{
	struct sdzc_pool *pool = file->private_data;
	unsigned long pages = vma_pages(vma);
	struct sdzc_region *region;
	s64 next;

	if (!(vma->vm_flags & VM_SHARED) || vma->vm_pgoff || pages > sdzc_max_map >> PAGE_SHIFT)
		return -EINVAL;
	if (!(vma->vm_flags & VM_MAYWRITE) || !(vma->vm_flags & VM_MAYREAD))
		return -EACCES;
	region = sdzc_region_new(pool, vma->vm_mm, pages, current_uid());
	if (!region)
		return -ENOMEM;
	if (!sdzc_charge(&region->process->mapped, pages, sdzc_max_process >> PAGE_SHIFT))
		goto refuse;
	if (!sdzc_charge(&region->user->mapped, pages, sdzc_max_user >> PAGE_SHIFT)) {
		atomic_long_sub(pages, &region->process->mapped);
		goto refuse;
	}
	atomic_long_add(pages, &pool->mapped);
	next = atomic64_add_return(pages, &pool->next);
	if (next > 1LL << 50) { /* years of mapping and unmapping */
		sdzc_region_uncharge(region, pages);
		goto refuse;
	}
	region->first = next - pages;
	vma->vm_pgoff = region->first;
	vma->vm_private_data = region;
	vma->vm_ops = &sdzc_vm_ops;
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 3, 0)
	vm_flags_set(vma, VM_DONTEXPAND | VM_MIXEDMAP);
#else
	vma->vm_flags |= VM_DONTEXPAND | VM_MIXEDMAP;
#endif
	return 0;

refuse:
	kref_put(&region->ref, sdzc_region_release);
	return -ENOMEM;
}

/* --------------------------------------------------------- what calls ask for */

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
