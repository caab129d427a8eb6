"""Redis: its own Tcl suite, from the Debian source package, against Debian's server; redis-benchmark in a quick run."""

import os
import re
import shutil

import debian_source

TITLE = "Redis"
PACKAGES = ("redis-server", "redis-tools", "tcl", "procps", "dpkg-dev")
SUITE = True
QUICK = True
WORKLOAD = "its own suite (all but slow and large-memory tests)"
NOTE = ("the four that fail do so on kernel sockets as well: tests and server of Debian's package do not agree about an error message, a log "
        "line and an option. \"client evicted due to percentage of maxmemory\" wants the server to have read before it answers another connection; a "
        "server that wakes late fails it on kernel sockets, too, and one with fast clients sometimes")


def fetch(directory):
    debian_source.fetch("redis", directory)


def benchmark(r):
    port = r.port()
    server = r.server(["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", r.directory], port)
    for words in (["-c", "50"], ["-c", "20", "-P", "16", "-d", "2000"]):
        r.attempt(f"redis-benchmark {' '.join(words)}", lambda w=words: r.run(
            ["redis-benchmark", "-p", str(port), "-n", "20000", "-q", "-t", "ping,set,get,lpush,lrange_100,mset", *w]))
    r.equal("a value of 4 MiB", len(r.run(["sh", "-c", f"head -c 4194304 /dev/zero | tr '\\0' x | redis-cli -p {port} -x set big "
                                           f">/dev/null && redis-cli -p {port} get big"])), (4 << 20) + 1)
    r.stop(server)


def run(r):
    if r.quick:
        benchmark(r)
        return
    # The suite writes into its tree and looks for the programs there.
    tree = r.path("redis")
    shutil.copytree(debian_source.place("redis", r.sources), tree, symlinks=True)
    for name in ("redis-server", "redis-cli", "redis-benchmark", "redis-sentinel", "redis-check-aof", "redis-check-rdb"):
        link = os.path.join(tree, "src", name)
        if os.path.lexists(link):
            os.unlink(link)
        os.symlink(f"/usr/bin/{name}", link)
    process = r.start(["sh", "-c", "ulimit -n 20000; exec tclsh tests/test_helper.tcl --clients 6 --timeout 300 --durable "
                       "--dont-clean --tags '-slow -large-memory' --skipunit unit/oom-score-adj"], cwd=tree)
    r.wait(process, 1500)
    with open(process.log, encoding="utf-8", errors="replace") as f:
        log = re.sub(r"\x1b\[[0-9;]*m", "", f.read())
    seen = {}
    for verdict, text in re.findall(r"^\[(ok|err|exception|TIMEOUT|skip|ignore)\]:? ?(.*)", log, re.M):
        name = re.sub(r"\(\d+ ms\)$", "", text).strip()
        if name.startswith("PSYNC2"):  # which replica is moved or killed, and how often, is random
            name = re.sub(r"#[0-4]\b|x = \d+|CYCLE \d+", "...", name)  # the number of cycles goes by time
            if r.checks.get(name) != "failed":
                r.result(name, "passed" if verdict == "ok" else "failed")
            continue
        seen[name] = seen.get(name, 0) + 1
        if seen[name] > 1:  # the same test in several configurations
            name = f"{name} ({seen[name]})"
        r.result(name, {"ok": "passed", "skip": "skipped", "ignore": "skipped"}.get(verdict, "failed"))
    r.check("the suite reaches its end", re.search("All tests passed|The End", log) is not None, log)
