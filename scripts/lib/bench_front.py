#!/usr/bin/env python3
"""The table of measurements in README.md: some rows of docs/performance.md, so that both have one source.

scripts/bench --markdown docs/performance.md writes both. Run by hand it writes the table from the page that is
there; with --check it only says whether the table is current.
"""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGE, FRONT = ROOT / "docs" / "performance.md", ROOT / "README.md"
BEGIN, END = "<!-- measured: scripts/lib/bench_front.py takes it from docs/performance.md -->", "<!-- measured: end -->"
COLUMNS = ("kernel TCP", "SocksDirect", "times better than kernel TCP")
ROWS = ("round trip 8 B", "stream 8 B", "stream 64 KiB", "connect + accept + close",
        "64 B requests, 1000 connections in one epoll", "round trip 8 B, 8 processes on one core",
        "64 B packets through 4 stages on 2 cores", "Redis GET, 1 connection, mean", "Redis GET, 50 connections",
        "Nginx 100 B, keep-alive", "Nginx 100 B, one connection per request", "Nginx 1 MiB, keep-alive",
        "memcached, 1 client, mean", "memcached, 50 clients", "PostgreSQL read-only, 1 client",
        "pass-through: open, dup, close", "start and end of /bin/true",
        "fork with 10,000 connections, up to the child's end")


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split(" | ")]


def rows_of(page: str) -> dict[str, list[str]]:
    """What the tables of the page that have these columns say, without the width of the rounds."""
    found, at = {}, None
    for line in page.splitlines():
        if not line.startswith("|"):
            at = None
        elif at is None:
            header = cells(line)
            at = [header.index(name) for name in COLUMNS] if set(COLUMNS) <= set(header) else []
        elif at and not line.startswith("| ---"):
            row = cells(line)
            found[row[0]] = [re.sub(r" ±.*", "", row[i]) for i in at]
    return found


def table(page: str) -> str:
    rows = rows_of(page)
    when = re.search(r"Measured (\S+), revision (\w+)\.", " ".join(page.split()))
    lines = ["| case | kernel TCP | SocksDirect | better by |", "| --- | ---: | ---: | ---: |"]
    lines += [f"| {title} | {' | '.join(rows[title])} |" for title in ROWS if title in rows]
    if when:
        lines += ["", f"Revision {when.group(2)}, {when.group(1)}."]
    return "\n".join(lines)


def updated(front: str, page: str) -> str:
    head, _, rest = front.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not end:
        sys.exit(f"{FRONT.name} has no place for the table: {BEGIN}")
    return f"{head}{BEGIN}\n{table(page)}\n{END}{tail}"


def write() -> None:
    FRONT.write_text(updated(FRONT.read_text(encoding="utf-8"), PAGE.read_text(encoding="utf-8")), encoding="utf-8")


def check() -> None:
    page, front = PAGE.read_text(encoding="utf-8"), FRONT.read_text(encoding="utf-8")
    missing = [title for title in ROWS if title not in rows_of(page)]
    if missing:
        sys.exit(f"docs/performance.md has no row: {', '.join(missing)}")
    if updated(front, page) != front:
        sys.exit("README.md does not say what docs/performance.md says: run scripts/lib/bench_front.py")
    print(f"{len(ROWS)} rows are those of docs/performance.md")


if __name__ == "__main__":
    check() if sys.argv[1:] == ["--check"] else write()
