"""The zero-copy module for long, in virtual machines with both kernels (scripts/lib/vm/zerocopy_long.py): seeds of two
programs that exchange and overwrite large memory, ioctls at random, hashed bytes, and the tests of public allocators.

A machine does about four minutes of a part, then the next one goes on. There is a row for each call, part and kernel.
SD_LONG_PAGES: only these, "PART" or "PART:KERNEL".
"""
import os
import re
import subprocess

from long import Budget, State

KERNELS = ("stable", "backports")
# What there is to do with each kernel, and what it is counted in. Both kernels together have the seeds and
# the calls.
PARTS = {"allocators": (None, "programs"), "hashed": (16 << 30, "bytes"), "fuzz": (5_000_000, "calls"), "seeds": (50_000, "seeds")}
PIECE = 200  # seconds
FIRST = {"backports": {"fuzz": 1_000_000, "seeds": 50_000}}  # the kernels have different ones


def run_piece(build_dir, source_dir, part, kernel, first):
    """The lines that it printed, without the time."""
    command = ["python3", "-uB", f"{source_dir}/scripts/lib/vm/zerocopy_long.py", part, "--build", build_dir, "--kernel", kernel,
               "--seconds", str(PIECE), "--first", str(first)]
    said = subprocess.run(["unshare", "--net", *command], stdout=subprocess.PIPE, text=True, check=False).stdout
    return [re.sub(r"^ *[\d.]+ s  ", "", line) for line in said.splitlines()]


def first_of(state, part, kernel):
    done = state.get(f"{part} {kernel}", 0)
    steps = state.get(f"{part} {kernel} steps", 0)  # of the fuzzer and of hashed bytes, failed ones too
    return FIRST.get(kernel, {}).get(part, 0) + (steps if part in ("fuzz", "hashed") else done) + 1


def sum_of(lines, what):
    return sum(int(line.split()[3]) for line in lines if line.startswith(f"# done {what} "))


def run_part(state, budget, part, kernel, build_dir, source_dir, record):
    most, unit = PARTS[part]
    key, lines, ended, before = f"{part} {kernel}", [], False, state.get(f"{part} {kernel}", 0)
    while not ended and budget.left() > 0 and (most is None or state.get(key, 0) < most):
        piece = run_piece(build_dir, source_dir, part, kernel, first_of(state, part, kernel))
        lines += piece
        failed_steps = sum(line.startswith(f"failed {part} ") for line in piece)
        state[key] = state.get(key, 0) + sum_of(piece, part) + (10 * failed_steps if part == "seeds" else 0)
        state[f"{key} steps"] = state.get(f"{key} steps", 0) + failed_steps + sum(l.startswith(f"# done {part} ") for l in piece)
        state.save()
        # A machine that did nothing would do nothing again.
        ended = "# end allocators" in piece or not sum_of(piece, part)
    if not lines:
        return True
    failed = [line.removeprefix("failed ") for line in lines if line.startswith("failed ") and not line.startswith("failed: ")]
    did = state[key] - before
    result = f"{did} {unit} ({state[key]} so far{f' of {most}' if most else ''}), failed: {'; '.join(failed) or 'none'}"
    if part == "allocators":
        passed = [line for line in lines if re.match("passed (glibc|jemalloc|mimalloc)/", line)]
        skipped = [line.removeprefix("skipped ") for line in lines if line.startswith("skipped ")]
        result = f"{len(passed)} passed, failed: {'; '.join(failed) or 'none'}, skipped: {'; '.join(skipped) or 'none'}"
    if part == "hashed":
        result += f"; {sum_of(lines, 'pages') * 4096 * 50 // max(did, 1)} of 100 bytes moved as pages, twice"
    record(f"{part}, kernel {kernel}", result.replace("|", "/"))
    if ended and part == "allocators":
        for name in (key, f"{key} steps"):
            state.pop(name, None)  # the next call begins again
        state.save()
    return not failed


def run(build_dir, source_dir, record):
    state, budget, well = State(build_dir, "pages"), Budget(), True
    for chosen in os.environ.get("SD_LONG_PAGES", " ".join(PARTS)).split():
        part, _, only = chosen.partition(":")
        for kernel in [only] if only else KERNELS:
            well = run_part(state, budget, part, kernel, build_dir, source_dir, record) and well
    return well
