#!/usr/bin/env python3
"""Has spin look at every state of the models beside this file, and at broken variants of them, in which it must find something.

check.py [--thorough] MODEL: token, arming, events, fenced, adoption or moves; thoroughly, it takes minutes and some gigabytes."""
import os
import re
import shutil
import subprocess
import sys
import tempfile

# sizes: what the program may do at most. mutants: what is broken, and, where it is not the first, the size
# (from 0) that shows it.
HERE = os.path.dirname(os.path.abspath(__file__))
MODELS = {
    "token": {
        "sizes": [dict(THREADS=2, OPERATIONS=3, DEATHS=1, NESTING=1), dict(THREADS=3, OPERATIONS=1, DEATHS=2)],
        "thorough": [dict(THREADS=3, OPERATIONS=2, DEATHS=2), dict(THREADS=3, OPERATIONS=1, DEATHS=2, NESTING=1)],
        "mutants": {
            1: "no membarrier",
            2: "the former owner is forgotten when a taker dies",
            3: "a dead owner's work is not finished",
            4: "a thread leaves lock mode without a busy mark",
        },
    },
    "arming": {
        "sizes": [dict(EDGE=0, TURNS=1), dict(EDGE=1, TURNS=1)],
        "thorough": [dict(EDGE=0, TURNS=2), dict(EDGE=1, TURNS=2)],
        "mutants": {
            1: "a member goes cold that is armed by what it had to tell before",
            2: "a thread leaves while others sleep, with a member that is not armed",
            3: "no membarrier",
            4: "a change does not wake who sleeps",
            5: "nobody rings for those that wait in the kernel since before the first member",
            6: "marks are not collected once the sleep is announced",
        },
    },
    "events": {
        "sizes": [dict(THREADS=2, MESSAGES=1)],
        "thorough": [dict(THREADS=2, MESSAGES=2)],
        "mutants": {
            1: "who takes the event does not arm for others",
            2: "a thread is counted after it has armed",
            3: "who takes the event does not arm for a thread that finds the word true",
            4: "nobody looks once the queue is armed",
            5: "who finds somebody else at the queue leaves no mark",
            6: "who opens the device counts nobody who sleeps already",
            7: "a thread that is not counted does not look again once it has said so",
        },
    },
    "adoption": {
        "sizes": [dict(FORKS=0), dict(FORKS=1, ENDINGS=0), dict(FORKS=1, ENDINGS=0, FAILS=1), dict(FORKS=0, DEATHS=1), dict(FORKS=1, ENDINGS=0, DEATHS=1),
                  dict(FORKS=0, ENDINGS=0, RESTARTS=1)],
        "thorough": [dict(FORKS=1), dict(FORKS=0, ENDINGS=0, DEATHS=2), dict(FORKS=0, ENDINGS=0, FAILS=1, DEATHS=1),
                     dict(FORKS=1, ENDINGS=0, RESTARTS=1)],
        "mutants": {
            1: "one end begins before all at the other have the socket",
            2: "a child that does not run yet does not count",
            3: "sockets are made again after a holder has got one of the last",
            4: ("the marks are taken away before the first move is answered", 3),
            5: "a holder says that it has the socket before it has",
            6: ("the monitor does not look again when a holder ends", 3),
            7: ("a child counts its parent's step as its own", 1),
            8: "an adoption goes on, and nobody looks whether all have the sockets already",
            9: ("an end is told to begin that is not marked any more", 2),
            10: ("holders keep the sockets of a former monitor's adoption", 5),
            11: ("the other end of one that a former monitor has told to begin is not told", 5),
        },
    },
    "fenced": {
        "sizes": [dict(TIMES=1), dict(TIMES=1, OLD=1), dict(SENDERS=1, TIMES=2)],
        "thorough": [dict(TIMES=2), dict(TIMES=2, OLD=1)],
        "mutants": {
            1: "a word is called fenced that the waiter's id has left meanwhile",
            2: "no membarrier where a word was not fenced",
            3: "who finds a fenced word without ids makes no fence",
        },
    },
    "moves": {
        "sizes": [dict(BYTES=4), dict(BYTES=5, ROOM=2, CHANGES=2), dict(BYTES=4, DEATHS=1), dict(BYTES=4, STOPS=1, ROOM=2, CHANGES=0, DEATHS=1)],
        "thorough": [dict(BYTES=6), dict(BYTES=4, STOPS=1, ROOM=2, DEATHS=1), dict(BYTES=4, CHANGES=0, DEATHS=2), dict(BYTES=6, MOVES=3, CHANGES=0, DEATHS=1)],
        "mutants": {
            1: "who looks at a ring that was left stops before a change of its size",
            2: "a ring becomes small behind the position at which it was left",
            3: "a step is not told",
            4: "the ring is used before the receiver has agreed",
            5: "the next move begins before the receiver has followed",
            6: "the receiver follows before it has read the socket up to its end",
            7: "a step can be seen before its position",
            8: ("a step that was begun is taken for one that was made", 2),
            9: "the end is not told by the path that is in use",
            10: ("what was about to be taken back is taken for the ring", 2),
            11: ("a stop is taken back without a swap", 3),
            12: ("what a sender has noted is believed, and not the kernel's count", 3),
            13: ("the ring is left before what was given back of it has been passed", 3),
            14: "a step that is taken back before the receiver has agreed to it has no answer",
        },
    },
}


def verify(directory, model, optimization, **constants):
    """The number of errors that spin finds (it stops at the first), and of the states it saw."""
    defines = [f"-D{name}={value}" for name, value in constants.items()]
    subprocess.run(["spin", "-a", *defines, os.path.join(HERE, model + ".pml")], cwd=directory, check=True, stdout=subprocess.DEVNULL)
    subprocess.run(["gcc", optimization, "-w", "-DSAFETY", "-DCOLLAPSE", "-DMEMLIM=3000", "-o", "pan", "pan.c"], cwd=directory, check=True)
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
    name = sys.argv[-1]
    if name not in MODELS:
        print(__doc__)
        return 2
    model = MODELS[name]
    sizes = model["sizes"] + (model["thorough"] if "--thorough" in sys.argv else [])
    bad = 0
    with tempfile.TemporaryDirectory() as directory:
        for size in sizes:
            errors, states, out = verify(directory, name, "-O2", **size)
            print(f"{size}: {states} states, {errors} errors")
            if errors:
                print(out)
                bad += 1
        for mutant, what in model["mutants"].items():
            what, size = what if isinstance(what, tuple) else (what, 0)
            # Most are found within moments, of which the compiler would take more.
            found, _, _ = verify(directory, name, "-O0", MUTANT=mutant, **sizes[size])
            print(f"mutant {mutant} ({what}): {'found' if found else 'NOT FOUND'}")
            bad += not found
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
