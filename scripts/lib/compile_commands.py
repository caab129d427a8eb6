"""How a build directory compiles each source, and a look at each of them."""
import concurrent.futures
import json
import os
import pathlib
import re
import subprocess
import sys
from collections.abc import Callable

ROOT = pathlib.Path(__file__).resolve().parents[2]


def make_generated(build: pathlib.Path) -> None:
    """Makes the sources and headers that are not in the tree."""
    targets = subprocess.run(["ninja", "-C", build, "-t", "targets", "all"], capture_output=True, text=True, check=True).stdout
    names = re.findall(r"^(\S+\.(?:h|cpp)): CUSTOM_COMMAND", targets, re.MULTILINE)
    if names:
        subprocess.run(["ninja", "-C", build, *names], check=True, stdout=subprocess.DEVNULL)


def sources_of(source: pathlib.Path) -> list[pathlib.Path]:
    """What is compiled with a source: meson can have one include many (unity)."""
    if not re.search(r"-unity\d+\.cpp$", source.name):
        return [source]
    included = re.findall(r"^#include\s*<(.*)>", source.read_text(encoding="utf-8"), re.MULTILINE)
    return [pathlib.Path(name).resolve() for name in included]


def commands(build: pathlib.Path, folders: list[str]) -> dict[pathlib.Path, dict]:
    """The entries of compile_commands.json for what lies in these folders of the tree, by what is to be compiled.

    One for each source: those that are compiled several times, up to ten, differ in little.
    """
    places = [ROOT / name for name in folders]
    found: dict[pathlib.Path, dict] = {}
    seen: set[pathlib.Path] = set()
    entries = []
    for entry in json.loads((build / "compile_commands.json").read_text(encoding="utf-8")):
        compiled = (pathlib.Path(entry["directory"]) / entry["file"]).resolve()
        entries.append((sources_of(compiled), compiled, entry))
    entries.sort(key=lambda one: len(one[0]), reverse=True)  # first those that cover most
    for sources, compiled, entry in entries:
        wanted = {source for source in sources if any(place in source.parents for place in places)}
        if wanted - seen:
            seen |= wanted
            found[compiled] = entry
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
                print(f"{os.path.relpath(source, ROOT)}:\n{said}")
    print(f"{len(found)} compilations, {wrong} with messages")
    sys.exit(1 if wrong or not found else 0)
