"""The machine as it is: its files, its units, its services, and what sdstat says."""
import collections
import contextlib
import hashlib
import json
import os
import re
import subprocess
import time

MONITOR = "sd-monitor.service"
CONFIG = "/etc/socksdirect/sd-monitor.toml"
PACKAGES = ("socksdirect", "socksdirect-monitor", "socksdirect-rdma")
UNITS = {"nginx": "nginx.service", "redis": "redis-server.service", "postgresql": "postgresql@15-main.service"}
PATIENCE = 120  # seconds until something that has to come is given up

# What may be another after a purge, and why.
CHANGES = {
    r"/(proc|sys|dev|run|tmp)(/.*)?": "not on the disk, or emptied by every start",
    r"/var/(log|tmp)/.*": "what programs write about themselves",
    r"/var/lib/(redis|postgresql|nginx)/.*": "what the three servers keep",
    r"/var/(cache|lib)/(apt|man-db)(/.*)?": "apt's own lists, and the index of all manual pages",
    r"/var/cache/(debconf|man|ldconfig)(/.*)?": "indexes that are made anew after each installation",
    r"/var/lib/dpkg/([a-z]+-(old|new)|lock.*|updates/.*|triggers/.*)": "dpkg's own copies and locks",
    r"/var/lib/systemd/(timers|random-seed|catalog).*": "systemd's own",
    r"/etc/(\.pwd\.lock|(passwd|group|shadow|gshadow)-)": "copies that are made when a user is added or removed",
    r"/etc/apparmor\.d/disable": "an empty directory, which every package with a profile removes (dh_apparmor)",
    r"/var/cache/apparmor(/.*)?": "profiles as the kernel takes them",
    r"/root/.*": "the history of who was logged in",
}


def run(*command, status=0):
    """The output of a command, which must end with that status (None: with any)."""
    done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          check=False, env={**os.environ, "DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C.UTF-8"})
    if status is not None and done.returncode != status:
        raise AssertionError(f"{' '.join(command)}: status {done.returncode}: {' / '.join(done.stdout.split(chr(10))[-8:])}")
    return done.stdout


def same(what, found, expected):
    if found != expected:
        raise AssertionError(f"{what}: {found!r}, not {expected!r}")


def until(what, condition):
    """Waits for something that has to come; what condition() returned then."""
    end = time.monotonic() + PATIENCE
    while True:
        found = condition()
        if found:
            return found
        if time.monotonic() > end:
            raise AssertionError(f"in vain: {what}")
        time.sleep(0.05)


def files():
    """Every file with its kind, rights and owner; links with where they lead, those of /etc with what is in them."""
    found, left_out = {}, [re.compile(pattern) for pattern in CHANGES]
    for folder, folders, names in os.walk("/"):
        folders[:] = [name for name in folders
                      if not any(p.fullmatch(os.path.join(folder, name)) and p.fullmatch(os.path.join(folder, name, "x"))
                                 for p in left_out)]
        for name in folders + names:
            path = os.path.join(folder, name)
            if any(p.fullmatch(path) for p in left_out):
                continue
            about = os.lstat(path)
            text = f"{about.st_mode:o} {about.st_uid}:{about.st_gid}"
            if os.path.islink(path):
                text += " " + os.readlink(path)
            elif path.startswith("/etc/") and os.path.isfile(path):
                with open(path, "rb") as content:
                    text += " " + hashlib.sha256(content.read()).hexdigest()[:16]
            found[path] = text
    return found


def difference(before, after):
    return [f"{'+' if key not in before else '-' if key not in after else '~'}{key}"
            for key in sorted(before.keys() | after.keys()) if before.get(key) != after.get(key)]


def unit_files():
    lines = run("systemctl", "list-unit-files", "--no-legend", "--no-pager", "--plain").splitlines()
    return {line.split()[0]: line.split()[1] for line in lines if line.split()}


def units():
    """The units that are loaded and active or failed. Those of devices, and of what was started by hand, come and go."""
    lines = run("systemctl", "list-units", "--no-legend", "--no-pager", "--plain").splitlines()
    found = {line.split()[0]: line.split()[2] for line in lines if line.split()}
    return {name: state for name, state in found.items() if not name.endswith((".device", ".scope")) and
            not name.startswith(("systemd-tmpfiles", "run-", "modprobe@"))}


def accounts():
    lines = run("getent", "passwd").splitlines() + run("getent", "group").splitlines()
    return {line: "" for line in lines}


@contextlib.contextmanager
def configuration():
    """What the monitor's file says; afterwards it says that again, and the monitor has read it."""
    with open(CONFIG, encoding="utf-8") as before:
        text = before.read()
    try:
        yield text
    finally:
        configure(text)


def configure(text):
    with open(CONFIG, "w", encoding="utf-8") as out:
        out.write(text)
    run("systemctl", "reload", MONITOR)


def main_pid(unit):
    return int(run("systemctl", "show", "-P", "MainPID", unit))


def main_pids():
    return {service: main_pid(unit) for service, unit in UNITS.items()}


def has_library(pid):
    with open(f"/proc/{pid}/maps", encoding="utf-8") as maps:
        return "/libsd.so" in maps.read()


def listens(port):
    with open("/proc/net/tcp", encoding="utf-8") as table:
        return any(line.split()[1].endswith(f":{port:04X}") and line.split()[3] == "0A" for line in list(table)[1:])


def processes(name):
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/comm", encoding="utf-8") as comm:
                if comm.read().strip() == name:
                    found.append(int(pid))
        except OSError:
            pass
    return found


def sdstat():
    """None while no monitor answers."""
    done = subprocess.run(["sdstat", "--each", "--json"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=False)
    return json.loads(done.stdout) if done.returncode == 0 else None


def accelerated_ports():
    """The client's port of each connection that has both ends."""
    found = sdstat()
    return set() if found is None else {int(c["client"]["address"].rpartition(":")[2]) for c in found["connections"]
                                        if c["state"] == "established"}


def missing(ports):
    """What sdstat says of the connections that are not accelerated, by server and state."""
    counts, seen = collections.Counter(), set()
    for c in (sdstat() or {"connections": []})["connections"]:
        port = int(c["client"]["address"].rpartition(":")[2])
        if port in ports:
            seen.add(port)
            counts[f"{c['server']['comm']} {c['server']['address']} {c['state']}, ends {c['client']['pids']} {c['server']['pids']}"] += 1
    return f"{dict(counts)}, not listed: {len(ports - seen)}"


def installed_version(package):
    return run("dpkg-query", "-W", "-f", "${Version}", package)
