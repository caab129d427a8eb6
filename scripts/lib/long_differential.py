"""Many seeds of the differential runner, by range, for each way of sharing out users (differential --help), over
the fake transport, with paths that change at random, between two network namespaces, and over RDMA (fake verbs)."""
import os
import re
import subprocess

from long import Budget, State

# Seeds of each; the test command runs the first ones.
MODES = {"one": 100_000, "two": 50_000, "given-up": 50_000, "fake": 50_000, "paths": 100_000, "apart": 50_000, "apart-shm": 100_000,
         "apart-storm": 100_000, "rdma": 100_000, "rdma-storm": 100_000}
# What a mode is: words for the runner, and its environment.
WITHOUT = ["--without", "passing"]  # tests/differential/LIMITS.md
HOW = {
    "one": ([], {}),
    "two": (["--users", "two"], {}),
    "given-up": (["--users", "given-up"], {}),
    "fake": ([], {"SD_TEST_TRANSPORT": "fake"}),
    "paths": (WITHOUT, {"SD_TEST_PATHS": "storm"}),
    "apart": (["--apart", *WITHOUT], {}),
    "apart-shm": (["--apart", *WITHOUT], {"SD_TEST_PATHS": "shm"}),
    "apart-storm": (["--apart", *WITHOUT], {"SD_TEST_PATHS": "storm"}),
    "rdma": (WITHOUT, {"SD_TEST_PATHS": "shm"}),
    "rdma-storm": (WITHOUT, {"SD_TEST_PATHS": "storm"}),
}
ON_FABRIC = ("rdma", "rdma-storm")
PIECE = 1000
JOBS = 6  # sequences wait for one another's timeouts more than they compute
SUMMARY = re.compile(r"(\d+) the same \((\d+) of them only when repeated\), (\d+) different, (\d+) undecided")


def run_piece(build_dir, source_dir, mode, first, count):
    """What it counted, and the seeds that differ; None: it did not get to the end."""
    words, environment = HOW[mode]
    fabric = [f"{source_dir}/tests/fake_verbs/on_fabric", f"{build_dir}/tests/fake_verbs"] if mode in ON_FABRIC else []
    command = [*fabric, f"{build_dir}/tests/differential/differential", *words, "--from", str(first), "--count", str(count), "--failures",
               str(count), "--no-shrink", "--jobs", str(JOBS)]
    got = subprocess.run(command, capture_output=True, text=True, check=False,
                         env={**os.environ, "SD_BUILD_DIR": build_dir, **environment})
    found = SUMMARY.search(got.stdout)
    return (list(map(int, found.groups())), re.findall(r"=== seed (\d+) differs", got.stdout)) if found else None


def run(build_dir, source_dir, record):
    state, well = State(build_dir, "differential"), True
    for mode, most in MODES.items():
        budget = Budget()
        first = after = state.get(mode, 1)
        total, differ, broken = [0, 0, 0, 0], [], False
        try:
            while after <= most and budget.left() > 0 and not broken:
                piece = run_piece(build_dir, source_dir, mode, after, min(PIECE, most + 1 - after))
                broken = piece is None
                if not broken:
                    total = [a + b for a, b in zip(total, piece[0])]
                    differ += piece[1]
                    after += sum(piece[0][i] for i in (0, 2, 3))
                    state[mode] = after
                    state.save()
        finally:
            if after > first or broken:
                same, repeated, different, undecided = total
                result = f"{same} the same ({repeated} when repeated), {undecided} undecided by the kernel, {different} different"
                result += f": {' '.join(differ)}" if differ else ""
                record(f"{'users: ' if mode in ('one', 'two', 'given-up') else ''}{mode}, seeds {first} to {after - 1}", result + (f"; broke down at {after}" if broken else ""))
        well = well and not differ and not broken
    return well
