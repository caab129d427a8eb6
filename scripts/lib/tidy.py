"""tidy.py BUILD FOLDER...: has clang-tidy look once at each source in these folders.

It is looked at as the build directory compiles it; many at once, where that does so (unity).
Exits with 1 when clang-tidy has something to say. SD_TIDY_CHECKS: other checks than .clang-tidy's.
"""
import json
import os
import pathlib
import subprocess
import sys
import tempfile

from compile_commands import ROOT, commands, look_at_all, make_generated


def main() -> None:
    build = pathlib.Path(sys.argv[1])
    make_generated(build)
    found = commands(build, sys.argv[2:])
    checks = [f"--checks={os.environ['SD_TIDY_CHECKS']}"] if "SD_TIDY_CHECKS" in os.environ else []
    with tempfile.TemporaryDirectory(prefix="sd-tidy-") as scratch:
        (pathlib.Path(scratch) / "compile_commands.json").write_text(json.dumps(list(found.values())), encoding="utf-8")

        def look(source: pathlib.Path, _: dict) -> subprocess.CompletedProcess:
            command = ["clang-tidy", "--quiet", f"--config-file={ROOT}/.clang-tidy", *checks, "-p", scratch, source]
            return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)

        look_at_all(found, look, lambda result: result.stdout + (result.stderr if result.returncode else ""))


main()
