"""What the machines of image.py and kernels.py are made with: their kernel, and the file system that they begin with.

Both recipes have this file in their keys (recipe()).
"""
import hashlib
import lzma
import os
import pathlib
import shutil
import subprocess


def cache():
    return pathlib.Path(os.environ.get("SD_CACHE") or os.path.expanduser("~/.cache/socksdirect"))


def recipe(path, *more):
    """A key that changes with that file, this one and what else is given."""
    data = [pathlib.Path(path).read_bytes(), pathlib.Path(__file__).read_bytes(), *(word.encode() for word in more)]
    return hashlib.sha256(b"".join(data)).hexdigest()[:12]


def settle(new, done, pattern):
    """What was made as new becomes done. What other recipes have made, by that pattern of names, goes."""
    for old in cache().glob(pattern):
        if old != new:
            shutil.rmtree(old)
    new.rename(done)


def run(*command, **more):
    subprocess.run([str(word) for word in command], check=True, **more)


def write(path, text, mode=0o644):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    path.chmod(mode)


def unpack_kernel(image, into):
    """The kernel inside the compressed image: QEMU can enter it directly, which spares seconds of unpacking."""
    data = image.read_bytes()
    at = data.find(b"\xfd7zXZ\x00")
    while at >= 0:
        try:
            kernel = lzma.LZMADecompressor().decompress(data[at:])
            if kernel.startswith(b"\x7fELF"):
                into.write_bytes(kernel)
                return
        except lzma.LZMAError:
            pass
        at = data.find(b"\xfd7zXZ\x00", at + 1)
    shutil.copyfile(image, into)


def with_needed(root, version, names):
    """Paths of the modules and of what they need, in the order in which they can be loaded. root has lib/modules."""
    run("depmod", "-b", root, version)
    order = []
    for name in names:
        found = subprocess.run(["modprobe", "-d", str(root), "-S", version, "--show-depends", name], check=True,
                               stdout=subprocess.PIPE, text=True).stdout
        for line in found.splitlines():
            kind, _, path = line.strip().partition(" ")
            path = path.split()[0]
            if kind == "insmod" and path not in order:
                order.append(path)
    return order


def pack(first, init, modules, into):
    """Makes the archive of `first`, a folder that may have more, with busybox, /init and the modules in /m and /order."""
    for name in ("bin", "dev", "proc", "root", "m"):
        (first / name).mkdir(parents=True, exist_ok=True)
    shutil.copy2("/bin/busybox", first / "bin/busybox")
    write(first / "init", init, 0o755)
    names = []
    for path in modules:
        name = os.path.basename(path).removesuffix(".xz")
        if path.endswith(".xz"):
            with lzma.open(path) as module:
                (first / "m" / name).write_bytes(module.read())
        else:
            shutil.copyfile(path, first / "m" / name)
        names.append(name)
    write(first / "order", "".join(f"{name}\n" for name in names))
    with open(into, "wb") as out:
        run("sh", "-c", "find . | cpio -o -H newc --quiet", cwd=first, stdout=out)
