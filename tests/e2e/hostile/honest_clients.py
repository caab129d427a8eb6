#!/usr/bin/env python3
"""An honest client of the hostile storm: honest_clients.py KIND PORT SECONDS [WORDS...]

Asks one server again and again, checks each answer, and says as a line of JSON how many there were, what failed, and
which took long: [begin, end, seconds of it in which this thread waited for a processor].
"""
import json, os, socket, struct, subprocess, sys, threading, time

LONG = 0.25
PATIENCE = 30
kind, port, seconds, words = sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), sys.argv[4:]
result = {"kind": kind, "requests": 0, "connections": 0, "failed": [], "long": [], "longest": 0.0, "start": 0.0}


def waited():
    """Seconds that this thread was ready to run and did not."""
    with open(f"/proc/self/task/{threading.get_native_id()}/schedstat", encoding="ascii") as f:
        return int(f.read().split()[1]) / 1e9


def started(ask):
    """What mostly computes, and therefore is no request: programs and keys."""
    begin = time.monotonic()
    ask()
    result["start"] = max(result["start"], time.monotonic() - begin)


def timed(ask):
    before, begin = waited(), time.monotonic()
    ask()
    end = time.monotonic()
    result["requests"] += 1
    result["longest"] = max(result["longest"], end - begin)
    if end - begin > LONG:
        result["long"].append([begin, end, waited() - before])


def dial():
    result["connections"] += 1
    s = socket.socket()
    if result["connections"] % 2:
        s.settimeout(PATIENCE)  # poll, and calls that do not block
    else:
        for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
            s.setsockopt(socket.SOL_SOCKET, option, struct.pack("ll", PATIENCE, 0))
    s.connect(("127.0.0.1", port))
    return s


def expect(truth, what):
    if not truth:
        raise RuntimeError(what)


def exactly(s, n):
    data = b""
    while len(data) < n:
        more = s.recv(n - len(data))
        expect(more, f"the end after {len(data)} of {n} bytes")
        data += more
    return data


def redis(s, number):
    key, value = b"%d:%d" % (os.getpid(), number % 100), os.urandom(8).hex().encode() * (1 + number % 40)
    s.sendall(b"*3\r\n$3\r\nSET\r\n$%d\r\n%s\r\n$%d\r\n%s\r\n" % (len(key), key, len(value), value)
              + b"*2\r\n$3\r\nGET\r\n$%d\r\n%s\r\n" % (len(key), key))
    answer = b"+OK\r\n$%d\r\n%s\r\n" % (len(value), value)
    got = exactly(s, len(answer))
    expect(got == answer, got[:60])


def http(s, _):
    s.sendall(b"GET /page HTTP/1.1\r\nHost: here\r\n\r\n")
    got = b""
    while b"\r\n\r\n" not in got:
        more = s.recv(65536)
        expect(more, f"the end within a header: {got[:40]}")
        got += more
    head, body = got.split(b"\r\n\r\n", 1)
    expect(head.startswith(b"HTTP/1.1 200"), head[:40])
    length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
    expect(body + exactly(s, length - len(body)) == b"x" * length, "another page")


def message(s):
    tag, length = struct.unpack("!cI", exactly(s, 5))
    return tag, exactly(s, length - 4)


def until_ready(s):
    rows = []
    while True:
        tag, body = message(s)
        expect(tag != b"E", body)
        if tag == b"D":
            rows.append(body)
        if tag == b"Z":
            return rows


def greet_postgres(s):
    body = struct.pack("!I", 196608) + b"user\0postgres\0database\0postgres\0\0"
    s.sendall(struct.pack("!I", len(body) + 4) + body)
    until_ready(s)


def postgres(s, number):
    text = b"select %d * 3\0" % number
    s.sendall(b"Q" + struct.pack("!I", len(text) + 4) + text)
    rows = until_ready(s)
    expect(len(rows) == 1 and rows[0][6:] == b"%d" % (number * 3), rows)


def sessions(requests, greet, ask):
    """Each on a connection of its own; the first one lasts."""
    kept = dial()
    timed(lambda: greet(kept))
    number = 0
    while time.monotonic() < deadline:
        s = None

        def begin():
            nonlocal s
            s = dial()
            greet(s)
        timed(begin)
        with s:
            for _ in range(requests):
                number += 1
                timed(lambda: ask(s, number))
        timed(lambda: ask(kept, number))
        time.sleep(0.005)


def ssh():
    """A session that echoes lines, another one each 30 lines."""
    number = 0
    while time.monotonic() < deadline:
        result["connections"] += 1
        command = ["ssh", "-F", "none", "-i", words[0], "-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null",
                   "-o", "BatchMode=yes", "-o", "LogLevel=ERROR", "-p", str(port), "root@127.0.0.1", "cat"]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as session:
            watch = threading.Timer(PATIENCE, session.kill)
            watch.start()
            for i in range(30):
                number += 1
                line = b"line %d\n" % number

                def ask():
                    session.stdin.write(line)
                    session.stdin.flush()
                    got = session.stdout.readline()
                    expect(got == line, f"ssh, line {number}: {got}")
                (timed if i else started)(ask)
                time.sleep(0.005)
            session.stdin.close()
            status = session.wait()
            watch.cancel()
            expect(status == 0, f"ssh ended with {status}")


def tool(command, sound):
    """A real load generator, again and again; these say themselves what failed."""
    while time.monotonic() < deadline:
        result["connections"] += 1
        got = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        result["requests"] += 1
        if got.returncode != 0 or not sound(got.stdout + got.stderr):
            result["failed"].append(f"{' '.join(command)}: status {got.returncode}: {(got.stdout + got.stderr)[-600:]}")
        time.sleep(0.1)


deadline = time.monotonic() + seconds
RUNS = {
    "redis": lambda: sessions(20, lambda s: None, redis),
    "nginx": lambda: sessions(5, lambda s: None, http),
    "postgres": lambda: sessions(5, greet_postgres, postgres),
    "sshd": ssh,
    "redis-benchmark": lambda: tool(["redis-benchmark", "-q", "-n", "1000", "-c", "8", "-t", "set,get", "-p", str(port)],
                                    lambda text: "Error" not in text and "rror:" not in text),
    "ab": lambda: tool(["ab", "-q", "-n", "200", "-c", "4", f"http://127.0.0.1:{port}/page"],
                       lambda text: "Failed requests:        0" in text and "Complete requests:      200" in text),
    "pgbench": lambda: tool(["pgbench", "-n", "-C", "-c", "2", "-t", "10", "-f", words[0], "-h", "127.0.0.1", "-p", str(port), "-U", "postgres",
                             "postgres"], lambda text: "processed: 20/20" in text),
}
while time.monotonic() < deadline:  # an honest client comes back
    try:
        RUNS[kind]()
    except Exception as error:  # pylint: disable=broad-except
        result["failed"].append(f"{type(error).__name__}: {error}")
        time.sleep(0.2)
print(json.dumps(result), flush=True)
