"""The packages of both releases of Debian, built twice and compared, looked at by lintian, and as RPM packages.

Only what git knows of the tree is in them, and they are not kept. Needs root, as scripts/package does.
"""
import subprocess
import tempfile

from long import Budget, State

RELEASES = ("bookworm", "trixie")
OPTIONS = ("--twice", "--rpm")
LEAST = 1200  # seconds that one of them needs


def build(source_dir, release):
    """What came of it, and whether it is as it should be."""
    with tempfile.TemporaryDirectory(prefix="sd-packages-") as folder:
        command = ["nice", f"{source_dir}/scripts/package", "--release", release, *OPTIONS, "--output", folder]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
        print(done.stdout, end="", flush=True)
        if done.returncode != 0:
            return f"failed: {done.stdout.strip().splitlines()[-1:]}", False
        made = [line.rsplit("/", 1)[1] for line in done.stdout.splitlines() if line.startswith(folder)]
        debian = sum(name.endswith(".deb") for name in made)
        return (f"{debian} packages, each the same when built again, lintian finds no error and no warning; "
                f"{len(made) - debian} RPM packages with the same files"), True


def run(build_dir, source_dir, record):
    state, budget = State(build_dir, "packages"), Budget()
    for release in RELEASES:
        if release in state.get("done", []):
            continue
        if budget.left() < LEAST:
            return True
        result, well = build(source_dir, release)
        record(f"scripts/package --release {release} {' '.join(OPTIONS)}", result.replace("|", "/"))
        if not well:
            return False
        state.setdefault("done", []).append(release)
        state.save()
    state.path.unlink(missing_ok=True)  # the next call builds all of them
    return True
