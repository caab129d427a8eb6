#!/usr/bin/env python3
"""Writes the assembly of the C library's stand-in that libsd.so is linked against: gen-libc-stub.py LIBC_NEEDS_DEF OUTPUT

It has the names of libc_needs.def and no versions. No program is ever run with it.
"""
import re
import sys

LINE = re.compile(r"SD_(?:ANYWHERE|NEEDS|LATE)\((\w+)\)")


def main() -> None:
    names = []
    with open(sys.argv[1], encoding="ascii") as f:
        for number, raw in enumerate(f, 1):
            line = raw.strip()
            if not line or line.startswith("//"):
                continue
            match = LINE.fullmatch(line)
            if match is None:
                sys.exit(f"{sys.argv[1]}:{number}: not a name of a known kind: {line}")
            names.append(match.group(1))
    with open(sys.argv[2], "w", encoding="ascii") as out:
        out.write('.section .note.GNU-stack,"",@progbits\n.text\n')
        for name in names:
            out.write(f".globl {name}\n.type {name}, @function\n.size {name}, 1\n{name}:\n.byte 0\n")


main()
