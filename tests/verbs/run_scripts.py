#!/usr/bin/env python3
"""Runs the scripts of verbs over the fake verbs: run_scripts.py VERBS_SCRIPT FAKE_LIBRARY DEVICE [FAULTS]

What completes must be what NAME.expected says, where soft-RoCE's own results stand (scripts/vm-test rdma). With FAULTS
(fabric.hpp) the device process carries the work out.
"""
import os
import pathlib
import shutil
import socket
import subprocess
import sys
import tempfile

SCRIPTS = pathlib.Path(__file__).resolve().parent / "scripts"


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def run(program, library, device, faults, script):
    """The transcript of both sides; what they complain of goes to standard error."""
    folder = tempfile.mkdtemp(prefix="fake-verbs-", dir="/dev/shm")
    environment = {**os.environ, "SD_FAKE_VERBS": folder, "LD_LIBRARY_PATH": str(library.parent),
                   "SD_FAKE_VERBS_FAULTS": faults}
    port, helper = str(free_port()), None
    if faults:
        helper = subprocess.Popen([device, str(os.getpid())], env=environment)
    sides = [subprocess.Popen(["timeout", "60", program, script, str(side), port], stdout=subprocess.PIPE, text=True,
                              env={**environment, "SD_FAKE_VERBS_HOST": str(side)}) for side in (0, 1)]
    lines = [line for side in sides for line in side.communicate()[0].splitlines()]
    if helper:
        helper.kill()
        helper.wait()
    shutil.rmtree(folder)
    if any(side.returncode for side in sides):
        lines.append("0 999999: a side has failed")
    return sorted(lines, key=lambda line: (int(line.split(":")[0].split()[1]), line.split()[0]))


def main():
    program, library, device = (pathlib.Path(word) for word in sys.argv[1:4])
    faults = sys.argv[4] if len(sys.argv) > 4 else ""
    wrong = 0
    for script in sorted(SCRIPTS.glob("*.verbs")):
        expected = script.with_suffix(".expected").read_text(encoding="utf-8").splitlines()
        found = run(program, library, device, faults, script)
        if not expected or found != expected:
            wrong += 1
            print(f"{script.stem}: found, where {script.stem}.expected has another line:")
            for i in range(max(len(found), len(expected))):
                left, right = (lines[i] if i < len(lines) else "nothing" for lines in (found, expected))
                print(f"  {left}" + (f"    (expected: {right})" if left != right else ""))
        else:
            print(f"{script.stem}: {len(found)} lines as expected")
    sys.exit(1 if wrong else 0)


main()
