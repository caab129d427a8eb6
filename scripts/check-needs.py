#!/usr/bin/env python3
"""Ends the build when a library to preload would not load everywhere: check-needs.py LIBRARY LIBC_NEEDS_DEF STAMP [LEAST]

It may need libc.so.6 and nothing else, no version of any name, and no name for certain that is not in every C library.
LEAST: the least number of names that it must be seen to need (20), or what was looked at is something else.
"""
import re
import subprocess
import sys


def lines(*command: str) -> list[str]:
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()


def main() -> None:
    library, listing, stamp = sys.argv[1:4]
    with open(listing, encoding="ascii") as f:
        anywhere = set(re.findall(r"^SD_ANYWHERE\((\w+)\)", f.read(), re.M))
    problems = []
    needed = [line.split("[")[1].rstrip("]") for line in lines("readelf", "-dW", library) if "(NEEDED)" in line]
    if needed != ["libc.so.6"]:
        problems.append(f"it needs {needed}")
    if any("Version needs section" in line for line in lines("readelf", "-VW", library)):
        problems.append("it needs versions: something other than the stand-in for the C library was linked")
    undefined = [line.split() for line in lines("nm", "-D", "--undefined-only", library)]
    problems += [f"{name} is not a weak reference (libsd/control/weak_libc.hpp)" for kind, name in undefined
                 if kind.lower() not in "wv" and name not in anywhere]
    if len(undefined) < int(sys.argv[4] if len(sys.argv) > 4 else 20):
        problems.append(f"only {len(undefined)} undefined symbols were found: this check looks at the wrong thing")
    for problem in problems:
        print(f"{library}: {problem}")
    if problems:
        sys.exit(1)
    with open(stamp, "w", encoding="ascii") as out:
        out.write("".join(f"{name}\n" for _, name in undefined))


main()
