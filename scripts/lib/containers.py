#!/usr/bin/env python3
"""Containers as people start them, accelerated: containers.py --build BUILD [CASE...]

Runs as the host: scripts/try-containers gives it network and mount namespaces of its own, with an empty /run, so nothing of it is left behind. Images are made by
podman from the file systems of images.py, and stay in $SD_CACHE or ~/.cache/socksdirect. A monitor of the build serves all; the engine is told of the library by
the CDI file of the packages. Programs are Python's, and compare every byte.
"""
import argparse
import contextlib
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

IMAGES = ("bookworm", "bullseye", "trixie")  # those that are not there are skipped
CDI = "socksdirect.io/libsd=all"
GROUP = "/libpod_parent"  # podman's, where it makes the groups itself
PATIENCE = 120
CALLS = 400

ECHO = """
import select, socket, sys
family = socket.AF_INET6 if ':' in sys.argv[1] else socket.AF_INET
listener = socket.socket(family); listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
listener.bind((sys.argv[1], int(sys.argv[2]))); listener.listen(1024)
open('/out/ready-' + sys.argv[3], 'w').close()
waits, left, peers = select.epoll(), int(sys.argv[4]), {}
waits.register(listener, select.EPOLLIN)
while left:
    for fd, _ in waits.poll():
        if fd == listener.fileno():
            peer, _ = listener.accept(); peers[peer.fileno()] = peer; waits.register(peer, select.EPOLLIN)
            continue
        data = peers[fd].recv(1 << 20)
        if data: peers[fd].sendall(data); continue
        waits.unregister(fd); peers.pop(fd).close(); left -= 1
"""
# argv: address port connections calls bytes
ASK = """
import random, socket, sys
address, port, count, calls, most = sys.argv[1], *map(int, sys.argv[2:6])
r = random.Random(port); block = r.randbytes(most) if hasattr(r, 'randbytes') else bytes(r.randrange(256) for _ in range(min(most, 65536)))
peers = [socket.create_connection((address, port)) for _ in range(count)]
for turn in range(calls):
    for peer in peers:
        text = block[:r.randrange(1, len(block))]
        peer.sendall(text) if len(text) < 100000 else None
        if len(text) >= 100000:
            for at in range(0, len(text), 65536): # more than the buffers hold would block both
                peer.sendall(text[at:at + 65536]); got = b''
                while len(got) < len(text[at:at + 65536]): got += peer.recv(1 << 20)
                assert got == text[at:at + 65536], 'bytes differ'
            continue
        got = b''
        while len(got) < len(text):
            more = peer.recv(1 << 20)
            assert more, 'ended early'
            got += more
        assert got == text, 'bytes differ'
print('all is well')
"""
# Of another C library: 300 messages of up to 4000 bytes.
MUSL = r"""
#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
int main(int argc, char **argv) {
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(atoi(argv[2]))};
    static char text[4000], got[4000];
    int s = socket(AF_INET, SOCK_STREAM, 0);
    if (inet_pton(AF_INET, argv[1], &to.sin_addr) != 1 || connect(s, (void *)&to, sizeof to) != 0) return 1;
    for (int i = 1; i <= 300; ++i) {
        size_t n = (size_t)i * 13 % sizeof text + 1, at = 0;
        memset(text, i, n);
        if (write(s, text, n) != (ssize_t)n) return 2;
        while (at < n) { ssize_t r = read(s, got + at, n - at); if (r <= 0) return 3; at += (size_t)r; }
        if (memcmp(text, got, n) != 0) return 4;
    }
    return puts("all is well") < 0;
}
"""
# In a container: what a hostile program asks by the socket that it has been shown, and what it finds beside
# it. Numbers are those of libsd/layout/protocol.hpp.
HOSTILE = """
import errno, os, socket, struct
HEADER, MAGIC, VERSION, EPERM = '<IHHIiHHI', 0x4d445331, 1, 1
PLACE = '/run/socksdirect/'
def ask(op, body=b''):
    s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET); s.settimeout(10); s.connect(PLACE + 'monitor.sock')
    s.send(struct.pack(HEADER, MAGIC, VERSION, op, 1, 0, 0, len(body), 0) + body)
    answer = s.recv(4096)
    return struct.unpack_from(HEADER, answer)[4] if len(answer) >= 24 else None
for name, op, body in (('status', 17, b''), ('snapshot', 45, b''), ('log', 16, b'x' * 516)):
    assert ask(op, body) == -EPERM, name
for op in range(48, 400): # what there is not, or only as an answer to what it has
    assert ask(op) != 0, op
assert os.listdir(PLACE) == ['monitor.sock'], os.listdir(PLACE)
for action in (lambda: os.unlink(PLACE + 'monitor.sock'), lambda: os.rename(PLACE + 'monitor.sock', PLACE + 'other'),
               lambda: socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET).bind(PLACE + 'mine'), lambda: os.chmod(PLACE, 0o777),
               lambda: open('/usr/lib/socksdirect/libsd.so', 'ab')):
    try: action()
    except OSError as error: assert error.errno in (errno.EROFS, errno.EPERM, errno.EACCES, errno.ENOENT), error
    else: raise AssertionError('it may change what others see')
print('held off')
"""


def check(condition, what):
    if not condition:
        raise AssertionError(what)


class Engine:
    """podman, with storage of its own."""

    def __init__(self, cache, where):
        self.where, self.started = where, []
        # Podman's own limits are higher than a machine that is a container itself lets it set.
        pathlib.Path(where, "containers.conf").write_text('[containers]\ndefault_ulimits = ["nofile=1024:1024", "nproc=1000:1000"]\n', "utf-8")
        os.environ["CONTAINERS_CONF"] = f"{where}/containers.conf"
        self.command = ["podman", "--root", f"{cache}/storage", "--runroot", "/run/sd-storage", "--runtime", "runc", "--cgroup-manager", "cgroupfs",
                        "--events-backend", "none", "--network-config-dir", f"{where}/networks"]

    def run(self, *words, **how):
        done = subprocess.run([*self.command, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=PATIENCE, check=False, **how)
        check(done.returncode == 0, f"podman {' '.join(words[:3])}: {done.stderr.strip()[-500:]}")
        return done.stdout.strip()

    def images(self, sources):
        there = self.run("images", "--format", "{{.Repository}}").split()
        made = []
        for name in IMAGES:
            if os.path.isdir(f"{sources}/{name}"):
                if f"localhost/sd-{name}" not in there:
                    with subprocess.Popen(["tar", "-C", f"{sources}/{name}", "--exclude=./check", "--exclude=./proc/*", "-c", "."], stdout=subprocess.PIPE) as tar:
                        self.run("import", "-", f"localhost/sd-{name}", stdin=tar.stdout)
                made.append(name)
        return made

    def container(self, *words):
        """Started, in the background."""
        process = subprocess.Popen([*self.command, "run", "--rm", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.started.append(process)
        return process

    def close(self):
        subprocess.run([*self.command, "rm", "--all", "--force", "--time", "0"], check=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for process in self.started:
            process.kill()
            process.wait()
        self.started = []
        subprocess.run([*self.command, "pod", "rm", "--all", "--force"], check=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


class Host:
    def __init__(self, build, where, group):
        self.build, self.where = build, where
        pathlib.Path("/run/cdi").mkdir()
        pathlib.Path("/run/socksdirect/containers").mkdir(parents=True)
        library = pathlib.Path(where, "lib")
        library.mkdir()
        shutil.copy(f"{build}/libsd.so", library)
        spec = json.loads(pathlib.Path(build, "socksdirect.json").read_text("utf-8"))
        for mount in spec["devices"][0]["containerEdits"]["mounts"]:
            if mount["containerPath"] == "/usr/lib/socksdirect":
                mount["hostPath"] = str(library)  # where the packages would have put it
        pathlib.Path("/run/cdi/socksdirect.json").write_text(json.dumps(spec), "utf-8")
        level = "debug" if os.environ.get("SD_SHOW_LOG") else "info"
        pathlib.Path(where, "monitor.toml").write_text(f'[paths]\ndiscovery = true\ngroup = "{group}"\n[monitor]\nlog_level = "{level}"\n', "utf-8")
        self.log = open(f"{where}/log", "w", encoding="utf-8")
        self.start()

    def start(self):
        self.monitor = subprocess.Popen([f"{self.build}/sd-monitor", "--all-users", "--config", f"{self.where}/monitor.toml"], stdout=self.log, stderr=self.log)
        for _ in range(1000):
            if os.path.exists("/run/socksdirect/containers/monitor.sock"):
                return
            check(self.monitor.poll() is None, "the monitor does not start")
            time.sleep(0.01)

    def stop(self):
        self.monitor.terminate()
        self.monitor.wait()

    def status(self):
        return json.loads(subprocess.run([f"{self.build}/sdstat", "--socket", "/run/socksdirect/monitor.sock", "--json"], stdout=subprocess.PIPE, check=True).stdout)


class Trials:
    def __init__(self, host, engine, images):
        self.host, self.engine, self.images = host, engine, images
        self.out, self.number, self.failed = f"{host.where}/out", 0, []
        os.mkdir(self.out)
        os.chmod(self.out, 0o1777)
        self.engine.run("network", "create", "--subnet", "10.77.1.0/24", "sd-one")
        self.engine.run("network", "create", "--subnet", "10.77.2.0/24", "sd-two")

    def start(self, name, options, image, code, *arguments, device=True, network="sd-one", command=None):
        edits = ["--device", CDI, "-e", f"SD_STATS_FILE=/out/{name}"] if device else []
        return self.engine.container("--name", name, *(["--network", network] if network else []), "-v", f"{self.out}:/out", *edits, *options,
                                     f"localhost/sd-{image}", *(command or ("/usr/bin/python3", "-c", code)), *map(str, arguments))

    def talk(self, server_options=(), client_options=(), server="bookworm", client="bookworm", count=4, calls=CALLS, most=9000, **how):
        """A server and a client in two containers; what both say of their connections."""
        self.number += 1
        one, two, port = f"server-{self.number}", f"client-{self.number}", 7000 + self.number
        networks = how.get("networks", ("sd-one", "sd-one"))
        serving = self.start(one, server_options, server, ECHO, "0.0.0.0", port, one, count, device=how.get("server_has", True), network=networks[0])
        for _ in range(600):
            if os.path.exists(f"{self.out}/ready-{one}"):
                break
            check(serving.poll() is None, f"the server has ended: {serving.stderr.read()[-500:] if serving.poll() is not None else ''}")
            time.sleep(0.05)
        address = how.get("address") or self.engine.run("inspect", one, "--format", "{{range .NetworkSettings.Networks}}{{.IPAddress}}{{end}}")
        asking = self.start(two, client_options, client, ASK, address, how.get("asked", port), count, calls, most, device=how.get("client_has", True), network=networks[1],
                            command=how.get("client_command"))
        said = []
        for name, process in ((two, asking), (one, serving)):
            text, errors = process.communicate(timeout=PATIENCE)
            check(process.returncode == 0, f"{name} ends with {process.returncode}: {errors.strip()[-500:]}")
            check(name == one or text == "all is well\n", f"{name} says {text!r}")
            check("libsd" not in errors and "ld.so" not in errors, errors)
            file = pathlib.Path(self.out, name)
            said.append(json.loads(file.read_text("utf-8").splitlines()[-1]) if file.exists() else {})
        return said

    def joined(self, said, count=4):
        for who, stats in zip(("the client", "the server"), said):
            check(stats.get("joined") == count and stats.get("to_ring", 0) >= count and stats.get("followed_to_ring", 0) >= count, f"{who}: not all are in shared memory: {said}")

    def kernels(self, said):
        for stats in said:
            check("joined" not in stats, f"it was joined: {stats}")

    # What can be tried
    def bridge(self):
        self.joined(self.talk())

    def confined(self):
        """Read-only root, no capabilities, another user; seccomp's default profile and a pid namespace are there anyway."""
        options = ("--read-only", "--cap-drop", "all", "--user", "1234:1234", "--security-opt", "no-new-privileges")
        self.joined(self.talk(options, options))

    def pod(self):
        """Two containers with one network namespace: connections begin in shared memory."""
        self.engine.run("pod", "create", "--name", "sd-pod", "--infra-image", "localhost/sd-bookworm", "--infra-command", "/usr/bin/redis-server --port 6000", "--network", "sd-one")
        said = self.talk(("--pod", "sd-pod"), ("--pod", "sd-pod"), address="127.0.0.1", networks=(None, None))
        check(said[0].get("accelerated_connects", 0) >= 4, f"not accelerated: {said[0]}")

    def images_of(self):
        for image in self.images:
            if image != "bookworm":
                self.joined(self.talk(server=image))
                self.joined(self.talk(client=image))

    def musl(self):
        """A client that cannot have the library, and is given it all the same."""
        source, program = pathlib.Path(self.out, "musl.c"), f"{self.out}/musl"
        source.write_text(MUSL, "ascii")
        subprocess.run(["musl-gcc", "-O1", "-o", program, source], check=True)
        loader = "/lib/ld-musl-x86_64.so.1"
        said = self.talk(client_command=(program.replace(self.out, "/out"),), client_options=("-v", f"{os.path.realpath(loader)}:{loader}:ro"), count=1)
        self.kernels(said)

    def without(self):
        """A peer whose container has not been given the library."""
        self.kernels(self.talk(server_has=False))
        self.kernels(self.talk(client_has=False))

    def user_namespace(self):
        options = ("--uidmap", "0:100000:65536", "--gidmap", "0:100000:65536")
        self.joined(self.talk(options, options))
        self.joined(self.talk(options))
        self.joined(self.talk((), options))

    def tenants(self):
        """Two bridge networks are two tenants: the server is in both, and is asked from the other one."""
        said = self.talk(networks=("sd-one", "sd-two"), address=None)
        self.kernels(said)

    def memory(self):
        """Many connections, each with a lot under way, in 64 MiB."""
        self.talk(("--memory", "64m"), ("--memory", "64m"), count=100, calls=5, most=90000)

    def restarted(self):
        self.host.stop()
        self.host.start()
        self.joined(self.talk())

    def hostile(self):
        self.number += 1
        name = f"hostile-{self.number}"
        process = self.start(name, (), "bookworm", HOSTILE)
        text, errors = process.communicate(timeout=PATIENCE)
        check(process.returncode == 0 and text == "held off\n", f"{text} {errors[-800:]}")

    CASES = {"bridge": bridge, "confined": confined, "pod": pod, "images": images_of, "musl": musl, "without": without, "user namespace": user_namespace,
             "tenants": tenants, "memory": memory, "restarted monitor": restarted, "hostile": hostile}

    def all(self, names):
        for name, case in self.CASES.items():
            if names and name not in names:
                continue
            began = time.monotonic()
            try:
                case(self)
                print(f"passed {name}, {time.monotonic() - began:.0f} s", flush=True)
            except (AssertionError, OSError, KeyError, subprocess.SubprocessError) as error:
                self.failed.append(name)
                print(f"failed {name}: {' '.join(str(error).split())[-1500:]}", flush=True)
            finally:
                self.engine.close()
        return self.failed


def unified_top():
    for words in map(str.split, open("/proc/self/mountinfo", encoding="ascii")):
        if words[words.index("-") + 1] == "cgroup2" and words[3] == "/":
            return words[4]
    return None


@contextlib.contextmanager
def playground(build):
    """An engine and a host with a monitor of that build, the names of the images, and the engine's control group."""
    cache = os.environ.get("SD_CACHE") or os.path.expanduser("~/.cache/socksdirect")
    top = unified_top()
    if top is None:
        sys.exit("containers.py: there is no unified hierarchy of control groups")
    os.makedirs(top + GROUP, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="sd-containers-", dir="/run") as where:
        os.chmod(where, 0o755)
        engine = Engine(f"{cache}/containers", where)
        host = Host(os.path.realpath(build), where, GROUP)
        try:
            yield engine, host, engine.images(f"{cache}/images"), top + GROUP
        finally:
            engine.close()
            host.stop()
            if os.environ.get("SD_SHOW_LOG"):
                print(open(f"{where}/log", encoding="utf-8").read())


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", required=True)
    parser.add_argument("cases", nargs="*")
    args = parser.parse_args()
    with playground(args.build) as (engine, host, images, _):
        return 1 if Trials(host, engine, images).all(args.cases) else 0


if __name__ == "__main__":
    sys.exit(main())
