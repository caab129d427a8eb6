"""Redis, Nginx, iperf3 and PostgreSQL between two virtual machines with soft-RoCE (scripts/vm-test rdma --long): in the
test command there is a little of Redis only."""
import re
import subprocess

LIMIT = 3600  # seconds for both machines


def run(build_dir, source_dir, record):
    done = subprocess.run([f"{source_dir}/scripts/vm-test", "rdma", "--long", "--build", build_dir, "--limit", str(LIMIT)],
                          stdout=subprocess.PIPE, text=True, check=False)
    print(done.stdout, end="", flush=True)
    lines = done.stdout.splitlines()
    failed = [line.removeprefix("failed: ") for line in lines if line.startswith("failed: ")]
    took = re.findall(r"# (\w+), ([\w ]+): (\d+) s, ", done.stdout)
    took = "; ".join(f"{name} {how} {seconds} s" for name, how, seconds in took)
    record("scripts/vm-test rdma --long", f"{lines[-1] if lines else 'nothing'}; failed: {', '.join(failed) or 'none'}; {took}")
    return done.returncode == 0
