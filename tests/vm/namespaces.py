"""Discovery with no more rights than the monitor's unit has: connections between two network namespaces are joined."""
import contextlib
import json
import os
import subprocess
import sys

import system
from system import configuration, configure, run, same

ADDRESS, PORT, CONNECTIONS, TURNS = "10.9.1.2", 7007, 3, 100
STATISTICS = "/run/far-{}.json"

SERVER = """
import socket, sys
listener = socket.create_server((sys.argv[1], int(sys.argv[2])))
print("ready", flush=True)
for _ in range(int(sys.argv[3])):
    with listener.accept()[0] as connection:
        while data := connection.recv(1000):
            connection.sendall(data)
"""

CLIENT = """
import socket, sys, time
for number in range(int(sys.argv[3])):
    with socket.create_connection((sys.argv[1], int(sys.argv[2])), 60) as connection:
        for turn in range(int(sys.argv[4])):
            text = b"%d of %d;" % (turn, number)
            connection.sendall(text)
            got = b""
            while len(got) < len(text):
                more = connection.recv(1000)
                if not more:
                    sys.exit("the connection ended")
                got += more
            if got != text:
                sys.exit(f"{got} instead of {text}")
            time.sleep(0.005)
"""


@contextlib.contextmanager
def two_namespaces():
    names = ("far", "near")
    try:
        for name in names:
            run("ip", "netns", "add", name)
        run("ip", "-n", "near", "link", "add", "e", "type", "veth", "peer", "name", "e", "netns", "far")
        for name, address in zip(names, (ADDRESS, "10.9.1.1")):
            run("ip", "-n", name, "addr", "add", address + "/24", "dev", "e")
            run("ip", "-n", name, "link", "set", "e", "up")
        yield
    finally:
        for name in names:
            run("ip", "netns", "del", name, status=None)
        run("umount", "/run/netns", status=None)  # which ip has mounted over itself


def start(name, code, *arguments):
    return subprocess.Popen(["ip", "netns", "exec", name, "sdrun", sys.executable, "-c", code, ADDRESS, str(PORT), *map(str, arguments)],
                            stdout=subprocess.PIPE, env={**os.environ, "SD_STATS_FILE": STATISTICS.format(name)})


def talk():
    """What both ends say of their connections: how many were joined, and why others were not."""
    with two_namespaces():
        server = start("far", SERVER, CONNECTIONS)
        same("the server", server.stdout.readline(), b"ready\n")
        client = start("near", CLIENT, CONNECTIONS, TURNS)
        same("the client's status", client.wait(), 0)
        same("the server's status", server.wait(), 0)
    found = {}
    for name in ("near", "far"):
        file = STATISTICS.format(name)
        with open(file, encoding="ascii") as lines:
            said = json.loads(lines.read().splitlines()[-1])
        os.unlink(file)
        found[name] = said.get("joined", 0), said["fallbacks"]
    return found


def check():
    with configuration() as text:
        found = talk()
        same("joined without discovery", [joined for joined, _ in found.values()], [0, 0])
        configure(text + "\n[paths]\ndiscovery = true\n" if "[paths]" not in text else
                  text.replace("[paths]", "[paths]\ndiscovery = true", 1))
        found = talk()
        if [joined for joined, _ in found.values()] != [CONNECTIONS, CONNECTIONS]:
            raise AssertionError(f"joined, and why not: {found}; {(system.sdstat() or {}).get('discovery')}")
    return f"{CONNECTIONS} of {CONNECTIONS}, with none before"
