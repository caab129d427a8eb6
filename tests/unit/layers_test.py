#!/usr/bin/env python3
"""The folders of libsd stand on each other, and an include never leads upwards; others see what they share with libsd.
What only one kind of processor has stands in libsd/cpu alone.

Run without arguments from anywhere. Prints each include that breaks a rule, and each folder that has become too large.
"""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
# From the bottom up: each may include itself and what stands before it.
LAYERS = ["libsd/cpu", "libsd/layout", "libsd/base", "libsd/control", "libsd/transport", "libsd/queue", "libsd/rdma", "libsd/vfs", "libsd/api"]
SHARED = {"libsd/cpu", "libsd/layout", "libsd/control"}
OTHERS = ["monitor", "libpages", "libbuffers"]
EXCEPTIONS = {
    # One answer to "can it load the library?"
    ("monitor/tools/sdrun.cpp", "libsd/api/processes/loadable.hpp"),
    ("monitor/sdctl/units.cpp", "libsd/api/processes/loadable.hpp"),
    # The module's calls, and those that programs make
    ("libpages/device.cpp", "kmod-zerocopy/include/linux/socksdirect_zerocopy.h"),
    ("libpages/leave.cpp", "kmod-zerocopy/include/linux/socksdirect_zerocopy.h"),
    ("libbuffers/buffers.cpp", "include/socksdirect/buffers.h"),
    ("libsd/vfs/pools/own_channels.cpp", "kmod-zerocopy/include/linux/socksdirect_zerocopy.h"),
    ("libsd/vfs/pools/taken_channels.cpp", "kmod-zerocopy/include/linux/socksdirect_zerocopy.h"),
    ("monitor/sdctl/calibrate.cpp", "kmod-zerocopy/include/linux/socksdirect_zerocopy.h"),
    # The monitor carries on for the dead what they had begun to carry.
    ("monitor/records/link.cpp", "libsd/transport/fake_copier.hpp"),
    ("monitor/peers/far_records.cpp", "libsd/transport/fake_copier.hpp"),
}
MOST_FILES = 25
SOURCES = (".cpp", ".hpp", ".def", ".S")

# What belongs into libsd/cpu: assembly, intrinsics, names of this processor and of its registers.
PROCESSOR = re.compile(
    r"\basm\b|\b__asm|\bnaked\b|__builtin_ia32_|\b_mm_|immintrin|x86intrin|\bx86|_X86_64|__x86_64__|__amd64__|\bgregs\b|\bREG_[A-Z0-9]+\b|\bcpuid\b",
    re.IGNORECASE)
# System calls that newer processors never had.
OLD_CALLS = {
    "access", "alarm", "arch_prctl", "chmod", "chown", "creat", "dup2", "epoll_create", "epoll_wait", "eventfd", "fork",
    "futimesat", "getdents", "getpgrp", "inotify_init", "ioperm", "iopl", "lchown", "link", "mkdir", "mknod", "modify_ldt",
    "open", "pause", "pipe", "poll", "readlink", "rename", "rmdir", "select", "signalfd", "stat", "lstat", "symlink", "time",
    "unlink", "ustat", "utime", "utimes", "vfork",
}


def layer_of(path: str) -> str:
    top = path.split("/")[0]
    return top if top in OTHERS else "/".join(path.split("/")[:2])


def main() -> None:
    wrong = []
    sources = [path for top in ("libsd", *OTHERS) for path in sorted((ROOT / top).rglob("*")) if path.suffix in SOURCES]
    for path in sources:
        name = str(path.relative_to(ROOT))
        own = layer_of(name)
        if own not in OTHERS and own not in LAYERS:
            wrong.append(f"{name}: {own} has no place among the layers")
            continue
        allowed = SHARED | {own} if own in OTHERS else set(LAYERS[: LAYERS.index(own) + 1])
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            if own != "libsd/cpu":
                calls = OLD_CALLS & set(re.findall(r"\b(?:SYS|__NR)_(\w+)", line))
                wrong += [f"{name}:{number}: {what} belongs into libsd/cpu"
                          for what in PROCESSOR.findall(line) + sorted(f"SYS_{call}" for call in calls)]
            found = re.match(r'#include "([^"]+)"', line)
            if not found:
                continue
            target = found.group(1)
            if not (ROOT / target).exists():
                wrong.append(f"{name}:{number}: {target} is not named from the top of the source tree")
            elif layer_of(target) not in allowed and (name, target) not in EXCEPTIONS:
                wrong.append(f"{name}:{number}: {own} may not include {target}")
    for folder in sorted({path.parent for path in sources}):
        files = [path for path in folder.iterdir() if path.suffix in (".cpp", ".hpp")]
        if len(files) > MOST_FILES:
            wrong.append(f"{folder.relative_to(ROOT)}: {len(files)} files, {MOST_FILES} at most")
    print("\n".join(wrong) if wrong else f"{len(sources)} files in their layers")
    sys.exit(1 if wrong or not sources else 0)


main()
