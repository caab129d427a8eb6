"""syntax.py BUILD FOLDER...: has the compiler of a build directory look at the sources in these folders, and make nothing of them.

Headers that are generated are made first. Exits with 1 when a source has an error or a warning."""
import concurrent.futures
import json
import os
import pathlib
import re
import subprocess
import sys


def main() -> None:
    build = pathlib.Path(sys.argv[1])
    root = pathlib.Path(__file__).resolve().parents[2]
    folders = [root / name for name in sys.argv[2:]]
    commands = {}  # one for each source: those that are compiled several times differ in little
    for entry in json.loads((build / "compile_commands.json").read_text(encoding="utf-8")):
        source = (pathlib.Path(entry["directory"]) / entry["file"]).resolve()
        if any(folder in source.parents for folder in folders):
            commands.setdefault(source, entry)
    targets = subprocess.run(["ninja", "-C", build, "-t", "targets", "all"], capture_output=True, text=True, check=True).stdout
    headers = re.findall(r"^(\S+\.h): CUSTOM_COMMAND", targets, re.MULTILINE)
    if headers:
        subprocess.run(["ninja", "-C", build, *headers], check=True, stdout=subprocess.DEVNULL)

    def look(entry: dict) -> subprocess.CompletedProcess:
        command = re.sub(r" -o '?[^ ]+| -M[DF]( '?[^ ]+\.d'?)?| -MQ '?[^ ]+", "", entry["command"])
        return subprocess.run(command + " -fsyntax-only", shell=True, cwd=entry["directory"], capture_output=True, text=True, check=False)

    wrong = 0
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for source, result in zip(commands, pool.map(look, commands.values())):
            if result.returncode or result.stderr:
                wrong += 1
                print(f"{source.relative_to(root)}:\n{result.stderr}")
    print(f"{len(commands)} sources, {wrong} with messages")
    sys.exit(1 if wrong or not commands else 0)


main()
