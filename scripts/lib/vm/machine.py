"""Boots a virtual machine on QEMU's own processor, hands it a folder, and passes on what it reports.

The processor is emulated also where the machine has /dev/kvm: what the test finds is then the same everywhere, and a
machine inside a virtual machine often cannot run a whole kernel on it. It is several times slower than a real one,
and what it has of this one's time depends on what else runs here. So nothing is said about time, unless its clock counts
instructions.
"""
import os
import pathlib
import signal
import subprocess
import tarfile
import tempfile
import time

# The kernel's own words when something went wrong in it; a test that made them has failed.
TROUBLE = ("BUG:", "Oops:", "Kernel panic", "general protection", "refcount_t:", "WARNING: CPU")
APPEND = ("console=ttyS0 quiet loglevel=5 net.ifnames=0 panic=-1 oops=panic tsc=reliable no_timer_check mitigations=off "
          "audit=0 nowatchdog random.trust_cpu=on cryptomgr.notests rcupdate.rcu_expedited=1 8250.nr_uarts=2 "
          "systemd.show_status=0")


def processor(processors, counted):
    """counted: one processor, whose clock goes on by a nanosecond with each instruction, and with this machine's while
    it is idle. That is a slow machine, but the same one whatever else runs here."""
    kind = (["-accel", "tcg,thread=single", "-icount", "shift=0,sleep=on", "-rtc", "clock=vm", "-smp", "1"] if counted else
            ["-accel", "tcg,thread=multi", "-smp", str(processors)])
    # A copy with "rep movsb" is emulated byte by byte: without these flags there is none.
    return [*kind, "-cpu", "max,la57=off,erms=off,fsrm=off"]


def command(image, job, console, results, parameters, kind, devices):
    """A machine with the image's disk, then the job; or, where the image has none, the job twice, the second slow to read."""
    disk = ["-drive", f"if=none,id=d0,file={image / 'disk'},format=raw,snapshot=on,cache=unsafe",
            "-device", "virtio-blk-pci,drive=d0"] if (image / "disk").exists() else []
    slow = [] if disk else ["-drive", f"if=none,id=d2,file={job},format=raw,readonly=on,throttling.iops-total=3",
                            "-device", "virtio-blk-pci,drive=d2"]
    return ["qemu-system-x86_64", "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot",
            "-machine", "q35,usb=off,hpet=off,smbus=off,sata=off", *kind, "-m", "1536",
            "-kernel", str(image / "kernel"), "-initrd", str(image / "first.cpio"), "-append", f"{APPEND} {parameters}",
            *disk, "-drive", f"if=none,id=d1,file={job},format=raw,readonly=on", "-device", "virtio-blk-pci,drive=d1",
            *slow, "-device", "virtio-rng-pci", "-serial", f"file:{console}", "-serial", f"file:{results}",
            *devices]


def boot(image, folder, limit_seconds, line_seen, parameters="", processors=2, counted=False, devices=()):
    """Runs `sh ./run` in a copy of the folder, in a booted machine; line_seen(text) gets each line that it prints.

    parameters are more of them for the kernel, devices more of QEMU's arguments. processors: two show what
    happens at the same time, but wait for each other in the kernel; where others have this machine's, that costs
    more than the second one brings. counted: processor().

    Returns its status, or None when the machine ended or the time was up before it did; and the console's text.
    """
    with tempfile.TemporaryDirectory(prefix="sd-vm-") as scratch:
        scratch = pathlib.Path(scratch)
        job, console, results = scratch / "job.tar", scratch / "console", scratch / "results"
        with tarfile.open(job, "w") as archive:
            archive.add(folder, arcname=".")
        results.touch()
        # It goes when this process goes, however that ends.
        machine = subprocess.Popen(["setpriv", "--pdeathsig", "KILL", *command(image, job, console, results, parameters, processor(processors, counted), devices)],
                                   stdin=subprocess.DEVNULL, env={**os.environ, "TMPDIR": str(scratch)})
        status, deadline, rest = None, time.monotonic() + limit_seconds, ""
        try:
            with open(results, encoding="utf-8", errors="replace", newline="\n") as lines:
                while status is None:
                    ended = machine.poll() is not None
                    rest += lines.read()
                    *whole, rest = rest.split("\n")
                    for line in whole:
                        line = line.rstrip("\r")
                        if line.startswith("END "):
                            status = int(line[4:])
                        else:
                            line_seen(line)
                    if ended or time.monotonic() > deadline:
                        break
                    time.sleep(0.1)
            if status is not None:
                machine.wait(timeout=60)
        except subprocess.TimeoutExpired:
            pass
        finally:
            if machine.poll() is None:
                machine.send_signal(signal.SIGKILL)
                machine.wait()
        return status, console.read_text(encoding="utf-8", errors="replace") if console.exists() else ""
