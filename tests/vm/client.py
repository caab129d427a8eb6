"""What asks the three servers, in a process of its own under sdrun.

client.py load FILE     asks over standing and fresh connections until SIGTERM, then writes its counts to FILE
client.py held          reads "open SERVICE N", "ask" and "close", and answers each with a line of JSON
"""
import json
import signal
import socket
import struct
import sys
import time

PORTS = {"nginx": 80, "redis": 6379, "postgresql": 5432}
HANGS = 120  # seconds without an answer


class Connection:
    """One connection; every request of it is checked to the last byte."""

    def __init__(self, service):
        self.service, self.count, self.over = service, 0, False
        self.socket = socket.create_connection(("127.0.0.1", PORTS[service]), HANGS)
        self.rest = b""
        if service == "postgresql":
            self._log_in()

    def port(self):
        return self.socket.getsockname()[1]

    def close(self):
        self.socket.close()

    def _more(self):
        data = self.socket.recv(65536)
        if not data:
            raise ConnectionError("the server closed the connection")
        self.rest += data

    def _take(self, size):
        while len(self.rest) < size:
            self._more()
        taken, self.rest = self.rest[:size], self.rest[size:]
        return taken

    def _take_until(self, end):
        while end not in self.rest:
            self._more()
        return self._take(self.rest.index(end) + len(end))

    def _log_in(self):
        words = b"user\0postgres\0database\0postgres\0\0"
        self.socket.sendall(struct.pack("!ii", 8 + len(words), 196608) + words)
        self._until_ready()

    def _until_ready(self):
        rows = []
        while True:
            kind, size = struct.unpack("!ci", self._take(5))
            body = self._take(size - 4)
            if kind == b"E":
                raise RuntimeError(body.decode("utf-8", "replace"))
            if kind == b"D":
                rows.append(body[6:])
            if kind == b"Z":
                return rows

    def ask(self):
        self.count += 1
        getattr(self, "_ask_" + self.service)()

    def _ask_nginx(self):
        self.socket.sendall(b"GET / HTTP/1.1\r\nHost: vm\r\n\r\n")
        head = self._take_until(b"\r\n\r\n").decode()
        if not head.startswith("HTTP/1.1 200 "):
            raise RuntimeError(head.splitlines()[0])
        fields = dict(line.lower().split(": ", 1) for line in head.splitlines()[1:] if line)
        body = self._take(int(fields["content-length"]))
        if b"nginx" not in body:
            raise RuntimeError("another page")
        self.over = fields.get("connection") == "close"  # after a thousand requests

    def _ask_redis(self):
        value = b"%d" % self.count * (self.count % 97 + 1)
        self.socket.sendall(b"SET key%d %s\r\nGET key%d\r\n" % (self.port(), value, self.port()))
        expected = b"+OK\r\n$%d\r\n%s\r\n" % (len(value), value)
        if self._take(len(expected)) != expected:
            raise RuntimeError("another value")

    def _ask_postgresql(self):
        query = b"select repeat('%d', %d)\0" % (self.count, self.count % 97 + 1)
        self.socket.sendall(b"Q" + struct.pack("!i", 4 + len(query)) + query)
        if self._until_ready() != [b"%d" % self.count * (self.count % 97 + 1)]:
            raise RuntimeError("another row")


def load(path):
    stop = []
    signal.signal(signal.SIGTERM, lambda *_: stop.append(True))
    standing, counts, failures = {}, {"requests": 0, "fresh": 0, "failed": 0}, []

    def attempt(what, action):
        counts["requests"] += 1
        try:
            return action()
        except (OSError, RuntimeError, KeyError, ValueError) as error:
            counts["failed"] += 1
            failures.append(f"{what}: {error!r}")
            return None

    turn = 0
    while not stop:
        for service in PORTS:
            if service not in standing:
                standing[service] = attempt(f"{service}, connecting", lambda s=service: Connection(s))
            connection = standing[service]
            if connection is None:
                del standing[service]
                continue
            failed = counts["failed"]
            attempt(f"{service}, a standing connection", connection.ask)
            if connection.over or counts["failed"] > failed:
                connection.close()
                del standing[service]

        def fresh(service):
            connection = Connection(service)
            connection.ask()
            connection.close()
        turn += 1
        if turn % 5 == 0:
            service = list(PORTS)[turn // 5 % 3]
            counts["fresh"] += 1
            attempt(f"{service}, a fresh connection", lambda: fresh(service))
        time.sleep(0.01)
    with open(path, "w", encoding="utf-8") as out:
        json.dump({**counts, "failures": failures[:10]}, out)


def held():
    connections = []
    for line in sys.stdin:
        verb, *words = line.split()
        answer = {}
        try:
            if verb == "open":
                new = [Connection(words[0]) for _ in range(int(words[1]))]
                connections += new
                for connection in new:
                    connection.ask()
                answer["ports"] = [connection.port() for connection in new]
            elif verb == "ask":
                for connection in connections:
                    connection.ask()
            elif verb == "close":
                while connections:
                    connections.pop().close()
        except (OSError, RuntimeError, KeyError, ValueError) as error:
            answer["error"] = f"{verb} {' '.join(words)}: {error!r}"
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    if sys.argv[1] == "load":
        load(sys.argv[2])
    else:
        held()
