"""HAProxy in front of Nginx: HTTP with keep-alive and without, TCP mode, health checks, a reload."""

import os
import signal
import time

TITLE = "HAProxy and Nginx"
PACKAGES = ("haproxy", "nginx-light", "curl", "apache2-utils")
WORKLOAD = "ab and curl through HAProxy (HTTP and TCP mode, 2 threads) to 2 Nginx workers, 16 MiB body, SIGUSR2 reload under load"
QUICK = True


def run(r):
    back, front, tcp = r.port(), r.port(), r.port()
    home = r.path("nginx")
    os.makedirs(home)
    body = os.urandom(16 << 20)
    r.write("nginx/www/big", body)
    r.write("nginx/www/index.html", "hello\n")
    temporary = "".join(f"{k}_temp_path {home}/{k};\n" for k in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
    r.write("nginx.conf", f"""{'user root;' if os.geteuid() == 0 else ''}
daemon off; worker_processes 2; pid {home}/nginx.pid; error_log {home}/error.log;
events {{ worker_connections 1024; }}
http {{ {temporary} access_log off; sendfile on; keepalive_requests 100000;
  server {{ listen 127.0.0.1:{back}; root {home}/www; client_max_body_size 64m;
    location /fail {{ return 503; }} }} }}
""")
    r.write("haproxy.cfg", f"""global
  nbthread 2
  maxconn 500
  hard-stop-after 10s
defaults
  timeout connect 5s
  timeout client 30s
  timeout server 30s
frontend web
  mode http
  bind 127.0.0.1:{front}
  default_backend nginx
backend nginx
  mode http
  http-reuse safe
  option httpchk GET /
  server one 127.0.0.1:{back} check inter 200ms
  server two 127.0.0.1:{back} check inter 200ms
listen plain
  mode tcp
  bind 127.0.0.1:{tcp}
  server one 127.0.0.1:{back}
""")
    nginx = r.server(["nginx", "-p", home, "-e", f"{home}/error.log", "-c", r.path("nginx.conf")], back)
    proxy = r.server(["haproxy", "-W", "-f", r.path("haproxy.cfg"), "-p", r.path("haproxy.pid")], tcp)

    def curl(name, port, path, *words):
        out = r.path("out")
        r.attempt(name, lambda: r.run(["curl", "-sSf", "-m", "30", "-o", out, *words, f"http://127.0.0.1:{port}/{path}"]))
        return r.read("out") if os.path.exists(out) else b""

    def ab(name, port, *words):
        text = r.attempt(name, lambda: r.run(["ab", "-q", *words, f"http://127.0.0.1:{port}/"], 60)) or ""
        r.check(f"{name}: no failed request", "Failed requests:        0" in text and "Non-2xx" not in text, text)

    r.check("HTTP mode, 16 MiB", curl("curl, HTTP mode", front, "big") == body)
    r.check("TCP mode, 16 MiB", curl("curl, TCP mode", tcp, "big") == body)
    r.equal("a status of the server behind", r.run(["curl", "-s", "-o", "/dev/null", "-w", "%{http_code}",
                                                    f"http://127.0.0.1:{front}/fail"]), "503")
    count = "500" if r.quick else "5000"
    ab("ab, a connection each", front, "-n", count, "-c", "20")
    ab("ab, keep-alive", front, "-k", "-n", count, "-c", "20")
    ab("ab, TCP mode", tcp, "-n", count, "-c", "20")
    # A reload: the new processes take over, the old ones serve what they have.
    load = r.start(["ab", "-q", "-n", count, "-c", "4", f"http://127.0.0.1:{front}/"])
    time.sleep(0.2)
    proxy.send_signal(signal.SIGUSR2)
    r.equal("no request fails during a reload", r.wait(load, 60), 0)
    time.sleep(0.5)
    r.check("after the reload", curl("curl, after the reload", front, "") == b"hello\n")
    r.stop(proxy, good=(0, 143))
    r.stop(nginx)
