"""Debian source packages, unpacked into a cache, without touching the machine's package lists."""

import glob
import os
import shutil
import subprocess

from procs import say


def place(package, directory):
    return os.path.join(directory, package)


def fetch(package, directory):
    """Downloads and unpacks the source of a package; at once when it is there."""
    target = place(package, directory)
    if os.path.exists(target):
        return
    say(f"getting the source of {package}")
    work = target + ".new"
    shutil.rmtree(work, ignore_errors=True)
    for sub in ("lists/partial", "sources", "x"):
        os.makedirs(os.path.join(work, sub))
    # The machine's own entries, as sources: both of apt's formats.
    for path in glob.glob("/etc/apt/sources.list.d/debian*.sources"):
        with open(path, encoding="utf-8") as f:
            text = f.read().replace("Types: deb\n", "Types: deb-src\n")
        with open(os.path.join(work, "sources", "debian.sources"), "w", encoding="utf-8") as f:
            f.write(text)
    if os.path.exists("/etc/apt/sources.list"):
        with open("/etc/apt/sources.list", encoding="utf-8") as f:
            lines = ["deb-src" + line[3:] for line in f if line.startswith("deb ")]
        with open(os.path.join(work, "sources", "debian.list"), "w", encoding="utf-8") as f:
            f.writelines(lines)
    apt = ["apt-get", "-qq", "-o", "Dir::Etc::sourcelist=/dev/null", "-o", f"Dir::Etc::sourceparts={work}/sources",
           "-o", f"Dir::State::lists={work}/lists", "-o", "APT::Sandbox::User=root"]
    inside = os.path.join(work, "x")
    subprocess.run([*apt, "update"], check=True)
    subprocess.run([*apt, "--download-only", "source", package], check=True, cwd=inside)
    description = glob.glob(os.path.join(inside, "*.dsc"))[0]
    subprocess.run(["dpkg-source", "--no-check", "-x", description, "source"], check=True, cwd=inside, stdout=subprocess.DEVNULL)
    os.rename(os.path.join(inside, "source"), target)
    shutil.rmtree(work, ignore_errors=True)
