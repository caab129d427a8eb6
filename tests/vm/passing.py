"""A server of the user nobody passes an accelerated connection to a program without the library, which answers.

The last line says, as JSON, which units of sd-bridge there were meanwhile and as whom they ran.
"""
import json
import os
import socket
import subprocess
import sys

import system

SERVER = """
import socket, sys
listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1], flush=True)
connection = listener.accept()[0]
assert connection.recv(5) == b"hello"
out = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
out.connect(sys.argv[1])
socket.send_fds(out, [b"x"], [connection.fileno()])
out.recv(1)
connection.close()
sys.stdin.read()
"""
CLIENT = """
import socket, sys
s = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
s.sendall(b"hello")
for _ in range(2):
    print(s.recv(100).decode(), flush=True)
    s.sendall(b"thanks")
"""

path = "/run/passing.sock"
receiver = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
receiver.bind(path)
os.chmod(path, 0o666)
receiver.listen()
server = subprocess.Popen(["sdrun", sys.executable, "-c", SERVER, path], user=65534, group=65534, extra_groups=[],
                          stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
client = subprocess.Popen(["sdrun", sys.executable, "-c", CLIENT, server.stdout.readline().strip()], stdout=subprocess.PIPE,
                          text=True)
peer = receiver.accept()[0]
_, fds, _, _ = socket.recv_fds(peer, 1, 1)
peer.sendall(b"x")
passed = socket.socket(fileno=fds[0])
passed.sendall(b"one\n")
assert client.stdout.readline() == "one\n"
assert passed.recv(100) == b"thanks"
units = system.run("systemctl", "list-units", "--no-legend", "--plain", "--no-pager", "--state=active", "sd-bridge@*").split("\n")
users = []
for pid in system.processes("sd-bridge"):
    with open(f"/proc/{pid}/status", encoding="utf-8") as status:
        users += [line.split()[1] for line in status if line.startswith("Uid:")]
passed.sendall(b"two\n")
client.stdout.readline()  # the end of the first line
assert client.stdout.readline() == "two\n"
assert client.wait() == 0
passed.close()
server.stdin.close()
server.wait()
os.unlink(path)
print(json.dumps({"units": [line.split()[0] for line in units if line.split()], "users": users}))
