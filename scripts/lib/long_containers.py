"""Containers that Podman makes, given the library by the packages' CDI file (scripts/try-containers): not in the test command, as
it takes Podman, and images of three releases of Debian."""
import os
import subprocess


def run(build_dir, source_dir, record):
    done = subprocess.run([f"{source_dir}/scripts/try-containers"], env={**os.environ, "SD_BUILD": build_dir}, stdout=subprocess.PIPE, text=True, check=False)
    print(done.stdout, end="", flush=True)
    lines = done.stdout.splitlines()
    passed = [line.removeprefix("passed ").split(",")[0] for line in lines if line.startswith("passed ")]
    failed = [line.removeprefix("failed ").split(":")[0] for line in lines if line.startswith("failed ")]
    record("scripts/try-containers", f"passed: {', '.join(passed) or 'none'}; failed: {', '.join(failed) or 'none'}")
    return done.returncode == 0 and bool(passed)
