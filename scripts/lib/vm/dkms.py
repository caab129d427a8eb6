"""The package of the zero-copy module, and what DKMS makes of it: without installing anything here.

DKMS itself is Debian's, and stays in $SD_CACHE as dkms-KEY. Needs the network, to fetch it.
"""
import pathlib
import shutil
import subprocess
import sys
import tempfile

import kernels
from first_system import cache, recipe, run, settle
from image import RELEASE

NAME = "socksdirect-zerocopy"


def tool():
    """The package dkms."""
    done = cache() / f"dkms-{recipe(__file__)}"
    if not done.exists():
        new = done.with_suffix(".new")
        shutil.rmtree(new, ignore_errors=True)
        options = kernels.lists(RELEASE, new)
        run("apt-get", "-qq", *options, "download", "dkms", cwd=new, stdout=sys.stderr)
        shutil.rmtree(new / "lists")
        settle(new, done, "dkms-*")
    return next(done.glob("dkms_*.deb"))


def build(package, into):
    """Has DKMS build the module for the stable kernel. into gets both packages, and DKMS's folder of what was built.

    Returns what DKMS says where that fails.
    """
    kernel = kernels.make("stable")
    version = pathlib.Path(kernel, "version").read_text(encoding="utf-8").strip()
    into.mkdir()
    packages = {"package": package, "dkms": tool()}
    with tempfile.TemporaryDirectory(prefix="sd-dkms-") as scratch:
        scratch = pathlib.Path(scratch)
        for folder, file in packages.items():
            shutil.copy(file, into)
            run("dpkg-deb", "-x", file, scratch / folder)
        for folder in ("tree", "modules"):
            (scratch / folder).mkdir()
        number = next(scratch.glob(f"package/usr/src/{NAME}-*")).name.removeprefix(f"{NAME}-")
        built = scratch / f"tree/{NAME}/{number}/{version}"
        done = subprocess.run([scratch / "dkms/usr/sbin/dkms", "build", "-m", NAME, "-v", number, "-k", version,
                               "--kernelsourcedir", kernel / "build", "--dkmstree", scratch / "tree",
                               "--sourcetree", scratch / "package/usr/src", "--installtree", scratch / "modules"],
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
        if done.returncode:
            return "\n".join([done.stdout, *(path.read_text(encoding="utf-8") for path in scratch.glob("tree/**/make.log"))])
        shutil.copytree(built, into / "built" / version)
    return None


if __name__ == "__main__":
    tool()
