"""Nginx replaced while it serves: SIGHUP reloads it, SIGUSR2 has a new master take its listening sockets over exec, and no request fails."""

import os
import shutil
import signal
import sys
import time

TITLE = "Nginx"
PACKAGES = ("nginx-light",)
WORKLOAD = "2 workers under 6 clients, a connection for each request: SIGHUP reload, SIGUSR2 to a new binary, SIGHUP of that"
QUICK = True

CLIENTS = r'''
import socket, sys, threading, time
port, until = int(sys.argv[1]), time.time() + float(sys.argv[2])
good, bad = [0] * 6, []
def ask(k):
    while time.time() < until:
        try:
            with socket.create_connection(("127.0.0.1", port), 5) as s:
                s.sendall(b"GET /f HTTP/1.0\r\nHost: x\r\n\r\n")
                answer = b""
                while part := s.recv(4096):
                    answer += part
            if answer.startswith(b"HTTP/1.1 200") and answer.endswith(b"y" * 100):
                good[k] += 1
            else:
                bad.append(repr(answer[:80]))
        except OSError as e:
            bad.append(repr(e))
threads = [threading.Thread(target=ask, args=(k,)) for k in range(6)]
[t.start() for t in threads]
[t.join() for t in threads]
print("first failures:", *bad[:5])
print("good", sum(good), "bad", len(bad))
sys.exit(bool(bad) or not all(good))
'''


def master(home):
    try:
        with open(f"{home}/nginx.pid") as f:
            return int(f.read() or 0)
    except FileNotFoundError:
        return 0


def wait_until(condition, patience=15):
    until = time.monotonic() + patience
    while not condition() and time.monotonic() < until:
        time.sleep(0.02)
    return condition()


def gone(pid):
    """Ended; whether somebody has asked for its status yet is not its business."""
    try:
        with open(f"/proc/{pid}/stat") as f:
            return f.read().rpartition(")")[2].split()[0] in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return True


def run(r):
    port, home = r.port(), r.path("nginx")
    os.makedirs(home)
    r.write("nginx/www/f", "y" * 100)
    temporary = "".join(f"{k}_temp_path {home}/{k};\n" for k in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
    r.write("nginx.conf", f"""{'user root;' if os.geteuid() == 0 else ''}
worker_processes 2; pid {home}/nginx.pid; error_log {home}/error.log;
events {{ worker_connections 512; }}
http {{ {temporary} access_log off;
  server {{ listen 127.0.0.1:{port} backlog=1024; root {home}/www; }} }}
""")
    seconds = 3 if r.quick else 10
    masters = []
    try:
        # It executes itself by the name it was started with.
        r.run([shutil.which("nginx") or "/usr/sbin/nginx", "-p", home, "-e", f"{home}/error.log", "-c", r.path("nginx.conf")])
        wait_until(lambda: master(home))
        masters.append(master(home))
        load = r.start([sys.executable, "-c", CLIENTS, str(port), str(seconds)])
        step = seconds / 6
        time.sleep(step)
        os.kill(masters[0], signal.SIGHUP)
        time.sleep(step)
        os.kill(masters[0], signal.SIGUSR2)
        r.check("a new master runs", wait_until(lambda: master(home) not in (0, masters[0])))
        masters.append(master(home))
        time.sleep(step)
        os.kill(masters[0], signal.SIGQUIT)
        r.check("the old master ends", wait_until(lambda: gone(masters[0])))
        os.kill(masters[1], signal.SIGHUP)
        r.equal("no request fails", r.wait(load, 60), 0)
        os.kill(masters[1], signal.SIGQUIT)
        r.check("the new master ends", wait_until(lambda: gone(masters[1])))
    finally:
        for pid in masters:
            if pid and not gone(pid):
                os.kill(pid, signal.SIGKILL)
