"""Each source of the library and of the monitor, and each unit test, compiled by itself: it includes what it needs."""
import os
import pathlib
import re
import subprocess
import sys


def look_at_each(what, script, folders, build_dir, source_dir, record, **environment):
    """Has a script of this folder look at the sources, compiled each by itself; a row says what it found."""
    place = pathlib.Path(build_dir).parent / "build-includes"
    if not (place / "build.ninja").exists():
        subprocess.run(["meson", "setup", place, source_dir, "-Ddebug=false", "-Dbench=false"], check=True,
                       env={**os.environ, "CC": "clang", "CXX": "clang++"})
    done = subprocess.run([sys.executable, "-B", pathlib.Path(source_dir, "scripts/lib", script), place, *folders], capture_output=True,
                          text=True, env={**os.environ, **environment}, check=False)
    print(done.stdout, end="")
    found = re.search(r"^(\d+) compilations, (\d+) with messages$", done.stdout, re.MULTILINE)
    record(what, f"{found[1]} sources, {found[2]} with messages" if found else "failed")
    return done.returncode == 0


def run(build_dir, source_dir, record):
    return look_at_each("each source compiled by itself", "syntax.py", ["libsd", "monitor", "tests/unit"], build_dir, source_dir, record,
                        SD_SYNTAX_ALONE="1")
