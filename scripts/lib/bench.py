"""Measures SocksDirect beside kernel TCP and the alternatives. Started by scripts/bench."""

import argparse
import json
import os
import shutil
import statistics
import sys
import tempfile
import time

from bench_cases import GROUPS, all_cases
from procs import Processes, RunError, loopback_up, say, tail
from table import median, nanos, number, ratio, render, spread

UNCLEAR = 1.3  # a range of ratios wider than this, with the bar inside it, allows no conclusion


def arguments():
    parser = argparse.ArgumentParser(prog="scripts/bench", description="Latency, throughput, connection rate, idle "
                                     "cost and pass-through cost, on kernel TCP and under sdrun in turn.")
    parser.add_argument("--quick", action="store_true", help="short runs: a first impression, wide spread")
    parser.add_argument("--rounds", type=int, help="how often everything is measured (5, quick: 3)")
    parser.add_argument("--seconds", type=float, help="length of one measurement (1, quick: 0.4)")
    parser.add_argument("--only", choices=list(GROUPS), action="append", help="one group of cases (may be repeated)")
    parser.add_argument("--case", action="append", help="one case by its key, as in the JSON (may be repeated)")
    parser.add_argument("--json", metavar="FILE", help="also write everything measured to this file")
    parser.add_argument("--markdown", metavar="FILE", help="also write the tables as a page")
    parser.add_argument("--build", default=os.environ.get("SD_BUILD", "build"), help="build directory")
    parser.add_argument("--kernel-only", action="store_true", help="leave sdrun out")
    options = parser.parse_args()
    options.rounds = options.rounds or (3 if options.quick else 5)
    options.seconds = options.seconds or (0.4 if options.quick else 1.0)
    return options


class Bench:
    def __init__(self, options, processes, directory):
        self.options, self.processes = options, processes
        self.env = {"XDG_RUNTIME_DIR": directory}
        self.sdrun = os.path.join(options.build, "sdrun")
        self.cache = {}  # for cases that read two numbers of the same run

    def start_monitor(self):
        if self.options.kernel_only:
            return
        holder = self.processes.start([self.sdrun, "sleep", "1000000"], env=self.env, name="holder")
        time.sleep(0.5)
        if holder.poll() is not None:
            raise RunError(f"sdrun does not work: {tail(holder.log) or holder.returncode}")

    def once(self, words, under_sdrun, seconds, round_number):
        command = [os.path.join(self.options.build, "bench", words[0])]
        command += [self.sdrun if word == "{sdrun}" else word for word in words[1:]]
        if seconds:
            command += ["--seconds", f"{seconds:g}"]
        if under_sdrun:
            command.insert(0, self.sdrun)
        key = tuple(command)
        if not seconds and self.cache.get(key, (None, -1))[1] == round_number:
            return self.cache[key][0]
        text = self.processes.run(command, max(60.0, seconds * 10), env=self.env, name=words[0])
        try:
            result = json.loads(text.strip().splitlines()[-1])
        except (ValueError, IndexError) as error:
            raise RunError(f"{' '.join(command)} printed no result: {text[-300:]!r}") from error
        if not seconds:
            self.cache[key] = (result, round_number)
        return result

    def run_case(self, case):
        rounds = min(self.options.rounds, case.rounds or self.options.rounds)
        variants = {name: v for name, v in case.variants.items()
                    if not self.options.kernel_only or (name != "sd" and not v[1])}
        result = {"key": case.key, "title": case.title, "metric": case.metric, "unit": case.unit, "errors": [],
                  "runs": {name: [] for name in variants}, "details": {name: [] for name in variants}}
        server = None
        if case.server:
            server = self.processes.server([os.path.join(self.options.build, "bench", case.server[0]),
                                            *case.server[1:]], int(case.server[-1]), cpu=0)
        failed = set()
        for round_number in range(rounds):
            say(f"  {case.title}: round {round_number + 1}/{rounds}")
            for name, (words, under_sdrun) in variants.items():
                if name in failed:
                    continue
                try:
                    run = self.once(words, under_sdrun, case.seconds * self.options.seconds,
                                    round_number)
                    result["runs"][name].append(float(run[case.metric]))
                    result["details"][name].append(run)
                except RunError as error:
                    say(f"FAILED {case.title} ({name}): {error}")
                    result["errors"].append({"variant": name, "error": str(error)})
                    failed.add(name)
        if server:
            self.processes.end(server)
        return result


def times_better(case, ours, theirs):
    """How many times as good as theirs, per round, so that what disturbs a round disturbs both."""
    pairs = zip(ours, theirs)
    return [(b / a if case.lower_is_better else a / b) for a, b in pairs if a and b]


def verdict_of(values, factor):
    """From the ratios of the rounds: met, MISSED, or in words why the rounds do not say."""
    inside = min(values) < factor < max(values)
    if inside and max(values) / min(values) > UNCLEAR:
        return "unclear"
    if statistics.median(values) >= factor:
        return "met"
    return "within noise" if inside else "MISSED"


def judge(case, result):
    runs = result["runs"]
    result["median"] = {name: median(values) for name, values in runs.items()}
    result["spread"] = {name: spread(values) for name, values in runs.items()}
    ours = runs.get("sd", [])
    result["asks"] = []
    for ask in case.asks if ours else []:
        if ask.value is not None:
            value = median(ours) - (median(runs.get(ask.over)) if ask.over else 0)
            met = value <= ask.value if case.lower_is_better else value >= ask.value
            verdict, reached = ("met" if met else "MISSED"), value
        else:
            values = times_better(case, ours, runs.get(ask.against, []))
            if not values:
                verdict, reached = "not measured", None
            else:
                reached = statistics.median(values)
                verdict = verdict_of(values, ask.factor)
        result["asks"].append({"asked": ask.text, "goal": ask.goal, "reached": reached, "verdict": verdict,
                               "absolute": ask.value is not None})
    against = times_better(case, ours, runs.get("kernel", []))
    result["times_better"] = statistics.median(against) if against else None


def show(unit, value):
    if value is None:
        return "-"
    if unit == "ns":
        return nanos(value)
    if unit == "B/s":
        return f"{value / 1e9:.2f} GB/s"
    if unit == "1/s":
        return f"{value / 1e6:.2f} M/s" if value >= 1e6 else f"{number(value)} /s"
    if unit == "%":
        return f"{value:.3f} %"
    return f"{number(value)} {unit}".strip()


def tables(results):
    def cell(result, name):
        text = show(result["unit"], result["median"].get(name))
        if any(e["variant"] == name for e in result["errors"]):
            return "failed"
        wide = (result["spread"].get(name) or 0) > 0.25
        return text + (" ~" if wide else "")

    names = ("kernel", "busy", "unix", "pipe", "limit", "sd")
    main = [["case", "kernel TCP", "busy-polling", "AF_UNIX", "pipe", "bare limit", "SocksDirect", "vs kernel"]]
    bars = [["case", "asked", "level", "reached", ""]]
    for result in results:
        main.append([result["title"], *(cell(result, n) for n in names), ratio(result["times_better"])])
        for ask in result["asks"]:
            reached = show(result["unit"], ask["reached"]) if ask["absolute"] else ratio(ask["reached"])
            bars.append([result["title"], ask["asked"], "goal" if ask["goal"] else "must", reached, ask["verdict"]])
    return main, bars


def markdown(rows):
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    lines.insert(1, "|" + "|".join([" --- "] + [" ---: "] * (len(rows[0]) - 1)) + "|")
    return "\n".join(lines)


def machine():
    with open("/proc/cpuinfo", encoding="utf-8") as f:
        model = next((line.split(":", 1)[1].strip() for line in f if line.startswith("model name")), "?")
    return f"{os.cpu_count()} x {model}, Linux {os.uname().release}"


def main():
    options = arguments()
    loopback_up()
    directory = tempfile.mkdtemp(prefix="sd-bench.")
    results, status = [], 0
    try:
        with Processes(directory) as processes:
            bench = Bench(options, processes, directory)
            bench.start_monitor()
            for case in all_cases(options.only):
                if options.case and case.key not in options.case:
                    continue
                result = bench.run_case(case)
                judge(case, result)
                results.append(result)
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
    if not results:
        return status
    main_table, bars = tables(results)
    note = (f"{machine()}. Medians of {options.rounds} rounds of {options.seconds:g} s, all columns in turn; "
            "`~`: the rounds differ by more than a quarter; `unclear`: they differ too much for a conclusion.")
    print("\n" + render(main_table[0], main_table[1:]))
    if len(bars) > 1:
        print("\n" + render(bars[0], bars[1:]))
    print("\n" + note)
    if options.json:
        with open(options.json, "w", encoding="utf-8") as f:
            json.dump({"machine": machine(), "rounds": options.rounds, "seconds": options.seconds, "cases": results},
                      f, indent=1)
    if options.markdown:
        with open(options.markdown, "w", encoding="utf-8") as f:
            f.write("# Performance\n\nWritten by `scripts/bench --markdown`; not to be edited.\n\n" + note + "\n\n" +
                    markdown(main_table) + "\n\n## What is asked\n\n" + markdown(bars) + "\n")
    return status


if __name__ == "__main__":
    sys.exit(main())
