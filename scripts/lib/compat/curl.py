"""curl against Python's http.server: many transfers at once, uploads, ranges, a slow server, limits and refusals."""

import hashlib
import os

from procs import RunError

TITLE = "curl"
PACKAGES = ("curl", "python3")
WORKLOAD = "GET and PUT of 8 MiB, 40 parallel transfers, ranges, rate limit, timeout, refused, connection reuse"
QUICK = True

SERVER = """
import hashlib, http.server, sys, time
class Handler(http.server.SimpleHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def log_message(self, *_): pass
    def do_GET(self):
        if self.path == "/slow":
            time.sleep(5)
        super().do_GET()
    def do_PUT(self):
        answer = hashlib.sha1(self.rfile.read(int(self.headers["Content-Length"]))).hexdigest().encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)
http.server.ThreadingHTTPServer.request_queue_size = 64
http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


def run(r):
    body = os.urandom(8 << 20)
    r.write("www/body", body)
    r.write("server.py", SERVER)
    port = r.port()
    server = r.server(["/usr/bin/python3", r.path("server.py"), str(port)], port, cwd=r.path("www"))
    url = f"http://127.0.0.1:{port}"
    out = r.path("out")
    r.attempt("GET", lambda: r.run(["curl", "-sSf", "-o", out, f"{url}/body"]))
    r.check("GET brings the file", r.read("out") == body)
    r.equal("PUT", r.attempt("PUT ends", lambda: r.run(["curl", "-sSf", "-T", r.path("www/body"), f"{url}/body"])),
            hashlib.sha1(body).hexdigest())
    count = 40
    r.attempt("parallel transfers", lambda: r.run(["curl", "-sSf", "-Z", "--parallel-max", "20", "--no-progress-meter"] + [
        w for i in range(count) for w in ("-o", r.path(f"out{i}"), f"{url}/body")], 90))
    r.check("parallel transfers are right", all(r.read(f"out{i}") == body for i in range(count)))
    text = r.attempt("reuse", lambda: r.run(["curl", "-sv", "-o", "/dev/null", "-o", "/dev/null", "--stderr", "-",
                                             f"{url}/", f"{url}/"])) or ""
    r.check("a connection is used again", "Re-using existing connection" in text, text)
    r.attempt("limited rate", lambda: r.run(["curl", "-sSf", "--limit-rate", "16M", "-o", out, f"{url}/body"]))
    r.check("limited rate brings the file", r.read("out") == body)
    for name, words, status in (("a timeout", ["-m", "1", f"{url}/slow"], 28), ("refused", ["http://127.0.0.1:1/"], 7),
                                ("localhost in both families", [f"http://localhost:{port}/", "-o", "/dev/null"], 0)):
        try:
            r.run(["curl", "-sS", *words], 30)
            r.check(name, status == 0)
        except RunError as error:
            r.check(name, f"status {status}:" in str(error), error)
    r.stop(server)
