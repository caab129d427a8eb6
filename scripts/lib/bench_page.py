"""The results as tables for the terminal and as docs/performance.md."""

import textwrap

from bench_judge import IMPOSSIBLE, MISSED, MISSING, PASS, WIDE
from bench_model import NOT_SLOWER, VARIANTS
from bench_plot import plots_of
from table import nanos, number, ratio, render

TITLES = {"rtt": "Round trips", "stream": "Streams", "connections": "Connections", "sharing": "Sharing a core or a connection",
          "silence": "Silence", "paced": "Requests at a fixed rate", "pass": "What is not accelerated", "pipeline": "Pipelines",
          "forking": "A process for each connection", "programs": "Real programs"}


def show(unit, value):
    if value is None:
        return "-"
    if unit == "ns":
        return nanos(value)
    if unit == "B/s":
        return f"{value / 1e9:.2f} GB/s"
    if unit == "1/s":
        return f"{value / 1e6:.2f} M/s" if value >= 1e6 else f"{number(value)}/s"
    if unit == "%":
        return f"{value:.3f} %"
    if unit == "B":
        return f"{value / 1024:.1f} KiB" if value >= 1024 else f"{value:.0f} B"
    return number(value)


def cell(result, name):
    if any(e["variant"] == name for e in result["errors"]):
        return "failed"
    value = result["median"].get(name)
    if value is None:
        return "-"
    width = result["spread"].get(name)
    return show(result["unit"], value) + (f" ±{width * 100:.0f} %" if width is not None else "")


def groups_of(results):
    found = {}
    for result in results:
        found.setdefault(result["group"], []).append(result)
    return found


def group_table(results):
    names = [n for n in VARIANTS if any(n in r["median"] for r in results)]
    # Comparisons with ourselves in another setting (one connection, few open) have no column: the bars tell.
    rows = [["case", *(VARIANTS[n] for n in names), "times better than kernel TCP"]]
    for result in results:
        better = ratio(result["times_better"])
        rows.append([result["title"], *(cell(result, n) for n in names), better])
    return rows


def percentile_table(results):
    rows = [["case", "variant", "median", "p99", "p99.9"]]
    for result in results:
        for name in VARIANTS:
            runs = [run for run in result["details"].get(name, []) if run.get("p999_ns")]
            if runs:
                rows.append([result["title"], VARIANTS[name],
                             *(nanos(sorted(run[k] for run in runs)[len(runs) // 2]) for k in ("p50_ns", "p99_ns", "p999_ns"))])
    return rows


def bar_table(results, with_not_slower=True):
    rows = [["case", "asked", "reached", "", "limit of the machine, or why"]]
    for result in results:
        for bar in result["bars"]:
            if bar["text"] == NOT_SLOWER and not with_not_slower and bar["verdict"] == PASS:
                continue
            reached = show(result["unit"], bar["reached"]) if bar["absolute"] else \
                ratio(1 / bar["reached"] if bar["inverse"] and bar["reached"] else bar["reached"])
            why = bar["why"] or (f"bare limit {ratio(bar['limit'])}" if bar["limit"] else "")
            rows.append([result["title"], bar["text"], reached, bar["verdict"], why])
    return rows


def counts(results):
    verdicts = [bar["verdict"] for result in results for bar in result["bars"]]
    return {v: verdicts.count(v) for v in (PASS, MISSED, IMPOSSIBLE, WIDE, MISSING)}


def summary(results):
    return ", ".join(f"{count} {verdict}" for verdict, count in counts(results).items() if count)


def note(run):
    rounds = sorted({len(v) for r in run["cases"] for v in r["runs"].values() if v})
    return (f"{run['machine']}. Measured {run['date']}, revision {run['revision']}. Medians of up to {rounds[-1] if rounds else 0} "
            f"rounds of about {run['seconds']:g} s, all variants of a case in turn in each round, both ends pinned to a core each unless "
            "the case says otherwise. ± is half the width of the rounds, without the two extremes where there are five.")


def print_tables(run):
    for group, results in groups_of(run["cases"]).items():
        rows = group_table(results)
        print(f"\n{TITLES.get(group, group)}\n" + render(rows[0], rows[1:]))
    rows = [[*row[:-1], row[-1][:90]] for row in bar_table(run["cases"], with_not_slower=False)]
    print("\nWhat is asked\n" + render(rows[0], rows[1:]))
    print(f"\n{summary(run['cases'])}\n\n{note(run)}")


def markdown(rows):
    lines = ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
    lines.insert(1, "|" + "|".join([" --- "] + [" ---: "] * (len(rows[0]) - 1)) + "|")
    return "\n".join(lines)


def wrapped(part):
    """Prose ends at column 110 like that of every page; tables, headings and pictures stay as they are."""
    if part.startswith(("|", "#", "![")):
        return part
    return textwrap.fill(part, 110, subsequent_indent="  " if part.startswith("- ") else "", break_long_words=False,
                         break_on_hyphens=False)


def page(run, plot_directory):
    """The whole of docs/performance.md. What people wrote about it is a page of its own, performance-notes.md."""
    parts = ["# Measurements", "Written by `scripts/bench --markdown` from what one run measured; not to be edited. "
             "How it is measured, what was tried and what was decided: [performance-notes.md](performance-notes.md).",
             note(run), "## What is asked",
             f"{summary(run['cases'])}. *Cannot be shown here* means that a bare ring without any of our code "
             "around it misses the bar on this machine too; the figure beside it is what that reaches.",
             markdown(bar_table(run["cases"], with_not_slower=False)),
             f"“{NOT_SLOWER}” is asked of every case; only those are listed that do not pass."]
    for group, results in groups_of(run["cases"]).items():
        parts += [f"## {TITLES.get(group, group)}", markdown(group_table(results))]
        parts += [f"- *{r['title']}*: {r['note']}" for r in results if r.get("note")]
        if group in ("rtt", "silence", "sharing"):
            rows = percentile_table(results)
            if len(rows) > 1:
                parts += ["Percentiles:", markdown(rows)]
        if plot_directory:
            parts += [f"![{title}]({plot_directory}/{name}.svg)" for name, title in plots_of(group, results)]
    return "\n\n".join(wrapped(part) for part in parts) + "\n"
