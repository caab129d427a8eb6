"""tidy.py BUILD FOLDER...: has clang-tidy look once at each source in these folders, as a build directory compiles it.

Exits with 1 when it has something to say.
"""
import concurrent.futures
import json
import os
import pathlib
import subprocess
import sys
import tempfile

from compile_commands import ROOT, commands


def main() -> None:
    found = commands(pathlib.Path(sys.argv[1]), sys.argv[2:])
    with tempfile.TemporaryDirectory(prefix="sd-tidy-") as scratch:
        (pathlib.Path(scratch) / "compile_commands.json").write_text(json.dumps(list(found.values())), encoding="utf-8")

        def look(source: pathlib.Path) -> subprocess.CompletedProcess:
            return subprocess.run(["clang-tidy", "--quiet", "-p", scratch, source], cwd=ROOT, capture_output=True, text=True, check=False)

        wrong = 0
        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
            for source, result in zip(found, pool.map(look, found)):
                if result.returncode or result.stdout:
                    wrong += 1
                    print(f"{source.relative_to(ROOT)}:\n{result.stdout}{result.stderr if result.returncode else ''}")
    print(f"{len(found)} sources, {wrong} with messages")
    sys.exit(1 if wrong or not found else 0)


main()
