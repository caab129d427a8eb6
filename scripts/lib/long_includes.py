"""Each source of the library and of the monitor compiled by itself: it includes what it needs."""
import os
import pathlib
import re
import subprocess
import sys


def run(build_dir, source_dir, record):
    place = pathlib.Path(build_dir).parent / "build-includes"
    if not (place / "build.ninja").exists():
        subprocess.run(["meson", "setup", place, source_dir, "-Ddebug=false", "-Dtests=false", "-Dbench=false"], check=True,
                       env={**os.environ, "CC": "clang", "CXX": "clang++"})
    syntax = pathlib.Path(source_dir, "scripts/lib/syntax.py")
    done = subprocess.run([sys.executable, "-B", syntax, place, "libsd", "monitor"], capture_output=True, text=True, check=False)
    print(done.stdout, end="")
    found = re.search(r"^(\d+) compilations, (\d+) with messages$", done.stdout, re.MULTILINE)
    record("each source compiled by itself", f"{found[1]} sources, {found[2]} with messages" if found else "failed")
    return done.returncode == 0
