#!/usr/bin/env python3
"""A file as an array in C++: gen-embedded.py FILE NAME SOURCE. NAME is the array, NAMESize its length."""
import pathlib
import sys

source, name, target = sys.argv[1:]
data = pathlib.Path(source).read_bytes()
lines = [", ".join(str(byte) for byte in data[at:at + 24]) for at in range(0, len(data), 24)]
pathlib.Path(target).write_text(
    "#include <cstddef>\nnamespace sd::monitor {\n"
    f"extern const unsigned char {name}[];\nextern const size_t {name}Size;\n"
    f"alignas(8) const unsigned char {name}[] = {{\n" + ",\n".join(lines) + "};\n"
    f"const size_t {name}Size = sizeof {name};\n}}\n", encoding="utf-8")
