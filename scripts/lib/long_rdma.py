"""Deaths over RDMA, on fake verbs: processes that are killed in the midst of their streams, queue pairs that end, monitors that
are killed and come back, and sockets that processes take from each other. Every byte that a send had accepted has to arrive, and
no process may be left."""
import os
import random
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path

from long import Budget, State

PAIRS = 8
# Of each kind, what is to happen how often, and what makes it.
WANTED = {"deaths": 10_000, "cuts": 1_000, "monitors": 200, "storms": 100}
PATIENCE = 300


class Fabric:
    """One of its own, and a folder for the monitor; with, what is left in it is looked at in the end."""

    def __init__(self, build_dir, paths):
        self.build, self.paths = build_dir, paths

    def __enter__(self):
        self.folder = tempfile.mkdtemp(prefix="fake-verbs-", dir="/dev/shm")
        self.runtime = tempfile.mkdtemp(prefix="sd-long-rdma-")
        libraries = [f"{self.build}/tests/fake_verbs", os.environ.get("LD_LIBRARY_PATH", "")]
        self.env = {**os.environ, "SD_FAKE_VERBS": self.folder, "SD_TEST_PATHS": self.paths, "SD_TEST_TRANSPORT": "rdma",
                    "LD_LIBRARY_PATH": ":".join(filter(None, libraries)), "XDG_RUNTIME_DIR": self.runtime}
        return self

    def __exit__(self, *_):
        shutil.rmtree(self.folder, ignore_errors=True)
        shutil.rmtree(self.runtime, ignore_errors=True)

    def run(self, *words):
        """Whether it ended well, in time."""
        try:
            return subprocess.run([f"{self.build}/sdrun", *map(str, words)], env=self.env, stdout=subprocess.DEVNULL,
                                  timeout=PATIENCE, check=False).returncode == 0
        except subprocess.TimeoutExpired:
            return False

    def is_used(self):
        """Does a process still have the device, but for the monitor, which may wait for others?"""
        wanted = f"SD_FAKE_VERBS={self.folder}".encode()
        for process in Path("/proc").glob("[0-9]*"):
            try:
                if wanted in (process / "environ").read_bytes().split(b"\0") and (process / "comm").read_text() != "sd-monitor\n":
                    return True
            except OSError:
                pass  # it has just ended
        return False


def judged(fabric, good):
    return "wrong" if not good else "a process is left" if fabric.is_used() else None


def deaths(build_dir, source_dir, seed):
    del source_dir
    with Fabric(build_dir, "shm" if seed % 2 else "storm") as fabric:
        return PAIRS, judged(fabric, fabric.run(f"{build_dir}/tests/e2e/path_transfer", PAIRS, 2000, seed, "kill"))


def cuts(build_dir, source_dir, seed):
    kinds = ("pairs", "cut", "remove", "stopped")
    done = subprocess.run([f"{source_dir}/tests/rdma/lost_pairs", build_dir, *kinds, "--rounds", "1", "--seconds", "1",
                           "--seed", str(seed * 16)], capture_output=True, text=True, check=False)
    return len(kinds), None if done.returncode == 0 else done.stdout


def monitors(build_dir, source_dir, seed):
    """It is killed while the connections are joined, and while they carry bytes; the next one is there at once."""
    del source_dir
    chance = random.Random(seed)
    with Fabric(build_dir, "storm" if seed % 2 else "shm") as fabric:
        name, killed = f"{fabric.runtime}/monitor.sock", 0
        fabric.env["SD_MONITOR"] = name
        command = [f"{build_dir}/sd-monitor", "--socket", name]

        def start():
            # pylint: disable-next=consider-using-with
            process = subprocess.Popen(command, env=fabric.env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            until = time.monotonic() + 10
            while not Path(name).exists() and time.monotonic() < until:
                time.sleep(0.01)
            return process

        monitor = start()
        # pylint: disable-next=consider-using-with
        program = subprocess.Popen([f"{build_dir}/sdrun", "--no-monitor", f"{build_dir}/tests/e2e/path_transfer", str(PAIRS), "20000",
                                    str(seed)], env=fabric.env, stdout=subprocess.DEVNULL)
        until = time.monotonic() + PATIENCE
        while program.poll() is None and time.monotonic() < until:
            time.sleep(chance.uniform(0.05, 0.5))
            if program.poll() is None:
                monitor.kill()
                monitor.wait()
                killed += 1
                monitor = start()
        if program.poll() is None:
            program.kill()
        wrong = judged(fabric, program.wait() == 0)
        monitor.send_signal(signal.SIGTERM)
        monitor.wait()
        return killed, wrong


def storms(build_dir, source_dir, seed):
    del source_dir
    with Fabric(build_dir, "shm") as fabric:
        return 1, judged(fabric, fabric.run(f"{build_dir}/tests/e2e/storm", seed, 3))


def run(build_dir, source_dir, record):
    state, well = State(build_dir, "rdma"), True
    for kind, act in (("deaths", deaths), ("cuts", cuts), ("monitors", monitors), ("storms", storms)):
        budget = Budget()
        mine = state.setdefault(kind, {"seed": 1, "happened": 0})
        first, wrong = mine["seed"], []
        while mine["happened"] < WANTED[kind] and budget.left() > 0 and len(wrong) < 5:
            happened, what = act(build_dir, source_dir, mine["seed"])
            if what:
                wrong.append(f"{mine['seed']}: {what}")
            mine["seed"] += 1
            mine["happened"] += happened
            state.save()
        if mine["seed"] > first:
            result = "every byte right, no process left" if not wrong else "; ".join(wrong)
            record(f"{kind}, seeds {first} to {mine['seed'] - 1}, {mine['happened']:,} of {WANTED[kind]:,}", " ".join(result.split()))
        well = well and not wrong
    return well
