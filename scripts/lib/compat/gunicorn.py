"""Gunicorn and uvicorn: a master that forks workers, reload, a worker that is killed, ASGI."""

import os
import signal
import time

from procs import descendants

TITLE = "Gunicorn and Uvicorn"
PACKAGES = ("gunicorn", "python3-gunicorn", "python3-uvicorn", "apache2-utils", "curl")
VERSION = "gunicorn"
WORKLOAD = "WSGI with 3 forked workers under ab, 2 MiB body echoed, SIGHUP reload under load, SIGKILL of a worker; ASGI with 2 workers"
QUICK = False

WSGI = """
def app(environ, start):
    body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0)) or b"hello"
    start("200 OK", [("Content-Length", str(len(body)))])
    return [body]
"""

ASGI = """
async def app(scope, receive, send):
    if scope["type"] != "http":
        return
    body, more = b"", True
    while more:
        message = await receive()
        body += message.get("body", b"")
        more = message.get("more_body", False)
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(body or b"hello"))]})
    await send({"type": "http.response.body", "body": body or b"hello"})
"""


def run(r):
    r.write("wsgi.py", WSGI)
    r.write("asgi.py", ASGI)
    body = os.urandom(2 << 20)
    r.write("body", body)
    count = "300" if r.quick else "3000"

    def ab(name, port, *words):
        text = r.attempt(name, lambda: r.run(["ab", "-q", "-n", count, "-c", "10", *words, f"http://127.0.0.1:{port}/"], 90)) or ""
        r.check(f"{name}: no failed request", "Failed requests:        0" in text and "Non-2xx" not in text, text)

    def echo(name, port):
        out = r.path("out")
        r.attempt(name, lambda: r.run(["curl", "-sSf", "-m", "30", "-o", out, "--data-binary", f"@{r.path('body')}",
                                       f"http://127.0.0.1:{port}/"]))
        r.check(f"{name}: the same", os.path.exists(out) and r.read("out") == body)

    port = r.port()
    env = {"PYTHONPATH": r.directory, "PYTHONDONTWRITEBYTECODE": "1"}
    python = "/usr/bin/python3"
    server = r.server([python, "-m", "gunicorn", "-w", "3", "-b", f"127.0.0.1:{port}", "--worker-tmp-dir", "/dev/shm", "wsgi:app"],
                      port, env=env)
    echo("gunicorn, 2 MiB", port)
    ab("gunicorn", port)
    ab("gunicorn, threads of one connection", port, "-k")
    load = r.start(["ab", "-q", "-r", "-n", count, "-c", "4", f"http://127.0.0.1:{port}/"])
    time.sleep(0.2)
    server.send_signal(signal.SIGHUP)
    r.equal("requests end during a reload", r.wait(load, 90), 0)
    time.sleep(0.5)
    os.kill(descendants(server.pid)[0], signal.SIGKILL)
    time.sleep(0.5)
    ab("gunicorn after a worker was killed", port)
    r.stop(server, patience=40)
    port = r.port()
    server = r.server([python, "-m", "uvicorn", "--workers", "2", "--host", "127.0.0.1", "--port", str(port),
                       "--log-level", "warning", "asgi:app"], port, env=env)
    r.attempt("uvicorn is up", lambda: r.run(["curl", "-sSf", "--retry", "20", "--retry-connrefused", "--retry-delay", "1",
                                              f"http://127.0.0.1:{port}/"]))
    echo("uvicorn, 2 MiB", port)
    ab("uvicorn", port, "-k")
    r.stop(server, patience=40)
