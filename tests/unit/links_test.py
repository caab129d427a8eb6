#!/usr/bin/env python3
"""Every relative link in every Markdown file leads somewhere: to a file, and to a heading of it where it names one.

Paths in backticks that begin at the top of the source tree have to exist, too, so that a page does not send its
reader to a file that has been moved. Run without arguments from anywhere. Prints what leads nowhere.
"""
import pathlib
import re
import sys
import urllib.parse

ROOT = pathlib.Path(__file__).resolve().parents[2]
TREES = ("bench", "docs", "libsd", "monitor", "packaging", "scripts", "tests")
LINK = re.compile(r"\[(?:[^\[\]]|\[[^\]]*\])*\]\(\s*<?([^)<>\s]+)>?(?:\s+\"[^\"]*\")?\s*\)|^\[[^\]]+\]:\s*(\S+)", re.M)
FENCE = re.compile(r"^(\s*)(```|~~~).*?^\s*\2\s*$", re.M | re.S)
CODE = re.compile(r"(`+)(.+?)\1", re.S)
PLACE = re.compile(rf"(?:{'|'.join(TREES)})/[\w.*/-]*")


def blank(found: re.Match) -> str:
    """As many lines as before, so that line numbers stay."""
    return re.sub(r"[^\n]", " ", found.group(0))


def anchors(text: str) -> set[str]:
    """The names that GitHub gives to headings, and those that are given by hand."""
    names: set[str] = set(re.findall(r"<a (?:id|name)=\"([^\"]+)\"", text))
    for heading in re.findall(r"^#{1,6}\s+(.*?)\s*#*$", FENCE.sub(blank, text), re.M):
        heading = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        name = re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")
        number, free = 0, name
        while free in names:
            number += 1
            free = f"{name}-{number}"
        names.add(free)
    return names


def broken_links(page: pathlib.Path, text: str):
    for found in LINK.finditer(CODE.sub(blank, FENCE.sub(blank, text))):
        target = found.group(1) or found.group(2)
        if re.match(r"[a-z][a-z0-9+.-]*:", target):
            continue
        line = text.count("\n", 0, found.start()) + 1
        path, _, name = urllib.parse.unquote(target).partition("#")
        place = (page.parent / path).resolve() if path else page
        if path.startswith("/") or not place.is_relative_to(ROOT) or not place.exists():
            yield line, f"{target} is not there"
        elif name and (place.suffix != ".md" or name not in anchors(place.read_text(encoding="utf-8"))):
            yield line, f"{target}: no such heading"


def moved_paths(text: str):
    for found in CODE.finditer(FENCE.sub(blank, text)):
        for word in found.group(2).split():
            if PLACE.fullmatch(word) and not any(ROOT.glob(word.rstrip("/"))):
                yield text.count("\n", 0, found.start()) + 1, f"`{word}` is not there"


def pages():
    yield from sorted(ROOT.glob("*.md"))
    for tree in TREES:
        yield from sorted((ROOT / tree).rglob("*.md"))


def main() -> None:
    wrong, links = [], 0
    for page in pages():
        text = page.read_text(encoding="utf-8")
        links += len(LINK.findall(text))
        for line, what in [*broken_links(page, text), *moved_paths(text)]:
            wrong.append(f"{page.relative_to(ROOT)}:{line}: {what}")
    print("\n".join(wrong) if wrong else f"{links} links lead somewhere")
    sys.exit(1 if wrong or not links else 0)


main()
