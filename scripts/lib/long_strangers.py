"""All behaviours with each forked side as another user, for good (SD_E2E_STRANGERS), in both runs."""
import os
import pathlib
import subprocess
import tempfile

USER = "60002"
# Differ, and why.
KNOWN = {
    # in the library
    "held_back: processes that share a corked connection": "what is held back goes out when the connection becomes the kernel's",
    "passing: the sender keeps it": "for another user it is a bridge's, and what the two write is not in order",
    "growth: connections that children close last leave nothing": "15,000 bridged connections take longer than the test may",
    # in the test: what it does needs root, or looks at what only root's processes count
    "demoted: connections that crossed are counted, and what stayed shared": "nobody is root who could give it up",
    "identity: rules see the user that a process has become": "it has become another one",
    "limited: little memory may be locked (RLIMIT_MEMLOCK)": "setgid",
    "forking: a monitor that is stopped for a while": "asks a private monitor that is root's",
    "accept pool: processes in accept on one listener, in every mixture": "the acceptors' statistics",
}


def behaviours(build_dir, source_dir, record, what, how, known):
    """Runs them all with `how` in the environment; `known` are those that differ."""
    with tempfile.TemporaryDirectory() as results:
        environment = {**os.environ, "SD_BUILD_DIR": build_dir, "SD_SOURCE_DIR": source_dir, "SD_TEST_RESULTS": results, **how}
        subprocess.run([f"{build_dir}/tests/e2e/behaviour_test", "--name", "all"], env=environment, stdout=subprocess.DEVNULL,
                       stderr=subprocess.DEVNULL, check=False)
        file = pathlib.Path(results, "all.results")
        cases = [line.split(" ", 1) for line in file.read_text("utf-8").splitlines()] if file.exists() else []
    count = {verdict: sum(v == verdict for v, _ in cases) for verdict in ("passed", "failed", "skipped")}
    wrong = [name for verdict, name in cases if verdict == "failed" and name not in known]
    record(what, f"{count['passed']} passed, {count['failed']} failed, {count['skipped']} skipped"
           + (f"; not known: {'; '.join(wrong)}" if wrong else ""))
    return bool(cases) and not wrong


def run(build_dir, source_dir, record):
    return behaviours(build_dir, source_dir, record, "behaviours, one side another user", {"SD_E2E_STRANGERS": USER}, KNOWN)
