// SPDX-License-Identifier: GPL-2.0
/*
 * Regions: memory that is mapped from a pool, and behaves like private anonymous memory.
 *
 * To the kernel the mapping is a shared one, so that it never puts anonymous pages there, which could not be
 * handed over. That a child gets a copy, and that a write to a page that others have as well goes to a copy,
 * is done here: pages are mapped for reading, and the first write comes to sdzc_page_mkwrite().
 */
#include "region.h"

#include <linux/cred.h>
#include <linux/sched.h>
#include <linux/sched/mm.h>
#include <linux/slab.h>
#include <linux/version.h>

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
	init_waitqueue_head(&region->thawed);
	kref_get(&pool->ref);
	region->pool = pool;
	region->mm = mm;
	region->pages = pages;
	sdzc_count(SDZC_regions, 1);
	return region;
}

void sdzc_region_release(struct kref *ref)
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
	if (sdzc_is_frozen(region, first - region->first, pages))
		sdzc_thaw(region); /* those who wait find what is there now */
	mutex_unlock(&region->lock);
	kref_put(&region->ref, sdzc_region_release);
}

/* Core dumps have what has a name, unless the program does not want it (MADV_DONTDUMP). */
static const char *sdzc_name(struct vm_area_struct *vma)
{
	return vma->vm_flags & VM_DONTDUMP ? NULL : "[socksdirect-zerocopy]";
}

const struct vm_operations_struct sdzc_vm_ops = {
	.open = sdzc_open,
	.close = sdzc_close,
	.mremap = sdzc_mremap,
	.fault = sdzc_fault,
	.page_mkwrite = sdzc_page_mkwrite,
	.name = sdzc_name,
};

/*
 * The file's own offset, 0, is replaced by one that no other mapping of the pool has had: unmapping goes by
 * page offsets. Mappings neither grow nor merge (VM_DONTEXPAND), so that each page has one place in a
 * process.
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
