"""Connections that are held and looked at."""
import json
import subprocess
import sys

import system
from system import same, until


class Client:
    """A process under sdrun that holds connections."""

    def __init__(self, *prefix):
        self.process = subprocess.Popen([*prefix, sys.executable, "-B", "client.py", "held"], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, text=True)

    def tell(self, line):
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        answer = json.loads(self.process.stdout.readline())
        if "error" in answer:
            raise AssertionError(answer["error"])
        return answer

    def open(self, service, count):
        return self.tell(f"open {service} {count}")["ports"]

    def end(self):
        self.process.stdin.close()
        same("the client's status", self.process.wait(), 0)


def share(ports, holder=None):
    """How many of the connections are accelerated, once at least 99 % are.

    A process meets the next monitor when it sleeps in a call of the library. The holder asks until it has: it
    waits for its next order in a plain read, and an answer may come before it sleeps.
    """
    def enough():
        if holder is not None:
            holder.tell("ask")
        found = len(ports & system.accelerated_ports())
        return found if found >= 0.99 * len(ports) else 0
    try:
        return until("99 % of the connections are accelerated", enough)
    except AssertionError as error:
        raise AssertionError(f"{error}; the others: {system.missing(ports)}") from None


def echo(port, expected):
    """Whether a connection to that port is accelerated; it must work in any case."""
    code = ("import socket, sys; s = socket.create_connection(('127.0.0.1', int(sys.argv[1]))); s.sendall(b'hello'); "
            "assert s.recv(9) == b'hello'; print(s.getsockname()[1], flush=True); sys.stdin.read(); "
            "s.sendall(b'end'); assert s.recv(9) == b'end'")
    client = subprocess.Popen(["sdrun", sys.executable, "-c", code, str(port)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    own = int(client.stdout.readline())
    if expected:
        until(f"a connection to port {port} is accelerated", lambda: own in system.accelerated_ports())
    same(f"a connection to port {port} is accelerated", own in system.accelerated_ports(), expected)
    client.communicate("", timeout=60)
    same("the client's status", client.returncode, 0)
