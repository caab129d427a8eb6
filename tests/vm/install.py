"""Runs inside the machine, as root, with the packages in built/, newer/ and older/: install.py [--long]

Each check prints one line; one that others need ends the test when it fails. Nothing is said about time.

--restarts N: what is installed and enabled, and then only the monitor that goes, N times in each of the two ways and
in rounds of ROUND, none of which begins later than --seconds. A line "round", with JSON, for each.
"""
import argparse
import glob
import json
import os
import signal
import subprocess
import sys
import time

import dkms
import namespaces
import rdma
import service
import system
from holding import Client, echo, share
from system import CONFIG, MONITOR, UNITS, configuration, configure, main_pid, main_pids, run, same, until

parser = argparse.ArgumentParser()
parser.add_argument("--long", action="store_true")
parser.add_argument("--released", action="store_true", help="older/ has the last release")
parser.add_argument("--restarts", type=int, default=0)
parser.add_argument("--seconds", type=int, default=0)
OPTIONS = parser.parse_args()
TIMES = 100 if OPTIONS.long else 3
ROUND = 10
BEGAN = time.monotonic()
HELD = {"nginx": 20, "redis": 20, "postgresql": 10}
SOCKET = "sd-monitor.socket"
state = {}


class Load:
    """Requests to all three servers, until the end of the block; none of them may fail."""

    counts = {}

    def __enter__(self):
        self.file = "/run/job/load.json"
        self.process = subprocess.Popen(["sdrun", sys.executable, "-B", "client.py", "load", self.file])
        until("the load's connections", lambda: self.process.pid in {c["client"]["pid"] for c in
                                                                    (system.sdstat() or {"connections": []})["connections"]})
        return self

    def __exit__(self, kind, *_):
        self.process.send_signal(signal.SIGTERM)
        status = self.process.wait()
        if status == 0:
            with open(self.file, encoding="utf-8") as counts:
                self.counts = json.load(counts)
        if kind is None:
            same("the load's status", status, 0)
            if self.counts["failed"] or not self.counts["fresh"]:
                raise AssertionError(f"{self.counts['failed']} of {self.counts['requests']} requests failed: {self.counts['failures']}")

    def summary(self):
        return f"{self.counts['requests']} requests, {self.counts['fresh']} of them on fresh connections, 0 failed"


def packages(folder):
    return sorted(glob.glob(f"/run/job/{folder}/*.deb"))


def apt(*words):
    return run("apt-get", "-q", "-y", *words)


def accelerated():
    """Connections to each server, held and looked at."""
    client = Client("sdrun")
    counts = []
    for service, count in HELD.items():
        ports = set(client.open(service, count))
        same(f"ports of {service}", len(ports), count)
        counts.append(f"{service} {share(ports)} of {count}")
    client.tell("ask")
    client.end()
    return ", ".join(counts)


def check_machine():
    run("systemctl", "is-system-running", "--wait", status=None)
    same("failed units", run("systemctl", "list-units", "--failed", "--no-legend", "--plain"), "")
    client = Client()
    for service in UNITS:
        client.open(service, 1)
    client.end()
    state.update(files=system.files(), unit_files=system.unit_files(), units=system.units(), accounts=system.accounts(),
                 pids=main_pids())
    return f"{len(state['files'])} files, {len(state['unit_files'])} unit files, nginx, redis and postgresql answer"


def check_install():
    apt("install", *packages("built"))
    state["version"] = system.installed_version("socksdirect-monitor")
    return state["version"]


def check_nothing_starts():
    new = {name: how for name, how in system.unit_files().items() if name not in state["unit_files"]}
    same("new units", new, {MONITOR: "static", SOCKET: "disabled", "sd-bridge.socket": "static", "sd-bridge@.service": "static",
                             "sd-peers.socket": "static", "sd-peers@.service": "static", "sd-calibrate.service": "static"})
    same("units that run", system.difference(state["units"], system.units()), [])
    same("monitors", system.processes("sd-monitor") + system.processes("sd-bridge"), [])
    same("the servers' processes", main_pids(), state["pids"])
    same("servers with the library", [s for s, pid in main_pids().items() if system.has_library(pid)], [])
    same("/etc/ld.so.preload", os.path.exists("/etc/ld.so.preload"), False)


def check_manual():
    pages = ("sdrun.1", "sdctl.1", "sdstat.1", "sd-monitor.8", "sd-bridge.8", "sd-peers.8", "sd-monitor.toml.5")
    for page in pages:
        name, _, section = page.rpartition(".")
        if "SYNOPSIS" not in run("man", section, name) and section != "5":
            raise AssertionError(f"man {section} {name}")
    script = ". /usr/share/bash-completion/bash_completion; _completion_loader {0}; complete -p {0}"
    for command in ("sdrun", "sdctl", "sdstat"):
        run("bash", "-c", script.format(command))
    for command in ("sdrun", "sdctl", "sdstat", "sd-monitor"):
        run(command, "--help")
    return f"{len(pages)} pages, completion for 3 commands"


def check_hardening():
    text = run("systemd-analyze", "security", "--no-pager", "--threshold=19", MONITOR)
    return text.strip().splitlines()[-1].split(": ")[-1]


def status_of(pid, name):
    with open(f"/proc/{pid}/status", encoding="utf-8") as status:
        return next(line.split(":", 1)[1].split() for line in status if line.startswith(name + ":"))


def check_rights():
    """It is nobody but its own user, has no other capability, and is confined."""
    pid = main_pid(MONITOR)
    number = run("id", "-u", "_socksdirect").strip()
    same("users", status_of(pid, "Uid"), [number] * 4)
    wanted = sum(1 << n for n in (2, 12, 19, 39))  # dac_read_search, net_admin, sys_ptrace, bpf
    for kind in ("CapPrm", "CapEff", "CapBnd"):
        same(kind, int(status_of(pid, kind)[0], 16), wanted)
    with open(f"/proc/{pid}/attr/current", encoding="utf-8") as label:
        same("its AppArmor profile", label.read().strip(" \n\0"), "sd-monitor (enforce)")
    return f"user {number}, AppArmor profile sd-monitor"


def check_never_refused():
    """What the monitor needed it had: AppArmor refused nothing in all that went before."""
    refused = [line for line in run("dmesg", status=None).splitlines() if "DENIED" in line and 'profile="sd-monitor"' in line]
    same("what AppArmor refused the monitor", refused[:5], [])


def check_bridge():
    """A connection that a user's program passes to one without the library is carried by a unit of its own."""
    text = run(sys.executable, "-B", "passing.py")
    found = json.loads(text.strip().splitlines()[-1])
    same("units that carry it", len(found["units"]), 1)
    same("their user", found["users"], ["65534"])
    until("the end of the bridge", lambda: not system.processes("sd-bridge"))
    return f"{found['units'][0]} as nobody"


CONFINED = """abi <abi/3.0>,
include <tunables/global>
profile sd-test {
  include <abstractions/base>
  include <abstractions/python>
%s
  network inet stream,
  network inet6 stream,
  /usr/bin/python3* mrix,
  /run/job/** r,
  owner /proc/** r,
}
"""


def check_confined():
    """A confined program is accelerated where a rule says so and its profile has the abstraction, and works without.

    Without the abstraction it is up to the kernel: Debian 12's does not look at Unix sockets.
    """
    profile = "/run/sd-test"
    library, = glob.glob("/usr/lib/*/socksdirect/libsd.so")
    found = {}
    with configuration() as text:
        for rule in (False, True):
            configure(text + ('\n[[policy.rule]]\naction = "allow"\nport = 6379\nbirth = "shm"\n' if rule else ""))
            for abstraction in (False, True):
                with open(profile, "w", encoding="utf-8") as out:
                    out.write(CONFINED % ("  include <abstractions/socksdirect>" if abstraction else ""))
                run("apparmor_parser", "-r", "-K", profile)
                # As a service has it
                client = Client("env", "LD_PRELOAD=" + library, "aa-exec", "-p", "sd-test", "--")
                ports = set(client.open("redis", 3))
                client.tell("ask")
                if not rule or abstraction:
                    found[rule, abstraction] = share(ports) if rule else len(ports & system.accelerated_ports())
                client.end()
                run("apparmor_parser", "-R", profile)
                os.unlink(profile)
    same("accelerated connections, by rule and abstraction", found,
         {(False, False): 0, (False, True): 0, (True, True): 3})


def check_first_use():
    run("systemctl", "enable", "--now", SOCKET)
    same("monitors before the first use", system.processes("sd-monitor"), [])
    run("sdstat")
    same("the monitor", run("systemctl", "is-active", MONITOR), "active\n")


def enable(service):
    def check():
        unit = UNITS[service]
        run("sdctl", "enable", "--now", unit)
        same("the unit", run("systemctl", "is-active", unit), "active\n")
        pid = until("a main process with the library", lambda: main_pid(unit) if system.has_library(main_pid(unit)) else 0)
        state["pids"][service] = pid
        if unit not in run("sdctl", "list"):
            raise AssertionError("sdctl list does not show it")
    return check


def check_kinds():
    """Templates, instances of them, and services that a socket starts."""
    program = f"Slice=system.slice\nExecStart={sys.executable} -B /run/job/echo.py"
    units = {"/run/systemd/system/echo@.service": f"[Service]\n{program} %i\n",
             "/run/systemd/system/plain@.service": f"[Service]\n{program} %i\n",
             "/run/systemd/system/late.socket": "[Socket]\nListenStream=127.0.0.1:7003\n",
             "/run/systemd/system/late.service": f"[Service]\n{program}\n"}
    try:
        for path, text in units.items():
            with open(path, "w", encoding="utf-8") as out:
                out.write(text)
        run("systemctl", "daemon-reload")
        run("sdctl", "enable", "echo@.service", "plain@7002.service")
        run("systemctl", "start", "echo@7001", "plain@7002", "plain@7005")
        until("echo", lambda: all(system.listens(port) for port in (7001, 7002, 7005)))
        echo(7001, True)
        echo(7002, True)
        echo(7005, False)  # another instance than the one that was named
        run("systemctl", "start", "late.socket")
        if "late.socket" not in run("sdctl", "enable", "late.service"):
            raise AssertionError("the socket of a service is not named")
        echo(7003, False)
        until("the library", lambda: system.has_library(main_pid("late.service")))
    finally:
        run("sdctl", "disable", "echo@.service", "plain@7002.service", "late.service", status=None)
        run("systemctl", "stop", "late.socket", "late.service", "echo@7001", "plain@7002", "plain@7005", status=None)
        for path in units:
            os.unlink(path)
        run("systemctl", "daemon-reload")


def check_refused():
    """A sandbox that forbids what the library needs is named and left as it is."""
    path = f"/run/systemd/system/{UNITS['nginx']}.d/sandbox.conf"
    run("sdctl", "disable", UNITS["nginx"])
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", encoding="utf-8") as out:
        out.write("[Service]\nIPAddressDeny=10.0.0.0/8\n")
    run("systemctl", "daemon-reload")
    text = run("sdctl", "enable", UNITS["nginx"], status=3)
    if "IPAddressDeny" not in text:
        raise AssertionError(text)
    same("a drop-in", os.path.exists(f"/etc/systemd/system/{UNITS['nginx']}.d"), False)
    os.unlink(path)
    os.rmdir(os.path.dirname(path))
    run("systemctl", "daemon-reload")
    run("sdctl", "enable", UNITS["nginx"])


def check_reload():
    """A wrong file makes the reload fail and is not used; a right one is."""
    pid = main_pid(MONITOR)
    with configuration() as text:
        with open(CONFIG, "a", encoding="utf-8") as out:
            out.write("\n[monitor]\nno_such_key = 1\n")
        run("systemctl", "reload", MONITOR, status=1)
        accelerated()
        configure(text + '\n[[policy.rule]]\naction = "deny"\nport = 6379\n')
        client = Client("sdrun")
        until("a connection that the rule forbids stays with the kernel",
              lambda: not set(client.open("redis", 1)) & system.accelerated_ports())
        client.end()
    same("the monitor's process", main_pid(MONITOR), pid)


def first_accelerated(client, service):
    """Connections are opened, one after the other, until one is accelerated: which it was, and when it had answered.

    What begins on the kernel stays there, so it was accelerated then, however late sdstat is asked.
    """
    opened, tries = {}, 0

    def one_more():
        nonlocal tries
        if len(opened) == 20:  # PostgreSQL has no more than a hundred
            client.tell("close")
            opened.clear()
        tries += 1
        opened[client.open(service, 1)[0]] = time.monotonic()
        return opened.keys() & system.accelerated_ports()
    found = until("a new connection is accelerated", one_more)
    client.tell("close")
    return tries, min(opened[port] for port in found)


def interrupted(action, times, found):
    """The monitor goes so often, under load and with connections that are held throughout. What was seen, also when it fails."""
    held, fresh = Client("sdrun"), Client("sdrun")
    ports = set().union(*(held.open(service, count) for service, count in HELD.items()))
    found.update(times=0, held=len(ports), lowest=share(ports), tries=0, back=0.0, slowest=0.0, slow=0)
    load = Load()
    try:
        with load:
            for turn in range(times):
                before, gone_at = main_pid(MONITOR), time.monotonic()
                action(before)
                until("another monitor", lambda: main_pid(MONITOR) not in (0, before) and system.sdstat())
                back = round(time.monotonic() - gone_at, 2)
                tries, opened_at = first_accelerated(fresh, list(UNITS)[turn % 3])
                seconds = round(opened_at - gone_at, 2)
                found.update(tries=max(found["tries"], tries), back=max(found["back"], back),
                             slowest=max(found["slowest"], seconds), slow=found["slow"] + (seconds > 1),
                             lowest=min(found["lowest"], share(ports, held)), times=turn + 1)
    finally:
        found.update(load.counts)
    held.tell("ask")
    held.end()
    fresh.end()
    same("the servers' processes", main_pids(), state["pids"])
    return (f"{times} times; {load.summary()}; at least {found['lowest']} of {len(ports)} held connections accelerated after each; "
            f"a new one at the latest at try {found['tries']}")


def restart(_):
    run("systemctl", "restart", MONITOR)


def kill(pid):
    os.kill(pid, signal.SIGKILL)


def gone(action, times):
    return lambda: interrupted(action, times, {})


def in_rounds():
    """So often in each way, unless the time is up before."""
    for turn in range(0, OPTIONS.restarts, ROUND):
        for action in (restart, kill):
            if time.monotonic() > BEGAN + OPTIONS.seconds:
                return
            found = {"how": action.__name__}
            try:
                interrupted(action, min(ROUND, OPTIONS.restarts - turn), found)
            except (AssertionError, OSError, ValueError, KeyError) as error:
                found["error"] = " / ".join(str(error).splitlines()) or repr(error)
                raise
            finally:
                print(f"round {json.dumps(found)}", flush=True)


def other_version(folder, *options):
    """The servers, and the connections held, have the version before that, whose programs go on with the other monitor."""
    def check():
        before = main_pid(MONITOR)
        held = Client("sdrun")
        ports = set().union(*(held.open(service, count) for service, count in HELD.items()))
        share(ports)
        with Load() as load:
            apt("install", *options, *packages(folder))
            until("the monitor of the other version", lambda: main_pid(MONITOR) not in (0, before) and system.sdstat())
            kept = share(ports, held)
        held.end()
        version = system.installed_version("socksdirect")
        if version == state["version"]:
            raise AssertionError("the version is the same")
        state["version"] = version
        same("the servers' processes", main_pids(), state["pids"])
        same("the socket", run("systemctl", "is-enabled", SOCKET), "enabled\n")
        return f"{version}; {load.summary()}; {kept} of {len(ports)} held connections accelerated; new ones: {accelerated()}"
    return check


def check_doctor():
    return run("sdctl", "doctor").strip().splitlines()[-1]


def check_disable():
    run("sdctl", "disable", "--now", UNITS["nginx"])
    until("nginx without the library", lambda: not system.has_library(main_pid(UNITS["nginx"])))
    same("a drop-in", os.path.exists(f"/etc/systemd/system/{UNITS['nginx']}.d"), False)
    client = Client("sdrun")
    ports = set(client.open("nginx", 3))
    same("accelerated connections", ports & system.accelerated_ports(), set())
    client.end()
    state["pids"]["nginx"] = main_pid(UNITS["nginx"])


def configuration_files():
    """Without directories: dpkg removes those that have become empty."""
    return {path for path in system.files() if path.startswith("/etc/socksdirect/") and os.path.isfile(path)}


def check_plain_remove():
    """What is removed and not purged keeps its configuration, also for those who install it again."""
    client = Client()
    for service in UNITS:
        client.open(service, 1)
    with open(CONFIG, encoding="utf-8") as before:
        text = before.read() + "\n# a line of the administrator's\n"
    configure(text)
    own = configuration_files()
    apt("remove", *system.PACKAGES)
    client.tell("ask")
    same("the servers' processes", main_pids(), state["pids"])
    same("drop-ins", glob.glob("/etc/systemd/system/*/*socksdirect*"), [])
    same("monitors", system.processes("sd-monitor") + system.processes("sd-bridge"), [])
    same("libraries and programs", glob.glob("/usr/lib/*/socksdirect/*.so") + glob.glob("/usr/*bin/sd*-*monitor*"), [])
    same("the configuration's files", configuration_files(), own)
    run("systemctl", "daemon-reload")
    same("failed units", run("systemctl", "list-units", "--failed", "--no-legend", "--plain"), "")
    apt("install", *packages("built"))
    client.tell("ask")
    client.end()
    with open(CONFIG, encoding="utf-8") as after:
        same("the configuration", after.read(), text)
    run("systemctl", "start", SOCKET)
    run("sdstat")
    return f"{len(own)} files of the configuration stay"


def check_remove():
    """Two services still have the library; they go on, and no unit names it any more."""
    client = Client()
    for service in UNITS:
        client.open(service, 1)
    apt("purge", *system.PACKAGES)
    client.tell("ask")
    for service in UNITS:
        client.open(service, 2)
    client.end()
    same("the servers' processes", main_pids(), state["pids"])
    same("drop-ins", glob.glob("/etc/systemd/system/*/*socksdirect*"), [])
    same("monitors", system.processes("sd-monitor") + system.processes("sd-bridge"), [])


def check_without():
    run("systemctl", "restart", *UNITS.values())
    same("servers with the library", [s for s, pid in main_pids().items() if system.has_library(pid)], [])
    client = Client()
    for service in UNITS:
        until(f"{service} answers", lambda s=service: subprocess.run(
            [sys.executable, "-B", "-c", f"import client; client.Connection('{s}').ask()"], check=False,
            stderr=subprocess.DEVNULL).returncode == 0)
    client.end()


def check_nothing_stays():
    same("files", system.difference(state["files"], system.files()), [])
    return f"{len(state['files'])} files; left out are {len(system.CHANGES)} places, with reasons in tests/vm/system.py"


def check_no_unit_stays():
    same("unit files", system.difference(state["unit_files"], system.unit_files()), [])
    same("units", system.difference(state["units"], system.units()), [])
    same("users and groups", system.difference(state["accounts"], system.accounts()), [])
    return f"{len(state['unit_files'])} unit files, {len(state['units'])} units, users and groups"


CHECKS = [  # name, what it does, whether the others need it
    ("the machine is up", check_machine, True),
    ("apt installs the packages", check_install, True),
    ("nothing starts and nothing is enabled by itself", check_nothing_starts, False),
    ("manual pages, completion and help", check_manual, False),
    ("the monitor's exposure is below 2.0", check_hardening, False),
    ("the monitor starts at first use", check_first_use, True),
    ("the monitor has a user of its own and no more rights than its unit says", check_rights, False),
    ("a connection to a program without the library is carried", check_bridge, False),
    ("sdctl enables nginx", enable("nginx"), True),
    ("sdctl enables redis-server", enable("redis"), True),
    ("sdctl enables postgresql", enable("postgresql"), True),
    ("connections to each server are accelerated", accelerated, False),
    ("templates, instances and socket-activated services", check_kinds, False),
    ("sdctl loosens no sandbox", check_refused, False),
    ("sdctl doctor finds nothing wrong", check_doctor, False),
    ("a reload applies the configuration, unless it is wrong", check_reload, False),
    ("discovery joins connections between namespaces", namespaces.check, False),
    ("the package for RDMA: opened where a program is told to, and removed meanwhile", lambda: rdma.check(packages("built")), False),
    ("a confined program is accelerated if it is told to be", check_confined, False),
    # Half a minute
    *([("the package of the module: installed, loaded and purged", dkms.check, False)] if OPTIONS.long else []),
    ("the monitor is restarted under load", gone(restart, TIMES), False),
    ("the monitor is killed under load", gone(kill, TIMES), False),
    ("an upgrade under load", other_version("newer"), False),
    *([("a downgrade to the last release under load", other_version("older", "--allow-downgrades"), True),
       ("an upgrade from the last release under load", other_version("built"), True)] if OPTIONS.released else
      [("a downgrade under load", other_version("older", "--allow-downgrades"), False)]),
    ("the journal has fields for what is about a process", service.check_journal, False),
    ("a profile bounds the rings of a program", service.check_profile, False),
    ("sdctl --user enables a unit of a user's service manager", service.check_user_unit, False),
    *([("a monitor that hangs is restarted by the watchdog", service.check_watchdog, False)] if OPTIONS.long else []),
    ("AppArmor has refused the monitor nothing", check_never_refused, False),
    ("sdctl disables a service", check_disable, False),
    ("a removal keeps the configuration and ends no service", check_plain_remove, False),
    ("a purge ends no service", check_remove, True),
    ("the services start without the packages", check_without, False),
    ("the purge leaves no file", check_nothing_stays, False),
    ("the purge leaves no unit, user or group", check_no_unit_stays, False),
]
SHORT = [*(check for check in CHECKS if check[2] and check[1] is not check_remove),
         ("the monitor goes under load, in rounds", in_rounds, False)]


def main():
    os.chdir(os.path.dirname(os.path.abspath(__file__)))
    failed, lost = 0, None
    for name, check, needed in SHORT if OPTIONS.restarts else CHECKS:
        if lost:
            print(f"failed {name}: not tried after \"{lost}\"", flush=True)
            continue
        try:
            found = check()
            print(f"passed {name}{': ' + found if found else ''}", flush=True)
        except (AssertionError, OSError, ValueError, KeyError, subprocess.SubprocessError) as error:
            failed += 1
            lost = name if needed else None
            print(f"failed {name}: {' / '.join(str(error).splitlines()) or repr(error)}", flush=True)
    if failed:
        for line in run("journalctl", "--no-pager", "-q", "-n", "40", "-u", "sd-monitor*", "-u", "nginx", "-u", "redis-server",
                        "-u", "postgresql@15-main", status=None).splitlines():
            print(f"note   {line}", flush=True)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
