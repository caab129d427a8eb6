#!/usr/bin/env python3
"""The folders of libsd stand on each other, and an include never leads upwards; the monitor sees what it shares with libsd.

Run without arguments from anywhere. Prints each include that breaks a rule, and each folder that has become too large.
"""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
# From the bottom up: each may include itself and what stands before it.
LAYERS = ["libsd/layout", "libsd/control", "libsd/transport", "libsd/queue", "libsd/vfs", "libsd/api"]
MONITOR = {"monitor", "libsd/layout", "libsd/control"}
EXCEPTIONS = {
    # One answer to "can it load the library?"
    ("monitor/tools/sdrun.cpp", "libsd/api/processes/loadable.hpp"),
    ("monitor/sdctl/units.cpp", "libsd/api/processes/loadable.hpp"),
}
MOST_FILES = 25


def layer_of(path: str) -> str:
    return "monitor" if path.startswith("monitor/") else "/".join(path.split("/")[:2])


def main() -> None:
    wrong = []
    sources = [path for top in ("libsd", "monitor") for path in sorted((ROOT / top).rglob("*.[ch]pp"))]
    for path in sources:
        name = str(path.relative_to(ROOT))
        own = layer_of(name)
        if own != "monitor" and own not in LAYERS:
            wrong.append(f"{name}: {own} has no place among the layers")
            continue
        allowed = MONITOR if own == "monitor" else set(LAYERS[: LAYERS.index(own) + 1])
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            found = re.match(r'#include "([^"]+)"', line)
            if not found:
                continue
            target = found.group(1)
            if not (ROOT / target).exists():
                wrong.append(f"{name}:{number}: {target} is not named from the top of the source tree")
            elif layer_of(target) not in allowed and (name, target) not in EXCEPTIONS:
                wrong.append(f"{name}:{number}: {own} may not include {target}")
    for folder in sorted({path.parent for path in sources}):
        files = [path for path in folder.iterdir() if path.suffix in (".cpp", ".hpp")]
        if len(files) > MOST_FILES:
            wrong.append(f"{folder.relative_to(ROOT)}: {len(files)} files, {MOST_FILES} at most")
    print("\n".join(wrong) if wrong else f"{len(sources)} files in their layers")
    sys.exit(1 if wrong or not sources else 0)


main()
