"""Real programs on kernel sockets and under sdrun: the same checks must pass. Started by scripts/compat.

Each file in compat/ is a program or a suite. It has a one-line purpose at its top and these names:
    TITLE      what the table calls it
    PACKAGES   Debian packages it needs
    VERSION    the package whose version is shown (the first of PACKAGES if absent)
    WORKLOAD   what is done, in a few words
    QUICK      True if --quick includes it
    NOTE       (optional) a sentence for the table: why something is as it is
    FALLS_BACK (optional) True if none of its connections can be accelerated
    fetch(directory)   (optional) gets what no package has, outside of the namespace
    SUITE      (optional) True for a suite of somebody else, some of whose tests may fail on kernel sockets as well
    run(r)     the workload: uses compat_run.Run, called once per mode
"""

import argparse
import importlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import traceback

from compat_run import Run, Skip
from compat_table import print_results, update_documents
from procs import NAMED_PORTS, Processes, RunError, descendants, loopback_up, say, tail

HERE = os.path.dirname(os.path.abspath(__file__))
MODES = ("kernel", "sd")


def programs():
    names = sorted(n[:-3] for n in os.listdir(os.path.join(HERE, "compat")) if n.endswith(".py"))
    return [n for n in names if not n.startswith("_")]


def arguments():
    parser = argparse.ArgumentParser(prog="scripts/compat", description="Runs real programs, unmodified, and their own "
                                     "test suites on kernel sockets and under sdrun, and requires that the same tests "
                                     "pass. Exits with 1 if something passes without sdrun only.")
    parser.add_argument("names", nargs="*", metavar="NAME", help="only these: " + " ".join(programs()))
    parser.add_argument("--quick", action="store_true", help="the short subset that scripts/test runs")
    parser.add_argument("--table", action="store_true", help="write the tables into tests/compat/NOTES.md and docs/compatibility.md")
    parser.add_argument("--json", metavar="FILE", help="also write all results to this file")
    parser.add_argument("--results", metavar="DIR", help="write a list of passed and failed rows for scripts/test")
    parser.add_argument("--build", default=os.environ.get("SD_BUILD", "build"), help="build directory")
    parser.add_argument("--mode", choices=MODES, help="only one of the two")
    parser.add_argument("--keep", action="store_true", help="keep the logs and files of the run")
    parser.add_argument("--packages", action="store_true", help="only list the packages that are needed")
    parser.add_argument("--fetch", action="store_true", help="only get the sources that some suites need")
    options = parser.parse_args()
    unknown = set(options.names) - set(programs())
    if unknown:
        parser.error(f"unknown: {' '.join(sorted(unknown))}")
    return options


def chosen(options):
    sys.path.insert(0, os.path.join(HERE, "compat"))
    modules = [importlib.import_module(name) for name in options.names or programs()]
    if options.quick and not options.names:
        modules = [m for m in modules if m.QUICK]
    return modules


def sources_directory():
    return os.environ.get("SD_COMPAT_CACHE", "/var/tmp/socksdirect-compat")


def version_of(module):
    package = getattr(module, "VERSION", None) or module.PACKAGES[0]
    shown = subprocess.run(["dpkg-query", "-W", "-f", "${Version}", package], capture_output=True, text=True, check=False)
    version = shown.stdout.strip().split(":")[-1]
    return version.split("+")[0].split("-")[0] if version else "?"


def missing_packages(module):
    missing = []
    for package in module.PACKAGES:
        shown = subprocess.run(["dpkg-query", "-W", "-f", "${db:Status-Status}", package], capture_output=True,
                               text=True, check=False)
        if shown.stdout.strip() != "installed":
            missing.append(package)
    return missing


def copy_tools(build, directory):
    """The tools, where every user of the run may read them: the source tree may be closed to them."""
    tools = os.path.join(directory, "tools")
    os.mkdir(tools)
    for name in ("sdrun", "libsd.so", "sd-monitor", "sd-bridge", "sdstat"):
        shutil.copy(os.path.join(build, name), tools)
    return tools


def run_once(module, mode, processes, directory, tools, options, port):
    """One program in one mode: a dictionary of what came out."""
    own = os.path.join(directory, f"{module.__name__}-{mode}")
    os.mkdir(own)
    os.chmod(own, 0o755)
    run = Run(mode, processes, own, tools, options.quick, port)
    run.sources = sources_directory()
    result = {"checks": run.checks, "notes": run.notes, "status": None, "skipped": None}
    before = set(descendants(os.getpid()))
    start = time.monotonic()
    try:
        run.start_monitor()
        run.env["SD_STATS_FILE"] = run.path("statistics")
        module.run(run)
    except Skip as error:
        result["skipped"] = str(error)
    except RunError as error:
        run.check("the workload reaches its end", False, error)
    except Exception:  # pylint: disable=broad-except
        run.check("the workload reaches its end", False, traceback.format_exc())
    result["seconds"] = time.monotonic() - (run.began or start)
    try:
        run.finish()
        if run.monitor is not None and run.monitor.poll() is not None:
            run.check("the monitor lives until the end", False, tail(run.monitor.log))
        result["status"] = run.status()
    except (RunError, ValueError) as error:
        run.check("the monitor answers at the end", False, error)
    finally:
        processes.end_all(keep=before)
    return result


def main():
    options = arguments()
    modules = chosen(options)
    if options.packages:
        print("\n".join(sorted({p for m in modules for p in m.PACKAGES})))
        return 0
    if options.fetch:
        for module in modules:
            if hasattr(module, "fetch") and not options.quick:
                os.makedirs(sources_directory(), exist_ok=True)
                module.fetch(sources_directory())
        return 0
    loopback_up(NAMED_PORTS[-1] + 1)
    directory = tempfile.mkdtemp(prefix="sd-compat.")
    os.chmod(directory, 0o755)
    tools = copy_tools(options.build, directory)
    rows, interrupted = [], False
    try:
        with Processes(directory) as processes:
            for index, module in enumerate(modules):
                row = {"name": module.__name__, "title": module.TITLE, "version": version_of(module),
                       "workload": module.WORKLOAD, "note": getattr(module, "NOTE", ""),
                       "suite": getattr(module, "SUITE", False),
                       "falls_back": getattr(module, "FALLS_BACK", False)}
                rows.append(row)
                missing = missing_packages(module)
                if missing:
                    row["skipped"] = f"not installed: {' '.join(missing)}"
                    continue
                for mode in (options.mode,) if options.mode else MODES:
                    say(f"{module.TITLE}: {'kernel TCP' if mode == 'kernel' else 'sdrun'}")
                    row[mode] = run_once(module, mode, processes, directory, tools, options,
                                         NAMED_PORTS[100 * index + 50 * MODES.index(mode)])
                    say(f"    {row[mode]['seconds']:.1f} s")
                    row["skipped"] = row.get("skipped") or row[mode]["skipped"]
    except KeyboardInterrupt:
        say("interrupted; every process of the run has been ended")
        interrupted = True
    finally:
        if options.keep:
            say(f"files and logs are in {directory}")
        else:
            shutil.rmtree(directory, ignore_errors=True)
    if options.json:
        with open(options.json, "w", encoding="utf-8") as f:
            json.dump(rows, f, indent=1)
    bad = print_results(rows, options.results)
    if options.table and not interrupted:
        top = os.path.join(HERE, "..", "..")
        update_documents(os.path.join(top, "tests", "compat", "NOTES.md"), os.path.join(top, "docs", "compatibility.md"), rows)
    return 130 if interrupted else 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
