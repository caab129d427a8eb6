#!/usr/bin/env python3
"""symbols_test.py LIBRARY SYMBOLS_DEF: the built library exports exactly what the list says, needs only libc, and initializes nothing by code of its own."""
import pathlib
import subprocess
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent.parent / "scripts"))
import symbols  # noqa: E402

ALLOWED_LIBRARIES = {"libc.so.6", "ld-linux-x86-64.so.2"}


def output(*command: str) -> str:
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def main() -> None:
    library, listing = sys.argv[1:3]
    problems = []

    wanted = {s.name for s in symbols.load(listing) if s.exported}
    exported = {line.split()[-1] for line in output("nm", "-D", "--defined-only", library).splitlines()}
    problems += [f"listed but not exported: {name}" for name in sorted(wanted - exported)]
    problems += [f"exported but not listed: {name}" for name in sorted(exported - wanted)]
    # A version suffix would keep the definition from satisfying references to other versions.
    problems += [f"exported with a version: {name}" for name in sorted(exported) if "@" in name]

    needed = {
        line.split("[")[1].rstrip("]")
        for line in output("readelf", "-dW", library).splitlines()
        if "(NEEDED)" in line
    }
    problems += [f"needs a library that the host program may not have: {name}" for name in sorted(needed - ALLOWED_LIBRARIES)]

    # Whatever a program starts would run these, on pages of its own: one array's took 192 KiB.
    local = {line.split()[-1] for line in output("nm", library).splitlines()}
    problems += [f"runs when the library is loaded: {name}" for name in sorted(local) if name.startswith("_GLOBAL__")]
    problems += [] if len(local) > len(exported) else ["stripped, so what runs when it is loaded cannot be told"]

    for problem in problems:
        print(problem)
    print(f"{len(wanted)} symbols listed for export, {len(exported)} exported, {len(problems)} problems")
    sys.exit(1 if problems else 0)


main()
