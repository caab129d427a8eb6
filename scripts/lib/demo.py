"""Real programs over kernel TCP and over shared memory, side by side. Started by scripts/demo."""

import argparse
import json
import os
import shutil
import signal
import sys
import tempfile
import textwrap
import time

from demo_cases import PROGRAMS
from procs import Processes, RunError, descendants, describe_stuck, loopback_up, tail
from progress import Progress, columns
from syscalls import Counter
from table import fit, median, micros, number, ratio, render, spread

MODES = ("kernel", "sd")
NAMES = {"kernel": "kernel TCP", "sd": "sdrun"}
SERVER_CPU, CLIENT_CPU = 0, 1


def arguments():
    parser = argparse.ArgumentParser(prog="scripts/demo", description="Runs Redis, Nginx and memcached, unmodified, "
                                     "on kernel TCP and under sdrun, and compares them: each case once, which gives a "
                                     "first impression in two minutes. For figures: --rounds 5.")
    parser.add_argument("--rounds", type=int, default=1, help="how often every case is measured in each mode (1)")
    parser.add_argument("--seconds", type=float, help="length of one measurement (2; 4 with several rounds)")
    parser.add_argument("--only", choices=sorted(PROGRAMS), action="append", help="one program (may be repeated)")
    parser.add_argument("--case", action="append", help="one case by its key, as in the JSON (may be repeated)")
    parser.add_argument("--json", metavar="FILE", help="also write everything measured to this file")
    parser.add_argument("--build", default=os.environ.get("SD_BUILD", "build"), help="build directory")
    parser.add_argument("--kernel-only", action="store_true", help="leave sdrun out")
    parser.add_argument("--syscall-names", action="store_true", help="count system calls by name (strace)")
    parser.add_argument("--sdstat", action="store_true", help="also print what sdstat said in mid-run")
    parser.add_argument("--keep-logs", action="store_true", help="keep the logs of all processes")
    options = parser.parse_args()
    if options.rounds < 1:
        parser.error("--rounds must be at least 1")
    options.seconds = options.seconds or (2.0 if options.rounds == 1 else 4.0)
    return options


class Demo:
    def __init__(self, options, processes, directory, progress):
        self.options, self.processes, self.directory = options, processes, directory
        self.progress = progress
        self.modes = MODES[:1] if options.kernel_only else MODES
        self.sdrun = os.path.join(options.build, "sdrun")
        # Away from a monitor of the machine or of the user: this run answers for itself.
        self.env = {"XDG_RUNTIME_DIR": directory}
        self.counter = Counter(processes, directory)
        self.failures = 0
        self.holder = None

    def prefix(self, mode):
        return [self.sdrun] if mode == "sd" else []

    def start_monitor(self):
        """A sleeping client keeps the private monitor of this run alive, and off the measured cores' affinity."""
        if "sd" in self.modes:
            self.holder = self.processes.start([self.sdrun, "sleep", "1000000"], env=self.env, name="holder")
            time.sleep(0.5)
            if self.holder.poll() is not None:
                raise RunError(f"sdrun does not work: {tail(self.holder.log) or self.holder.returncode}")

    def sdstat(self, *words):
        try:
            return self.processes.run([os.path.join(self.options.build, "sdstat"), *words], 10, env=self.env,
                                      name="sdstat")
        except RunError as error:
            return f"sdstat: {error}"

    def load(self, mode, case, port, seconds, estimate, meanwhile=None):
        command = case.load(port, seconds, estimate)
        text = self.processes.run(self.prefix(mode) + command, seconds * 6 + 30, meanwhile, cpu=CLIENT_CPU,
                                  env=self.env, name=f"{mode}-{case.key}")
        result = case.read(text)
        if case.counted:
            result["requests"] = case.counted(command)
        return result

    def run_program(self, program, cases, port):
        results = []
        servers, ports = {}, {}
        try:
            for mode in self.modes:
                ports[mode] = port + MODES.index(mode)
                servers[mode] = self.start_server(program, mode, ports[mode])
            for case in cases:
                results.append(self.run_case(program, case, servers, ports))
        finally:
            for server in servers.values():
                self.processes.end(server, program.stop_signal)
        return results

    def start_server(self, program, mode, port):
        return self.processes.server(self.prefix(mode) + program.server(port), port, cpu=SERVER_CPU, env=self.env,
                                     name=f"{mode}-{program.name}-server")

    def run_case(self, program, case, servers, ports):
        options = self.options
        runs = {mode: [] for mode in self.modes}
        result = {"key": case.key, "title": case.title, "runs": runs, "errors": []}
        estimates = dict.fromkeys(self.modes)
        self.progress.begin(case.title)
        for round_number in range(options.rounds):
            for mode in self.modes:
                self.progress.step(NAMES[mode] + (f", round {round_number + 1}/{options.rounds}" if options.rounds > 1 else ""))
                self.attempt(program, case, mode, servers, ports, result, lambda m=mode: runs[m].append(
                    self.measure(program, case, m, ports[m], estimates,
                                 result if round_number == 0 and m == "sd" else None)))
        for mode in self.modes:
            self.progress.step(f"{NAMES[mode]}, counting system calls")
            self.attempt(program, case, mode, servers, ports, result,
                         lambda m=mode: self.count(case, m, servers[m], ports[m], estimates[m], result))
        return result

    def attempt(self, program, case, mode, servers, ports, result, step):
        """A step that fails is reported, its server is looked at and started anew, and the run goes on."""
        if len(result["errors"]) >= 2:
            return
        try:
            if servers[mode].poll() is not None:
                raise RunError(f"the server had ended with {servers[mode].returncode}: {tail(servers[mode].log)}")
            step()
        except RunError as error:
            server = servers[mode]
            time.sleep(0.2)
            state = (describe_stuck(server.pid) if server.poll() is None else
                     f"  server ended with {server.returncode}: {tail(server.log, 15)}")
            self.progress.say(f"FAILED {case.title} ({mode}): {error}\n{state}")
            self.failures += 1
            result["errors"].append({"mode": mode, "error": str(error), "server": state})
            self.processes.end(server, signal.SIGKILL)
            servers[mode] = self.start_server(program, mode, ports[mode])

    def measure(self, program, case, mode, port, estimates, stats_into):
        seconds = self.options.seconds
        if program.needs_estimate and estimates[mode] is None:
            rate = self.load(mode, case, port, 0.2, 20000)["rate"]
            estimates[mode] = self.load(mode, case, port, 0.3, rate)["rate"]

        def look():
            time.sleep(seconds * 0.6)
            stats_into["sdstat"] = self.sdstat()
            stats_into["transports"], stats_into["fallbacks"] = transports(self.sdstat("--json"), port)
        return self.load(mode, case, port, seconds, estimates[mode], look if stats_into is not None else None)

    def count(self, case, mode, server, port, estimate, result):
        pids = [server.pid] + descendants(server.pid)
        load, calls, names = self.counter.count(
            pids, lambda: self.load(mode, case, port, 1, (estimate or 40000) * 0.5), self.options.syscall_names)
        result.setdefault("syscalls", {})[mode] = {
            "calls": calls, "requests": load["requests"], "per_request": calls / load["requests"],
            **({"names": names} if names else {})}


def transports(text, port):
    """From `sdstat --json`: connections to the server by transport, and counts of what was left to the kernel."""
    try:
        status = json.loads(text)
        found = {}
        for connection in status["connections"]:
            if connection["server"]["address"].endswith(f":{port}"):
                found[connection["transport"]] = found.get(connection["transport"], 0) + 1
        return found, {cause["name"]: cause["count"] for cause in status["causes"]}
    except (ValueError, KeyError, TypeError) as error:
        return {"sdstat": repr(error)}, {}


def summarise(case, result):
    """Medians, ratios and what was asked for, of one case."""
    for mode, runs in result["runs"].items():
        result[mode] = {key: median([r[key] for r in runs]) for key in ("rate", "mean_us", "p99_us")} if runs else None
        if runs:
            result[mode]["spread"] = spread([r["rate"] for r in runs])
    kernel, sd = result.get("kernel"), result.get("sd")
    if kernel and sd:
        result["ratio_rate"] = sd["rate"] / kernel["rate"]
        result["ratio_mean"] = kernel["mean_us"] / sd["mean_us"] if sd["mean_us"] else None
        what, factor = case.bar or ("rate", 1.0)
        result["bar"] = {"of": what, "factor": factor}
        reached = result["ratio_mean"] if what == "mean_us" else result["ratio_rate"]
        rounds = [b["rate"] / a["rate"] for a, b in zip(result["runs"]["kernel"], result["runs"]["sd"])]
        noise = factor == 1.0 and max(rounds, default=0) >= 1.0
        result["bar"]["verdict"] = "ok" if reached and reached >= factor else "within noise" if noise else "MISSED"


def print_table(results, options):
    def cell(result, mode, key, text):
        return text(result[mode][key]) if result.get(mode) else "failed" if result["errors"] else "-"

    def calls(result):
        counts = result.get("syscalls", {})
        return " -> ".join(number(counts[m]["per_request"]) if m in counts else "-" for m in result["runs"])

    # What matters most stands to the left: a narrow terminal gets as many columns as it has room for.
    header = ["case", "kernel req/s", "sd req/s", "better", "calls/req", "kernel mean", "sd mean", "better", "kernel p99",
              "sd p99", "sd over"]
    rows = [[
        result["title"], cell(result, "kernel", "rate", number), cell(result, "sd", "rate", number),
        ratio(result.get("ratio_rate")), calls(result), cell(result, "kernel", "mean_us", micros),
        cell(result, "sd", "mean_us", micros), ratio(result.get("ratio_mean")), cell(result, "kernel", "p99_us", micros),
        cell(result, "sd", "p99_us", micros),
        " ".join(f"{count} {name}" for name, count in result.get("transports", {}).items()) or "-"] for result in results]
    if options.rounds > 1:
        header += ["asked", ""]
        for result, row in zip(results, rows):
            bar = result.get("bar")
            row += [(f"{bar['factor']:g}x " + ("mean" if bar["of"] == "mean_us" else "req/s")) if bar else "-",
                    bar["verdict"] if bar else "FAILED" if result["errors"] else "-"]
    width = columns(sys.stdout)
    text = fit(header, rows, width, 4) if width else render(header, rows)
    print("\n" + (text or "\n".join(f"{row[0]}\n  {row[1]} -> {row[2]} req/s, {row[3]}" for row in rows)))

    notes = [f"One run of {options.seconds:g} s each: an impression. scripts/demo --rounds 5 measures." if options.rounds == 1
             else f"Medians of {options.rounds} rounds, kernel TCP and sdrun in turn.",
             f"Server on core {SERVER_CPU}, client on core {CLIENT_CPU}.",
             "sd: under sdrun. better: how many times. calls/req: the server's system calls for each request, kernel -> sd."]
    print("\n" + textwrap.fill(" ".join(notes), min(width or 110, 110)))


def print_transports(results):
    """What sdstat showed in mid-run, once for each program (the case with the most connections)."""
    best = {}
    for result in results:
        name = result["key"].split("-")[0]
        if result.get("sdstat") and sum(result.get("transports", {}).values()) > best.get(name, (0, None))[0]:
            best[name] = (sum(result["transports"].values()), result)
    for _, result in best.values():
        lines = result["sdstat"].rstrip().splitlines()
        print(f"\nsdstat during '{result['title']}':")
        print("\n".join("  " + line for line in lines[:16]))
        if len(lines) > 16:
            print(f"  ... {len(lines) - 16} more lines")


def main():
    options = arguments()
    loopback_up()
    directory = tempfile.mkdtemp(prefix="sd-demo.")
    programs = [PROGRAMS[name](directory) for name in options.only or PROGRAMS]
    cases = {program: [c for c in program.cases() if not options.case or c.key in options.case] for program in programs}
    progress = Progress(sum(len(each) for each in cases.values()))
    results, status = [], 0
    try:
        with Processes(directory) as processes:
            demo = Demo(options, processes, directory, progress)
            if demo.counter.tool != "perf":
                progress.say(f"system calls are counted with {demo.counter.tool}, which slows the servers down")
            demo.start_monitor()
            for index, program in enumerate(programs):
                if not cases[program]:
                    continue
                for case, result in zip(cases[program], demo.run_program(program, cases[program], 7000 + 100 * index)):
                    summarise(case, result)
                    results.append(result)
            status = 1 if demo.failures else 0
    except KeyboardInterrupt:
        progress.say("interrupted; every process of the run has been ended")
        status = 130
    except RunError as error:
        progress.say(f"scripts/demo: {error}")
        status = 1
    finally:
        progress.clear()
        if options.keep_logs:
            progress.say(f"logs are in {directory}")
        else:
            shutil.rmtree(directory, ignore_errors=True)
    if results:
        if options.sdstat:
            print_transports(results)
        print_table(results, options)
    if options.json:
        with open(options.json, "w", encoding="utf-8") as f:
            json.dump({"rounds": options.rounds, "seconds": options.seconds, "cases": results}, f, indent=1)
    return status


if __name__ == "__main__":
    sys.exit(main())
