"""clang's path-sensitive analyzer over what strangers speak to: the monitor, its tools, and the control channel of libsd."""
import os
import pathlib
import re
import subprocess
import sys

# Padding is not a mistake; each object is somebody's until the program ends, and LeakSanitizer looks at that.
CHECKS = "-*,clang-analyzer-*,-clang-analyzer-optin.performance.Padding,-clang-analyzer-cplusplus.NewDeleteLeaks"


def run(build_dir, source_dir, record):
    place = pathlib.Path(build_dir).parent / "build-includes"
    if not (place / "build.ninja").exists():
        subprocess.run(["meson", "setup", place, source_dir, "-Ddebug=false", "-Dtests=false", "-Dbench=false"], check=True,
                       env={**os.environ, "CC": "clang", "CXX": "clang++"})
    tidy = pathlib.Path(source_dir, "scripts/lib/tidy.py")
    done = subprocess.run([sys.executable, "-B", tidy, place, "monitor", "libsd/control"], capture_output=True, text=True,
                          env={**os.environ, "SD_TIDY_CHECKS": CHECKS}, check=False)
    print(done.stdout, end="")
    found = re.search(r"^(\d+) compilations, (\d+) with messages$", done.stdout, re.MULTILINE)
    record("clang's analyzer over monitor and libsd/control", f"{found[1]} sources, {found[2]} with messages" if found else "failed")
    return done.returncode == 0
