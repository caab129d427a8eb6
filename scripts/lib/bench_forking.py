"""Programs among the cases of scripts/bench that make a process for each connection, or have one made: PostgreSQL with a
new connection for each query, sshd, xinetd, and Apache's prefork with CGI. They are there for what they must not cost."""

import os
import re
import signal

from bench_model import Bar, Case
from bench_programs import Postgres, ProgramRunner
from demo_cases import Case as Load
from procs import RunError

# Prints how many turns of a command, or exchanges over a connection each, took how many seconds.
COMMANDS = """import subprocess, sys, time
until = time.monotonic() + float(sys.argv[1])
begin, count = time.monotonic(), 0
while time.monotonic() < until:
    if subprocess.run(sys.argv[2:], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE).stdout != b"here\\n":
        sys.exit("the command printed something else")
    count += 1
print("count", count, "seconds", time.monotonic() - begin)
"""
EXCHANGES = """import socket, sys, time
until = time.monotonic() + float(sys.argv[1])
begin, count = time.monotonic(), 0
while time.monotonic() < until:
    with socket.create_connection(("127.0.0.1", int(sys.argv[2]))) as c:
        for _ in range(3):
            c.sendall(b"hello")
            if c.recv(5, socket.MSG_WAITALL) != b"hello":
                sys.exit("another answer")
        c.shutdown(socket.SHUT_WR)
        if c.recv(1) != b"":
            sys.exit("no end")
    count += 1
print("count", count, "seconds", time.monotonic() - begin)
"""


def counted(text):
    match = re.search(r"count (\d+) seconds ([\d.]+)", text)
    if not match or int(match.group(1)) == 0:
        raise RunError(f"no count: {text.strip()[-300:]!r}")
    rate = int(match.group(1)) / float(match.group(2))
    return {"rate": rate, "mean_us": 1e6 / rate}


def needed(path):
    if not os.path.exists(path):
        raise RunError(f"{path} is not installed")
    return path


class PostgresConnect(Postgres):
    """pgbench -C: a connection, hence a process of the server, for each query."""

    name = "postgres-connect"

    def cases(self):
        def load(port, seconds, _estimate):
            return [f"{self.bin}/pgbench", "-h", "127.0.0.1", "-p", str(port), "-U", "bench", "-n", "-S", "-C", "-c", "1",
                    "-j", "1", "-T", str(max(2, round(seconds))), "postgres"]

        def read(text):
            match = re.search(r"tps = ([\d.]+)", text)
            if not match or "number of failed transactions: 0" not in text:
                raise RunError(f"pgbench printed no result: {text.strip()[-300:]!r}")
            rate = float(match.group(1))
            return {"rate": rate, "mean_us": 1e6 / rate}
        yield Load("postgres-connect", "PostgreSQL, a connection for each query", load, read)


class Forking:
    """A server on loopback with files of its own in `home`."""

    needs_estimate = False
    stop_signal = signal.SIGTERM

    def __init__(self, directory):
        self.home = os.path.join(directory, self.name)

    def prepare(self, _bench):
        os.makedirs(self.home, exist_ok=True)
        self.write("commands.py", COMMANDS)
        self.write("exchanges.py", EXCHANGES)

    def path(self, name):
        return os.path.join(self.home, name)

    def write(self, name, text, mode=0o644):
        with open(self.path(name), "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(self.path(name), mode)


class Sshd(Forking):
    """sshd forks and executes itself for each connection; each client is a process of its own, too."""

    name = "sshd"

    def prepare(self, bench):
        super().prepare(bench)
        needed("/usr/sbin/sshd")
        os.makedirs("/run/sshd", mode=0o755, exist_ok=True)
        for name in ("host", "user"):
            if not os.path.exists(self.path(name)):
                bench.processes.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", self.path(name)], 30, env=bench.env,
                                    name="ssh-keygen")

    def server(self, port):
        self.write(f"sshd-{port}", f"Port {port}\nListenAddress 127.0.0.1\nHostKey {self.path('host')}\n"
                   f"AuthorizedKeysFile {self.path('user.pub')}\nStrictModes no\nUsePAM no\nPermitRootLogin prohibit-password\n"
                   "PasswordAuthentication no\nPidFile none\nPrintMotd no\n")
        return ["/usr/sbin/sshd", "-D", "-e", "-f", self.path(f"sshd-{port}")]

    def cases(self):
        def load(port, seconds, _estimate):
            return ["python3", self.path("commands.py"), str(max(2.0, seconds)), "ssh", "-F", "none", "-i", self.path("user"),
                    "-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null", "-o", "BatchMode=yes", "-o",
                    "LogLevel=ERROR", "-p", str(port), "root@127.0.0.1", "echo here"]
        yield Load("sshd", "ssh to sshd, a command each", load, counted)


class Xinetd(Forking):
    """xinetd forks and executes cat for each connection."""

    name = "xinetd"

    def server(self, port):
        needed("/usr/sbin/xinetd")
        self.write(f"xinetd-{port}", "defaults\n{\n\tinstances = UNLIMITED\n\tcps = 100000 1\n}\n"
                   "service bench\n{\n\ttype = UNLISTED\n\tsocket_type = stream\n\tprotocol = tcp\n\twait = no\n\tuser = root\n"
                   f"\tbind = 127.0.0.1\n\tport = {port}\n\tserver = /bin/cat\n}}\n")
        return ["/usr/sbin/xinetd", "-dontfork", "-f", self.path(f"xinetd-{port}"), "-pidfile", self.path(f"pid-{port}")]

    def cases(self):
        def load(port, seconds, _estimate):
            return ["python3", self.path("exchanges.py"), str(max(1.0, seconds)), str(port)]
        yield Load("xinetd", "xinetd with cat, three exchanges", load, counted)


class Apache(Forking):
    """Apache's prefork: its processes accept for themselves, and execute a CGI program for each request."""

    name = "apache"

    def server(self, port):
        needed("/usr/sbin/apache2")
        os.makedirs(self.path("cgi-bin"), exist_ok=True)
        self.write("cgi-bin/hello", "#!/bin/sh\nprintf 'Content-Type: text/plain\\r\\n\\r\\nhello\\n'\n", 0o755)
        modules = "".join(f"LoadModule {name}_module /usr/lib/apache2/modules/mod_{name}.so\n"
                          for name in ("mpm_prefork", "authz_core", "alias", "cgi"))
        user = "User www-data\nGroup www-data\n" if os.geteuid() == 0 else ""
        self.write(f"apache-{port}", f"ServerName bench\nServerRoot {self.home}\nListen 127.0.0.1:{port}\n"
                   f"PidFile {self.path(f'apache-{port}.pid')}\nErrorLog {self.path(f'apache-{port}.log')}\n"
                   f"Mutex sem\nScoreBoardFile {self.path(f'scores-{port}')}\n{modules}{user}"
                   f"ScriptAlias /cgi-bin/ {self.home}/cgi-bin/\n<Directory {self.home}/cgi-bin>\nRequire all granted\n</Directory>\n"
                   "StartServers 4\nMinSpareServers 4\nMaxSpareServers 8\n")
        for folder in (os.path.dirname(self.home), self.home):
            os.chmod(folder, 0o711)
        return ["/usr/sbin/apache2", "-D", "FOREGROUND", "-f", self.path(f"apache-{port}")]

    def cases(self):
        def load(port, seconds, _estimate):
            return ["ab", "-q", "-c", "2", "-t", str(max(2, round(seconds))), "-n", "1000000",
                    f"http://127.0.0.1:{port}/cgi-bin/hello"]

        def read(text):
            failed = re.search(r"Failed requests:\s+(\d+)", text)
            match = re.search(r"Requests per second:\s+([\d.]+)", text)
            if not match or not failed or failed.group(1) != "0" or "Non-2xx" in text:
                raise RunError(f"ab printed no result: {text.strip()[-300:]!r}")
            rate = float(match.group(1))
            return {"rate": rate, "mean_us": 2e6 / rate}
        yield Load("apache-cgi", "Apache prefork with CGI, 2 clients", load, read)


def forking_cases():
    """Each at most kernel TCP's time."""
    table = ((PostgresConnect, "postgres-connect", "PostgreSQL, a connection for each query"),
             (Sshd, "sshd", "ssh to sshd, a command for each connection"),
             (Xinetd, "xinetd", "xinetd with cat, a connection with three exchanges"),
             (Apache, "apache-cgi", "Apache prefork with CGI, a connection for each request"))
    for number, (program, key, title) in enumerate(table):
        port = 7200 + 10 * number
        yield Case(key, "forking", title, "mean_ns", "ns", {"kernel": (program, key, port), "sd": (program, key, port)},
                   [Bar("at most kernel TCP's", factor=1.0)], rounds=5, runner=ProgramRunner)
