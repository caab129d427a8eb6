"""The package of the zero-copy module. Headers and a compiler are not in this machine, and neither is what apt would
need to fetch them: the module is one that DKMS has built outside, of the same package (scripts/lib/vm/dkms.py)."""
import glob
import os
import shutil
import stat

from system import run, same

MODULE = "socksdirect-zerocopy"
PLACES = ("/usr/src/socksdirect*", "/var/lib/dkms/socksdirect*", "/lib/modules/*/updates", "/usr/share/doc/socksdirect-zerocopy*",
          "/sys/module/socksdirect_zerocopy", "/dev/socksdirect-zerocopy")


def places():
    return sorted(path for pattern in PLACES for path in glob.glob(pattern))


def check():
    kernel = run("uname", "-r").strip()
    modules = f"/lib/modules/{kernel}"
    before = set(os.listdir(modules))
    same("what is of the module before", places(), [])
    built_for, = os.listdir("dkms/built")
    try:
        # dkms wants a compiler. Triggers would make the index of all manual pages anew, twice.
        said = run("dpkg", "--force-depends", "--no-triggers", "-i", *glob.glob("dkms/*.deb"))
        if "headers" not in said:
            raise AssertionError(f"nothing is said about the headers that are missing: {said}")
        version = run("dpkg-query", "-W", "-f", "${Version}", f"{MODULE}-dkms").partition("-")[0]
        module = ["-m", MODULE, "-v", version]
        same("its state", run("dkms", "status", *module), f"{MODULE}/{version}: added\n")
        shutil.copytree(f"dkms/built/{built_for}", f"/var/lib/dkms/{MODULE}/{version}/{built_for}")
        loaded = "not loaded, as this machine has another kernel"
        if built_for == kernel:
            run("dkms", "install", *module, "-k", kernel)
            run("modprobe", "socksdirect_zerocopy")
            same("a device", stat.S_ISCHR(os.stat("/dev/socksdirect-zerocopy").st_mode), True)
            run("systemctl", "start", "sd-calibrate.service")
            with open("/sys/module/socksdirect_zerocopy/parameters/least_give", encoding="ascii") as least:
                calibrated = int(least.read())
            if calibrated == 0:
                raise AssertionError("sd-calibrate.service did not tell the module what it measured")
            run("modprobe", "-r", "socksdirect_zerocopy")
            loaded = f"loaded, and calibrated ({calibrated})"
    finally:
        run("dpkg", "--no-triggers", "--purge", f"{MODULE}-dkms", "dkms")
        # Depmod's lists: this machine has a part of the modules, and none
        for name in set(os.listdir(modules)) - before:
            if name.startswith("modules."):
                os.unlink(os.path.join(modules, name))
    same("what is left of the module", places(), [])
    return f"built for {built_for}, {loaded}"
