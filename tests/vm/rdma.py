"""The package socksdirect-rdma: nothing of it is in a program that is not told to use it, and it can go at any time.

There is no device here. So that a program has opened the plugin is seen in what it has mapped.
"""
import contextlib
import glob
import json
import os
import shutil
import stat
import subprocess
import sys

from namespaces import ADDRESS, PORT, two_namespaces
from system import configuration, configure, processes, run, same, until

PACKAGE = "socksdirect-rdma"
DECOY = "/run/decoy"
KEYS = "/etc/socksdirect/peers"
# As docs/two-hosts.md says it. There is no way to that host from here.
PEER = f"""
[[peer]]
name = "beta"
address = "192.0.2.2"
key = "{KEYS}/alpha-beta.key"
"""

SERVER = """
import socketserver, sys
class Echo(socketserver.StreamRequestHandler):
    def handle(self):
        for line in self.rfile:
            self.wfile.write(line)
with socketserver.ThreadingTCPServer((sys.argv[1], int(sys.argv[2])), Echo) as server:
    print("ready", flush=True)
    server.serve_forever()
"""

CLIENT = """
import socket, sys
with socket.create_connection((sys.argv[1], int(sys.argv[2])), 60) as connection, connection.makefile() as answers:
    for line in sys.stdin:
        connection.sendall(line.encode())
        print(answers.readline(), end="", flush=True)
"""


def plugin():
    path, = glob.glob("/usr/lib/*/socksdirect/libsd-rdma.so")
    return path


def mapped(pid):
    """What a process has of the plugin and of what the plugin needs."""
    with open(f"/proc/{pid}/maps", encoding="utf-8") as maps:
        paths = {line.split(maxsplit=5)[5].strip() for line in maps if line.count("/")}
    return sorted(path for path in paths if "libsd-rdma" in path or "libibverbs" in path)


class Talk:
    """A program under sdrun with a connection to another namespace; its folder and LD_LIBRARY_PATH have another plugin."""

    def __init__(self):
        self.process = subprocess.Popen(["ip", "netns", "exec", "near", "sdrun", sys.executable, "-c", CLIENT, ADDRESS, str(PORT)],
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=DECOY,
                                        env={**os.environ, "LD_LIBRARY_PATH": DECOY})
        self.turns = 0
        self.ask()

    def ask(self):
        self.turns += 1
        self.process.stdin.write(f"turn {self.turns}\n")
        self.process.stdin.flush()
        same("the answer", self.process.stdout.readline(), f"turn {self.turns}\n")

    def mapped(self):
        return mapped(self.process.pid)

    def end(self):
        self.process.stdin.close()
        same("the program's status", self.process.wait(), 0)

    @classmethod
    def once(cls):
        """What a new one has mapped."""
        talk = cls()
        found = talk.mapped()
        talk.end()
        return found


def said():
    return json.loads(run("sdctl", "peers", "--json", status=None))


@contextlib.contextmanager
def peers():
    """The key, and a plugin in a folder that is not the package's; gives what configures the monitor."""
    with configuration() as text, two_namespaces():
        server = subprocess.Popen(["ip", "netns", "exec", "far", sys.executable, "-c", SERVER, ADDRESS, str(PORT)],
                                  stdout=subprocess.PIPE)
        try:
            same("the server", server.stdout.readline(), b"ready\n")
            os.makedirs(KEYS, mode=0o700)
            with open(KEYS + "/alpha-beta.key", "w", encoding="ascii", opener=lambda p, f: os.open(p, f, 0o600)) as key:
                key.write("5d" * 32)
            os.makedirs(DECOY)
            shutil.copy(plugin(), DECOY)

            def tell(more, rdma):
                new = text.replace("[paths]\n", "[paths]\ndiscovery = true\n", 1)
                configure(new.replace("[peers]\n", f'[peers]\nname = "alpha"\n{more}\n', 1) + PEER)
                until("the monitor knows", lambda: said().get("peers") and said()["rdma"] is rdma)
            yield tell
        finally:
            server.kill()
            server.wait()
            shutil.rmtree(DECOY, ignore_errors=True)
            shutil.rmtree(KEYS, ignore_errors=True)


def installed_files():
    listed = run("dpkg", "-L", PACKAGE).splitlines()
    return [path for path in listed if os.path.isfile(path) and not path.startswith("/usr/share/doc/")]


def check(packages):
    """packages: apt's paths of those under test; the one of this check is there again afterwards."""
    path = plugin()
    same("its files", installed_files(), [path])
    about = os.stat(path)
    same("their rights", (stat.S_IMODE(about.st_mode), about.st_uid, about.st_gid), (0o644, 0, 0))
    library = path.replace("-rdma", "")
    needs = {name: run("ldd", name) for name in (path, library)}
    same("who needs libibverbs", [name for name, text in needs.items() if "libibverbs" in text], [path])
    same("what is not found", [name for name, text in needs.items() if "not found" in text], [])

    with peers() as tell:
        same("mapped, as it was installed", Talk.once(), [])
        tell("rdma = false", False)
        same("mapped without rdma", Talk.once(), [])
        tell("rdma = true", True)
        until("what is wrong with the channel", lambda: said()["peers"][0]["cause"] == "unreachable")
        same("processes for it", len(processes("sd-peers")), 1)
        held = Talk()
        found = held.mapped()
        if len(found) != 2 or path not in found or not any(name.startswith("/usr/lib/x86_64-linux-gnu/libibverbs") for name in found):
            raise AssertionError(f"mapped with rdma: {found}")
        run("apt-get", "-q", "-y", "purge", PACKAGE)
        same("files after the removal", glob.glob("/usr/lib/*/socksdirect/libsd-rdma*") + glob.glob(f"/usr/share/doc/{PACKAGE}*"), [])
        same("dpkg's state", run("dpkg-query", "-W", "-f", "${Status}", PACKAGE, status=None).strip(), "unknown ok not-installed")
        held.ask()
        same("mapped after the removal", [name for name in held.mapped() if "rdma" in name], [path + " (deleted)"])
        same("mapped by a new one", Talk.once(), [])
        held.ask()
        run("apt-get", "-q", "-y", "install", *[name for name in packages if f"/{PACKAGE}_" in name])
        held.ask()
        held.end()
        if path not in Talk.once():
            raise AssertionError("it is not opened when it is there again")
    until("the end of sd-peers", lambda: not processes("sd-peers"))
    return path
