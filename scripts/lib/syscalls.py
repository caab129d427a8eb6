"""Counting the system calls of running servers, with perf where it may and with strace where not."""

import os
import shutil
import signal
import time

import parse
from procs import RunError, tail


class Counter:
    """Chooses the tool once; count() then runs a load and returns (its result, system calls, names or None)."""

    def __init__(self, processes, directory):
        self.processes, self.directory = processes, directory
        self.tool = next((tool for tool in ("perf", "strace") if shutil.which(tool) and self._works(tool)), None)

    def _works(self, tool):
        out = os.path.join(self.directory, f"probe.{tool}")
        command = (["perf", "stat", "-x,", "-e", "raw_syscalls:sys_enter", "-o", out, "--", "true"]
                   if tool == "perf" else ["strace", "-c", "-f", "-o", out, "true"])
        try:
            self.processes.run(command, 10, name=f"probe-{tool}")
            with open(out, encoding="utf-8") as f:
                text = f.read()
            return parse.perf_stat(text) > 0 if tool == "perf" else bool(parse.strace_summary(text))
        except (RunError, OSError):
            return False

    def count(self, pids, load, names=False):
        """`names` asks for the counts by name too, which only strace knows (and it slows the server down)."""
        tool = "strace" if names and shutil.which("strace") else self.tool
        if tool is None:
            raise RunError("neither perf nor strace can count system calls here")
        out = os.path.join(self.directory, f"count-{self.processes.count}.{tool}")
        if tool == "perf":
            command = ["perf", "stat", "-x,", "-e", "raw_syscalls:sys_enter", "-o", out, "-p",
                       ",".join(str(p) for p in pids)]
        else:
            command = ["strace", "-c", "-f", "-o", out] + [word for p in pids for word in ("-p", str(p))]
        process = self.processes.start(command, name=f"count-{tool}")
        try:
            until = time.monotonic() + 5
            while time.monotonic() < until and process.poll() is None:
                if tool == "strace" and tail(process.log, 1000).count("attached") >= len(pids):
                    break
                if tool == "perf" and time.monotonic() > until - 4.7:
                    break
                time.sleep(0.02)
            if process.poll() is not None:
                raise RunError(f"{tool} ended at once: {tail(process.log)}")
            result = load()
        finally:
            self.processes.end(process, signal.SIGINT)
        with open(out, encoding="utf-8") as f:
            text = f.read()
        if tool == "perf":
            return result, parse.perf_stat(text), None
        calls = parse.strace_summary(text)
        return result, sum(calls.values()), calls
