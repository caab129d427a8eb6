"""Runs inside the machine, as root: the packages' own tests, as Debian's continuous integration runs them."""
import glob
import re
import subprocess

# Started by the test runner in a machine of its own; there is no further one to start.
command = ["autopkgtest", "--no-built-binaries", "--ignore-restrictions=isolation-machine", "--timeout-factor=3",
           *sorted(glob.glob("/run/job/built/*.deb")), "/run/job/source//", "--", "null"]
done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
results = re.findall(r"^(\S+)\s+(PASS|FAIL|SKIP|FLAKY)(.*)$", done.stdout[done.stdout.rfind("@@@@ summary"):], re.M)
for name, result, why in results:
    kind = {"PASS": "passed", "SKIP": "skipped"}.get(result, "failed")
    print(f"{kind} autopkgtest {name}{':' + why if kind != 'passed' else ''}", flush=True)
if done.returncode != 0 or not results:
    if all(result == "PASS" for _, result, _ in results):
        print(f"failed autopkgtest: status {done.returncode}", flush=True)
    for line in done.stdout.splitlines()[-60:]:
        print(f"note   {line}", flush=True)
