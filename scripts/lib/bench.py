"""Measures SocksDirect beside kernel TCP and the alternatives. Started by scripts/bench."""

import argparse
import datetime
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time

import bench_front
from bench_cases import GROUPS, all_cases
from bench_judge import judge
from bench_page import page, print_tables, show
from bench_plot import draw
from procs import Processes, RunError, loopback_up, say, tail

WINDOW = 0.02  # seconds that one of several programs measures before it is the next one's turn
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def arguments():
    parser = argparse.ArgumentParser(
        prog="scripts/bench", description="Latency, throughput, connections, idle cost, pass-through cost and real programs: "
        "kernel TCP, its alternatives and SocksDirect in turn. Says of each bar: pass, missed, or why this machine cannot show it.")
    parser.add_argument("--quick", action="store_true", help="a first impression in under 5 minutes, with a wide spread")
    parser.add_argument("--rounds", type=int, help="how often everything is measured (5, quick: 2)")
    parser.add_argument("--seconds", type=float, help="length of one measurement (1, quick: 0.25)")
    parser.add_argument("--only", choices=list(GROUPS), action="append", help="one group of cases (may be repeated)")
    parser.add_argument("--case", action="append", help="one case by its key (may be repeated)")
    parser.add_argument("--list", action="store_true", help="print groups, keys and titles of the cases, and end")
    parser.add_argument("--json", metavar="FILE", help="write everything measured to this file")
    parser.add_argument("--merge", action="store_true", help="keep what the JSON file has of other cases")
    parser.add_argument("--report-only", action="store_true", help="measure nothing: tables and page from the JSON file")
    parser.add_argument("--markdown", metavar="FILE", help="write the page, with plots in plots/ beside it; docs/performance.md also the table in README.md")
    parser.add_argument("--build", default=os.environ.get("SD_BUILD", "build"), help="build directory")
    parser.add_argument("--kernel-only", action="store_true", help="leave sdrun out")
    options = parser.parse_args()
    options.rounds = options.rounds or (2 if options.quick else 5)
    options.seconds = options.seconds or (0.25 if options.quick else 1.0)
    if (options.merge or options.report_only) and not options.json:
        parser.error("--merge and --report-only need --json")
    return options


class Bench:
    """What the cases of a run have in common."""

    def __init__(self, options, processes, directory):
        self.options, self.processes, self.directory = options, processes, directory
        # Away from a monitor of the machine or of the user: this run answers for itself.
        self.env = {"XDG_RUNTIME_DIR": directory}
        self.sdrun = os.path.abspath(os.path.join(options.build, "sdrun"))
        self.cache = {}  # for cases that read two numbers of the same run
        self.programs = {}

    def start_monitor(self):
        """A sleeping client keeps the private monitor of this run alive, and off the measured cores' affinity."""
        if self.options.kernel_only:
            return
        holder = self.processes.start([self.sdrun, "sleep", "1000000"], env=self.env, name="holder")
        time.sleep(0.5)
        if holder.poll() is not None:
            raise RunError(f"sdrun does not work: {tail(holder.log) or holder.returncode}")


def figures(command, text):
    """The line of JSON that a program of build/bench prints last."""
    try:
        return json.loads(text.strip().splitlines()[-1])
    except (ValueError, IndexError) as error:
        raise RunError(f"{' '.join(command)} printed no result: {text[-300:]!r}") from error


class CommandRunner:
    """A case whose variants are commands of build/bench that print one line of JSON."""

    def __init__(self, bench, case):
        self.bench, self.case, self.server = bench, case, None
        self.in_turn = {}  # (variant, round) -> result
        if case.server:
            self.server = bench.processes.server([self.path(case.server[0]), *case.server[1:]], int(case.server[-1]), cpu=0)

    def path(self, name):
        return os.path.join(self.bench.options.build, "bench", name)

    def command(self, name, seconds):
        variant = self.case.variants[name]
        command = [self.path(variant.words[0])]
        command += [self.bench.sdrun if word == "{sdrun}" else word for word in variant.words[1:]]
        if seconds:
            command += ["--seconds", f"{seconds:g}"]
        if self.bench.options.quick:
            command = ["4" if a == "10" and b == "--seconds" else a for a, b in zip(command, [""] + command)]
        if variant.under_sdrun:
            command.insert(0, self.bench.sdrun)
        return command

    def once(self, name, seconds, round_number):
        if name in self.case.turns:
            if (name, round_number) not in self.in_turn:
                self.measure_in_turn(seconds, round_number)
            return self.in_turn[name, round_number]
        command = self.command(name, seconds)
        key = (*command, round_number)
        if not seconds and key in self.bench.cache:
            return self.bench.cache[key]
        text = self.bench.processes.run(command, max(60.0, seconds * 10), env=self.bench.env, name=self.case.variants[name].words[0])
        result = figures(command, text)
        if not seconds:
            self.bench.cache[key] = result
        return result

    def measure_in_turn(self, seconds, round_number):
        """All variants of `turns` at the same time: the n-th windows of all are measured one right after the other."""
        names = [n for n in self.case.turns if not (self.bench.options.kernel_only and self.case.variants[n].under_sdrun)]
        shared = os.path.join(self.bench.directory, f"turns-{self.case.key}-{round_number}")
        open(shared, "wb").close()
        windows = max(1, round(seconds / WINDOW))
        running = []
        for place, name in enumerate(names):
            command = self.command(name, seconds) + ["--windows", str(windows), "--turns", f"{shared}:{place}:{len(names)}"]
            running.append((name, self.bench.processes.start(command, stdout=subprocess.PIPE, env=self.bench.env, name=name)))
        try:
            for name, process in running:
                text = self.bench.processes.output(process, max(60.0, seconds * 10 * len(names)))
                self.in_turn[name, round_number] = figures(process.args, text)
        finally:
            for _, process in running:
                if process.poll() is None:  # one has failed; the others wait for its turn
                    self.bench.processes.end(process)

    def close(self):
        if self.server:
            self.bench.processes.end(self.server)


def run_case(bench, case):
    options = bench.options
    rounds = min(options.rounds, case.rounds or options.rounds)
    names = [n for n, v in case.variants.items()
             if not options.kernel_only or (n != "sd" and not getattr(v, "under_sdrun", False))]
    result = {"key": case.key, "group": case.group, "title": case.title, "metric": case.metric, "unit": case.unit,
              "note": case.note, "turns": list(case.turns), "errors": [], "runs": {n: [] for n in names}, "details": {n: [] for n in names}}
    try:
        runner = (case.runner or CommandRunner)(bench, case)
    except (RunError, OSError) as error:
        say(f"NOT MEASURED {case.title}: {error}")
        result["errors"].append({"variant": "sd", "error": str(error)})
        return result
    failed = set()
    try:
        for round_number in range(rounds):
            for name in names:
                if name in failed:
                    continue
                try:
                    run = runner.once(name, case.seconds * options.seconds, round_number)
                    result["runs"][name].append(float(run[case.metric]))
                    result["details"][name].append(run)
                except RunError as error:
                    say(f"FAILED {case.title} ({name}): {error}")
                    result["errors"].append({"variant": name, "error": str(error)})
                    failed.add(name)
            last = ", ".join(f"{n} {show(case.unit, result['runs'][n][-1])}" for n in names if len(result["runs"][n]) > round_number)
            say(f"[{time.monotonic() - bench.started:4.0f} s] {case.title}, round {round_number + 1}/{rounds}: {last}")
    finally:
        runner.close()
    return result


def machine():
    with open("/proc/cpuinfo", encoding="utf-8") as f:
        model = next((line.split(":", 1)[1].strip() for line in f if line.startswith("model name")), "?")
    with open("/proc/meminfo", encoding="ascii") as f:
        memory = int(f.readline().split()[1]) >> 20
    hypervisor = " of a virtual machine" if "hypervisor" in open("/proc/cpuinfo", encoding="utf-8").read() else ""
    return f"{os.cpu_count()} processors{hypervisor} ({model}), {memory} GiB, Linux {os.uname().release}"


def revision():
    try:
        return subprocess.run(["git", "-C", ROOT, "rev-parse", "--short", "HEAD"], capture_output=True, text=True,
                              check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def measure(options, run):
    """Adds the results of the chosen cases to `run`. The exit status."""
    loopback_up()
    directory = tempfile.mkdtemp(prefix="sd-bench.")
    order = {case.key: number for number, case in enumerate(all_cases(options.build))}
    status = 0
    try:
        with Processes(directory) as processes:
            bench = Bench(options, processes, directory)
            bench.started = time.monotonic()
            bench.start_monitor()
            for case in all_cases(options.build, options.only):
                if options.case and case.key not in options.case:
                    continue
                result = run_case(bench, case)
                judge(case, result)
                run["cases"] = [r for r in run["cases"] if r["key"] != case.key] + [result]
                for bar in result["bars"]:
                    if bar["verdict"] != "pass":
                        say(f"    {bar['text']}: {bar['verdict']} ({bar['reached'] or 0:.4g}) {bar['why']}")
                if result["errors"]:
                    status = 1
    except KeyboardInterrupt:
        say("interrupted; every process of the run has been ended")
        status = 130
    except RunError as error:
        say(f"scripts/bench: {error}")
        status = 1
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    run["cases"].sort(key=lambda r: order.get(r["key"], len(order)))
    return status


def main():
    options = arguments()
    if options.list:
        for case in all_cases(options.build):
            print(f"{case.group:12} {case.key:20} {case.title}")
        return 0
    run = {"machine": machine(), "date": datetime.date.today().isoformat(), "revision": revision(), "rounds": options.rounds,
           "seconds": options.seconds, "cases": []}
    if (options.merge or options.report_only) and os.path.exists(options.json):
        with open(options.json, encoding="utf-8") as f:
            before = json.load(f)
        run = before if options.report_only else {**run, "cases": before["cases"]}
    status = 0 if options.report_only else measure(options, run)
    if options.report_only:  # what is asked may have changed since
        cases = {case.key: case for case in all_cases(options.build)}
        for result in run["cases"]:
            if result["key"] in cases:
                judge(cases[result["key"]], result)
    if not run["cases"]:
        say("no such case: see --list")
        return status or 2
    print_tables(run)
    if options.json and not options.report_only:
        with open(options.json, "w", encoding="utf-8") as f:
            json.dump(run, f, indent=1)
    if options.markdown:
        where = os.path.dirname(os.path.abspath(options.markdown))
        draw(run["cases"], os.path.join(where, "plots"))
        with open(options.markdown, "w", encoding="utf-8") as f:
            f.write(page(run, "plots"))
        if os.path.realpath(options.markdown) == str(bench_front.PAGE):
            bench_front.write()
    return status


if __name__ == "__main__":
    sys.exit(main())
