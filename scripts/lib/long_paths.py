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
CONNECTIONS = 8


def transfer(build_dir, counts, *words, each=None):
    """One run; what its processes counted is added, and noted for each in a list. Whether all bytes were right."""
    with tempfile.NamedTemporaryFile() as statistics:
        ended = subprocess.run([f"{build_dir}/sdrun", f"{build_dir}/tests/e2e/path_transfer", *map(str, words)], check=False,
                               env={**os.environ, "SD_TEST_PATHS": "storm", "SD_STATS_FILE": statistics.name})
        for line in statistics.read().decode().splitlines():
            found = {name: int(value) for name, value in re.findall(r'"((?:joined|followed_to|to_ring|to_kernel)\w*)":(\d+)', line)}
            counts.update(found)
            if each is not None:
                each.append(found)
    return ended.returncode == 0


def told(counts):
    return json.dumps({name: counts[name] for name in sorted(counts)}).replace('"', "")


def killed_senders(build_dir, record):
    """A sender that is killed writes no statistics: its moves are counted by who followed them, the receiver, who lives on.
    One that it had begun and nobody had followed yet is not among them."""
    counts, each, seed = collections.Counter(), [], random.randrange(1, 1 << 20)
    good = transfer(build_dir, counts, CONNECTIONS, GIBIBYTE, seed, "kill", each=each)
    followed = {name: [one.get(name, 0) for one in each] for name in ("followed_to_ring", "followed_to_kernel")}
    fewest = {name: min((n for n in numbers if n), default=0) for name, numbers in followed.items()}
    moved = all(sum(1 for n in numbers if n) == CONNECTIONS for numbers in followed.values())
    enough = all(sum(numbers) >= ENOUGH for numbers in followed.values())
    result = "what send had accepted arrived" if good else "WRONG"
    result += f"; moves of the killed, as followed by the receivers, {told({name: sum(n) for name, n in followed.items()})}"
    result += f", of the connection with the fewest {told(fewest)}, joined {counts['joined']}"
    record(f"path_transfer, {CONNECTIONS} connections of 1 GiB, senders killed, seed {seed}",
           result + ("" if moved and enough else "; TOO FEW MOVES"))
    return good and moved and enough


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
        good = killed_senders(build_dir, record)
    return good and not few
