"""Runs each fuzzer for as many executions as it was promised to get: the part "fuzz" of scripts/test --long.

The runs of a target are cut into pieces with seeds 1, 2, 3 and so on. After each piece what was done is noted in
BUILD/long-fuzz/done.json, so an interrupted run goes on where it was. What a piece found to reach more stays in
BUILD/long-fuzz/TARGET and is where the next one begins; an input that breaks something stays in BUILD/long-fuzz/found.

By hand: scripts/lib/long_fuzz.py --build build-fuzz [--seconds N] [--piece N] [--max-len N] [TARGET...]; with --show it only tells.
"""
import argparse
import datetime
import json
import os
import re
import subprocess
import sys
import time

from long import Budget, revision

# How many executions of each at least, and how many all together. The ring is the quickest by far: it gets
# what is left.
LEAST = 5_000_000
ALL = 100_000_000
QUICK = {"ring_fuzz": 55_000_000}
# Of a piece. The corpus is read anew in each: at the lowest priority on a busy machine that alone takes
# longer than this.
PIECE_SECONDS = 120
# That a piece may take longer.
PATIENCE = 3600
# Of an input, in bytes. Short ones are quicker: of control_fuzz three times so at 128.
MAX_LEN = 2048


def targets(source_dir):
    """The names of the fuzzers, as their build file has them."""
    with open(os.path.join(source_dir, "tests/fuzz/meson.build"), encoding="utf-8") as file:
        return re.findall(r"^(?:  |  fuzz_targets \+= \{)'(\w+_fuzz)':", file.read(), re.M)


def wanted(name):
    return QUICK.get(name, LEAST)


class Notes:
    """What was done, by target: executions, seconds, the next seed, revisions, and what was found."""

    def __init__(self, build_dir):
        self.folder = os.path.join(build_dir, "long-fuzz")
        os.makedirs(os.path.join(self.folder, "found"), exist_ok=True)
        self.path = os.path.join(self.folder, "done.json")
        self.all = {}
        if os.path.exists(self.path):
            with open(self.path, encoding="utf-8") as file:
                self.all = json.load(file)

    def of(self, name):
        return self.all.setdefault(name, {"executions": 0, "seconds": 0, "seed": 1, "revisions": [], "found": []})

    def save(self):
        with open(self.path + ".new", "w", encoding="utf-8") as file:
            json.dump(self.all, file, indent=1)
        os.replace(self.path + ".new", self.path)


def fixed_layout():
    """AddressSanitizer cannot cope with every address layout that newer kernels choose."""
    works = subprocess.run(["setarch", "-R", "true"], capture_output=True, check=False).returncode == 0
    return ["setarch", "-R"] if works else []


def is_false_alarm(text, program):
    """Was it only stopped for so long (SIGSTOP) that libFuzzer took the input at hand for one that does not end?"""
    found = re.findall(r"^.*Test unit written to (.*-timeout-\w+)$", text, re.M)
    if len(found) != 1 or "libFuzzer: timeout" not in text:
        return False
    again = subprocess.run(fixed_layout() + [program, "-timeout=60", "-runs=20", found[0]], stdin=subprocess.DEVNULL,
                           capture_output=True, check=False, timeout=PATIENCE)
    return again.returncode == 0


def run_piece(name, build_dir, source_dir, notes, runs, seconds, max_len):
    """One piece. False: it found something."""
    note = notes.of(name)
    corpus = os.path.join(notes.folder, name)
    found = os.path.join(notes.folder, "found", name + "-")
    os.makedirs(corpus, exist_ok=True)
    started = time.monotonic()
    command = fixed_layout() + [
        os.path.join(build_dir, "tests/fuzz", name), f"-runs={runs}", f"-seed={note['seed']}",
        f"-max_total_time={seconds}", f"-max_len={max_len}", "-entropic=0", "-detect_leaks=0", "-timeout=60", "-rss_limit_mb=4096",
        "-print_final_stats=1", "-artifact_prefix=" + found, corpus, os.path.join(source_dir, "tests/fuzz/seeds", name)]
    log_path = os.path.join(notes.folder, name + ".log")
    with open(log_path, "w", encoding="utf-8") as log:
        try:
            status = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, check=False,
                                    timeout=seconds + PATIENCE, preexec_fn=lambda: os.nice(19)).returncode
        except subprocess.TimeoutExpired:
            status = "none: it did not end"
    with open(log_path, encoding="utf-8", errors="replace") as log:
        text = log.read()
    counts = re.findall(r"stat::number_of_executed_units:\s*(\d+)", text) or re.findall(r"^#(\d+)\s", text, re.M)
    note["executions"] += int(counts[-1]) if counts else 0
    note["seconds"] += round(time.monotonic() - started)
    note["seed"] += 1
    at = revision()
    if at not in note["revisions"]:
        note["revisions"].append(at)
    if status != 0 and is_false_alarm(text, os.path.join(build_dir, "tests/fuzz", name)):
        status = 0
    if status != 0:
        lines = re.findall(r"^(?:SUMMARY: .*|.*runtime error: .*|Test unit written to .*)$", text, re.M)
        note["found"].append({"seed": note["seed"] - 1, "revision": at, "what": lines[-3:] or [f"status {status}"]})
    notes.save()
    return status == 0


def run_targets(names, build_dir, source_dir, until, piece=PIECE_SECONDS, max_len=MAX_LEN):
    """Those first that are done soonest. True: all have what they should, and nothing was found."""
    notes = Notes(build_dir)

    def seconds_left(name):
        note = notes.of(name)
        return (wanted(name) - note["executions"]) * note["seconds"] / max(note["executions"], 1)

    broken = set()
    while True:
        left = [n for n in names if n not in broken and notes.of(n)["executions"] < wanted(n)]
        seconds = int(min(piece, until - time.monotonic()))
        if not left or seconds < 1:
            break
        name = min(left, key=seconds_left)
        if not run_piece(name, build_dir, source_dir, notes, wanted(name) - notes.of(name)["executions"], seconds, max_len):
            broken.add(name)
            print(f"{name}: {notes.of(name)['found'][-1]['what']}", file=sys.stderr, flush=True)
    return not broken and all(notes.of(n)["executions"] >= wanted(n) for n in names)


def table(names, build_dir):
    notes = Notes(build_dir)
    rows = []
    for name in names:
        note = notes.of(name)
        rate = note["executions"] / note["seconds"] if note["seconds"] else 0
        rows.append(f"{name:14} {note['executions']:>11,} of {wanted(name):>11,}  {rate:8,.0f}/s  "
                    f"next seed {note['seed']}  found {len(note['found'])}  {' '.join(note['revisions'])}")
    total = sum(notes.of(n)["executions"] for n in names)
    return rows + [f"{'all':14} {total:>11,} of {ALL:>11,}"]


def run(build_dir, source_dir, record):
    """record(what, result) makes a row of tests/long/RESULTS.md, one for each target that was run. Takes hours; goes on
    where it was, and ends after SD_LONG_SECONDS."""
    names = targets(source_dir)
    if sum(wanted(n) for n in names) < ALL:
        raise ValueError("the targets' executions do not add up to what was promised")
    subprocess.run(["ninja", "-C", build_dir, "fuzzers"], check=True, stdout=sys.stderr)
    before = {n: Notes(build_dir).of(n)["seed"] for n in names}
    done = run_targets(names, build_dir, source_dir, Budget().end)
    for name in names:
        note = Notes(build_dir).of(name)
        if note["seed"] != before[name]:
            result = f"{len(note['found'])} found" if note["found"] else "nothing found"
            record(f"{name}, {note['executions']:,} of {wanted(name):,} executions, seeds 1 to {note['seed'] - 1}", result)
    return done


def main():
    parser = argparse.ArgumentParser(description="Long runs of the fuzzers.")
    parser.add_argument("--build", required=True, help="a build directory with fuzzers (scripts/test makes build-fuzz)")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="ends after that time")
    parser.add_argument("--piece", type=int, default=PIECE_SECONDS, help="seconds of one piece")
    parser.add_argument("--max-len", type=int, default=MAX_LEN, help="bytes of an input at most")
    parser.add_argument("--show", action="store_true", help="only says what was done so far")
    parser.add_argument("target", nargs="*")
    args = parser.parse_args()
    source_dir = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    names = args.target or targets(source_dir)
    done = True
    if not args.show:
        done = run_targets(names, args.build, source_dir, time.monotonic() + args.seconds, args.piece, args.max_len)
        print(datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC"))
    print("\n".join(table(names, args.build)))
    return 0 if done else 1


if __name__ == "__main__":
    sys.exit(main())
