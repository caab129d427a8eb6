"""syntax.py BUILD FOLDER...: has the compiler of a build directory look at the sources in these folders, and make nothing of them.

Headers that are generated are made first. Exits with 1 when a source has an error or a warning."""
import pathlib
import re
import subprocess
import sys

from compile_commands import commands, look_at_all, make_generated


def main() -> None:
    build = pathlib.Path(sys.argv[1])
    found = commands(build, sys.argv[2:])
    make_generated(build)

    def look(_: pathlib.Path, entry: dict) -> subprocess.CompletedProcess:
        command = re.sub(r" -o '?[^ ]+| -M[DF]( '?[^ ]+\.d'?)?| -MQ '?[^ ]+", "", entry["command"])
        return subprocess.run(command + " -fsyntax-only", shell=True, cwd=entry["directory"], capture_output=True, text=True, check=False)

    look_at_all(found, look, lambda result: result.stderr)


main()
