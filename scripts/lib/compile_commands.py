"""How a build directory compiles each source, and a look at each of them."""
import concurrent.futures
import json
import os
import pathlib
import subprocess
import sys
from collections.abc import Callable

ROOT = pathlib.Path(__file__).resolve().parents[2]


def commands(build: pathlib.Path, folders: list[str]) -> dict[pathlib.Path, dict]:
    """The entries of compile_commands.json for what lies in these folders of the tree.

    One for each source: those that are compiled several times, up to ten, differ in little.
    """
    places = [ROOT / name for name in folders]
    found: dict[pathlib.Path, dict] = {}
    for entry in json.loads((build / "compile_commands.json").read_text(encoding="utf-8")):
        source = (pathlib.Path(entry["directory"]) / entry["file"]).resolve()
        if any(place in source.parents for place in places):
            found.setdefault(source, entry)
    return found


def look_at_all(found: dict[pathlib.Path, dict], look: Callable[[pathlib.Path, dict], subprocess.CompletedProcess],
                messages: Callable[[subprocess.CompletedProcess], str]) -> None:
    """Has each looked at, several at a time, and prints what is said of it. Ends the program: 1 if there was something."""
    wrong = 0
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for source, result in zip(found, pool.map(look, found, found.values())):
            said = messages(result)
            if result.returncode or said:
                wrong += 1
                print(f"{source.relative_to(ROOT)}:\n{said}")
    print(f"{len(found)} sources, {wrong} with messages")
    sys.exit(1 if wrong or not found else 0)
