"""Debian's kernels to build the zero-copy module for, and to boot it in: kernels.py [stable] [backports]

stable is the kernel of Debian 12 (6.1), backports the one of its backports (6.12, Debian 13's). Each is unpacked of
Debian's packages, not installed, and stays in $SD_CACHE as kernel-NAME-KEY, with

    kernel      for QEMU
    first.cpio  a file system of busybox and a few modules, that runs what is handed over (machine.py)
    build       what to build a module against: make -C build M=...
    version     its version

Another recipe has another key. Needs the network, to make them.
"""
import os
import pathlib
import re
import shutil
import subprocess
import sys

sys.path.insert(1, str(pathlib.Path(__file__).resolve().parents[1]))
from debian_mirror import mirror  # noqa: E402
from first_system import cache, pack, recipe, run, settle, unpack_kernel, with_needed, write  # noqa: E402
from image import RELEASE  # noqa: E402

NAMES = {"stable": RELEASE, "backports": f"{RELEASE}-backports"}
KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
FIRST_MODULES = ("virtio_pci", "virtio_blk", "tcp_diag") # by the last libsd asks whose a listener is

# What the test needs is in the archive that is the first disk: its file "run". Results go to the second
# serial line.
INIT = """#!/bin/busybox sh
/bin/busybox --install -s /bin
export PATH=/bin HOME=/ LC_ALL=C
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
mkdir -p /dev/shm /sys/fs/cgroup
mount -t tmpfs tmp /tmp
mount -t tmpfs shm /dev/shm
mount -t debugfs debug /sys/kernel/debug
mount -t cgroup2 cgroup /sys/fs/cgroup
while read -r m; do insmod /m/$m; done </order
i=0
until [ -b /dev/vda ] || [ $i = 300 ]; do sleep 0.1; i=$((i+1)); done
mkdir /tmp/job && cd /tmp/job && tar -xf /dev/vda
sh ./run >/dev/ttyS1 2>&1 </dev/null
echo "END $?" >/dev/ttyS1
sync
poweroff -f
"""


def place(name):
    return cache() / f"kernel-{name}-{recipe(__file__, name)}"


def lists(suite, scratch):
    """Has apt read the suite's lists, in scratch alone. The options with which it knows them."""
    uri = mirror()
    if uri is None:
        raise RuntimeError("no source of Debian's packages is known to apt")
    (scratch / "lists/partial").mkdir(parents=True)
    write(scratch / "sources.list", f"deb [signed-by={KEYRING}] {uri} {suite} main\n")
    options = [word for option in (
        f"Dir::Etc::SourceList={scratch}/sources.list", "Dir::Etc::SourceParts=/dev/null", f"Dir::State::Lists={scratch}/lists",
        "Dir::Cache::pkgcache=", "Dir::Cache::srcpkgcache=", "APT::Sandbox::User=root", "Acquire::Retries=3") for word in ("-o", option)]
    run("apt-get", "-qq", *options, "update", stdout=sys.stderr)
    return options


def download(suite, scratch):
    """The packages of the suite's newest kernel and of its headers."""
    options = lists(suite, scratch)

    def depends(package):
        found = subprocess.run(["apt-cache", *options, "depends", package], check=True, stdout=subprocess.PIPE, text=True).stdout
        return re.findall(r"Depends: (\S+)", found)

    image = next(name for name in depends("linux-image-amd64") if name.startswith("linux-image-"))
    headers = image.replace("linux-image-", "linux-headers-")
    parts = [name for name in depends(headers) if re.match("linux-(headers|kbuild)-", name)]
    run("apt-get", "-qq", *options, "download", image, headers, *parts, cwd=scratch, stdout=sys.stderr)
    return image.removeprefix("linux-image-")


def unpack_headers(scratch, new, version):
    """Unpacks them under new; what they say about /usr is made to say where they are."""
    root = new / "headers"
    for package in (*scratch.glob("linux-headers-*.deb"), *scratch.glob("linux-kbuild-*.deb")):
        run("dpkg-deb", "-x", package, root)
    final = place_of(new) / "headers"
    build = root / f"usr/src/linux-headers-{version}"
    for path in (build / "Makefile", build / ".kernelvariables"):
        if path.exists():
            path.write_text(path.read_text(encoding="utf-8").replace("/usr/", f"{final}/usr/"), encoding="utf-8")
    for path in root.rglob("*"):
        if path.is_symlink() and os.readlink(path).startswith("/usr/"):
            target = os.readlink(path)
            path.unlink()
            path.symlink_to(f"{final}{target}")
    (new / "build").symlink_to(f"headers/usr/src/linux-headers-{version}")


def place_of(new):
    return new.with_suffix("")


def make(name):
    """Makes it unless it is there; its folder."""
    done = place(name)
    if done.exists():
        return done
    print(f"unpacking Debian's kernel of {NAMES[name]}", file=sys.stderr, flush=True)
    new, scratch = done.with_suffix(".new"), done.with_suffix(".scratch")
    for folder in (new, scratch):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
    version = download(NAMES[name], scratch)
    unpack_headers(scratch, new, version)
    unpacked = scratch / "image"
    run("dpkg-deb", "-x", next(scratch.glob("linux-image-*.deb")), unpacked)
    if (unpacked / "usr/lib/modules").exists():
        (unpacked / "lib").mkdir(exist_ok=True)
        (unpacked / "usr/lib/modules").rename(unpacked / "lib/modules")
    first = scratch / "first"
    for folder in ("sys", "tmp", "lib", "etc"):
        (first / folder).mkdir(parents=True)
    write(first / "etc/passwd", "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n")
    pack(first, INIT, with_needed(unpacked, version, FIRST_MODULES), new / "first.cpio")
    unpack_kernel(unpacked / "boot" / f"vmlinuz-{version}", new / "kernel")
    write(new / "version", f"{version}\n")
    shutil.rmtree(scratch)
    settle(new, done, f"kernel-{name}-*")
    return done


if __name__ == "__main__":
    for wanted in sys.argv[1:] or NAMES:
        print(make(wanted))
