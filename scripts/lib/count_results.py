"""Totals of a test run: count_results.py RESULTS [PROBLEM...]

RESULTS holds a folder per run, with meson's testlog.json and one NAME.results per Catch2 program (a line per finished
test case, written by tests/support/catch_main.cpp). A test without such a file is a script and counts as one.
A program that ends badly without a failed test case counts as one failure, and so does every PROBLEM (a failed build
or check). Exits with 1 when anything failed.
The last line that a skipped script printed is its reason, and is shown.
"""
import collections
import json
import pathlib
import sys


def meson_verdict(result: str) -> str:
    return {"OK": "passed", "EXPECTEDFAIL": "passed", "SKIP": "skipped"}.get(result, "failed")


def last_line(test: dict) -> str:
    lines = (test.get("stdout", "") + "\n" + test.get("stderr", "")).strip().splitlines()
    return lines[-1] if lines else "no reason is said"


def count_run(folder: pathlib.Path, totals: collections.Counter, failures: list[str]) -> None:
    log = folder / "testlog.json"
    if not log.exists():
        return  # reported as a problem by the caller
    for line in log.read_text(encoding="utf-8").splitlines():
        test = json.loads(line)
        name = test["name"].split(" / ")[-1]
        verdict = meson_verdict(test["result"])
        cases = folder / f"{name}.results"
        if not cases.exists():
            totals[verdict] += 1
            if verdict == "failed":
                failures.append(f"{folder.name}: {name}: {test['result']}")
            if verdict == "skipped":
                print(f"skipped: {folder.name}: {name}: {last_line(test)}")
            continue
        failed_before = totals["failed"]
        for case in cases.read_text(encoding="utf-8").splitlines():
            case_verdict, _, case_name = case.partition(" ")
            totals[case_verdict] += 1
            if case_verdict == "failed":
                failures.append(f"{folder.name}: {name}: {case_name}")
        if verdict == "failed" and totals["failed"] == failed_before:
            totals["failed"] += 1
            failures.append(f"{folder.name}: {name}: ended with {test['result']} outside of its test cases")


def main() -> None:
    totals: collections.Counter = collections.Counter()
    failures: list[str] = []
    results = pathlib.Path(sys.argv[1])
    for folder in sorted(results.iterdir()) if results.exists() else []:
        count_run(folder, totals, failures)
    for problem in sys.argv[2:]:
        totals["failed"] += 1
        failures.append(problem)
    for failure in failures:
        print(f"failed: {failure}")
    print(f"{totals['passed']} passed, {totals['failed']} failed, {totals['skipped']} skipped")
    # An empty run proves nothing.
    sys.exit(1 if totals["failed"] or not totals["passed"] else 0)


main()
