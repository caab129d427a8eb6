#!/usr/bin/env python3
"""libsd-pages.so with a device that is played, and without one: pages_test.py LIBSD_PAGES FAKE_DEVICE TORTURE EXCHANGE FRAMES RELAY

The torture runs with the C library's allocator, with others that are preloaded behind (where they are installed), without a
device, and without the library: what it asks for is what Linux does.
"""
import glob
import json
import os
import subprocess
import sys
import tempfile
import time

library, device, torture, exchange, frames, relay = (os.path.abspath(path) for path in sys.argv[1:7])
sdrun, sdstat = (f"{os.path.dirname(library)}/{name}" for name in ("sdrun", "sdstat"))
failed = False


def run(name, preload, *command, expect=None, **variables):
    global failed
    environment = {**os.environ, **variables}
    if preload:
        environment["LD_PRELOAD"] = ":".join(preload)
    done = subprocess.run(command or [torture], env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          check=False)
    passed = done.stdout.count("passed pages:")
    good = done.returncode == 0 and (expect in done.stdout if expect else passed >= 25)
    print(f"{'passed' if good else 'FAILED'} {name}: status {done.returncode}, {passed} cases", flush=True)
    if not good:
        print(done.stdout)
        failed = True


run("without the library", [], PAGES_DEVICE="no")
run("without a device", [library, device], PAGES_DEVICE="no", FAKE_DEVICE_MISSING="1")
run("switched off", [library, device], PAGES_DEVICE="no", SD_ZERO_COPY="0")
run("with a device", [library, device])
# What stands behind is not the C library, and has functions of its own for sizes and alignments.
for pattern in ("libjemalloc.so.2", "libtcmalloc.so.4", "libtcmalloc_minimal.so.4", "libmimalloc.so.2"):
    for other in glob.glob(f"/usr/lib/x86_64-linux-gnu/{pattern}"):
        run(f"with {pattern} behind", [library, device, other])
        # In front it has its own malloc, and its memory from mmap.
        run(f"with {pattern} in front", [other, library, device], torture, "large_mappings_are_the_devices",
            "places_are_used_again", "parts_are_unmapped", "discarded_memory_is_zero", expect="passed pages: discarded")
# Real programs
SCRIPT = """
import os, zlib, mmap
blocks = [bytearray(os.urandom(300000 + i * 50000)) for i in range(40)]
sums = [zlib.crc32(b) for b in blocks]
for b in blocks: b.extend(bytes(1 << 20))
pid = os.fork()
for b in blocks: b[0:300000] = bytes(300000)
if pid == 0: os._exit(0)
assert os.waitpid(pid, 0)[1] == 0
x = 3 ** 3000000
assert x % 1000007 == pow(3, 3000000, 1000007)
print('all is well')
"""
# Large pieces from such memory into such memory, over libsd.
TALK = """
import socket, os, hashlib, ctypes
listener = socket.create_server(('127.0.0.1', 0))
data = bytearray(os.urandom(3110400))
if os.fork() == 0:
    sock = socket.create_connection(listener.getsockname())
    for i in range(20):
        data[i * 4096] = i
        sock.sendall(data)
    os._exit(0)
sock, _ = listener.accept()
into = bytearray(3110400)
owns = getattr(ctypes.CDLL(None), 'fake_device_owns')
owns.restype, owns.argtypes = ctypes.c_bool, [ctypes.c_void_p]
assert owns(ctypes.addressof(ctypes.c_char.from_buffer(into)))
for i in range(20):
    assert sock.recv_into(into, len(into), socket.MSG_WAITALL) == len(into)
    data[i * 4096] = i
    assert into == data
assert os.wait()[1] == 0
print('all arrived')
"""
run("sdrun --zero-copy", [device], sdrun, "--zero-copy", sys.executable, "-c", TALK,
    expect="all arrived")
run("Python", [library, device], sys.executable, "-c", SCRIPT, expect="all is well")
run("sort", [library, device], "sh", "-c", "seq 1 300000 | sort -R | sort -n | md5sum; seq 1 300000 | md5sum",
    expect=subprocess.run("seq 1 300000 | md5sum", shell=True, stdout=subprocess.PIPE, text=True, check=True).stdout * 2)
# The monitor looks at the kind of a channel's end, which is played for it, too; sdrun would preload nothing.
# With a socket of its own: that of the host's monitor is there for all programs of the machine.
place = tempfile.TemporaryDirectory()
os.environ["SD_MONITOR"] = f"{place.name}/monitor.sock"
monitor = subprocess.Popen([f"{os.path.dirname(library)}/sd-monitor", "--socket", os.environ["SD_MONITOR"]],
                           env={**os.environ, "LD_PRELOAD": device}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
while subprocess.run([sdstat, "--json"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False).returncode != 0:
    time.sleep(0.05)
# What is expected is what kernel TCP does, and libsd without pages.
for name, preload, words, variables in (
        ("kernel TCP", [], [], {"PAGES_DEVICE": "no"}), ("libsd, copied", [], [sdrun], {"PAGES_DEVICE": "no"}),
        ("libsd, pages", [device], [sdrun, "--zero-copy"], {})):
    run(f"exchange, {name}", preload, *words, exchange, os.environ.get("PAGES_FIRST", "1"), os.environ.get("PAGES_EXCHANGES", "40"),
        expect="passed pages", **variables)


def frames_and_counts(name, preload, receiver, sender, holds):
    """20 frames from one program to another, and what sdstat shows of their connection."""
    global failed
    environment = {**os.environ, "LD_PRELOAD": ":".join(preload), "PAGES_WAIT": "1"}
    pipes = {"env": environment, "stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    taker = subprocess.Popen([sdrun, *receiver, frames, "receive", "20", "3", "all"], **pipes)
    port = taker.stdout.readline().split()[1]
    giver = subprocess.run([sdrun, *sender, frames, "send", port, "20", "3", "all"], env=environment, check=False)
    shown = subprocess.run([sdstat, "--json"], stdout=subprocess.PIPE, text=True, check=False)
    found = [row for row in json.loads(shown.stdout)["connections"] if row["server"]["address"].endswith(":" + port)]
    one = subprocess.run([sdstat, f"127.0.0.1:{port}"], stdout=subprocess.PIPE, text=True, check=False).stdout
    rest, _ = taker.communicate("\n")
    handed = found[0]["to_server"]["handed"] if found else "no connection"
    good = giver.returncode == 0 and taker.returncode == 0 and found and holds(handed, one)
    print(f"{'passed' if good else 'FAILED'} frames, {name}: {handed}", flush=True)
    if not good:
        print(rest, one)
        failed = True


TOTAL = 20 * 3110400
frames_and_counts("both with pages", [device], ["--zero-copy"], ["--zero-copy"],
                  lambda h, one: h["mapped"] > TOTAL * 0.8 and h["mapped"] + h["read"] == h["given"] and
                  h["given"] + sum(h["copied"].values()) == TOTAL and f"{h['given']} bytes: {h['mapped']} mapped" in one)
frames_and_counts("a receiver without", [device], [], ["--zero-copy"],
                  lambda h, one: h["given"] == 0 and h["copied"]["peer_without"] > TOTAL * 0.9 and "takes no pages" in one)
frames_and_counts("a sender without", [device], ["--zero-copy"], [], lambda h, one: h is None and "sent as pages" not in one)


def relayed(name, shift, holds):
    """Bytes that a program passes on unread, and what sdstat shows of the connection on which it does."""
    global failed
    total = 40 << 20
    environment = {**os.environ, "LD_PRELOAD": device, "PAGES_WAIT": "1"}
    pipes = {"env": environment, "stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    words = [sdrun, "--zero-copy", relay]
    taker = subprocess.Popen([*words, "receive", str(total)], **pipes)
    port = taker.stdout.readline().split()[1]
    middle = subprocess.Popen([*words, "relay", port, str(shift)], **pipes)
    giver = subprocess.Popen([*words, "send", middle.stdout.readline().split()[1], str(total)], env=environment)
    said = taker.stdout.readline()
    shown = subprocess.run([sdstat, "--json"], stdout=subprocess.PIPE, text=True, check=False)
    found = [row for row in json.loads(shown.stdout)["connections"] if row["server"]["address"].endswith(":" + port)]
    taker.communicate("\n")
    statuses = [program.wait() for program in (giver, middle, taker)]
    handed = found[0]["to_server"]["handed"] if found else None
    good = said == "all arrived\n" and statuses == [0, 0, 0] and handed and holds(handed, total)
    print(f"{'passed' if good else 'FAILED'} relay, {name}: {handed}", flush=True)
    failed = failed or not good


relayed("aligned", 0, lambda h, total: h["mapped"] > total * 0.7 and h["mapped"] + h["read"] == h["given"])
# Nothing of it can be mapped, which a little shows: 1 MiB and less than one more, before and after 16 MiB of
# copies.
relayed("unaligned", 1000, lambda h, total: h["given"] + sum(h["copied"].values()) == total and h["mapped"] == 0 and
        0 < h["given"] < 4 << 20)
monitor.terminate()
monitor.wait()
sys.exit(failed)
