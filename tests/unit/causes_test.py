#!/usr/bin/env python3
"""Each cause of fallback (libsd/layout/causes.def) is counted, or said by the monitor, in some test.

Run without arguments from anywhere. Prints those that no test names as Cause::NAME or as "NAME" or 'NAME' of the statistics.
"""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]


def main() -> None:
    causes = re.findall(r"^SD_CAUSE\(\d+, (\w+),", (ROOT / "libsd/layout/causes.def").read_text(encoding="utf-8"), re.MULTILINE)
    tests = "".join(path.read_text(encoding="utf-8") for folder in ("tests/unit", "tests/e2e")
                    for path in (ROOT / folder).iterdir() if path.is_file() and path.suffix in (".cpp", ""))
    missing = [cause for cause in causes if not re.search(rf"\bCause::{cause}\b|['\"]{cause}\\?['\"]", tests)]
    for cause in missing:
        print(f"libsd/layout/causes.def: no test counts {cause}")
    print(f"{len(causes)} causes")
    sys.exit(1 if missing or not causes else 0)


main()
