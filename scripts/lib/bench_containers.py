#!/usr/bin/env python3
"""Two containers on a bridge network, measured: bench_containers.py --build BUILD [--rounds N] [--seconds N] [--only TITLE]

Redis GET with 1 and 50 connections and Nginx with keep-alive: over kernel TCP, over kernel TCP with a sockmap, and with the library under the default policy; and
with the library in two containers of one pod, which is one network namespace. All in turn in each round; what is printed are medians. scripts/bench-containers
gives it namespaces of its own.

The host of a virtual machine moves its processors together and apart, and rates follow. So while a client runs, a word is sent to and fro between the two, and a
round counts for a bar only where both runs had them as far apart.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import time

import containers
import parse

HERE = os.path.dirname(os.path.abspath(__file__))
SERVER_CPU, CLIENT_CPU = "0", "1"
ALIKE = 1.4  # times the round trip of a word; near and far apart are four times and more
TRIES = 4  # times the rounds that are asked for, at most
REDIS = ["/usr/bin/redis-server", "--bind", "0.0.0.0", "--protected-mode", "no", "--save", "", "--port", "7001"]
NGINX = """daemon off; user root; worker_processes 1; error_log /dev/null; pid /tmp/nginx.pid;
events { worker_connections 1024; }
http { access_log off; keepalive_requests 1000000000; client_body_temp_path /tmp/b; proxy_temp_path /tmp/p; fastcgi_temp_path /tmp/f;
uwsgi_temp_path /tmp/u; scgi_temp_path /tmp/s; server { listen 7001; location / { return 200 "%s"; } } }
""" % ("x" * 100)


class Load:
    """What is asked of it: parts of one namespace's rate, and times those of kernel TCP and of a sockmap."""

    def __init__(self, title, server, client, read, bars, expected):
        self.title, self.server, self.client, self.read, self.bars, self.expected = title, server, client, read, bars, expected


def redis(connections, bars, expected):
    def client(address, seconds, rate):
        count = max(1000, int(rate * seconds))
        return ["/usr/bin/redis-benchmark", "-h", address, "-p", "7001", "-t", "get", "-c", str(connections), "-n", str(count), "--csv"]
    return Load(f"Redis GET, {connections} connection{'s' * (connections > 1)}", REDIS, client, lambda text: parse.redis_benchmark(text)["rate"], bars, expected)


def loads(out):
    with open(f"{out}/nginx.conf", "w", encoding="ascii") as file:
        file.write(NGINX)
    with open(f"{HERE}/wrk_report.lua", encoding="ascii") as report, open(f"{out}/report.lua", "w", encoding="ascii") as copy:
        copy.write(report.read())

    def wrk(address, seconds, _rate):
        return ["/out/wrk", "-t", "1", "-c", "32", "-d", f"{max(1, round(seconds))}s", "--timeout", "5s", "--latency", "-s", "/out/report.lua", f"http://{address}:7001/"]
    yield redis(1, (0.9, 20, 10), 20000)
    yield redis(50, (0.9, 10, 5), 80000)
    yield Load("Nginx 100 B, keep-alive", ["/usr/sbin/nginx", "-c", "/out/nginx.conf"], wrk, lambda text: parse.wrk(text)["rate"], (0.9, 2.7, 2), 0)


def borrow_wrk(out):
    """The image has no wrk: the host's, with the libraries that it needs beside it."""
    folder = f"{out}/lib"
    os.makedirs(folder)
    program = subprocess.run(["which", "wrk"], stdout=subprocess.PIPE, text=True, check=True).stdout.strip()
    for line in subprocess.run(["ldd", program], stdout=subprocess.PIPE, text=True, check=True).stdout.splitlines():
        words = line.split()
        if "=>" in words and not words[0].startswith(("libc.", "libm.", "libpthread.", "libdl.")):
            subprocess.run(["cp", "-L", words[2], folder], check=True)
    subprocess.run(["cp", program, f"{out}/wrk"], check=True)


def alike(one, other):
    """Were the processors as far apart in both runs, and throughout?"""
    seen = one + other
    return bool(one) and bool(other) and max(seen) <= ALIKE * min(seen)


class Bench:
    def __init__(self, args, engine, host, group):
        self.args, self.engine, self.host, self.group, self.out = args, engine, host, group, f"{host.where}/out"
        self.number, self.share, self.apart = 0, {}, []
        os.mkdir(self.out)
        os.chmod(self.out, 0o1777)
        borrow_wrk(self.out)
        engine.run("network", "create", "--subnet", "10.77.1.0/24", "sd-one")

    def container(self, name, cpu, network, has_library, words):
        device = ["--device", containers.CDI] if has_library else []
        where = ["-e", "LD_LIBRARY_PATH=/out/lib"] if words[0] == "/out/wrk" else []
        return self.engine.container("--name", name, *network, "--cpuset-cpus", cpu, "-v", f"{self.out}:/out", *where, *device, "localhost/sd-bookworm", *words)

    def address_of(self, name):
        for _ in range(400):
            try:
                address = self.engine.run("inspect", name, "--format", "{{range .NetworkSettings.Networks}}{{.IPAddress}}{{end}}")
            except AssertionError:
                address = ""
            if address:
                return address
            time.sleep(0.05)
        raise AssertionError(f"{name} has no address")

    def wait_for_listener(self, name):
        for _ in range(400):
            try:
                process = self.engine.run("inspect", name, "--format", "{{.State.Pid}}")
                with open(f"/proc/{process}/net/tcp", encoding="ascii") as sockets:
                    if any(words[1].endswith(":1B59") and words[3] == "0A" for words in map(str.split, sockets)):
                        return
            except (AssertionError, OSError):
                pass  # not there yet
            time.sleep(0.05)
        raise AssertionError(f"{name} does not listen")

    def by_shared_memory(self, serial):
        """Of what the living connections have sent each way, the part that did not go through the kernel; the lesser direction, as seen last."""
        least = 1
        for side in ("to_server", "to_client"):
            directions = [connection[side] for connection in self.host.status()["connections"]]
            sent = sum(d["bytes"] for d in directions)
            if sent == 0:
                return
            # What moved once has left the kernel's stream at `offset`.
            kernel = sum(min(d["offset"], d["bytes"]) if d["path"] == "shm" and d["moves"] == 1 else d["bytes"] for d in directions)
            least = min(least, 1 - kernel / sent)
        self.share[serial] = least

    def look_at_processors(self):
        """One look, in ns, between all that runs: it takes a few milliseconds."""
        words = ["nice", "-n", "-20", f"{self.args.build}/bench/nearness", "--cpu", f"{SERVER_CPU},{CLIENT_CPU}"]
        self.apart.append(float(subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True).stdout))

    def once(self, load, variant, seconds, rate, count=False):
        self.number += 1
        has_library = variant in ("sd", "pod")
        network = ["--network", "sd-one"]
        redirecting = None
        if variant == "pod":
            self.engine.run("pod", "create", "--name", "sd-pod", "--infra-image", "localhost/sd-bookworm", "--infra-command", "/usr/bin/redis-server --port 6000", "--network", "sd-one")
            network = ["--pod", "sd-pod"]
        if variant == "sockmap":
            redirecting = subprocess.Popen([f"{self.args.build}/bench/redirect", f"{self.args.build}/bench/redirect.bpf.o", self.group], stdout=subprocess.PIPE, text=True)
            containers.check(redirecting.stdout.readline() == "ready\n", "the sockmap is not to be had")
        try:
            name = f"server-{self.number}"
            server = self.container(name, SERVER_CPU, network, has_library, load.server)
            address = self.address_of(name) if variant != "pod" else "127.0.0.1"
            self.wait_for_listener(name)
            containers.check(server.poll() is None, f"{load.title}, {variant}: the server has ended: {server.stderr.read()[-400:] if server.poll() is not None else ''}")
            client = self.container(f"client-{self.number}", CLIENT_CPU, network, has_library, load.client(address, seconds, rate))
            self.apart = []
            began = time.monotonic()
            while client.poll() is None:
                if count:
                    self.by_shared_memory(load.title)
                elif time.monotonic() - began > (len(self.apart) + 1) * seconds / 3:
                    self.look_at_processors()
                time.sleep(0.05)
            text, errors = client.communicate(timeout=seconds * 20 + 60)
            containers.check(client.returncode == 0, f"{load.title}, {variant}: {errors.strip()[-400:]}")
            return load.read(text)
        finally:
            self.engine.close()
            if redirecting is not None:
                redirecting.kill()
                redirecting.wait()

    def run(self, load):
        variants = ("kernel", "sockmap", "pod", "sd")
        rates = {v: [] for v in variants}
        expected = {v: self.once(load, v, 0.3, load.expected) for v in variants} if load.expected else dict.fromkeys(variants, 0)
        apart = {v: [] for v in variants}
        rounds = 0
        while rounds < self.args.rounds * TRIES and sum(map(alike, apart["pod"], apart["sd"])) < self.args.rounds:
            for variant in variants:
                rates[variant].append(self.once(load, variant, self.args.seconds, expected[variant]))
                apart[variant].append(self.apart)
            rounds += 1
        # Looking takes time: this one is not measured
        self.once(load, "sd", self.args.seconds, expected["sd"], count=True)
        medians = {v: statistics.median(r) for v, r in rates.items()}
        print(f"{load.title}: " + ", ".join(f"{v} {m:,.0f}/s ({min(rates[v]):,.0f} to {max(rates[v]):,.0f})" for v, m in medians.items()), flush=True)
        passed = True
        for base, bar in zip(("pod", "kernel", "sockmap"), load.bars):
            ratios = [ours / theirs for ours, theirs, x, y in zip(rates["sd"], rates[base], apart["sd"], apart[base]) if alike(x, y)]
            if not ratios:
                passed = False
                print(f"  {base}, asked {bar}: not judged, the processors were as far apart in none of {rounds} rounds")
                continue
            reached = statistics.median(ratios)
            passed = passed and reached >= bar
            print(f"  {reached:.2f} times {base}, asked {bar}: {'reached' if reached >= bar else 'missed'} ({len(ratios)} of {rounds} rounds)")
        share = self.share.get(load.title)
        passed = passed and share is not None and share >= 0.99
        print("  of each direction's bytes by shared memory, at least: " + ("not seen" if share is None else f"{100 * share:.3f} %"), flush=True)
        return passed


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", required=True)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=2)
    parser.add_argument("--only", default="", help="part of a title")
    args = parser.parse_args()
    args.build = os.path.realpath(args.build)
    with containers.playground(args.build) as (engine, host, images, group):
        containers.check("bookworm" in images, "there is no image of bookworm")
        bench = Bench(args, engine, host, group)
        return 0 if all([bench.run(load) for load in loads(bench.out) if args.only in load.title]) else 1


if __name__ == "__main__":
    sys.exit(main())
