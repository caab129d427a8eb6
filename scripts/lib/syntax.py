"""syntax.py BUILD FOLDER...: has the compiler of a build directory look at the sources in these folders, and
make nothing of them.

Headers that are generated are made first, and what most sources include of the standard library is read once
for all that are compiled alike; not with SD_SYNTAX_ALONE in the environment, so that a source that does not
include it itself is found. Exits with 1 when a source has an error or a warning."""
import collections
import os
import pathlib
import re
import subprocess
import sys
import tempfile

from compile_commands import ROOT, commands, look_at_all, make_generated

STANDARD = ROOT / "tests/support/pch/standard.hpp"
WORTH_IT = 8  # sources; reading the header takes as long as two or three of them save


def plain(entry: dict) -> str:
    """How a source is compiled, without what is made of it."""
    return re.sub(r" -o '?[^ ]+| -M[DF]( '?[^ ]+\.d'?)?| -MQ '?[^ ]+", "", entry["command"])


def flags(entry: dict) -> str:
    """The same without the source, and without where headers are looked for."""
    return re.sub(r" -I'?[^ ]+| -c$", "", plain(entry).replace(entry["file"], "").rstrip())


def run(command: str, directory: str) -> subprocess.CompletedProcess:
    return subprocess.run(command, shell=True, cwd=directory, capture_output=True, text=True, check=False)


def main() -> None:
    build = pathlib.Path(sys.argv[1])
    found = commands(build, sys.argv[2:])
    make_generated(build)
    least = sys.maxsize if "SD_SYNTAX_ALONE" in os.environ else WORTH_IT
    alike = collections.Counter(flags(entry) for entry in found.values())
    with tempfile.TemporaryDirectory() as scratch:
        read: dict[str, str] = {}
        for number, (how, count) in enumerate(alike.items()):
            header = f"{scratch}/{number}.pch"
            make = f"{how} -x c++-header {STANDARD} -o {header}"
            if count >= least and "-std=c++" in how and run(make, str(build)).returncode == 0:
                read[how] = f" -include-pch {header}"

        def look(_: pathlib.Path, entry: dict) -> subprocess.CompletedProcess:
            return run(plain(entry) + read.get(flags(entry), "") + " -fsyntax-only", entry["directory"])

        look_at_all(found, look, lambda result: result.stderr)


main()
