"""Varnish in front of Nginx: hits, misses, a large body, many connections, a purge, piping."""

import os

TITLE = "Varnish"
PACKAGES = ("varnish", "nginx-light", "curl", "apache2-utils")
WORKLOAD = "varnishd to Nginx: cached and passed requests under ab, 16 MiB body, HTTP pipe"
QUICK = False


def run(r):
    back, front = r.port(), r.port()
    home = r.path("nginx")
    body = os.urandom(16 << 20)
    r.write("nginx/www/big", body)
    r.write("nginx/www/index.html", "hello\n")
    temporary = "".join(f"{k}_temp_path {home}/{k};\n" for k in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
    r.write("nginx.conf", f"""{'user root;' if os.geteuid() == 0 else ''}
daemon off; worker_processes 1; pid {home}/nginx.pid; error_log {home}/error.log;
events {{ worker_connections 1024; }}
http {{ {temporary} access_log off; sendfile on;
  server {{ listen 127.0.0.1:{back}; root {home}/www; }} }}
""")
    r.write("default.vcl", f"""vcl 4.1;
backend default {{ .host = "127.0.0.1"; .port = "{back}"; }}
sub vcl_recv {{
  if (req.url ~ "^/pass") {{ set req.url = "/"; return (pass); }}
  if (req.url ~ "^/pipe") {{ set req.url = "/big"; return (pipe); }}
}}
""")
    nginx = r.server(["nginx", "-p", home, "-e", f"{home}/error.log", "-c", r.path("nginx.conf")], back)
    os.makedirs(r.path("varnish"))
    varnish = r.server(["varnishd", "-F", "-j", "none", "-n", r.path("varnish"), "-a", f"127.0.0.1:{front}",
                        "-f", r.path("default.vcl"), "-s", "malloc,64m", "-T", "none"], front, wait=60)

    def fetch(name, path):
        out = r.path("out")
        r.attempt(name, lambda: r.run(["curl", "-sSf", "-m", "30", "-o", out, f"http://127.0.0.1:{front}/{path}"]))
        return r.read("out") if os.path.exists(out) else b""

    r.check("a miss, 16 MiB", fetch("curl, miss", "big") == body)
    r.check("a hit, 16 MiB", fetch("curl, hit", "big") == body)
    r.check("a pipe, 16 MiB", fetch("curl, pipe", "pipe") == body)
    count = "500" if r.quick else "5000"
    for name, path, words in (("hits", "", []), ("hits, keep-alive", "", ["-k"]), ("passed", "pass", [])):
        text = r.attempt(name, lambda p=path, w=words: r.run(
            ["ab", "-q", "-n", count, "-c", "20", *w, f"http://127.0.0.1:{front}/{p}"], 60)) or ""
        r.check(f"{name}: no failed request", "Failed requests:        0" in text and "Non-2xx" not in text, text)
    r.stop(varnish)
    r.stop(nginx)
