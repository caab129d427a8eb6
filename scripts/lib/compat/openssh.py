"""OpenSSH: sshd on loopback, commands, files, local and remote port forwarding, a SOCKS proxy."""

import os
import time

from compat_run import Skip, really_root
from procs import RunError, listening

TITLE = "OpenSSH"
PACKAGES = ("openssh-server", "openssh-client", "curl", "python3")
WORKLOAD = "remote commands, 8 MiB through a session, sftp, -L, -R and -D forwarding with data checked"
QUICK = True

ECHO = """
import socket, sys, threading
listener = socket.create_server(("127.0.0.1", int(sys.argv[1])))
def serve(c):
    with c:
        while data := c.recv(65536):
            c.sendall(data)
while True:
    threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()
"""

CLIENT = """
import os, socket, sys, threading
body = os.urandom(3 << 20)
with socket.create_connection(("127.0.0.1", int(sys.argv[1])), 20) as c:
    if len(sys.argv) > 2:  # through a SOCKS 4 proxy
        c.sendall(b"\\x04\\x01" + int(sys.argv[2]).to_bytes(2, "big") + b"\\x7f\\0\\0\\x01\\0")
        answer = c.recv(8, socket.MSG_WAITALL)
        assert answer[1] == 90, answer
    def send():
        c.sendall(body)
        c.shutdown(socket.SHUT_WR)
    t = threading.Thread(target=send)
    t.start()
    got = b""
    while data := c.recv(65536):
        got += data
    t.join()
print("same" if got == body else f"different: {len(got)}")
"""


def run(r):
    if not really_root():
        raise Skip("sshd starts sessions as root only")
    port, echo, local, remote, socks = (r.port() for _ in range(5))
    os.makedirs("/run/sshd", mode=0o755, exist_ok=True)
    for name in ("host", "user"):
        r.plain(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", r.path(name)])
    r.write("authorized", r.read("user.pub"), 0o600)
    r.write("echo.py", ECHO)
    r.write("client.py", CLIENT)
    r.write("sshd_config", f"""Port {port}
ListenAddress 127.0.0.1
HostKey {r.path('host')}
AuthorizedKeysFile {r.path('authorized')}
StrictModes no
UsePAM no
PermitRootLogin prohibit-password
PasswordAuthentication no
PidFile none
AllowTcpForwarding yes
Subsystem sftp /usr/lib/openssh/sftp-server
""")
    sshd = r.server(["/usr/sbin/sshd", "-D", "-e", "-f", r.path("sshd_config")], port)
    r.server(["/usr/bin/python3", r.path("echo.py"), str(echo)], echo)
    words = ["-F", "none", "-i", r.path("user"), "-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null",
             "-o", "BatchMode=yes", "-o", "LogLevel=ERROR", "-o", "ConnectTimeout=10"]
    ssh = ["ssh", *words, "-p", str(port), "root@127.0.0.1"]
    r.equal("a command", r.attempt("ssh", lambda: r.run([*ssh, "echo $((6*7))"], 30)), "42\n")
    try:
        r.run([*ssh, "exit 7"], 30)
        r.check("the status of a command", False)
    except RunError as error:
        r.check("the status of a command", "status 7" in str(error), error)
    body = os.urandom(8 << 20)
    r.write("body", body)
    r.attempt("data both ways", lambda: r.run(["sh", "-c", f"{' '.join(ssh)} cat < {r.path('body')} > {r.path('back')}"], 60))
    r.check("data both ways are the same", os.path.exists(r.path("back")) and r.read("back") == body)
    r.write("batch", f"put {r.path('body')} {r.path('put')}\nget {r.path('put')} {r.path('got')}\n")
    r.attempt("sftp", lambda: r.run(["sftp", *words, "-P", str(port), "-b", r.path("batch"), "root@127.0.0.1"], 60))
    r.check("sftp brings the same file back", os.path.exists(r.path("got")) and r.read("got") == body)
    forwarder = r.start([*ssh, "-N", "-o", "ExitOnForwardFailure=yes", "-L", f"127.0.0.1:{local}:127.0.0.1:{echo}",
                         "-R", f"127.0.0.1:{remote}:127.0.0.1:{echo}", "-D", f"127.0.0.1:{socks}"])
    until = time.monotonic() + 15
    while not all(listening(p) for p in (local, remote, socks)) and time.monotonic() < until and forwarder.poll() is None:
        time.sleep(0.02)
    for name, arguments in (("-L", [local]), ("-R", [remote]), ("-D", [socks, echo])):
        for turn in range(2 if r.quick else 10):
            text = r.attempt(f"{name}, connection {turn + 1}", lambda a=arguments: r.run(
                ["/usr/bin/python3", r.path("client.py"), *map(str, a)], 60))
            r.equal(f"{name}, data {turn + 1}", text, "same\n")
    r.stop(forwarder, good=(0, 255, -15))
    r.stop(sshd)
