#!/usr/bin/env python3
"""Fills in a bpftrace script: where the library is, and the names of the causes.

usage: gen-bpftrace.py SCRIPT.in CAUSES.DEF LIBRARY OUTPUT
"""
import pathlib
import re
import sys

script, causes, library, output = sys.argv[1:]
found = re.findall(r"^SD_CAUSE\((\d+), (\w+),", pathlib.Path(causes).read_text(encoding="utf-8"), re.M)
names = "\n".join(f'\t@name[{number}] = "{name}";' for number, name in found)
text = pathlib.Path(script).read_text(encoding="utf-8").replace("@LIBRARY@", library).replace("@CAUSES@", names)
pathlib.Path(output).write_text(text, encoding="utf-8")
