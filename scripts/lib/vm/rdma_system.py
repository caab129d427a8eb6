"""A machine that has a verbs device without any hardware (soft-RoCE): rdma_system.py

Debian 12's kernel with the modules for it, and a file system of busybox that runs what it is handed over, as
kernels.py makes it. It stays in $SD_CACHE as rdma-KEY. Needs the network, to be made.
"""
import pathlib
import shutil
import subprocess
import sys

from first_system import cache, pack, recipe, run, settle, unpack_kernel, with_needed, write
from image import RELEASE
from kernels import INIT, download

# rdma_rxe asks for the checksum by name, when it makes a device. The last two count what goes over TCP.
MODULES = ("virtio_pci", "virtio_blk", "virtio_net", "crc32_generic", "ib_uverbs", "rdma_rxe", "nf_tables",
           "nft_objref")


def make():
    """Makes it unless it is there; its folder, with kernel and first.cpio."""
    done = cache() / f"rdma-{recipe(__file__)}"
    if done.exists():
        return done
    print("unpacking Debian's kernel for soft-RoCE", file=sys.stderr, flush=True)
    new, scratch = done.with_suffix(".new"), done.with_suffix(".scratch")
    for folder in (new, scratch):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
    version = download(RELEASE, scratch)
    unpacked = scratch / "image"
    run("dpkg-deb", "-x", next(scratch.glob("linux-image-*.deb")), unpacked)
    first = scratch / "first"
    for folder in ("sys", "tmp", "lib", "etc"):
        (first / folder).mkdir(parents=True)
    write(first / "etc/passwd", "root:x:0:0:root:/root:/bin/sh\n")
    pack(first, INIT, with_needed(unpacked, version, MODULES), new / "first.cpio")
    unpack_kernel(unpacked / "boot" / f"vmlinuz-{version}", new / "kernel")
    shutil.rmtree(scratch)
    settle(new, done, "rdma-*")
    return done


def programs(into, *paths):
    """Copies programs, the libraries that they need, and soft-RoCE's provider, to where they are on this machine."""
    wanted = [pathlib.Path(path) for path in paths]
    provider = next(pathlib.Path("/usr/lib/x86_64-linux-gnu/libibverbs").glob("librxe-rdmav*.so"))
    wanted += [provider, pathlib.Path("/etc/libibverbs.d/rxe.driver")]
    for path in (*paths, provider):
        wanted += needed(path)
    for path in wanted:
        copy = into / str(path).lstrip("/")
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, copy)


def needed(path):
    found = subprocess.run(["ldd", str(path)], check=True, stdout=subprocess.PIPE, text=True).stdout
    words = [line.split() for line in found.splitlines()]
    return [pathlib.Path(w[2] if len(w) > 2 and w[1] == "=>" else w[0]) for w in words if any(p.startswith("/") for p in w)]


if __name__ == "__main__":
    print(make())
