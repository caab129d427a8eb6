"""Reading the output of the load generators and of the system call counters."""

import csv
import io
import json
import re

from procs import RunError


def redis_benchmark(text):
    """`redis-benchmark --csv` of one test: requests/s, mean and p99 in microseconds."""
    rows = list(csv.reader(io.StringIO(text[text.find('"test"'):]))) if '"test"' in text else []
    if len(rows) < 2 or "rps" not in rows[0]:
        raise RunError(f"redis-benchmark printed no CSV: {text.strip()[-300:]!r}")
    row = dict(zip(rows[0], rows[1]))
    try:
        return {"rate": float(row["rps"]), "mean_us": float(row["avg_latency_ms"]) * 1000,
                "p99_us": float(row["p99_latency_ms"]) * 1000}
    except (KeyError, ValueError) as error:
        raise RunError(f"redis-benchmark printed an unknown CSV: {rows[:2]}") from error


def wrk(text):
    """The JSON line that wrk_report.lua adds to wrk's output."""
    match = re.search(r"^WRK_REPORT (\{.*\})$", text, re.MULTILINE)
    if not match:
        raise RunError(f"wrk printed no report: {text.strip()[-300:]!r}")
    report = json.loads(match.group(1))
    errors = {k: v for k, v in report["errors"].items() if v}
    if report["requests"] == 0:
        raise RunError(f"wrk completed no request, errors: {errors}")
    # A connection that the server closes as asked counts as a read error in some versions: only when all
    # fail.
    if errors.get("status") or errors.get("connect") or sum(errors.values()) > report["requests"] / 100:
        raise RunError(f"wrk saw errors: {errors} in {report['requests']} requests")
    return {"rate": report["requests"] / (report["duration_us"] / 1e6), "mean_us": report["mean_us"],
            "p99_us": report["p99_us"], "requests": report["requests"],
            "bytes_per_s": report["bytes"] / (report["duration_us"] / 1e6)}


def memaslap(text, clients):
    """memcaslap's summary. Its latencies are whole microseconds, so the mean comes from the rate: each of its
    clients has one request under way all the time. The p99 is interpolated in its powers of two."""
    match = re.search(r"Run time: [\d.]+s Ops: (\d+) TPS: (\d+)", text)
    if not match or int(match.group(2)) == 0:
        raise RunError(f"memcaslap printed no summary: {text.strip()[-300:]!r}")
    rate = float(match.group(2))
    misses = re.search(r"get_misses: (\d+)", text)
    if misses and int(misses.group(1)) > int(match.group(1)) / 100:
        raise RunError(f"memcaslap missed {misses.group(1)} of {match.group(1)} keys")
    result = {"rate": rate, "mean_us": clients * 1e6 / rate, "p99_us": None, "requests": int(match.group(1))}
    blocks = text.rsplit("Total Statistics (", 1)
    if len(blocks) == 2:
        counts = {}
        for start, row in re.findall(r"^\s+(\d+):((?:\s+\d+)+)\s*$", blocks[1], re.MULTILINE):
            for offset, count in enumerate(row.split()):
                counts[int(start) + offset] = int(count)
        result["p99_us"] = log2_quantile(counts, 0.99)
    return result


def log2_quantile(counts, part):
    """Quantile of a histogram whose bucket b holds the values of b bits, linear inside the bucket."""
    total = sum(counts.values())
    if total == 0:
        return None
    wanted, seen = part * total, 0
    for bucket in sorted(counts):
        if counts[bucket] and seen + counts[bucket] >= wanted:
            low = 0 if bucket == 0 else 2 ** (bucket - 1)
            return low + (2 ** bucket - low) * (wanted - seen) / counts[bucket]
        seen += counts[bucket]
    return None


def perf_stat(text):
    """Total of `perf stat -x, -e raw_syscalls:sys_enter`."""
    match = re.search(r"^(\d+),[^,]*,raw_syscalls:sys_enter", text, re.MULTILINE)
    if not match:
        raise RunError(f"perf counted nothing: {text.strip()[-300:]!r}")
    return int(match.group(1))


def strace_summary(text):
    """Names and counts of `strace -c`."""
    calls = {}
    for line in text.splitlines():
        match = re.match(r"\s*[\d.]+\s+[\d.]+\s+\d+\s+(\d+)\s+(?:\d+\s+)?(\w+)$", line)
        if match and match.group(2) != "total":
            calls[match.group(2)] = calls.get(match.group(2), 0) + int(match.group(1))
    return calls
