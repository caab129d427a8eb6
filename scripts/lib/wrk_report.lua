-- Adds one line of JSON to wrk's output, so that nothing has to be guessed from its rounded table.
function done(summary, latency, requests)
    local e = summary.errors
    io.write(string.format(
        'WRK_REPORT {"requests": %d, "duration_us": %d, "bytes": %d, "mean_us": %.2f, "p99_us": %.2f, ' ..
        '"errors": {"connect": %d, "read": %d, "write": %d, "status": %d, "timeout": %d}}\n',
        summary.requests, summary.duration, summary.bytes, latency.mean, latency:percentile(99.0),
        e.connect, e.read, e.write, e.status, e.timeout))
end
