"""What a test in a virtual machine found: its lines while it runs, the totals at its end, and files for scripts/test.

A check is a line "passed NAME", "failed NAME" or "skipped NAME: why"; the last line counts them.
"""
import collections
import sys
import time

import machine


class Report:
    """`name` is that of the files: NAME.results has a line for each check, testlog.json the whole."""

    def __init__(self, name, folder):
        self.name, self.folder = name, folder
        self.totals, self.failures, self.began = collections.Counter(), [], time.monotonic()
        if folder:
            folder.mkdir(parents=True, exist_ok=True)
            self.file().unlink(missing_ok=True)

    def file(self):
        return self.folder / f"{self.name}.results"

    def verdict(self, kind, name):
        self.totals[kind] += 1
        if kind == "failed":
            self.failures.append(name)
        if self.folder:
            with open(self.file(), "a", encoding="utf-8") as out:
                out.write(f"{kind} {name}\n")

    def line(self, text, prefix=""):
        """A line of a machine's, which may be a check."""
        print(f"{time.monotonic() - self.began:6.1f} s  {prefix}{text}", flush=True)
        kind, _, rest = text.partition(" ")
        if kind in ("passed", "failed", "skipped"):
            self.verdict(kind, prefix + rest)

    def machine_ended(self, status, console, limit, prefix="", status_says_it=True):
        """What machine.boot returned. status_says_it: a status other than 0 is a failure of its own."""
        lines = console.splitlines()
        trouble = [line for line in lines if any(word in line for word in machine.TROUBLE)]
        if status is None or trouble:
            print("\n".join(lines[-60:]), file=sys.stderr)
        if status is None:
            self.verdict("failed", f"{prefix}machine: it ended, or {limit} s were up, before its test did")
        elif status != 0 and status_says_it:
            self.verdict("failed", f"{prefix}machine: its test ended with status {status}")
        if trouble:
            self.verdict("failed", f"{prefix}kernel: {trouble[0]}")

    def end(self):
        """Prints the totals; the exit status."""
        if self.folder and self.totals:
            log = '{"name": "%s", "result": "%s"}\n' % (self.name, "ERROR" if self.totals["failed"] else "OK")
            (self.folder / "testlog.json").write_text(log, encoding="utf-8")
        for failure in self.failures:
            print(f"failed: {failure}")
        print(f"{self.totals['passed']} passed, {self.totals['failed']} failed, {self.totals['skipped']} skipped")
        return 1 if self.totals["failed"] or not self.totals["passed"] else 0
