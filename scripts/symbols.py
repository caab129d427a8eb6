"""Reads libsd/api/symbols.def for the generators and tests."""
import dataclasses
import re
import sys

FAMILIES = ("socket", "io", "poll", "epoll", "fd", "process", "signal", "stdio", "aio", "raw")
TREATMENTS = ("accelerated", "special", "own", "pass", "uncovered")
LINE = re.compile(r'SD_SYMBOL\((\w+), (\w+), (\w+), "([^"\\]*)"\)')


@dataclasses.dataclass(frozen=True)
class Symbol:
    name: str
    family: str
    treatment: str
    note: str

    @property
    def exported(self) -> bool:
        return self.treatment in ("accelerated", "special", "own")


def load(path: str) -> list[Symbol]:
    """The list in file order; ends the program with a message where a line is malformed."""
    result: list[Symbol] = []
    seen: set[str] = set()
    with open(path, encoding="ascii") as f:
        for number, raw in enumerate(f, 1):
            line = raw.strip()
            if not line or line.startswith("//"):
                continue
            match = LINE.fullmatch(line)
            if match is None:
                sys.exit(f"{path}:{number}: not an SD_SYMBOL line: {line}")
            symbol = Symbol(*match.groups())
            if symbol.family not in FAMILIES or symbol.treatment not in TREATMENTS:
                sys.exit(f"{path}:{number}: unknown family or treatment")
            if symbol.name in seen:
                sys.exit(f"{path}:{number}: {symbol.name} is listed twice")
            if not symbol.exported and not symbol.note:
                sys.exit(f"{path}:{number}: {symbol.name} is not interposed and no reason is given")
            seen.add(symbol.name)
            result.append(symbol)
    return result
