"""Connections that change their path at any byte (tests/e2e/path_transfer): moves in the midst of all that can be, a thousand of
each, and 8 connections of a gibibyte each whose senders are killed."""
import collections
import json
import os
import random
import re
import subprocess
import tempfile

from long import Budget, State

MIDST = ("urgent", "half_closed", "corked", "full", "shared", "stopped")
WANTED = [f"{direction}_{midst}" for direction in ("to_ring", "to_kernel") for midst in MIDST]
WANTED += ["followed_to_ring_peeked", "followed_to_kernel_peeked"]
ENOUGH = 1000
GIBIBYTE = 1 << 20  # in kilobytes


def transfer(build_dir, counts, *words):
    """One run; what its processes counted is added. Whether all bytes were right."""
    with tempfile.NamedTemporaryFile() as statistics:
        ended = subprocess.run([f"{build_dir}/sdrun", f"{build_dir}/tests/e2e/path_transfer", *map(str, words)], check=False,
                               env={**os.environ, "SD_TEST_PATHS": "storm", "SD_STATS_FILE": statistics.name})
        for line in statistics.read().decode().splitlines():
            for name, value in re.findall(r'"((?:joined|followed_to|to_ring|to_kernel)\w*)":(\d+)', line):
                counts[name] += int(value)
    return ended.returncode == 0


def told(counts):
    return json.dumps({name: counts[name] for name in sorted(counts)}).replace('"', "")


def run(build_dir, source_dir, record):
    del source_dir
    budget, state = Budget(), State(build_dir, "paths")
    counts = collections.Counter(state.get("counts", {}))
    seed = state.get("seed", 0)
    good, runs = True, 0
    while good and budget.left() > 0 and any(counts[name] < ENOUGH for name in WANTED):
        seed, runs = seed + 1, runs + 1
        good = transfer(build_dir, counts, 6, 40000, seed, "busy")
        if runs % 20 == 0:
            print(told(counts), flush=True)
        state.update(seed=seed, counts=counts)
        state.save()
    few = [name for name in WANTED if counts[name] < ENOUGH]
    record(f"path_transfer busy, {runs} more runs up to seed {seed}",
           f"{'every byte right' if good else 'WRONG'}; moves so far {told(counts)}" + (f"; fewer than {ENOUGH}: {' '.join(few)}" if few else ""))
    if good and budget.left() > 0:
        killed, seed = collections.Counter(), random.randrange(1, 1 << 20)
        good = transfer(build_dir, killed, 8, GIBIBYTE, seed, "kill")
        record(f"path_transfer, 8 connections of 1 GiB, senders killed, seed {seed}",
               f"{'what send had accepted arrived' if good else 'WRONG'}; moves {told(killed)}")
    return good and not few
