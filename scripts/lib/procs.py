"""Starting, pinning, watching and ending the processes of a run, and the network namespace they live in."""

import ctypes
import fcntl
import os
import signal
import socket
import struct
import subprocess
import sys
import time

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
# What scripts/compat gives to servers, and the suites of programs to theirs
NAMED_PORTS = range(20000, 30000)
_libc = ctypes.CDLL(None, use_errno=True)


class RunError(Exception):
    """A step of the run failed; the text says which and how."""


def say(text):
    """Progress for the person waiting, apart from the results on stdout."""
    print(text, file=sys.stderr, flush=True)


def loopback_up(first_port=10000):
    """Brings `lo` up in the (private) network namespace, and lets the kernel give clients the ports from `first_port` on. Those that a run names itself
    lie below: a server could not bind one that some client had a moment ago (TIME_WAIT lasts a minute). Reserving them within the range would not do:
    the kernel starts its search anywhere, and whoever it sends into a reserved stretch gets the first port behind, the same one each time."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        request = struct.pack("16sh14x", b"lo", 0)
        flags = struct.unpack("16sh14x", fcntl.ioctl(s, 0x8913, request))[1]  # SIOCGIFFLAGS
        fcntl.ioctl(s, 0x8914, struct.pack("16sh14x", b"lo", flags | 1))  # SIOCSIFFLAGS, IFF_UP
    try:
        with open("/proc/sys/net/ipv4/ip_local_port_range", "w", encoding="ascii") as f:
            f.write(f"{first_port} 65000")
    except OSError:
        pass  # the default range is only smaller, and apart from these ports


def listening(port):
    """Whether somebody listens on this TCP port of our namespace; asks the kernel, makes no connection."""
    for name in ("tcp", "tcp6"):
        try:
            with open(f"/proc/self/net/{name}", encoding="ascii") as f:
                for line in f.readlines()[1:]:
                    word = line.split()
                    if word[3] == "0A" and int(word[1].rsplit(":", 1)[1], 16) == port:
                        return True
        except FileNotFoundError:
            pass
    return False


def process_parents():
    """pid -> parent pid of everything in /proc."""
    parents = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                with open(f"/proc/{entry}/stat", encoding="ascii", errors="replace") as f:
                    parents[int(entry)] = int(f.read().rsplit(")", 1)[1].split()[1])
            except (OSError, IndexError):
                pass
    return parents


def descendants(root):
    parents = process_parents()
    found, frontier = [], [root]
    while frontier:
        parent = frontier.pop()
        children = [pid for pid, up in parents.items() if up == parent]
        found += children
        frontier += children
    return found


def comm(pid):
    try:
        with open(f"/proc/{pid}/comm", encoding="utf-8", errors="replace") as f:
            return f.read().strip()
    except OSError:
        return "?"


def tail(path, lines=5):
    try:
        with open(path, encoding="utf-8", errors="replace") as f:
            return "".join(f.readlines()[-lines:]).strip()
    except OSError:
        return ""


class Processes:
    """Every process of the run. Use as a context manager: at the end all of them are ended, by pid."""

    def __init__(self, directory):
        self.directory = directory
        self.count = 0

    def __enter__(self):
        # What daemonises (a private monitor) becomes our child and is ended with the rest.
        _libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        signal.signal(signal.SIGINT, signal.default_int_handler)  # also where a shell has it ignored
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
        signal.signal(signal.SIGHUP, lambda *_: sys.exit(129))
        return self

    def __exit__(self, *_):
        # Whoever is impatient and asks again must not leave half of them behind.
        handlers = {sig: signal.signal(sig, signal.SIG_IGN) for sig in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
        self.end_all()
        for sig, handler in handlers.items():
            signal.signal(sig, handler)

    def end_all(self, keep=()):
        """Ends everything that descends from us, but for the pids in `keep`."""
        for sig, patience in ((signal.SIGTERM, 3.0), (signal.SIGKILL, 3.0)):
            until = time.monotonic() + patience
            told = set()
            while time.monotonic() < until:
                self._reap()
                left = [pid for pid in descendants(os.getpid()) if pid not in keep]
                if not left:
                    return
                for pid in left:
                    if pid not in told:
                        told.add(pid)
                        try:
                            os.kill(pid, signal.SIGCONT)
                            os.kill(pid, sig)
                        except ProcessLookupError:
                            pass
                time.sleep(0.02)
        say("could not end: " + ", ".join(f"{comm(p)} ({p})" for p in descendants(os.getpid())))

    @staticmethod
    def _reap():
        try:
            while os.waitpid(-1, os.WNOHANG)[0] != 0:
                pass
        except ChildProcessError:
            pass

    def start(self, command, cpu=None, env=None, stdout=None, name=None, cwd=None):
        """Starts a command; its output goes to a file named in `.log` unless `stdout` is given."""
        self.count += 1
        log = os.path.join(self.directory, f"{self.count:03d}-{name or os.path.basename(command[0])}.log")

        def prepare():
            _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            if cpu is not None:
                os.sched_setaffinity(0, {cpu})

        with open(log, "wb") as out:
            try:
                process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=stdout or out, stderr=out,
                                           env={**os.environ, **(env or {})}, preexec_fn=prepare, cwd=cwd,
                                           start_new_session=True)
            except OSError as error:
                raise RunError(f"cannot start {command[0]}: {error}") from error
        process.log = log
        return process

    def server(self, command, port, wait=15, **options):
        """Starts a server and waits until it listens."""
        process = self.start(command, **options)
        until = time.monotonic() + wait
        while not listening(port):
            if process.poll() is not None:
                raise RunError(f"{' '.join(command)} ended with {process.returncode}: {tail(process.log)}")
            if time.monotonic() > until:
                self.end(process)
                raise RunError(f"{' '.join(command)} does not listen on port {port}: {tail(process.log)}")
            time.sleep(0.02)
        return process

    def run(self, command, timeout, meanwhile=None, **options):
        """Runs a command to its end and returns its output; `meanwhile()` is called once while it runs."""
        return self.output(self.start(command, stdout=subprocess.PIPE, **options), timeout, meanwhile)

    def output(self, process, timeout, meanwhile=None):
        """The output of a process that was started with `stdout` as a pipe, once it has ended."""
        command = process.args
        try:
            if meanwhile:
                meanwhile()
            text = process.communicate(timeout=timeout)[0].decode("utf-8", errors="replace")
        except subprocess.TimeoutExpired as error:
            where = describe_stuck(process.pid)
            self.end(process)
            raise RunError(f"no end after {timeout:.0f} s: {' '.join(command)}\n{where}") from error
        except BaseException:
            self.end(process)
            raise
        if process.returncode != 0:
            how = f"signal {-process.returncode}" if process.returncode < 0 else f"status {process.returncode}"
            raise RunError(f"{' '.join(command)} ended with {how}: {tail(process.log)} {text[-400:].strip()}")
        return text

    @staticmethod
    def end(process, sig=signal.SIGTERM, patience=3.0):
        """Ends one process and what it started."""
        family = [process.pid] + descendants(process.pid)
        for pid in family[::-1] if sig == signal.SIGKILL else [process.pid]:
            try:
                os.kill(pid, sig)
            except ProcessLookupError:
                pass
        try:
            process.wait(patience)
        except subprocess.TimeoutExpired:
            for pid in family:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
            process.wait(5)


def describe_stuck(pid):
    """What a process that does not end is doing, for the error message."""
    lines = []
    for each in [pid] + descendants(pid):
        try:
            with open(f"/proc/{each}/wchan", encoding="ascii") as f:
                wchan = f.read()
            with open(f"/proc/{each}/syscall", encoding="ascii") as f:
                call = f.read().split()[0]
            with open(f"/proc/{each}/stat", encoding="ascii", errors="replace") as f:
                word = f.read().rsplit(")", 1)[1].split()
            lines.append(f"  {comm(each)} ({each}): state {word[0]}, user {word[11]} sys {word[12]} ticks, "
                         f"syscall {call}, waits in {wchan}")
        except OSError:
            pass
    return "\n".join(lines)
