#!/usr/bin/env python3
"""Has spin look at every state of tests/model/token.pml, and at broken variants of it, in which it must find something.

check.py [--thorough]: more operations and deaths; takes minutes and some gigabytes."""
import os
import re
import shutil
import subprocess
import sys
import tempfile

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "token.pml")
MUTANTS = {
    1: "no membarrier",
    2: "the former owner is forgotten when a taker dies",
    3: "a dead owner's work is not finished",
    4: "a thread leaves lock mode without a busy mark",
}


def verify(directory, **constants):
    """The number of errors that spin finds (it stops at the first), and of the states it saw."""
    defines = [f"-D{name}={value}" for name, value in constants.items()]
    subprocess.run(["spin", "-a", *defines, MODEL], cwd=directory, check=True, stdout=subprocess.DEVNULL)
    subprocess.run(["gcc", "-O2", "-w", "-DSAFETY", "-DCOLLAPSE", "-DMEMLIM=3000", "-o", "pan", "pan.c"], cwd=directory, check=True)
    out = subprocess.run(["./pan", "-m2000000"], cwd=directory, check=True, capture_output=True, text=True).stdout
    errors = re.search(r"errors: (\d+)", out)
    states = re.search(r"(\d[\d.e+]*) states, stored", out)
    if not errors or "Search not completed" in out and errors.group(1) == "0" or "max search depth too small" in out:
        sys.exit(f"{constants}: the search was not exhaustive:\n{out}")
    return int(errors.group(1)), int(float(states.group(1))), out


def main():
    if not shutil.which("spin") or not shutil.which("gcc"):
        print("spin is not installed")
        return 77
    sizes = [dict(THREADS=2, OPERATIONS=3, DEATHS=1, NESTING=1), dict(THREADS=3, OPERATIONS=1, DEATHS=2)]
    if "--thorough" in sys.argv:
        sizes += [dict(THREADS=3, OPERATIONS=2, DEATHS=2), dict(THREADS=3, OPERATIONS=1, DEATHS=2, NESTING=1)]
    bad = 0
    with tempfile.TemporaryDirectory() as directory:
        for size in sizes:
            errors, states, out = verify(directory, **size)
            print(f"{size}: {states} states, {errors} errors")
            if errors:
                print(out)
                bad += 1
        for mutant, what in MUTANTS.items():
            found = 0
            for size in sizes:
                errors, states, _ = verify(directory, MUTANT=mutant, **size)
                found += errors
                if errors:
                    break
            print(f"mutant {mutant} ({what}): {'found' if found else 'NOT FOUND'}")
            bad += not found
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
