"""Plots of the results, drawn by gnuplot as SVG."""

import os
import re
import subprocess

from bench_model import VARIANTS
from procs import RunError

COLOURS = {"kernel": "#888888", "busy": "#b8860b", "sockmap": "#9467bd", "unix": "#1f77b4", "pipe": "#2ca02c",
           "limit": "#000000", "memcpy": "#bbbbbb", "sd": "#d62728"}
# name: (group, pattern of the case keys with the number on the x axis, title, x label, y label, scale of y,
# log axes)
LINES = {
    "round-trip": ("rtt", r"rtt-(\d+)$", "Round trip of one message", "bytes", "µs", 1e-3, "xy"),
    "stream": ("stream", r"stream-(\d+)$", "One-way stream", "bytes of a message", "GB/s", 1e-9, "xy"),
    "epoll": ("connections", r"epoll-(\d+)$", "64-byte requests over many connections in one epoll", "connections",
              "µs per request", 1e-3, "xy"),
    "one-core": ("sharing", r"onecore-(\d+)$", "Round trip, all processes on one core", "processes", "µs", 1e-3, "y"),
    "pipeline": ("pipeline", r"pipeline-(\d+)$", "64-byte packets through a pipeline", "stages", "million packets/s", 1e-6, "y"),
}
BARS = {"programs": ("programs", "Real programs: times better than kernel TCP")}


def plots_of(group, results):
    """(file name without extension, title) of the plots that a group of results gives."""
    for name, (of, pattern, title, *_) in LINES.items():
        if of == group and sum(bool(re.match(pattern, r["key"])) for r in results) > 1:
            yield name, title
    for name, (of, title) in BARS.items():
        if of == group and any(r["times_better"] for r in results):
            yield name, title


def line_plot(name, results):
    _, pattern, title, x_label, y_label, scale, log = LINES[name]
    series = {}
    for result in results:
        match = re.match(pattern, result["key"])
        for variant in VARIANTS if match else ():
            values = [v for v in result["runs"].get(variant, []) if v]
            if values:
                x = int(match.group(1))
                # Streams of small messages are counted in messages: the plot shows bytes.
                factor = x if name == "stream" and result["metric"] == "messages_per_s" else 1
                series.setdefault(variant, []).append((x, result["median"][variant] * scale * factor,
                                                       min(values) * scale * factor, max(values) * scale * factor))
    blocks = "".join(f"$d_{v} << EOD\n" + "".join("%g %g %g %g\n" % row for row in sorted(rows)) + "EOD\n"
                     for v, rows in series.items())
    drawn = ", ".join(f"$d_{v} using 1:2:3:4 with yerrorlines lw {3 if v == 'sd' else 1.5} pt 7 ps 0.4 lc rgb '{COLOURS[v]}' "
                      f"title '{VARIANTS[v]}'" for v in series)
    return (f"set title '{title}'\nset xlabel '{x_label}'\nset ylabel '{y_label}'\nset logscale {log}\nset grid\n"
            f"set key outside right top\n{blocks}plot {drawn}\n")


def bar_plot(name, results):
    rows = [(r["title"], r["times_better"]) for r in results if r["times_better"]]
    data = "".join('"%s" %g\n' % row for row in rows)
    return (f"set title '{BARS[name][1]}'\nset style fill solid 0.8\nset boxwidth 0.6\nset grid y\nset logscale y\n"
            f"set yrange [0.8:*]\nset xtics rotate by -35 font ',9'\nset key off\n$d << EOD\n{data}EOD\n"
            f"plot $d using 0:2:xtic(1) with boxes lc rgb '{COLOURS['sd']}', $d using 0:2:(sprintf('%.1f', $2)) with labels offset 0,0.7\n")


def draw(results, directory):
    """Writes every plot there is data for. The directory is made."""
    os.makedirs(directory, exist_ok=True)
    groups = {}
    for result in results:
        groups.setdefault(result["group"], []).append(result)
    for group, members in groups.items():
        for name, _ in plots_of(group, members):
            script = ("set encoding utf8\nset terminal svg size 860,460 font 'sans-serif,12' background '#ffffff'\n"
                      f"set output '{os.path.join(directory, name)}.svg'\n")
            script += line_plot(name, members) if name in LINES else bar_plot(name, members)
            done = subprocess.run(["gnuplot"], input=script, text=True, capture_output=True, check=False)
            if done.returncode != 0:
                raise RunError(f"gnuplot: {done.stderr.strip()[-300:]}")
