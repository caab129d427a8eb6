"""Runs that do not fit into the test command: long.py BASE [PART...], by scripts/test --long [PART...].

A part is a module long_PART.py beside this one with

    def run(build_dir: str, source_dir: str, record) -> bool

It goes on where it was broken off (its state is in the build directory), calls record(what, result) for what it has
done, which becomes a row of tests/long/RESULTS.md with revision and date, and returns whether all was as it should be.
It runs in BASE/build, or in BASE/BUILD where the module says so. SIGTERM arrives as KeyboardInterrupt.
SD_LONG_SECONDS: how long one part may take (Budget).
"""
import datetime
import importlib
import json
import os
import pathlib
import signal
import subprocess
import sys
import time

SOURCE = pathlib.Path(__file__).resolve().parent.parent.parent
RESULTS = SOURCE / "tests/long/RESULTS.md"
BUILDS = {"fuzz": "build-fuzz"}


class State(dict):
    """What a part remembers: a dictionary in BUILD/long/PART.json."""

    def __init__(self, build_dir, part):
        self.path = pathlib.Path(build_dir, "long", f"{part}.json")
        self.path.parent.mkdir(exist_ok=True)
        super().__init__(json.loads(self.path.read_text("utf-8")) if self.path.exists() else {})

    def save(self):
        new = self.path.with_suffix(".new")
        new.write_text(json.dumps(self), "utf-8")
        new.replace(self.path)


class Budget:
    """The time that a part has."""

    def __init__(self):
        self.end = time.monotonic() + float(os.environ.get("SD_LONG_SECONDS", "inf"))

    def left(self):
        return self.end - time.monotonic()


def revision():
    def git(*words):
        return subprocess.run(["git", "-C", SOURCE, *words], capture_output=True, text=True, check=False).stdout.strip()
    changed = git("status", "--porcelain", "--untracked-files=no", "--", ".", f":!{RESULTS.relative_to(SOURCE)}")
    return (git("rev-parse", "--short=10", "HEAD") or "unknown") + ("+" if changed else "")


def recorder(part):
    at = revision()

    def record(what, result):
        today = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d")
        row = f"| {part} | {at} | {today} | {what} | {result} |"
        with open(RESULTS, "a", encoding="utf-8") as file:
            file.write(row + "\n")
        print(row, flush=True)
    return record


def interrupt(*_):
    raise KeyboardInterrupt


def main():
    base, parts = sys.argv[1], sys.argv[2:]
    there = sorted(f.stem.removeprefix("long_") for f in pathlib.Path(__file__).parent.glob("long_*.py"))
    if unknown := set(parts) - set(there):
        sys.exit(f"no such part: {' '.join(unknown)}; there are {' '.join(there)}")
    signal.signal(signal.SIGTERM, interrupt)
    well = True
    for part in parts or there:
        print(f"part {part}", file=sys.stderr, flush=True)
        module = importlib.import_module(f"long_{part}")
        build_dir = os.path.join(base, BUILDS.get(part, "build"))
        well = module.run(build_dir, str(SOURCE), recorder(part)) and well
    return 0 if well else 1


if __name__ == "__main__":
    sys.path.insert(0, str(pathlib.Path(__file__).parent))
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
