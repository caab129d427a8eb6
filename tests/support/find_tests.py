#!/usr/bin/env python3
"""find_tests.py FOLDER MARK: the names, without .cpp, of the sources in FOLDER that have a line beginning with MARK.

With `--known NAME...` it looks whether these are all, and says what to do if not: the build directory knows the files
that were there when it was configured.
"""
import pathlib
import sys


def main() -> None:
    folder, mark, *known = sys.argv[1:]
    names = sorted(path.stem for path in pathlib.Path(folder).glob("*.cpp")
                   if f"\n{mark}" in path.read_text(encoding="utf-8"))
    if not known:
        print("\n".join(names))
        sys.exit(0 if names else 1)
    unknown = sorted(set(names) ^ set(known[1:]))
    for name in unknown:
        print(f"{folder}/{name}.cpp: {'new' if name in names else 'gone'} since the build directory was configured")
    if unknown:
        print("meson setup --reconfigure BUILD takes note of it")
        sys.exit(1)


main()
