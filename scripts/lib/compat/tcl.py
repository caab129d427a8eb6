"""Tcl's own tests of sockets, channels, events, HTTP and processes, from the Debian source package."""

import os
import re

import debian_source

TITLE = "Tcl"
PACKAGES = ("tcl8.6", "dpkg-dev")
SUITE = True
QUICK = False
WORKLOAD = "its own tests: socket, chan, io, event, http, exec"
NOTE = "socket-14.7 to 14.10 fail on kernel sockets as well: they want an address that answers to nobody"


def fetch(directory):
    debian_source.fetch("tcl8.6", directory)


def run(r):
    tests = os.path.join(debian_source.place("tcl8.6", r.sources), "tests")
    for name in ("socket", "ioCmd", "io", "chanio", "event", "http", "httpold", "exec", "pid"):
        os.makedirs(r.path(name))
        process = r.start(["/usr/bin/tclsh8.6", f"{name}.test", "-verbose", "bpst", "-tmpdir", r.path(name)], cwd=tests)
        r.wait(process, 300)
        with open(process.log, encoding="utf-8", errors="replace") as f:
            log = f.read()
        failed = set(re.findall(r"^==== (\S+) .*FAILED", log, re.M))
        for test in re.findall(r"^\+\+\+\+ (\S+) PASSED", log, re.M):
            r.result(f"{name} {test}", "passed")
        for test in re.findall(r"^\+\+\+\+ (\S+) SKIPPED", log, re.M):
            r.result(f"{name} {test}", "skipped")
        for test in failed:
            r.result(f"{name} {test}", "failed")
        r.check(f"{name} reaches its end", re.search(r"Total\s+\d+\s+Passed", log) is not None, log)
