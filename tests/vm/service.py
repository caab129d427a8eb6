"""The monitor as a service: its watchdog, its journal, profiles, and units of a user's service manager."""
import contextlib
import json
import os
import pwd
import shutil
import signal
import subprocess
import sys

import system
from holding import Client, echo, share
from system import MONITOR, configuration, configure, main_pid, run, same, until

PROFILE = "/etc/socksdirect/profiles.d/vm.toml"


@contextlib.contextmanager
def profiled(profile):
    """With one profile more."""
    with configuration() as text:
        try:
            with open(PROFILE, "w", encoding="utf-8") as out:
                out.write(profile)
            configure(text)
            yield
        finally:
            os.unlink(PROFILE)


def journal(*matches):
    lines = run("journalctl", "-q", "-b", "-o", "json", "--no-pager", f"_SYSTEMD_UNIT={MONITOR}", *matches).splitlines()
    return [json.loads(line) for line in lines]


def check_journal():
    """What a rule forbids a client is found by each field."""
    with configuration() as text:
        configure(text.replace("[monitor]", '[monitor]\nlog_level = "debug"', 1) + '\n[[policy.rule]]\naction = "deny"\nport = 6379\n')
        client = Client("sdrun")
        client.open("redis", 1)
        pid = str(client.process.pid)
        entry = until("a line about the client", lambda: journal("SOCKSDIRECT_CAUSE_NAME=policy", f"SOCKSDIRECT_PID={pid}"))[-1]
        client.end()
    wanted = {"SOCKSDIRECT_PID": pid, "SOCKSDIRECT_UID": "0", "SOCKSDIRECT_PROGRAM": "python3", "SOCKSDIRECT_CAUSE_NAME": "policy",
              "PRIORITY": "7", "SYSLOG_IDENTIFIER": "sd-monitor"}
    same("its fields", {name: entry.get(name) for name in wanted}, wanted)
    number = entry.get("SOCKSDIRECT_CAUSE")
    causes = {str(cause["number"]): cause["name"] for cause in system.sdstat()["causes"]}
    same(f"cause {number}", causes.get(number), "policy")
    return entry["MESSAGE"]


SENDER = """
import socket, sys
listener = socket.create_server(("127.0.0.1", 0))
to, taken = socket.create_connection(listener.getsockname()), listener.accept()[0]
to.setblocking(False)
sent = 0
try:
    while True:
        sent += to.send(bytes(65536))
except BlockingIOError:
    pass
print(to.getsockname()[1], sent, flush=True)
sys.stdin.read()
"""


def full_ring():
    """Bytes of the ring that a program has filled, and how much it could send."""
    sender = subprocess.Popen(["sdrun", sys.executable, "-c", SENDER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    port, sent = map(int, sender.stdout.readline().split())

    def ring():
        return [c["to_server"]["ring"] for c in (system.sdstat() or {"connections": []})["connections"]
                if c["client"]["address"].endswith(f":{port}")]
    size = until("the connection", ring)[0]
    sender.communicate("", timeout=60)
    same("the sender's status", sender.returncode, 0)
    return size, sent


def check_profile():
    """buffer shows in sdstat. spin shows nowhere: the reload says from when on it holds, and a wrong value is named."""
    program = f'program = "{os.path.realpath(sys.executable)}"\n'
    large, much = full_ring()
    with profiled(program + 'spin = "never"\nbuffer = 65536\n'):
        until("the reload says what has to wait", lambda: [entry for entry in journal() if "spin and buffer of profiles hold for "
                                                           "programs from their next start on" in entry["MESSAGE"]])
        small, little = full_ring()
        with open(PROFILE, "w", encoding="utf-8") as out:
            out.write(program + 'spin = "seldom"\n')
        said = run("systemctl", "reload", MONITOR, status=1) + run("sd-monitor", "--check", status=2)
        if f"{PROFILE}:2" not in said or "spin" not in said:
            raise AssertionError(said)
    same("the ring with the profile", small, 65536)
    if large <= small or much <= little:
        raise AssertionError(f"without the profile a ring of {large} bytes for {much}, with it one of {small} for {little}")
    same("the ring after the profile", full_ring()[0], large)
    return f"a ring of {small} bytes instead of {large}"


def check_user_unit():
    """A service of the user redis, who has a home, beside the system's own."""
    user = pwd.getpwnam("redis")
    manager, runtime = f"user@{user.pw_uid}.service", f"/run/user/{user.pw_uid}"
    drop_in = f"/run/systemd/system/{manager}.d"
    config = user.pw_dir + "/.config"
    environment = [f"HOME={user.pw_dir}", f"XDG_RUNTIME_DIR={runtime}"]

    def as_user(*command):
        return run("setpriv", f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--init-groups", "env", "-u", "XDG_CONFIG_HOME",
                   *environment, *command)

    def echo_pid():
        return int(as_user("systemctl", "--user", "show", "-P", "MainPID", "echo.service"))
    try:
        os.makedirs(drop_in)
        # What libpam-systemd says, which is not here
        with open(drop_in + "/vm.conf", "w", encoding="utf-8") as out:
            out.write(f"[Service]\nEnvironment=XDG_RUNTIME_DIR={runtime}\n")
        run("systemctl", "daemon-reload")
        run("systemctl", "start", manager)
        as_user("mkdir", "-p", config + "/systemd/user")
        shutil.copy("echo.py", config)  # /run/job is root's alone
        with open(config + "/systemd/user/echo.service", "w", encoding="utf-8") as out:
            out.write(f"[Service]\nExecStart={sys.executable} -B {config}/echo.py 7006\n")
        as_user("systemctl", "--user", "daemon-reload")
        as_user("sdctl", "enable", "--user", "echo.service")
        as_user("systemctl", "--user", "start", "echo.service")
        until("echo", lambda: system.listens(7006))
        same("it has the library", system.has_library(echo_pid()), True)
        same("its user", os.stat(f"/proc/{echo_pid()}").st_uid, user.pw_uid)
        echo(7006, True)
        listed = {unit["unit"]: unit for unit in json.loads(as_user("sdctl", "list", "--user", "--json"))}
        same("units of the user", sorted(listed), ["echo.service"])
        as_user("sdctl", "disable", "--user", "echo.service")
        same("a drop-in", os.path.exists(config + "/systemd/user/echo.service.d"), False)
    finally:
        run("systemctl", "stop", manager, f"user-runtime-dir@{user.pw_uid}.service", f"user-{user.pw_uid}.slice", status=None)
        shutil.rmtree(drop_in)
        shutil.rmtree(config, ignore_errors=True)


def check_watchdog():
    """A monitor that is stopped says nothing any more; programs go on meanwhile."""
    drop_in = f"/run/systemd/system/{MONITOR}.d"
    held = Client("sdrun")
    ports = set(held.open("nginx", 5) + held.open("redis", 5))
    try:
        os.makedirs(drop_in)
        with open(drop_in + "/vm.conf", "w", encoding="utf-8") as out:
            out.write("[Service]\nWatchdogSec=2s\n")
        run("systemctl", "daemon-reload")
        run("systemctl", "restart", MONITOR)
        share(ports, held)
        before = main_pid(MONITOR)
        os.kill(before, signal.SIGSTOP)
        held.tell("ask")
        until("another monitor", lambda: main_pid(MONITOR) not in (0, before) and system.sdstat())
        kept = share(ports, held)
        ended = run("journalctl", "-q", "-b", "--no-pager", "-u", MONITOR, "-g", "result 'watchdog'")
        same("ends by the watchdog", len(ended.splitlines()), 1)
    finally:
        shutil.rmtree(drop_in)
        run("systemctl", "daemon-reload")
        run("systemctl", "restart", MONITOR)
    kept = min(kept, share(ports, held))
    held.end()
    return f"{kept} of {len(ports)} held connections accelerated"
