"""The hostile storm (tests/e2e/hostile_storm) for an hour; each run has other seeds."""
import os
import re
import subprocess

from long import Budget, State

SECONDS = 3600


def run(build_dir, source_dir, record):
    state = State(build_dir, "storm")
    seed = state["seed"] = state.get("seed", 0) + 10
    state.save()
    seconds = int(min(SECONDS, Budget().left()))
    # With a pipe, as what it has said must be there when it is interrupted.
    command = [f"{source_dir}/tests/e2e/hostile_storm", str(seconds), str(seed)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True,
                          env={**os.environ, "SD_BUILD_DIR": build_dir, "SD_SOURCE_DIR": source_dir}) as process:
        lines = []
        try:
            for line in process.stdout:
                print(line, end="", flush=True)
                lines.append(line.rstrip("\n"))
            status = process.wait()
        except KeyboardInterrupt:
            process.terminate()
            status = "interrupted"
    with open(os.path.join(build_dir, "long", "storm.log"), "w", encoding="utf-8") as log:
        log.write("\n".join(lines))
    wrong = [line[5:] for line in lines if line.startswith("FAIL ")]
    told = [m.group(0) for line in lines if line.startswith("ok ") for m in [re.search(r"none of \d+ honest requests failed|[\d.]+ % of the honest connections accelerated", line)] if m]
    record(f"{seconds} s, seed {seed}", "; ".join(told + ([f"failed: {w}" for w in wrong] if wrong else [f"status {status}"])).replace("|", "/"))
    return status == 0
