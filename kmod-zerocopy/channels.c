// SPDX-License-Identifier: GPL-2.0
/*
 * Channels: two ends, each an open file. Who holds an end gives pages to the other one, and takes what was
 * given to this one. A handle waits at the end that may take it, and is found nowhere else; it goes when it
 * is used up or dropped, or when that end is closed. An end that is closed leaves what it has given.
 */
#include "internal.h"

#include <linux/anon_inodes.h>
#include <linux/compat.h>
#include <linux/cred.h>
#include <linux/file.h>
#include <linux/hashtable.h>
#include <linux/highmem.h>
#include <linux/nospec.h>
#include <linux/random.h>
#include <linux/sched/signal.h>
#include <linux/slab.h>

struct sdzc_handle {
	struct kref ref; /* the table it is found in; calls that use it */
	struct hlist_node node; /* end->lock: this and the following */
	bool dead; /* in no table any more: nobody may use it from now on */
	u64 id;
	unsigned long pages, left; /* that it was given; that were not taken */
	struct sdzc_end *end; /* where it waits; not looked at when it is dead */
	struct sdzc_pool *origin;
	struct sdzc_account *user; /* who gave it */
	struct page *page[]; /* NULL: taken, or somebody is about to */
};

struct sdzc_end {
	/*
	 * Inside it: nothing but page->private. Faults, mmap_lock and region->lock are never waited for
	 * inside.
	 */
	struct mutex lock;
	bool open;
	unsigned int handles;
	atomic_long_t waiting; /* pages of handles here */
	DECLARE_HASHTABLE(table, 6);
};

struct sdzc_channel_ends {
	struct kref ref; /* the two files, or one */
	struct sdzc_pool *pool; /* that it was made on */
	struct sdzc_end end[2];
};

/* What a file of an end stands for: which end it is follows from which file operations it has. */
static const struct file_operations sdzc_end_operations[2];

static struct sdzc_end *sdzc_this_end(struct file *file)
{
	struct sdzc_channel_ends *channel = file->private_data;

	return &channel->end[file->f_op == &sdzc_end_operations[1]];
}

static struct sdzc_end *sdzc_other_end(struct file *file)
{
	struct sdzc_channel_ends *channel = file->private_data;

	return &channel->end[file->f_op != &sdzc_end_operations[1]];
}

/* ------------------------------------------------------------------ handles */

static struct sdzc_handle *sdzc_handle_new(unsigned long pages)
{
	struct sdzc_handle *handle = kvzalloc(struct_size(handle, page, pages), GFP_KERNEL_ACCOUNT);

	if (!handle)
		return NULL;
	handle->user = sdzc_account_get(SDZC_USER, __kuid_val(current_uid()));
	if (!handle->user) {
		kvfree(handle);
		return NULL;
	}
	kref_init(&handle->ref);
	handle->pages = pages;
	sdzc_count(SDZC_handles, 1);
	return handle;
}

/* Its last user is done. Whatever it has not handed on goes. */
static void sdzc_handle_release(struct kref *ref)
{
	struct sdzc_handle *handle = container_of(ref, struct sdzc_handle, ref);
	unsigned long i;

	for (i = 0; i < handle->pages; i++) {
		if (handle->page[i])
			sdzc_page_disown(handle->page[i]);
		cond_resched();
	}
	atomic_long_sub(handle->left, &handle->user->given);
	sdzc_account_put(handle->user);
	if (handle->origin)
		sdzc_pool_put(handle->origin);
	kvfree(handle);
	sdzc_count(SDZC_handles, -1);
}

static void sdzc_handle_put(struct sdzc_handle *handle)
{
	kref_put(&handle->ref, sdzc_handle_release);
}

static struct sdzc_handle *sdzc_handle_find(struct sdzc_end *end, u64 id)
{
	struct sdzc_handle *handle;

	lockdep_assert_held(&end->lock);
	hash_for_each_possible(end->table, handle, node, id) {
		if (handle->id == id)
			return handle;
	}
	return NULL;
}

/* Takes it out of the table. The caller gives back the table's reference, without the lock. */
static void sdzc_handle_kill(struct sdzc_end *end, struct sdzc_handle *handle)
{
	lockdep_assert_held(&end->lock);
	hash_del(&handle->node);
	handle->dead = true;
	end->handles--;
	atomic_long_sub(handle->left, &end->waiting);
}

/* -------------------------------------------------------------------- calls */

/*
 * Bytes of any memory of the caller, in pages of the pool. What is in "to" after an error is the caller's to
 * free.
 */
static int sdzc_copy_in(u64 address, unsigned long pages, struct page **to, struct sdzc_pool *pool)
{
	unsigned long i;

	for (i = 0; i < pages; i++) {
		unsigned long left;
		void *into;

		if (fatal_signal_pending(current))
			return -EINTR;
		to[i] = sdzc_page_new(pool, SDZC_GFP_CALL, false);
		if (!to[i])
			return -ENOMEM;
		into = kmap_local_page(to[i]);
		left = copy_from_user(into, u64_to_user_ptr(address + (u64)i * PAGE_SIZE), PAGE_SIZE);
		kunmap_local(into);
		if (left)
			return -EFAULT;
		cond_resched();
	}
	sdzc_count(SDZC_copied_in, pages);
	return 0;
}

static long sdzc_give(struct sdzc_end *to, struct sdzc_pool *pool, void __user *argument)
{
	struct sdzc_give give;
	struct sdzc_handle *handle;
	u32 copied = 0, rewritten = 0;
	unsigned long pages;
	int error;

	if (copy_from_user(&give, argument, sizeof(give)))
		return -EFAULT;
	if ((give.flags & ~(SDZC_GIVE_MOVE | SDZC_GIVE_COPY | SDZC_GIVE_COUNT)) ||
	    (give.flags & SDZC_GIVE_MOVE && give.flags & SDZC_GIVE_COPY) ||
	    !sdzc_whole_pages(give.flags & SDZC_GIVE_COPY ? give.address & PAGE_MASK : give.address, give.length,
			      sdzc_max_give))
		return -EINVAL;
	if (!READ_ONCE(to->open))
		return -EPIPE;
	pages = give.length >> PAGE_SHIFT;
	handle = sdzc_handle_new(pages);
	if (!handle)
		return -ENOMEM;
	if (!sdzc_charge(&handle->user->given, pages, sdzc_max_user >> PAGE_SHIFT)) {
		error = -EDQUOT;
		goto put;
	}
	handle->left = pages;
	if (!sdzc_charge(&to->waiting, pages, sdzc_max_channel >> PAGE_SHIFT)) {
		error = -ENOBUFS;
		goto put;
	}
	if (give.flags & SDZC_GIVE_COPY) {
		kref_get(&pool->ref);
		handle->origin = pool;
		error = sdzc_copy_in(give.address, pages, handle->page, pool);
	} else {
		error = sdzc_region_give(give.address, pages, give.flags & SDZC_GIVE_MOVE, handle->page,
					 &handle->origin, &copied, &rewritten);
	}
	if (error)
		goto discharge;

	mutex_lock(&to->lock);
	if (!to->open || to->handles >= SDZC_MAX_HANDLES) {
		error = to->open ? -ENOBUFS : -EPIPE;
		mutex_unlock(&to->lock);
		goto discharge;
	}
	do
		handle->id = get_random_u64();
	while (!handle->id || sdzc_handle_find(to, handle->id));
	handle->end = to;
	give.handle = handle->id; /* once the lock is gone the handle may be, too */
	hash_add(to->table, &handle->node, handle->id);
	to->handles++;
	mutex_unlock(&to->lock);
	sdzc_count(SDZC_given, pages);
	sdzc_count(SDZC_given_copied, copied);
	give.copied = copied + (give.flags & SDZC_GIVE_COUNT ? rewritten : 0);
	/* Where this fails nobody knows the handle; it goes with the other end. */
	return copy_to_user(argument, &give, sizeof(give)) ? -EFAULT : 0;

discharge:
	atomic_long_sub(pages, &to->waiting);
put:
	sdzc_handle_put(handle);
	return error;
}

static long sdzc_take(struct sdzc_end *end, void __user *argument)
{
	unsigned long pages, first, i;
	struct sdzc_handle *handle;
	struct sdzc_take take;
	struct page **from;
	bool used_up = false;
	u32 copied = 0;
	int error = 0;

	if (copy_from_user(&take, argument, sizeof(take)))
		return -EFAULT;
	if ((take.flags & ~SDZC_TAKE_POPULATE) || !PAGE_ALIGNED(take.offset) ||
	    !sdzc_whole_pages(take.address, take.length, sdzc_max_give))
		return -EINVAL;
	pages = take.length >> PAGE_SHIFT;
	from = kvmalloc_array(pages, sizeof(*from), GFP_KERNEL_ACCOUNT);
	if (!from)
		return -ENOMEM;

	/* Nobody else takes them meanwhile. */
	mutex_lock(&end->lock);
	handle = sdzc_handle_find(end, take.handle);
	if (!handle) {
		error = -ENOENT;
	} else if (take.offset >> PAGE_SHIFT >= handle->pages ||
		   pages > handle->pages - (take.offset >> PAGE_SHIFT)) {
		error = -EINVAL;
	} else {
		first = array_index_nospec(take.offset >> PAGE_SHIFT, handle->pages);
		for (i = 0; i < pages && handle->page[first + i]; i++)
			from[i] = handle->page[first + i];
		if (i < pages) {
			error = -ENOENT;
		} else {
			memset(&handle->page[first], 0, pages * sizeof(*from));
			kref_get(&handle->ref);
		}
	}
	mutex_unlock(&end->lock);
	if (error)
		goto out;

	error = sdzc_region_take(take.address, pages, from, handle->origin, take.flags & SDZC_TAKE_POPULATE, &copied);

	mutex_lock(&end->lock);
	if (error) { /* back to the handle, which lets go of them if it has died meanwhile */
		memcpy(&handle->page[first], from, pages * sizeof(*from));
	} else {
		handle->left -= pages;
		atomic_long_sub(pages, &handle->user->given);
		if (!handle->dead) {
			atomic_long_sub(pages, &end->waiting);
			if (!handle->left) {
				sdzc_handle_kill(end, handle);
				used_up = true;
			}
		}
	}
	mutex_unlock(&end->lock);
	if (used_up)
		sdzc_handle_put(handle);
	sdzc_handle_put(handle);
	if (!error) {
		sdzc_count(SDZC_taken, pages);
		sdzc_count(SDZC_taken_copied, copied);
		take.copied = copied;
		if (copy_to_user(argument, &take, sizeof(take)))
			error = -EFAULT;
	}
out:
	kvfree(from);
	return error;
}

#define SDZC_READ_AT_ONCE 16

static long sdzc_read(struct sdzc_end *end, void __user *argument)
{
	struct page *page[SDZC_READ_AT_ONCE];
	struct sdzc_handle *handle;
	struct sdzc_read read;
	long error = 0;
	u64 total;

	if (copy_from_user(&read, argument, sizeof(read)))
		return -EFAULT;
	if (read.flags || read.reserved || read.length > sdzc_max_give)
		return -EINVAL;
	total = read.length;
	do {
		unsigned int n = 0, i;

		/* With references of its own to the pages it need not hold the lock while it copies. */
		mutex_lock(&end->lock);
		handle = sdzc_handle_find(end, read.handle);
		if (!handle) {
			error = -ENOENT;
		} else if (read.offset > (u64)handle->pages << PAGE_SHIFT ||
			   read.length > ((u64)handle->pages << PAGE_SHIFT) - read.offset) {
			error = -EINVAL;
		} else {
			/* It may be just beyond, with nothing to read. */
			unsigned long at = array_index_nospec(read.offset >> PAGE_SHIFT, handle->pages);
			u64 covered = 0;

			while (n < SDZC_READ_AT_ONCE && covered < read.length) {
				if (!handle->page[at]) {
					error = -ENOENT;
					break;
				}
				page[n] = handle->page[at++];
				get_page(page[n++]);
				covered += PAGE_SIZE - (n == 1 ? offset_in_page(read.offset) : 0);
			}
		}
		mutex_unlock(&end->lock);

		for (i = 0; i < n; i++) {
			unsigned int in_page = offset_in_page(read.offset);
			unsigned long bytes = min_t(u64, PAGE_SIZE - in_page, read.length);
			void *from;

			if (!error) {
				from = kmap_local_page(page[i]);
				if (copy_to_user(u64_to_user_ptr(read.address), from + in_page, bytes))
					error = -EFAULT;
				kunmap_local(from);
				read.offset += bytes;
				read.address += bytes;
				read.length -= bytes;
			}
			put_page(page[i]);
		}
		cond_resched();
	} while (!error && read.length);
	sdzc_count(SDZC_read, total - read.length);
	return error;
}

static long sdzc_drop(struct sdzc_end *end, void __user *argument)
{
	struct sdzc_handle *handle;
	struct sdzc_drop drop;

	if (copy_from_user(&drop, argument, sizeof(drop)))
		return -EFAULT;
	mutex_lock(&end->lock);
	handle = sdzc_handle_find(end, drop.handle);
	if (handle)
		sdzc_handle_kill(end, handle);
	mutex_unlock(&end->lock);
	if (!handle)
		return -ENOENT;
	sdzc_handle_put(handle);
	return 0;
}

static long sdzc_end_ioctl(struct file *file, unsigned int command, unsigned long argument)
{
	struct sdzc_channel_ends *channel = file->private_data;
	void __user *pointer = (void __user *)argument;

	switch (command) {
	case SDZC_INFO:
		return sdzc_get_info(pointer);
	case SDZC_GIVE:
		return sdzc_give(sdzc_other_end(file), channel->pool, pointer);
	case SDZC_TAKE:
		return sdzc_take(sdzc_this_end(file), pointer);
	case SDZC_READ:
		return sdzc_read(sdzc_this_end(file), pointer);
	case SDZC_DROP:
		return sdzc_drop(sdzc_this_end(file), pointer);
	}
	return -ENOTTY;
}

/* ----------------------------------------------------------------- channels */

static void sdzc_channel_release(struct kref *ref)
{
	struct sdzc_channel_ends *channel = container_of(ref, struct sdzc_channel_ends, ref);

	mutex_destroy(&channel->end[0].lock);
	mutex_destroy(&channel->end[1].lock);
	sdzc_pool_put(channel->pool);
	kfree(channel);
	sdzc_count(SDZC_channels, -1);
}

static int sdzc_end_release(struct inode *inode, struct file *file)
{
	struct sdzc_channel_ends *channel = file->private_data;
	struct sdzc_end *end = sdzc_this_end(file);
	struct sdzc_handle *handle;
	struct hlist_node *next;
	HLIST_HEAD(gone);
	int bucket;

	mutex_lock(&end->lock);
	WRITE_ONCE(end->open, false);
	hash_for_each_safe(end->table, bucket, next, handle, node) {
		sdzc_handle_kill(end, handle);
		hlist_add_head(&handle->node, &gone);
	}
	mutex_unlock(&end->lock);
	hlist_for_each_entry_safe(handle, next, &gone, node) {
		hlist_del(&handle->node);
		sdzc_handle_put(handle);
	}
	kref_put(&channel->ref, sdzc_channel_release);
	return 0;
}

static const struct file_operations sdzc_end_operations[2] = {
	[0 ... 1] = {
		.owner = THIS_MODULE,
		.unlocked_ioctl = sdzc_end_ioctl,
		.compat_ioctl = compat_ptr_ioctl,
		.release = sdzc_end_release,
		.llseek = noop_llseek,
	},
};

static void sdzc_end_init(struct sdzc_end *end)
{
	mutex_init(&end->lock);
	hash_init(end->table);
	end->open = true;
}

long sdzc_channel_new(struct sdzc_pool *pool, void __user *argument)
{
	struct sdzc_channel_ends *channel;
	struct sdzc_channel made;
	struct file *file[2];
	long error = 0;
	int i;

	if (copy_from_user(&made, argument, sizeof(made)))
		return -EFAULT;
	if (made.flags || made.reserved)
		return -EINVAL;
	channel = kzalloc(sizeof(*channel), GFP_KERNEL_ACCOUNT);
	if (!channel)
		return -ENOMEM;
	kref_init(&channel->ref);
	kref_get(&pool->ref);
	channel->pool = pool;
	sdzc_end_init(&channel->end[0]);
	sdzc_end_init(&channel->end[1]);
	sdzc_count(SDZC_channels, 1);

	for (i = 0; i < 2; i++) {
		kref_get(&channel->ref);
		file[i] = anon_inode_getfile("[socksdirect-zerocopy]", &sdzc_end_operations[i], channel, O_RDWR);
		if (IS_ERR(file[i])) {
			error = PTR_ERR(file[i]);
			kref_put(&channel->ref, sdzc_channel_release);
			goto put_files;
		}
	}
	for (i = 0; i < 2; i++) {
		made.end[i] = get_unused_fd_flags(O_CLOEXEC);
		if (made.end[i] < 0) {
			error = made.end[i];
			goto put_fds;
		}
	}
	if (copy_to_user(argument, &made, sizeof(made))) {
		error = -EFAULT;
		goto put_fds;
	}
	fd_install(made.end[0], file[0]);
	fd_install(made.end[1], file[1]);
	kref_put(&channel->ref, sdzc_channel_release);
	return 0;

put_fds:
	while (i-- > 0)
		put_unused_fd(made.end[i]);
	i = 2;
put_files:
	while (i-- > 0)
		fput(file[i]);
	kref_put(&channel->ref, sdzc_channel_release);
	return error;
}
