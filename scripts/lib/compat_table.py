"""Judges the rows of a compatibility run, prints them, and writes the tables in tests/compat/NOTES.md and docs/compatibility.md."""

import os

BEGIN = "<!-- compat: written by scripts/compat --table -->"
END = "<!-- compat: end -->"


def count(result, verdict):
    return sum(v == verdict for v in result["checks"].values())


def tally(result):
    """`41/0/3`: passed, failed, skipped."""
    if result is None:
        return "-"
    return "/".join(f"{count(result, v):,}" for v in ("passed", "failed", "skipped"))


def worse(row):
    """Checks that pass on kernel sockets and not under sdrun, with their verdicts there."""
    kernel, ours = row.get("kernel"), row.get("sd")
    if not kernel or not ours:
        return []
    # What never passes is known to be missing where the baseline has it; a check only of ours is judged by
    # itself.
    lost = [n for n, v in kernel["checks"].items() if v == "passed" and ours["checks"].get(n) != "passed"]
    return lost + [n for n, v in ours["checks"].items() if v == "failed" and n not in kernel["checks"]]


def better(row):
    kernel, ours = row.get("kernel"), row.get("sd")
    if not kernel or not ours:
        return []
    return [n for n, v in ours["checks"].items() if v == "passed" and kernel["checks"].get(n) == "failed"]


def accelerated(row):
    """(accelerated, all) of the connections that servers of the run accepted."""
    status = (row.get("sd") or {}).get("status")
    if not status:
        return None
    plain = status["causes"].get("plain_client", 0)
    if status["accepts"] + plain == 0:
        return (status["connects"], status["connects"])
    return (status["accepts"], status["accepts"] + plain)


def problem(row):
    """Why the row is not good, or an empty string."""
    if row.get("skipped"):
        return ""
    for mode in ("kernel", "sd"):
        if mode in row and not count(row[mode], "passed"):
            return "nothing passed" + (" without sdrun either" if mode == "kernel" else "")
    lost = worse(row)
    if lost:
        return "fails under sdrun: " + ", ".join(lost[:20]) + (f" and {len(lost) - 20} more" if len(lost) > 20 else "")
    missing = [n for n, v in row.get("kernel", {"checks": {}})["checks"].items() if v == "failed"]
    if missing and not row["suite"]:  # a workload of ours has to work
        return "fails without sdrun as well: " + ", ".join(missing[:20])
    share = accelerated(row)
    if share and not share[0] and not row["falls_back"]:
        return "no connection was accelerated"
    return ""


def share_text(row):
    share = accelerated(row)
    if not share:
        return "-"
    if not share[1]:
        return "none made"
    part = 100 * share[0] / share[1]
    return f"{part:.0f} % of {share[1]:,}" if part in (0, 100) or 1 <= part <= 99 else f"{part:.1f} % of {share[1]:,}"


def causes_text(row):
    status = (row.get("sd") or {}).get("status")
    return ", ".join(f"{c:,} {name}" for name, c in sorted((status or {}).get("causes", {}).items())) or "-"


def print_results(rows, results):
    """The table for people; for scripts/test also a line per row. The number of bad rows."""
    from table import render
    bad = 0
    lines, cells = [], []
    for row in rows:
        reason = problem(row)
        verdict = "skipped" if row.get("skipped") else "failed" if reason else "passed"
        bad += bool(reason)
        lines.append(f"{verdict} {row['title']}: {reason or row.get('skipped') or row['workload']}")
        kernel, ours = row.get("kernel"), row.get("sd")
        times = " / ".join(f"{r['seconds']:.1f}" for r in (kernel, ours) if r)
        cells.append([row["title"], row["version"], tally(kernel), tally(ours), times, share_text(row),
                      causes_text(row), verdict])
    print(render(["program", "version", "kernel", "sdrun", "seconds", "accelerated", "left to the kernel", ""], cells))
    for line in lines:
        if not line.startswith("passed"):
            print(line)
    for row in rows:
        if better(row):
            print(f"passes under sdrun only: {row['title']}: {', '.join(better(row)[:20])}")
    if results:
        os.makedirs(results, exist_ok=True)
        with open(os.path.join(results, "testlog.json"), "w", encoding="utf-8") as f:
            f.write('{"name": "compat", "result": "OK"}\n')
        with open(os.path.join(results, "compat.results"), "w", encoding="utf-8") as f:
            f.write("".join(line + "\n" for line in lines))
    return bad


def table_row(row):
    kernel, ours = row.get("kernel"), row.get("sd")
    note = problem(row) or row.get("skipped") or row["note"]
    return "| " + " | ".join([
        f"{row['title']} {row['version']}", row["workload"], tally(kernel), tally(ours),
        f"{ours['seconds'] / kernel['seconds']:.2f}" if kernel and ours and kernel["seconds"] else "-",
        share_text(row), causes_text(row), note]) + " |"


def between_marks(path):
    """What stands before the table of a page, the table, and what stands behind it."""
    with open(path, encoding="utf-8") as f:
        head, _, rest = f.read().partition(BEGIN)
    table, _, tail = rest.partition(END)
    return head, table, tail


def write_table(path, lines):
    head, _, tail = between_marks(path)
    with open(path, "w", encoding="utf-8") as f:
        f.write(head + BEGIN + "\n" + "\n".join(lines) + "\n" + END + tail)


def short_row(line):
    """What a user asks of a row: does it work, and is it accelerated?"""
    title, _, kernel, sdrun, _, share = [cell.strip() for cell in line.split("|")[1:7]]
    return f"| {title} | {kernel.split('/')[0]} | {sdrun.split('/')[0]} | {share} |"


def update_documents(notes, page, rows):
    """Puts the rows into the table of the notes, and the short ones into the page; rows of programs that did not run
    this time stay as they are."""
    kept = {}
    for line in between_marks(notes)[1].splitlines():
        if line.startswith("| ") and not line.startswith(("| program", "| ---")):
            kept[line.split("|")[1].strip().rsplit(" ", 1)[0]] = line
    for row in rows:
        if not row.get("skipped") and "kernel" in row and "sd" in row:
            kept[row["title"]] = table_row(row)
    lines = [kept[title] for title in sorted(kept, key=str.lower)]
    write_table(notes, ["| program | what runs | kernel | sdrun | time | accelerated | left to the kernel | remark |",
                        "| --- | --- | ---: | ---: | ---: | ---: | --- | --- |", *lines])
    write_table(page, ["| program | passed on kernel sockets | passed under sdrun | connections accelerated |",
                       "| --- | ---: | ---: | ---: |", *map(short_row, lines)])
