// SPDX-License-Identifier: GPL-2.0
/* The device, the module's parameters, and its counters in /sys/class/misc/socksdirect-zerocopy/counters. */
#include "internal.h"

#include <linux/compat.h>
#include <linux/device.h>
#include <linux/miscdevice.h>
#include <linux/module.h>
#include <linux/mount.h>
#include <linux/pseudo_fs.h>
#include <linux/slab.h>

atomic_long_t sdzc_counters[SDZC_COUNTERS_END];

unsigned long sdzc_max_map = 4UL << 30;
unsigned long sdzc_max_give = 64UL << 20;
unsigned long sdzc_max_channel = 256UL << 20;
unsigned long sdzc_max_process;
unsigned long sdzc_max_user;
module_param_named(max_map, sdzc_max_map, ulong, 0444);
MODULE_PARM_DESC(max_map, "longest mapping, in bytes");
module_param_named(max_give, sdzc_max_give, ulong, 0444);
MODULE_PARM_DESC(max_give, "most that one call gives or takes, in bytes");
module_param_named(max_channel, sdzc_max_channel, ulong, 0644);
MODULE_PARM_DESC(max_channel, "most that one end of a channel may have given and the other not taken, in bytes");
module_param_named(max_process, sdzc_max_process, ulong, 0644);
MODULE_PARM_DESC(max_process, "most that one process may have mapped, in bytes (a quarter of the memory)");
module_param_named(max_user, sdzc_max_user, ulong, 0644);
MODULE_PARM_DESC(max_user, "most that one user may have mapped, or given, in bytes (a quarter of the memory)");

/* What a calibration has found (sdctl calibrate), for whoever asks with INFO. */
unsigned long sdzc_least_give;
unsigned long sdzc_least_copy;
module_param_named(least_give, sdzc_least_give, ulong, 0644);
MODULE_PARM_DESC(least_give, "from how many bytes on handing over pages pays; 0: not measured");
module_param_named(least_copy, sdzc_least_copy, ulong, 0644);
MODULE_PARM_DESC(least_copy, "from how many bytes on copying once, into pages, pays; 0: not measured");

/* A file system of inodes that nobody sees: each pool has one, for the mappings that are its own. */
#define SDZC_FS_MAGIC 0x53445a43

static int sdzc_fs_init(struct fs_context *context)
{
	return init_pseudo(context, SDZC_FS_MAGIC) ? 0 : -ENOMEM;
}

/* It has no owner: it would keep the module from being unloaded, and is unmounted then. */
static struct file_system_type sdzc_fs = {
	.name = "socksdirect-zerocopy",
	.init_fs_context = sdzc_fs_init,
	.kill_sb = kill_anon_super,
};

static struct vfsmount *sdzc_mount;

long sdzc_get_info(void __user *argument)
{
	struct sdzc_info info = {
		.version = SDZC_VERSION,
		.page_size = PAGE_SIZE,
		.max_map = sdzc_max_map,
		.max_give = sdzc_max_give,
		.max_channel = sdzc_max_channel,
		.max_process = sdzc_max_process,
		.max_user = sdzc_max_user,
		.least_give = sdzc_least_give == ULONG_MAX ? ~0ULL : sdzc_least_give,
		.least_copy = sdzc_least_copy == ULONG_MAX ? ~0ULL : sdzc_least_copy,
	};

	return copy_to_user(argument, &info, sizeof(info)) ? -EFAULT : 0;
}

static long sdzc_discard(void __user *argument)
{
	struct sdzc_discard discard;

	if (copy_from_user(&discard, argument, sizeof(discard)))
		return -EFAULT;
	if (discard.flags || discard.reserved || !sdzc_whole_pages(discard.address, discard.length, sdzc_max_map))
		return -EINVAL;
	return sdzc_region_discard(discard.address, discard.length >> PAGE_SHIFT);
}

static long sdzc_freeze(void __user *argument)
{
	struct sdzc_freeze freeze;
	unsigned long pages;
	int error;

	if (copy_from_user(&freeze, argument, sizeof(freeze)))
		return -EFAULT;
	if (freeze.flags & ~SDZC_FREEZE_THAW || freeze.reserved || (freeze.flags && freeze.to) ||
	    !sdzc_whole_pages(freeze.address, freeze.length, sdzc_max_map))
		return -EINVAL;
	pages = freeze.length >> PAGE_SHIFT;
	error = sdzc_region_freeze(freeze.address, pages, freeze.flags & SDZC_FREEZE_THAW);
	if (error || !freeze.to)
		return error;
	error = sdzc_region_copy_out(freeze.address, pages, freeze.to);
	if (error)
		sdzc_region_freeze(freeze.address, pages, true);
	return error;
}

static long sdzc_ioctl(struct file *file, unsigned int command, unsigned long argument)
{
	void __user *pointer = (void __user *)argument;

	switch (command) {
	case SDZC_INFO:
		return sdzc_get_info(pointer);
	case SDZC_CHANNEL:
		return sdzc_channel_new(file->private_data, pointer);
	case SDZC_DISCARD:
		return sdzc_discard(pointer);
	case SDZC_FREEZE:
		return sdzc_freeze(pointer);
	}
	return -ENOTTY;
}

static int sdzc_device_open(struct inode *inode, struct file *file)
{
	struct sdzc_pool *pool = sdzc_pool_new();

	if (!pool)
		return -ENOMEM;
	pool->inode = alloc_anon_inode(sdzc_mount->mnt_sb);
	if (IS_ERR(pool->inode)) {
		int error = PTR_ERR(pool->inode);

		sdzc_pool_close(pool);
		return error;
	}
	file->private_data = pool;
	file->f_mapping = pool->inode->i_mapping;
	return nonseekable_open(inode, file);
}

static int sdzc_device_release(struct inode *inode, struct file *file)
{
	struct sdzc_pool *pool = file->private_data;
	struct inode *own = pool->inode;

	sdzc_pool_close(pool);
	iput(own);
	return 0;
}

static const struct file_operations sdzc_device_operations = {
	.owner = THIS_MODULE,
	.open = sdzc_device_open,
	.release = sdzc_device_release,
	.unlocked_ioctl = sdzc_ioctl,
	.compat_ioctl = compat_ptr_ioctl,
	.mmap = sdzc_mmap,
	.fsync = noop_fsync, /* for msync() */
	.llseek = noop_llseek,
};

struct sdzc_counter_attribute {
	struct device_attribute attribute;
	enum sdzc_counter which;
};

static ssize_t sdzc_counter_show(struct device *device, struct device_attribute *attribute, char *buffer)
{
	struct sdzc_counter_attribute *counter = container_of(attribute, struct sdzc_counter_attribute, attribute);

	return sysfs_emit(buffer, "%ld\n", atomic_long_read(&sdzc_counters[counter->which]));
}

static struct sdzc_counter_attribute sdzc_counter_attributes[] = {
#define X(c)                                                                                          \
	{                                                                                             \
		.attribute = { .attr = { .name = #c, .mode = 0444 }, .show = sdzc_counter_show },     \
		.which = SDZC_##c,                                                                    \
	},
	SDZC_COUNTERS(X)
#undef X
};

static struct attribute *sdzc_attributes[SDZC_COUNTERS_END + 1];

static const struct attribute_group sdzc_group = {
	.name = "counters",
	.attrs = sdzc_attributes,
};

static const struct attribute_group *sdzc_groups[] = { &sdzc_group, NULL };

/* Whoever can open it can use up to max_user bytes of memory, charged to the control group. */
static struct miscdevice sdzc_device = {
	.minor = MISC_DYNAMIC_MINOR,
	.name = "socksdirect-zerocopy",
	.fops = &sdzc_device_operations,
	.groups = sdzc_groups,
	.mode = 0666,
};

static int __init sdzc_init(void)
{
	unsigned long quarter = totalram_pages() / 4 << PAGE_SHIFT;
	int error, i;

	if (!sdzc_max_process)
		sdzc_max_process = quarter;
	if (!sdzc_max_user)
		sdzc_max_user = quarter;
	for (i = 0; i < SDZC_COUNTERS_END; i++)
		sdzc_attributes[i] = &sdzc_counter_attributes[i].attribute.attr;
	sdzc_mount = kern_mount(&sdzc_fs);
	if (IS_ERR(sdzc_mount))
		return PTR_ERR(sdzc_mount);
	error = sdzc_pools_init();
	if (error)
		goto unmount;
	error = misc_register(&sdzc_device);
	if (error)
		goto exit_pools;
	return 0;

exit_pools:
	sdzc_pools_exit();
unmount:
	kern_unmount(sdzc_mount);
	return error;
}

static void __exit sdzc_exit(void)
{
	misc_deregister(&sdzc_device);
	sdzc_pools_exit();
	kern_unmount(sdzc_mount);
}

module_init(sdzc_init);
module_exit(sdzc_exit);
MODULE_DESCRIPTION("Pages that change hands between processes");
MODULE_AUTHOR("The SocksDirect authors");
MODULE_LICENSE("GPL");
MODULE_VERSION("0.2.0");
