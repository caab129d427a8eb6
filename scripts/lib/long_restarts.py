"""The monitor restarted 100 times and killed 100 times under load, in a virtual machine with the packages installed
(scripts/vm-test install --restarts).

SD_LONG_PACKAGES: a folder with the packages; else they are built when the first piece begins. The clock of that machine
counts instructions (scripts/lib/vm/machine.py), so it can be judged how soon a new connection is accelerated, counted
from before the restart or the kill.
"""
import json
import os
import pathlib
import subprocess

from long import Budget, State

TIMES = 100
PIECE = 30  # of each, in one machine
LEAST = 600  # seconds that a machine needs to get anywhere
MOST = 3600
WORDS = {"restart": "restarted", "kill": "killed"}
NOTHING = {"times": 0, "requests": 0, "fresh": 0, "failed": 0, "share": 1.0, "back": 0.0, "slowest": 0.0, "slow": 0, "tries": 0}


def packages(build_dir, source_dir, is_first):
    """Where they are; those of one count are of one revision."""
    given = os.environ.get("SD_LONG_PACKAGES")
    folder = pathlib.Path(given or os.path.join(build_dir, "long", "packages"))
    if not given and (is_first or not list(folder.glob("*.deb"))):
        subprocess.run([f"{source_dir}/scripts/package", "--no-lintian", "--output", folder], check=True)
    return folder


def add(total, seen):
    for name in ("times", "requests", "fresh", "failed", "slow"):
        total[name] += seen.get(name, 0)
    for name in ("back", "slowest", "tries"):
        total[name] = max(total[name], seen.get(name, 0))
    if seen.get("held"):
        total["share"] = min(total["share"], seen["lowest"] / seen["held"])


def result(state):
    parts = []
    for how, total in state["total"].items():
        parts.append(f"{WORDS[how]} {total['times']} times: {total['failed']} of {total['requests']} requests failed "
                     f"({total['fresh']} on fresh connections), at least {100 * total['share']:.1f} % of the held connections "
                     f"accelerated after each, the monitor back after {total['back']:.2f} s at most, a new connection accelerated after "
                     f"{total['slowest']:.2f} s at most, at try {total['tries']} "
                     f"({total['slow']} of {total['times']} after more than 1 s)")
    return "; ".join(parts + [f"failed: {why}" for why in state["errors"]])


def piece(state, source_dir, folder, limit):
    """Boots a machine; whether all that it tried was as it should be."""
    left = max(TIMES - total["times"] for total in state["total"].values())
    command = ["nice", f"{source_dir}/scripts/vm-test", "install", "--restarts", str(min(PIECE, left)), "--packages", str(folder),
               "--limit", str(limit)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as machine:
        try:
            for line in machine.stdout:
                print(line, end="", flush=True)
                _, _, seen = line.partition(" s  round ")
                if seen:
                    seen = json.loads(seen)
                    add(state["total"][seen["how"]], seen)
                    if "error" in seen:
                        state["errors"].append(f"{WORDS[seen['how']]}: {seen['error']}")
                    state.save()
        except KeyboardInterrupt:
            machine.terminate()
            raise
    if machine.returncode and not state["errors"]:
        state["errors"].append(f"scripts/vm-test: status {machine.returncode}")
        state.save()
    return machine.returncode == 0


def run(build_dir, source_dir, record):
    state, budget = State(build_dir, "restarts"), Budget()
    is_first = not state
    if is_first:
        state.update(total={how: dict(NOTHING) for how in WORDS}, errors=[])
    before = json.dumps(state)
    complete = False
    try:
        folder = packages(build_dir, source_dir, is_first)
        while not complete and not state["errors"] and budget.left() > LEAST:
            piece(state, source_dir, folder, int(min(MOST, budget.left())))
            complete = all(total["times"] >= TIMES for total in state["total"].values())
    finally:
        if json.dumps(state) != before:
            record(f"{TIMES} of each wanted, at load {os.getloadavg()[0]:.0f}", result(state).replace("|", "/"))
    well = not state["errors"] and all(total["failed"] == total["slow"] == 0 and total["share"] >= 0.99 for total in state["total"].values())
    if complete or state["errors"]:
        state.path.unlink(missing_ok=True)  # the next call counts from the beginning
    return well
