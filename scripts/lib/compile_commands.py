"""How a build directory compiles each source."""
import json
import pathlib

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
