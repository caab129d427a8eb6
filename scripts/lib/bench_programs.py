"""The real programs among the cases of scripts/bench: Redis, Nginx, memcached (as in scripts/demo) and PostgreSQL."""

import os
import pwd
import re
import shutil
import signal

from bench_model import Bar, Case
from demo_cases import Memcached, Nginx, Redis
from demo_cases import Case as Load
from procs import RunError

SERVER_CPU, CLIENT_CPU = 0, 1


class Postgres:
    """pgbench's read-only transaction, over TCP. The server refuses to run as root: it and pgbench run as `postgres`."""

    name = "postgres"
    needs_estimate = False
    stop_signal = signal.SIGINT

    def __init__(self, directory):
        self.home = os.path.join(directory, "pg")
        self.user = []

    def prepare(self, bench):
        binaries = sorted(os.listdir("/usr/lib/postgresql"), key=int) if os.path.isdir("/usr/lib/postgresql") else []
        if not binaries:
            raise RunError("PostgreSQL is not installed")
        self.bin = f"/usr/lib/postgresql/{binaries[-1]}/bin"
        os.makedirs(self.home, exist_ok=True)
        if os.geteuid() == 0:
            try:
                user = pwd.getpwnam("postgres")
            except KeyError as error:
                raise RunError("no user 'postgres' to run the server as") from error
            os.chmod(os.path.dirname(self.home), 0o711)
            os.chown(self.home, user.pw_uid, user.pw_gid)
            self.user = ["setpriv", f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups", "--"]
        os.chmod(self.home, 0o700)
        self.env = {"XDG_RUNTIME_DIR": self.home, "HOME": self.home}
        self.processes = bench.processes
        self.data = os.path.join(self.home, "data")
        self.run([f"{self.bin}/initdb", "-D", self.data, "-U", "bench", "-A", "trust", "--no-sync", "-E", "UTF8",
                  "--locale=C"])
        server = bench.processes.server(self.user + self.server(6999), 6999, env=self.env, name="pg-init")
        self.run([f"{self.bin}/pgbench", "-h", "127.0.0.1", "-p", "6999", "-U", "bench", "-i", "-q", "-s", "1", "postgres"])
        bench.processes.end(server, signal.SIGINT, patience=20)

    def run(self, command):
        return self.processes.run(self.user + command, 120, env=self.env, name=os.path.basename(command[0]))

    def server(self, port):
        data = self.data
        if port != 6999:
            data = f"{self.data}-{port}"
            shutil.rmtree(data, ignore_errors=True)
            self.run(["cp", "-a", self.data, data])
        return [f"{self.bin}/postgres", "-D", data, "-p", str(port), "-c", "listen_addresses=127.0.0.1", "-c",
                f"unix_socket_directories={self.home}", "-c", "fsync=off", "-c", "autovacuum=off"]

    def cases(self):
        for clients in (1, 8):
            def load(port, seconds, _estimate, clients=clients):
                return [f"{self.bin}/pgbench", "-h", "127.0.0.1", "-p", str(port), "-U", "bench", "-n", "-S", "-M",
                        "prepared", "-c", str(clients), "-j", "1", "-T", str(max(1, round(seconds))), "postgres"]

            def read(text, clients=clients):
                match = re.search(r"tps = ([\d.]+)", text)
                if not match or "number of failed transactions: 0" not in text:
                    raise RunError(f"pgbench printed no result: {text.strip()[-300:]!r}")
                rate = float(match.group(1))
                return {"rate": rate, "mean_us": clients * 1e6 / rate}
            yield Load(f"postgres-c{clients}", f"PostgreSQL read-only, {clients} client{'s' * (clients > 1)}", load, read)


class ProgramRunner:
    """Both servers of a program stay up for its case, one on kernel TCP and one under sdrun; the load goes to each in turn."""

    def __init__(self, bench, case):
        self.bench = bench
        program_class, self.key, port = case.variants["sd"]
        self.program = bench.programs.get(program_class.name)
        if self.program is None:
            self.program = bench.programs[program_class.name] = program_class(bench.directory)
            if hasattr(self.program, "prepare"):
                self.program.prepare(bench)
        self.load = next(each for each in self.program.cases() if each.key == self.key)
        self.user = getattr(self.program, "user", [])
        self.env = getattr(self.program, "env", bench.env)
        self.ports, self.servers, self.estimates = {}, {}, {}
        for number, variant in enumerate(case.variants):
            self.ports[variant] = port + number
            self.servers[variant] = bench.processes.server(
                self.user + self.prefix(variant) + self.program.server(port + number), port + number, cpu=SERVER_CPU,
                env=self.env, name=f"{variant}-{self.program.name}-server")

    def prefix(self, variant):
        return [self.bench.sdrun] if variant == "sd" else []

    def attempt(self, variant, seconds, estimate):
        command = self.load.load(self.ports[variant], seconds, estimate)
        text = self.bench.processes.run(self.user + self.prefix(variant) + command, seconds * 6 + 30, cpu=CLIENT_CPU,
                                        env=self.env, name=f"{variant}-{self.key}")
        return self.load.read(text)

    def once(self, variant, seconds, _round):
        if self.program.needs_estimate and variant not in self.estimates:
            rate = self.attempt(variant, 0.2, 20000)["rate"]
            self.estimates[variant] = self.attempt(variant, 0.3, rate)["rate"]
        result = self.attempt(variant, max(1.0, seconds), self.estimates.get(variant))
        result["mean_ns"] = result["mean_us"] * 1000
        return result

    def close(self):
        for server in self.servers.values():
            self.bench.processes.end(server, self.program.stop_signal, patience=10)


def program_cases():
    """What is asked of the programs; the loads themselves are those of the demonstration."""
    table = (
        (Redis, "redis-get-c1", "Redis GET, 1 connection, mean", "mean_ns", [Bar("a quarter of kernel TCP", factor=4)]),
        (Redis, "redis-get-c50", "Redis GET, 50 connections", "rate", [Bar("4 times kernel TCP", factor=4)]),
        (Redis, "redis-get-c50-p16", "Redis GET, 50 connections, pipeline of 16", "rate", [Bar("1.3 times kernel TCP", factor=1.3)]),
        (Nginx, "nginx-100", "Nginx 100 B, keep-alive", "rate", [Bar("3 times kernel TCP", factor=3)]),
        (Nginx, "nginx-close", "Nginx 100 B, one connection per request", "rate", [Bar("5 times kernel TCP", factor=5)]),
        (Nginx, "nginx-1048576", "Nginx 1 MiB, keep-alive", "rate", [Bar("2 times kernel TCP", factor=2)]),
        (Memcached, "memcached-c1", "memcached, 1 client, mean", "mean_ns", [Bar("a quarter of kernel TCP", factor=4)]),
        (Memcached, "memcached-c50", "memcached, 50 clients", "rate", []),
        (Postgres, "postgres-c1", "PostgreSQL read-only, 1 client", "rate", []),
        (Postgres, "postgres-c8", "PostgreSQL read-only, 8 clients", "rate", []),
    )
    for number, (program, key, title, metric, bars) in enumerate(table):
        port = 7000 + 10 * number
        yield Case(key, "programs", title, metric, "ns" if metric == "mean_ns" else "1/s",
                   {"kernel": (program, key, port), "sd": (program, key, port)}, bars, rounds=3, runner=ProgramRunner)
