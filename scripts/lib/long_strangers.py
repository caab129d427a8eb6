"""All behaviours with each forked side as another user, for good (SD_E2E_STRANGERS), in both runs."""
import os
import pathlib
import re
import subprocess
import sys
import tempfile

from long import Budget, State

USER = "60002"
# Differ, and why.
KNOWN = {
    # in the library
    "held_back: processes that share a corked connection": "what is held back goes out when the connection becomes the kernel's",
    "buffers: a view outlives its connection, and its sender": "another user's pool is not mapped: its bytes are copied",
    # in the test: what it does needs root, or looks at what only root's processes count
    "demoted: connections that crossed are counted, and what stayed shared": "nobody is root who could give it up",
    "identity: rules see the user that a process has become": "it has become another one",
    "limited: little memory may be locked (RLIMIT_MEMLOCK)": "setgid",
    "forking: a monitor that is stopped for a while": "asks a private monitor that is root's",
    "buffers: a receiver that keeps everything meets a quota": "the connection crosses, and then nothing is in place",
    "buffers: after a fork both processes send and receive": "that the connection crosses is counted",
    "buffers: a connection is passed on with bytes in a buffer": "the same",
    "buffers: a buffer behind the urgent byte is peeked at by who has not seen its like": "the same",
    "forking: a child closes its parent's listener while the monitor is stopped": "asks a private monitor that is root's",
    "effective: another effective user meanwhile": "that the connection crosses, before, is counted",
    "effective: another effective user meanwhile, by system call": "the same",
    "effective: the real user's rights again": "the same",
    "effective: no effective capabilities meanwhile": "the same",
    "effective: capset with bad arguments": "the same",
    "effective: other users that the kernel refuses": "the same",
    "accept pool: processes in accept on one listener, in every mixture": "the acceptors' statistics",
}


def run_piece(name, programs, build_dir, source_dir, how):
    """The cases of one program, or those of none. Each with its verdict."""
    chosen = [f"[{name}]"] if name else ["".join(f"~[{p}]" for p in programs)]
    with tempfile.TemporaryDirectory() as results:
        environment = {**os.environ, "SD_BUILD_DIR": build_dir, "SD_SOURCE_DIR": source_dir, "SD_TEST_RESULTS": results,
                       "SD_E2E_PROGRAMS": name, **how}
        subprocess.run([f"{build_dir}/tests/e2e/behaviour_test", "--name", "all", *chosen], env=environment,
                       stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
        file = pathlib.Path(results, "all.results")
        cases = [line.split(" ", 1) for line in file.read_text("utf-8").splitlines()] if file.exists() else []
    return {case: verdict for verdict, case in cases} or {f"{name}: it has no results": "failed"}


def behaviours(part, build_dir, source_dir, record, what, how, known):
    """Runs them all with `how` in the environment, one program after the other; `known` are those that differ. There is a
    row once all have run."""
    state, budget = State(build_dir, part), Budget()
    programs = re.findall(r'"([^"]+)"', pathlib.Path(build_dir, "tests/e2e/programs.h").read_text("utf-8"))
    done = state.setdefault("done", {})
    for name in [*programs, ""]:
        if name not in done and budget.left() > 0:
            done[name] = run_piece(name, programs, build_dir, source_dir, how)
            state.save()
    verdicts = {case: verdict for cases in done.values() for case, verdict in cases.items()}
    wrong = [case for case, verdict in verdicts.items() if verdict == "failed" and case not in known]
    if not set(programs) | {""} <= set(done):
        print(f"{len(done)} of {len(programs) + 1} programs so far, not known: {wrong}", file=sys.stderr)
        return False
    count = {verdict: sum(v == verdict for v in verdicts.values()) for verdict in ("passed", "failed", "skipped")}
    same = [case for case in known if verdicts.get(case) == "passed"]
    record(what, f"{count['passed']} passed, {count['failed']} failed, {count['skipped']} skipped"
           + (f"; not known: {'; '.join(wrong)}" if wrong else "") + (f"; do not differ: {'; '.join(same)}" if same else ""))
    state.clear()
    state.save()
    return not wrong


def run(build_dir, source_dir, record):
    return behaviours("strangers", build_dir, source_dir, record, "behaviours, one side another user", {"SD_E2E_STRANGERS": USER}, KNOWN)
