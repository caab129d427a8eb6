"""sdstat and the metrics while 10,000 connections are open: how long an answer takes, and that the programs, which
sleep, are not disturbed: they get no time of a processor, and are not even woken.

Half of the answers must come within MOST; the row tells how long the slowest took, and the load, which it depends on.
"""
import http.client
import json
import os
import pathlib
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import time

CONNECTIONS = 10_000
TIMES = 100
MOST = 0.1  # seconds
ENDS = '''
import select, socket, sys
listener = socket.create_server(("127.0.0.1", 0), backlog=4096)
print(listener.getsockname()[1], flush=True)
poll, ends = select.epoll(), {}
poll.register(listener.fileno(), select.EPOLLIN)
while True:
    for fd, _ in poll.poll():
        if fd == listener.fileno():
            end = listener.accept()[0]
            ends[end.fileno()] = end
            poll.register(end.fileno(), select.EPOLLIN)
        else:
            ends[fd].sendall(ends[fd].recv(100))
'''
STARTS = '''
import socket, sys
ends = []
for _ in range(int(sys.argv[2])):
    end = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
    end.sendall(b"hello")
    assert end.recv(100) == b"hello"
    ends.append(end)
print("ready", flush=True)
sys.stdin.read()
for end in ends:
    end.sendall(b"end")
    assert end.recv(100) == b"end"
'''


def spent(pid):
    """Time on a processor and how often it was given one, of each thread."""
    return [path.read_text("ascii").split()[::2] for path in sorted(pathlib.Path(f"/proc/{pid}/task").glob("*/schedstat"))]


def free_port():
    with socket.socket() as end:
        end.bind(("127.0.0.1", 0))
        return end.getsockname()[1]


class Host:
    """A monitor, a server and a client with their connections."""

    def __init__(self, build_dir, folder):
        self.build, self.socket, self.port = build_dir, f"{folder}/monitor.sock", free_port()
        pathlib.Path(folder, "monitor.toml").write_text(
            f'[policy]\nbirth = "shm"\n[metrics]\nlisten = "127.0.0.1:{self.port}"\n', encoding="utf-8")
        self.processes = [subprocess.Popen([f"{build_dir}/sd-monitor", "--socket", self.socket, "--config", f"{folder}/monitor.toml"],
                                           stderr=subprocess.DEVNULL)]
        while subprocess.run(self.command(), capture_output=True, check=False).returncode:
            time.sleep(0.05)
        server = self.start(ENDS)
        client = self.start(STARTS, server.stdout.readline().strip(), str(CONNECTIONS))
        if client.stdout.readline() != "ready\n":
            raise RuntimeError("the client could not open its connections")
        self.pids, self.client = [server.pid, client.pid], client

    def command(self, *words):
        return [f"{self.build}/sdstat", "--socket", self.socket, *words]

    def start(self, program, *words):
        environment = {**os.environ, "SD_MONITOR": self.socket, "LD_PRELOAD": f"{self.build}/libsd.so"}
        process = subprocess.Popen([sys.executable, "-c", program, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                                   env=environment)
        self.processes.append(process)
        return process

    def open_connections(self):
        found = json.loads(subprocess.run(self.command("--each", "--json"), stdout=subprocess.PIPE, check=True).stdout)
        return sum(c["state"] == "established" for c in found["connections"])

    def look(self, *words):
        subprocess.run(self.command(*words), stdout=subprocess.DEVNULL, check=True)

    def metrics(self):
        connection = http.client.HTTPConnection("127.0.0.1", self.port)
        connection.request("GET", "/metrics")
        if b"socksdirect_connects_total" not in connection.getresponse().read():
            raise RuntimeError("no metrics")
        connection.close()

    def end(self):
        for process in reversed(self.processes):
            process.send_signal(signal.SIGTERM)
            process.wait()


def times(action):
    """How long it took, in order."""
    found = []
    for _ in range(TIMES):
        began = time.monotonic()
        action()
        found.append(time.monotonic() - began)
        time.sleep(0.02)  # who asks all the time is answered more slowly, on purpose
    return sorted(found)


def run(build_dir, source_dir, record):
    del source_dir
    subprocess.run(["ninja", "-C", build_dir, "libsd.so", "sd-monitor", "sdstat"], check=True, stdout=subprocess.DEVNULL)
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    parts, well = [], True
    with tempfile.TemporaryDirectory(prefix="sd-looking-") as folder:
        os.chmod(folder, 0o755)
        host = Host(build_dir, folder)
        try:
            count = host.open_connections()
            before = [spent(pid) for pid in host.pids]
            for name, action in {"sdstat": host.look, "sdstat --each": lambda: host.look("--each"),
                                 "sdstat --json": lambda: host.look("--json"), "the metrics": host.metrics}.items():
                found = times(action)
                well = well and found[TIMES // 2] <= MOST
                parts.append(f"{name} {1000 * found[TIMES // 2]:.0f} ms (99 of 100 within {1000 * found[-2]:.0f})")
            same = before == [spent(pid) for pid in host.pids]
            host.client.communicate("")
            well = well and same and count == CONNECTIONS and host.client.returncode == 0
        finally:
            host.end()
    record(f"{CONNECTIONS} connections, at load {os.getloadavg()[0]:.0f}",
           f"{count} accelerated; answers: {', '.join(parts)}; the programs ran {'not at all' if same else 'meanwhile'}")
    return well
