"""All behaviours over the fake transport (docs/design/transport.md)."""
from long_strangers import behaviours

SPACE = "the fake takes 128 GiB of address space for each link"
FILTER = "carrying takes a system call that the filter does not know"
PLACE = "the behaviour prints what stays in place, and that bytes do in memory that both ends share only"
UNSEEN = "the hostile side scribbles in its own memory, and nothing carries that"
# Differ, and why.
KNOWN = {
    "executing: a listener for an image with little memory": SPACE,
    "executing: a listener on which clients wait for an image with little memory": SPACE,
    "limited: little address space (RLIMIT_AS)": SPACE,
    "sandbox: little address space": SPACE,
    "sandbox: a seccomp filter and no descriptors": FILTER,
    "sandbox: a connection of the process's own": FILTER,
    "sandbox: closing connections": FILTER,
    "sandbox: connections that are accepted afterwards": FILTER,
    "sandbox: no connection by memory alone": FILTER,
    "buffers: frames arrive whole, one behind the other": PLACE,
    "buffers: pieces: headers here, data there": PLACE,
    "buffers: an ordinary recv() gets the bytes of buffers": PLACE,
    "buffers: what waits in a buffer is data like any other": PLACE,
    "buffers: a view outlives its connection, and its sender": PLACE,
    "buffers: what was handed over before a close arrives": PLACE,
    "buffers: a receiver that keeps everything meets a quota": PLACE,
    "buffers: a buffer is sent again and again from where it lies": PLACE,
    "buffers: what cannot be asked for": PLACE,
    "hostile: rubbish in a ring resets the connection": UNSEEN,
    "causes: what a program falls back for is counted": UNSEEN,
}


def run(build_dir, source_dir, record):
    return behaviours("fake", build_dir, source_dir, record, "behaviours over the fake transport", {"SD_TEST_TRANSPORT": "fake"},
                      KNOWN)
