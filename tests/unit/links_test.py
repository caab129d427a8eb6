#!/usr/bin/env python3
"""Every relative link in every Markdown file leads somewhere: to a file, and to a heading of it where it names one.

Paths in backticks that begin at the top of the source tree have to exist, too, so that a page does not send its
reader to a file that has been moved; and so do the functions and members that the pages about the design name.
Run without arguments from anywhere. Prints what leads nowhere.
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


def words_of_the_code() -> set[str]:
    files = [path for tree in ("libsd", "monitor") for path in (ROOT / tree).rglob("*.[chd]*") if path.is_file()]
    return {word for path in files for word in re.findall(r"\w+", path.read_text(encoding="utf-8"))}


def former_names(text: str, words: set[str]):
    for found in CODE.finditer(FENCE.sub(blank, text)):
        name = re.fullmatch(r"(?:\w+::)*(\w+)(?:\(\))?", found.group(2))
        if name and found.group(2) != name.group(1) and name.group(1) not in words:
            yield text.count("\n", 0, found.start()) + 1, f"`{found.group(2)}` is not in the code"


def pages():
    yield from sorted(ROOT.glob("*.md"))
    for tree in TREES:
        yield from sorted((ROOT / tree).rglob("*.md"))


def main() -> None:
    wrong, links, words = [], 0, words_of_the_code()
    for page in pages():
        text = page.read_text(encoding="utf-8")
        links += len(LINK.findall(text))
        names = former_names(text, words) if page.parent == ROOT / "docs" / "design" else ()
        for line, what in [*broken_links(page, text), *moved_paths(text), *names]:
            wrong.append(f"{page.relative_to(ROOT)}:{line}: {what}")
    print("\n".join(wrong) if wrong else f"{links} links lead somewhere")
    sys.exit(1 if wrong or not links else 0)


main()
