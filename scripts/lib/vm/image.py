"""The disk, kernel and first file system of a virtual machine with Debian 12, systemd and three servers.

They are made once of Debian's packages and stay in $SD_CACHE (default ~/.cache/socksdirect), in vm-KEY: another recipe
has another key. Needs root and, to make them, the network.
"""
import pathlib
import shutil
import sys

sys.path.insert(1, str(pathlib.Path(__file__).resolve().parents[1]))
from debian_mirror import mirror  # noqa: E402
from first_system import cache, pack, recipe, run, settle, unpack_kernel, with_needed, write  # noqa: E402

RELEASE = "bookworm"
PACKAGES = ("systemd", "systemd-sysv", "dbus", "udev", "kmod", "iproute2", "procps", "python3", "ca-certificates", "man-db",
            "bash-completion", "apparmor", "autopkgtest", "dpkg-dev", "nginx-light", "redis-server", "postgresql",
            "libfmt9", "libspdlog1.10", "libtomlplusplus3", "libnftables1", "libbpf1",
            # What the packages under test depend on: the machine has no network
            "libmicrohttpd12", "libarchive13", "libibverbs1")
KERNEL = "linux-image-amd64"
# Of the kernel's modules those that such a machine can use; all of them would double the disk.
MODULES = ("arch", "crypto", "fs/ext4", "fs/jbd2", "fs/mbcache.ko", "lib", "net", "drivers/virtio", "drivers/block/virtio_blk.ko",
           "drivers/char/hw_random", "drivers/char/virtio_console.ko", "drivers/net/veth.ko")
FIRST_MODULES = ("virtio_pci", "virtio_blk", "crc32c_generic", "ext4")
# Not wanted in a test: they write files or take the processor when they like.
MASKED = ("apt-daily.timer", "apt-daily-upgrade.timer", "dpkg-db-backup.timer", "e2scrub_all.timer", "e2scrub_reap.service",
          "fstrim.timer", "logrotate.timer", "man-db.timer", "systemd-tmpfiles-clean.timer", "getty.target",
          "systemd-timesyncd.service", "systemd-hwdb-update.service", "systemd-random-seed.service",
          "systemd-journal-catalog-update.service", "systemd-update-done.service", "systemd-firstboot.service",
          "systemd-binfmt.service", "systemd-networkd.service", "redis-check.timer")

# The index of all manual pages, made anew at each installation, takes seconds; man(1) finds pages without it.
NO_INDEX = 'echo man-db man-db/auto-update boolean false | chroot "$1" debconf-set-selections'

INIT = """#!/bin/busybox sh
b=/bin/busybox
$b mount -t devtmpfs dev /dev
while read -r m; do $b insmod /m/$m; done </order
i=0
until [ -b /dev/vda ] || [ $i = 300 ]; do $b sleep 0.1; i=$((i+1)); done
$b mount -t ext4 -o noatime /dev/vda /root || { echo "no root disk"; $b poweroff -f; }
$b mount --move /dev /root/dev
exec $b switch_root /root /lib/systemd/systemd
"""

# The second disk is an archive: what is to be done there is its file "run". Results go to the second serial
# line.
AGENT = """#!/bin/sh
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C.UTF-8
mkdir -p /run/job && tar -xf /dev/vdb -C /run/job && cd /run/job
sh ./run >/dev/ttyS1 2>&1 </dev/null
echo "END $?" >/dev/ttyS1
sync
systemctl poweroff --force --force
"""
AGENT_UNIT = """[Unit]
Description=Run what the host handed over
After=multi-user.target nginx.service redis-server.service postgresql.service
[Service]
ExecStart=/usr/local/sbin/vm-job
KillMode=process
[Install]
WantedBy=default.target
"""


def place():
    return cache() / f"vm-{recipe(__file__)}"


def guest_files(root):
    write(root / "etc/hostname", "vm\n")
    write(root / "etc/hosts", "127.0.0.1 localhost vm\n")
    write(root / "etc/fstab", "")
    # None would be a first boot, with presets
    write(root / "etc/machine-id", "0000000000000000000000000000007b\n")
    write(root / "etc/systemd/journald.conf.d/vm.conf", "[Journal]\nStorage=volatile\n")
    for unit in MASKED:
        mask = root / "etc/systemd/system" / unit
        mask.unlink(missing_ok=True)
        mask.symlink_to("/dev/null")
    # Looking for devices loads drivers that no test needs.
    write(root / "etc/systemd/system/systemd-udev-trigger.service.d/vm.conf",
          "[Service]\nExecStart=\nExecStart=-udevadm trigger --type=devices --action=add --subsystem-match=net "
          "--subsystem-match=block --subsystem-match=mem\n")
    write(root / "usr/local/sbin/vm-job", AGENT, 0o755)
    write(root / "etc/systemd/system/vm-job.service", AGENT_UNIT)
    wants = root / "etc/systemd/system/multi-user.target.wants/vm-job.service"
    wants.symlink_to("/etc/systemd/system/vm-job.service")
    # PostgreSQL asks local clients of this machine for no password; Redis and Nginx do not either.
    for access in root.glob("etc/postgresql/*/main/pg_hba.conf"):
        access.write_text("local all all trust\nhost all all 127.0.0.1/32 trust\n", encoding="utf-8")
    for pages in root.glob("etc/apt/sources.list*"):
        shutil.rmtree(pages) if pages.is_dir() else pages.unlink()
    (root / "etc/apt/sources.list.d").mkdir()


def install_kernel(root, scratch, new):
    package = next(scratch.glob("linux-image-*.deb"))
    unpacked = scratch / "kernel"
    run("dpkg-deb", "-x", package, unpacked)
    version = next(unpacked.glob("boot/vmlinuz-*")).name.removeprefix("vmlinuz-")
    modules = next(path for path in (unpacked / "lib/modules", unpacked / "usr/lib/modules") if path.exists()) / version
    target = root / "lib/modules" / version
    target.mkdir(parents=True)
    for path in modules.glob("modules.*"):
        shutil.copyfile(path, target / path.name)
    for name in MODULES:
        source, copy = modules / "kernel" / name, target / "kernel" / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, copy)
        elif source.exists():
            shutil.copyfile(source, copy)
    unpack_kernel(unpacked / "boot" / f"vmlinuz-{version}", new / "kernel")
    pack(scratch / "first", INIT, with_needed(root, version, FIRST_MODULES), new / "first.cpio")


def make():
    """Makes the image unless it is there; the folder with kernel, first.cpio and disk."""
    done = place()
    if done.exists():
        return done
    uri = mirror()
    if uri is None:
        raise RuntimeError("no source of Debian's packages is known to apt")
    print("making a virtual machine's disk", file=sys.stderr, flush=True)
    new, scratch = done.with_suffix(".new"), done.with_suffix(".scratch")
    for folder in (new, scratch):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
    root = scratch / "root"
    fetch = (f"cd '{scratch}' && export APT_CONFIG=\"$MMDEBSTRAP_APT_CONFIG\" && apt-get -qq -o APT::Sandbox::User=root download "
             f"\"$(apt-cache depends {KERNEL} | sed -n 's/.*Depends: //p' | head -n 1)\"")
    # The manual is kept: the packages' own pages are looked at.
    run("mmdebstrap", "--quiet", "--mode=root", "--variant=minbase", f"--include={','.join(PACKAGES)}",
        '--aptopt=APT::Install-Recommends "false"', '--aptopt=Acquire::Check-Valid-Until "false"', "--dpkgopt=force-unsafe-io",
        "--dpkgopt=path-exclude=/usr/share/locale/*", "--dpkgopt=path-exclude=/usr/share/doc/*",
        f"--customize-hook={NO_INDEX}", f"--customize-hook={fetch}", RELEASE, root, uri, stdout=sys.stderr)
    guest_files(root)
    install_kernel(root, scratch, new)
    run("mkfs.ext4", "-q", "-F", "-m", "0", "-O", "^has_journal,^metadata_csum,^resize_inode", "-E", "lazy_itable_init=1",
        "-d", root, new / "disk", "1800M", stdout=sys.stderr)
    shutil.rmtree(scratch)
    settle(new, done, "vm-*")
    return done


if __name__ == "__main__":
    print(make())
