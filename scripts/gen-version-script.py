#!/usr/bin/env python3
"""Writes libsd.so's version script from symbols.def: gen-version-script.py SYMBOLS_DEF OUTPUT

The node is anonymous on purpose: an unversioned definition satisfies references to every version of a name.
"""
import sys

sys.dont_write_bytecode = True
import symbols  # noqa: E402


def main() -> None:
    listed = symbols.load(sys.argv[1])
    names = [s.name for s in listed if s.exported]
    with open(sys.argv[2], "w", encoding="ascii") as out:
        out.write("{\n")
        if names:
            out.write("global:\n" + "".join(f"    {n};\n" for n in sorted(names)))
        out.write("local:\n    *;\n};\n")


main()
