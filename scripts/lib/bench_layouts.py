"""The same code in several layouts, and from several compilers, beside each other: `scripts/bench --layouts`.

Where a compiler puts the code decides over a round trip of 0.1 µs. Each library is measured with the same
programs, all of them and the bare ring (for connections: kernel TCP) at the same time, in turn; the figure
that counts is the worst one's."""

import argparse
import glob
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile

from procs import Processes, RunError, loopback_up, say

WINDOW = 0.01  # seconds that one program measures before it is the next one's turn
CASES = {
    # key: title, program and words, the bare ring's words (None: the same on kernel sockets), lower is
    # better, unit, scale of what the program says
    "rtt": ("round trip 8 B", ["pingpong", "--size", "8"], ["rawring", "--size", "8"], True, "ns", 1),
    "stream": ("stream 8 B", ["stream", "--size", "8"], ["rawring", "--what", "stream", "--size", "8"], False, "M/s", 1e-6 / 8),
    "connrate": ("connect + accept + close", ["connrate"], None, False, "M/s", 1e-6),
}


def arguments(words):
    parser = argparse.ArgumentParser(prog="scripts/bench --layouts", description=__doc__)
    parser.add_argument("--build", default=os.environ.get("SD_BUILD", "build"), help="build directory")
    parser.add_argument("--library", action="append", default=[], metavar="FILE", help="a further libsd.so (may be repeated)")
    parser.add_argument("--case", choices=list(CASES), action="append", help="what is measured (may be repeated; all)")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0, help="length of one measurement of one library")
    parser.add_argument("--json", metavar="FILE", help="write the figures to this file")
    return parser.parse_args(words)


def one_round(processes, options, directory, case, libraries):
    """Ratio of each library to the bare ring or kernel TCP (above 1 is worse), by windows, and its figure."""
    _, program, bare, lower, _, _ = CASES[case]
    shared = os.path.join(directory, "turns")
    with open(shared, "wb"):
        pass
    windows = max(2, round(options.seconds / WINDOW))
    running = []
    for place, library in enumerate([None] + libraries):
        words = bare if library is None and bare is not None else program
        command = [os.path.join(options.build, "bench", words[0]), *words[1:], "--seconds", f"{options.seconds:g}",
                   "--windows", str(windows), "--turns", f"{shared}:{place}:{len(libraries) + 1}"]
        env = {"XDG_RUNTIME_DIR": directory}
        if library is not None:
            command.insert(0, os.path.abspath(os.path.join(options.build, "sdrun")))
            env["SD_LIBRARY"] = library
        running.append(processes.start(command, stdout=subprocess.PIPE, env=env, name=f"layout-{place}"))
    texts = []
    try:
        for process in running:
            texts.append(processes.output(process, 60 + 10 * options.seconds * len(running)))
    finally:
        for process in running:
            if process.poll() is None:
                processes.end(process)
    found = [json.loads(text.strip().splitlines()[-1])["windows"] for text in texts]
    result = {}
    for library, figures in zip(libraries, found[1:]):
        ratios = [f / b if lower else b / f for f, b in zip(figures, found[0]) if f and b]
        result[library] = (statistics.median(ratios), statistics.median(figures))
    return result, statistics.median(found[0])


def name_of(library, all_libraries):
    prefix = os.path.commonpath([os.path.dirname(each) for each in all_libraries])
    return os.path.relpath(library, prefix)


def main():
    options = arguments(sys.argv[1:])
    libraries = sorted(glob.glob(os.path.join(os.path.abspath(options.build), "bench", "libsd_layout_*.so")))
    libraries = [os.path.abspath(os.path.join(options.build, "libsd.so"))] + libraries
    libraries += [os.path.abspath(each) for each in options.library]
    missing = [each for each in libraries if not os.path.exists(each)]
    if missing:
        say(f"scripts/bench --layouts: no such library: {', '.join(missing)}")
        return 2
    loopback_up()
    directory = tempfile.mkdtemp(prefix="sd-layouts.")
    report = {}
    try:
        with Processes(directory) as processes:
            for case in options.case or CASES:
                title, _, against, _, unit, scale = CASES[case]
                rounds = []
                for number in range(options.rounds):
                    rounds.append(one_round(processes, options, directory, case, libraries))
                    say(f"{title}: round {number + 1}/{options.rounds}")
                bare = statistics.median(r[1] for r in rounds)
                rows = []
                for library in libraries:
                    ratio = statistics.median(r[0][library][0] for r in rounds)
                    figure = statistics.median(r[0][library][1] for r in rounds)
                    rows.append({"library": name_of(library, libraries), "ratio": ratio, "figure": figure})
                worst = max(rows, key=lambda row: row["ratio"])
                report[case] = {"bare": bare, "rows": rows, "worst": worst}
                whose = "kernel TCP's" if against is None else "the bare ring's"
                print(f"\n{title}: times {whose} ({bare * scale:.3g} {unit}); above 1 is worse")
                for row in rows:
                    mark = "  <- worst" if row is worst else ""
                    print(f"  {row['library']:40} {row['ratio']:5.2f}  {row['figure'] * scale:8.4g} {unit}{mark}")
    except RunError as error:
        say(f"scripts/bench --layouts: {error}")
        return 1
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    if options.json:
        with open(options.json, "w", encoding="utf-8") as f:
            json.dump(report, f, indent=1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
