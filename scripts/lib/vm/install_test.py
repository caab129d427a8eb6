"""Packages tested in a booted virtual machine: install_test.py install|autopkgtest --packages DIR [--long] [--results DIR]

report.py says what a check is. scripts/vm-test says what the options are.
"""
import argparse
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

import dkms
import image
import machine
from report import Report

HERE = pathlib.Path(__file__).resolve().parents[3] / "tests/vm"
LAST_ROUND = 180  # seconds: what booting and a round of tests/vm/install.py may take together
NAMES = ("socksdirect", "socksdirect-monitor", "socksdirect-rdma")
OTHER_VERSIONS = {"newer": "+test1", "older": "~test1"}


def other_version(package, suffix, into):
    """The same package with another version: what apt and the maintainer scripts see of an upgrade or a downgrade."""
    with tempfile.TemporaryDirectory(prefix="sd-deb-") as scratch:
        subprocess.run(["dpkg-deb", "-R", package, scratch], check=True)
        control = pathlib.Path(scratch, "DEBIAN/control")
        text = control.read_text(encoding="utf-8")
        version = re.search(r"^Version: (.*)$", text, re.M)[1]
        text = re.sub(r"^Version: .*$", f"Version: {version}{suffix}", text, flags=re.M)
        control.write_text(text.replace(f"(= {version})", f"(= {version}{suffix})"), encoding="utf-8")
        subprocess.run(["dpkg-deb", "-Znone", "--root-owner-group", "-b", scratch, into / package.name], check=True,
                       stdout=subprocess.DEVNULL)


def build_module(report, packages, into):
    """The package of the module, built here, as the machine has no compiler."""
    try:
        trouble = dkms.build(next(packages.glob("socksdirect-zerocopy-dkms_*.deb")), into)
    except (OSError, RuntimeError, StopIteration, subprocess.CalledProcessError) as error:
        trouble = repr(error)
    report.line(f"{'failed' if trouble else 'passed'} DKMS builds the module of the package")
    if trouble:
        print(trouble, file=sys.stderr)


def under_test(packages):
    """Those of NAMES that are there: a release may have been before one of them, and never before the first two."""
    found = {path.name.partition("_")[0]: path for path in packages.glob("socksdirect*_*.deb")}
    if any(name not in found for name in NAMES[:2]):
        raise RuntimeError(f"{packages}: not the packages of scripts/package")
    return [found[name] for name in NAMES if name in found]


def prepare(folder, test, packages, previous, arguments):
    found = under_test(packages)
    if len(found) != len(NAMES):
        raise RuntimeError(f"{packages}: of {', '.join(NAMES)} only {len(found)}")
    (folder / "built").mkdir()
    if test == "autopkgtest":
        shutil.copytree(HERE.parents[1] / "packaging/debian", folder / "source/debian")
    for path in found:
        shutil.copy(path, folder / "built")
    for name, suffix in OTHER_VERSIONS.items():
        (folder / name).mkdir()
        if name == "older" and previous:
            for path in under_test(previous):
                shutil.copy(path, folder / name)
            continue
        for path in found:
            other_version(path, suffix, folder / name)
    for path in HERE.glob("*.py"):
        shutil.copy(path, folder)
    (folder / "run").write_text(f"exec python3 -B {test}.py {' '.join(arguments)}\n", encoding="utf-8")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("test", choices=["install", "autopkgtest"])
    parser.add_argument("--packages", type=pathlib.Path, required=True)
    parser.add_argument("--previous", type=pathlib.Path, help="the packages of the last release")
    parser.add_argument("--results", type=pathlib.Path)
    parser.add_argument("--long", action="store_true")
    parser.add_argument("--restarts", type=int, default=0)
    parser.add_argument("--limit", type=int, default=0, help="seconds after which the machine is given up")
    options = parser.parse_args()
    report = Report("vm", options.results)
    with tempfile.TemporaryDirectory(prefix="sd-job-") as folder:
        folder = pathlib.Path(folder)
        limit = options.limit or (7200 if options.long or options.restarts else 1800)
        arguments = ["--long"] * options.long + ["--released"] * bool(options.previous)
        if options.restarts:
            arguments = [f"--restarts {options.restarts} --seconds {max(1, limit - LAST_ROUND)}"]
        prepare(folder, options.test, options.packages, options.previous, arguments)
        if options.test == "install" and not options.restarts:
            build_module(report, options.packages, folder / "dkms")
        made = image.make()
        status, console = machine.boot(made, folder, limit, report.line, processors=1, counted=options.restarts > 0)
    report.machine_ended(status, console, limit, status_says_it=not report.failures)
    sys.exit(report.end())


if __name__ == "__main__":
    main()
