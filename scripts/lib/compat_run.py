"""One run of one program, on kernel sockets or under sdrun: what the files in compat/ are given to work with."""

import json
import os
import pwd
import signal
import subprocess
import time

from procs import RunError, descendants, describe_stuck, say, tail


class Skip(Exception):
    """This program cannot be run here; the text says why."""


def really_root():
    """Whether we may become other users: in a user namespace of our own, root is the only one there is."""
    with open("/proc/self/uid_map", encoding="ascii") as f:
        return os.geteuid() == 0 and int(f.readline().split()[2]) > 1


class Run:
    """Starts programs in the mode of the run and collects checks. `mode` is "kernel" or "sd"."""

    def __init__(self, mode, processes, directory, tools, quick, first_port):
        self.mode, self.processes, self.directory, self.tools, self.quick = mode, processes, directory, tools, quick
        self.prefix = [os.path.join(tools, "sdrun")] if mode == "sd" else []
        self.checks = {}  # name -> "passed", "failed" or "skipped"
        self.notes = []  # what went wrong, for people
        self.servers = []
        self._port = first_port
        self.sources = None
        # Away from a monitor of the machine or of the user: this run answers for itself.
        self.env = {"XDG_RUNTIME_DIR": directory, "HOME": directory, "LC_ALL": "C.UTF-8"}
        self.monitor = None
        self.began = None

    # -- files and ports -------------------------------------------------------------------------------------

    def path(self, *names):
        return os.path.join(self.directory, *names)

    def write(self, name, data, mode=0o644):
        """Makes a file of the run, with the folders above it; text or bytes."""
        path = self.path(name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as f:
            f.write(data.encode() if isinstance(data, str) else data)
        os.chmod(path, mode)
        return path

    def read(self, name):
        with open(self.path(name), "rb") as f:
            return f.read()

    def port(self):
        """A port that nothing else of the run uses."""
        self._port += 1
        return self._port

    def as_user(self, name, command):
        """The command under another user where we are root: some servers refuse to be root."""
        if os.geteuid() != 0:
            return command
        if not really_root():
            raise Skip(f"needs the user {name}")
        user = pwd.getpwnam(name)
        return ["setpriv", f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups", *command]

    def give(self, name, path):
        """Hands a file or folder to that user."""
        if really_root():
            user = pwd.getpwnam(name)
            os.chown(path, user.pw_uid, user.pw_gid)

    # -- processes -------------------------------------------------------------------------------------------

    def start_monitor(self):
        """A monitor that every user of the run may use, root's servers and those that gave that up."""
        if self.mode != "sd":
            return
        path = self.path("monitor.sock")
        self.env["SD_MONITOR"] = path
        self.monitor = self.processes.start([os.path.join(self.tools, "sd-monitor"), "--socket", path],
                                            env=self.env, name="sd-monitor")
        until = time.monotonic() + 10
        while not os.path.exists(path):
            if self.monitor.poll() is not None or time.monotonic() > until:
                raise RunError(f"sd-monitor does not start: {tail(self.monitor.log)}")
            time.sleep(0.01)

    def environment(self, env):
        return {**self.env, **(env or {})}

    def server(self, command, port, env=None, plain=False, **options):
        """Starts a server under test and waits until it listens on the port."""
        process = self.processes.server(([] if plain else self.prefix) + command, port, env=self.environment(env),
                                        name=f"{self.mode}-{os.path.basename(command[0])}", **options)
        process.title = os.path.basename(command[0])
        self.servers.append(process)
        return process

    def start(self, command, env=None, **options):
        """Starts something under test that listens nowhere, or that is waited for otherwise."""
        process = self.processes.start(self.prefix + command, env=self.environment(env),
                                       name=f"{self.mode}-{os.path.basename(command[0])}", **options)
        process.title = os.path.basename(command[0])
        self.servers.append(process)
        return process

    def wait(self, process, timeout):
        """Waits for something of start() that ends by itself; one that does not is ended and counts as a failure. Its exit status."""
        self.servers.remove(process)
        try:
            return process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.check(f"{process.title} ends in time", False, describe_stuck(process.pid))
            self.processes.end(process, signal.SIGKILL)
            return None

    def run(self, command, timeout=60, env=None):
        """Runs a client under test to its end; its output. Raises RunError when it fails."""
        return self.processes.run(self.prefix + command, timeout, env=self.environment(env),
                                  name=f"{self.mode}-{os.path.basename(command[0])}")

    def plain(self, command, timeout=120, env=None):
        """Runs a tool that is not under test (a compiler, initdb) to its end; its output."""
        return self.processes.run(command, timeout, env=self.environment(env), name=os.path.basename(command[0]))

    def stop(self, process, sig=signal.SIGTERM, patience=15, good=(0, -signal.SIGTERM)):
        """Ends a server of the run the way its administrator would, and checks that it ends well."""
        self.servers.remove(process)
        alive = process.poll() is None
        if alive:
            process.send_signal(sig)
            try:
                process.wait(patience)
            except subprocess.TimeoutExpired:
                self.notes.append(f"{process.title} does not end:\n{describe_stuck(process.pid)}")
                self.processes.end(process, signal.SIGKILL)
        ended_well = alive and process.returncode in good
        self.check(f"{process.title} ends when told to", ended_well,
                   f"{'status' if alive else 'it had ended before, status'} {process.returncode}: "
                   f"{tail(process.log, 8)}")

    def finish(self):
        """Ends what is left; a server that died on its own is a failure."""
        for process in list(self.servers):
            self.stop(process, good=(0, -signal.SIGTERM, 128 + signal.SIGTERM))

    def begin(self):
        """What was done so far (compiling) does not count as time of the run."""
        self.began = time.monotonic()

    # -- results ---------------------------------------------------------------------------------------------

    def check(self, name, good, detail=""):
        self.result(name, "passed" if good else "failed", detail)

    def result(self, name, verdict, detail=""):
        self.checks[name] = verdict
        if verdict == "failed":
            text = detail() if callable(detail) else str(detail)
            self.notes.append(f"{name}: {text[-2000:]}")
            say(f"    failed ({self.mode}): {name}: {text[-600:]}")

    def equal(self, name, got, wanted):
        self.check(name, got == wanted, f"got {got!r:.300}, wanted {wanted!r:.300}")

    def attempt(self, name, step):
        """A step whose check is that it ends without an error; its value, or None."""
        try:
            value = step()
        except (RunError, OSError) as error:
            self.check(name, False, error)
            return None
        self.check(name, True)
        return value

    def status(self):
        """What the monitor counted: accelerated connections, ordinary clients' connections, and the causes."""
        if self.monitor is None:
            return None
        text = self.processes.run([os.path.join(self.tools, "sdstat"), "--json"], 10, env=self.env, name="sdstat")
        status = json.loads(text)
        return {"connects": status["totals"]["connects"], "accepts": status["totals"]["accepts"],
                "causes": {cause["name"]: cause["count"] for cause in status["causes"]}}

    def family(self, process):
        return [process.pid] + descendants(process.pid)
