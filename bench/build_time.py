#!/usr/bin/env python3
"""What a build costs under sdrun: ./configure and make of GNU hello, with and without, in turn.

Some thousands of processes that never come to use TCP. Debian's source package is fetched with apt, by the
sources that the system has, into a directory of its own; --source DIRECTORY names one that is unpacked. The
ratios are of neighbours in time. Processor time of all processes tells more than the wall on a busy machine.
"""
import argparse, os, pathlib, resource, shutil, statistics, subprocess, tempfile, time

ROOT = pathlib.Path(__file__).resolve().parent.parent


def fetch(to):
    parts = to / "parts"
    parts.mkdir()
    (to / "lists").mkdir()
    for source in pathlib.Path("/etc/apt/sources.list.d").glob("*.sources"):
        lines = source.read_text().splitlines()
        lines = ["Types: deb-src" if line.startswith("Types:") else line for line in lines]
        (parts / source.name).write_text("\n".join(lines) + "\n")
    old = pathlib.Path("/etc/apt/sources.list")
    if old.exists():
        lines = ["deb-src" + line[3:] for line in old.read_text().splitlines() if line.startswith("deb ")]
        (parts / "old.list").write_text("\n".join(lines) + "\n")
    apt = ["apt-get", "-qq", "-o", "Dir::Etc::sourcelist=/dev/null", "-o", f"Dir::Etc::sourceparts={parts}",
           "-o", f"Dir::State::lists={to / 'lists'}"]
    subprocess.run([*apt, "update"], check=True)
    subprocess.run([*apt, "source", "--download-only", "hello"], cwd=to, check=True)
    unpacked = to / "source"
    unpacked.mkdir()
    archive = next(to.glob("hello_*.orig.tar.*[zZ2]"))
    subprocess.run(["tar", "-xf", archive, "-C", unpacked, "--strip-components=1"], check=True)
    return unpacked


def build(source, before):
    """Wall and processor time, in seconds."""
    with tempfile.TemporaryDirectory() as directory:
        tree = pathlib.Path(directory) / "tree"
        shutil.copytree(source, tree, symlinks=True, copy_function=shutil.copy2)
        used, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
        subprocess.run([*before, "sh", "-c", "./configure && make"], cwd=tree, check=True,
                       stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wall, now = time.monotonic() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
        return wall, now.ru_utime + now.ru_stime - used.ru_utime - used.ru_stime


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--build", default=os.environ.get("SD_BUILD", ROOT / "build"), help="has sdrun")
    parser.add_argument("--source", type=pathlib.Path, help="an unpacked source with ./configure")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        source = options.source or fetch(pathlib.Path(directory))
        sdrun = [str(pathlib.Path(options.build).resolve() / "sdrun")]
        build(source, [])  # warms the caches
        ratios = []
        for i in range(options.rounds):
            turn = [([], "without"), (sdrun, "sdrun")]
            took = {name: build(source, before) for before, name in (turn if i % 2 == 0 else turn[::-1])}
            (wall, cpu), (sd_wall, sd_cpu) = took["without"], took["sdrun"]
            ratios.append((sd_wall / wall, sd_cpu / cpu))
            print(f"without {wall:.2f} s, processor {cpu:.2f} s; sdrun {sd_wall:.2f} s, processor {sd_cpu:.2f} s",
                  flush=True)
        print("sdrun to without: wall %.3f, processor time %.3f"
              % tuple(statistics.median(each) for each in zip(*ratios)))


main()
