#!/usr/bin/env python3
"""find_scripts.py FOLDER NAME...: are these all the programs in FOLDER, files without a suffix that can be executed?"""
import os
import pathlib
import sys

folder, *known = sys.argv[1:]
found = {path.name for path in pathlib.Path(folder).iterdir() if path.is_file() and not path.suffix and os.access(path, os.X_OK)}
for name in sorted(found ^ set(known)):
    print(f"{folder}/{name}: {'nobody runs it' if name in found else 'there is no such program'}")
sys.exit(1 if found != set(known) or not found else 0)
