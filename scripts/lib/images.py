#!/usr/bin/env python3
"""Real programs in foreign file systems, accelerated: images.py --fetch | --build BUILD [--results DIR]

--fetch makes the file systems from Debian's packages, in $SD_CACHE or ~/.cache/socksdirect, unless they are there. Without it, the trials are made in the caller's
network namespace: Python, Redis and Nginx of each release, and of each with each other one, and programs that cannot have the library.
"""
import argparse
import ctypes
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time

from debian_mirror import mirror

RELEASES = ("bullseye", "bookworm", "trixie", "unstable")
PACKAGES = "python3-minimal,redis-server,nginx-light"
CLONE_NEWNS, MS_BIND, MS_REC, MS_PRIVATE = 0x20000, 4096, 16384, 1 << 18
libc = ctypes.CDLL(None, use_errno=True)

SERVER = """
import socket
s = socket.socket(); s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
s.bind(("127.0.0.1", PORT)); s.listen()
while True:
    c, _ = s.accept()
    while True:
        data = c.recv(65536)
        if not data: break
        c.sendall(data)
"""
CLIENT = """
import socket, time
for i in range(200): # until the server listens; it may do so before the library has told the monitor
    try: socket.create_connection(("127.0.0.1", PORT)).close(); break
    except OSError: time.sleep(0.05)
time.sleep(0.2)
c = socket.create_connection(("127.0.0.1", PORT))
def ask(text, n):
    c.sendall(text); got = b""
    while len(got) < n:
        more = c.recv(65536)
        if not more: break
        got += more
    return got
"""
ASK = {
    "python": "for i in range(300):\n    text = bytes([i % 256]) * (i * 37 + 1)\n    assert ask(text, len(text)) == text\n",
    "redis": "assert ask(b'SET key value\\r\\n', 5) == b'+OK\\r\\n'\n"
             "for i in range(300): assert ask(b'GET key\\r\\n', 11) == b'$5\\r\\nvalue\\r\\n'\n",
    "nginx": "for i in range(300): assert b'200 OK' in ask(b'GET / HTTP/1.1\\r\\nHost: a\\r\\n\\r\\n', 100)\n",
}


def cache():
    return os.path.join(os.environ.get("SD_CACHE") or os.path.expanduser("~/.cache/socksdirect"), "images")


def fetch():
    uri = mirror()
    os.makedirs(cache(), exist_ok=True)
    for release in RELEASES:
        root = os.path.join(cache(), release)
        if os.path.exists(root) or uri is None:
            continue
        print(f"making a file system of Debian's {release}", file=sys.stderr, flush=True)
        new = root + ".new"
        shutil.rmtree(new, ignore_errors=True)
        # Only unpacked: nothing of it is run, and a release's list may be older than its date allows where
        # the machine's mirror stands still.
        command = ["mmdebstrap", "--quiet", "--variant=extract", f"--include={PACKAGES}",
                   "--aptopt=Acquire::Check-Valid-Until \"false\"", release, new, uri]
        if subprocess.run(command, check=False, timeout=300).returncode != 0:
            shutil.rmtree(new, ignore_errors=True)
            continue  # reported by the trial as skipped
        for name in ("bin", "sbin", "lib", "lib64"):  # what base-files would do
            if not os.path.lexists(os.path.join(new, name)):
                os.symlink("usr/" + name, os.path.join(new, name))
        for name in ("proc", "run", "var/lib/nginx/body"):
            os.makedirs(os.path.join(new, name), exist_ok=True)
        with open(os.path.join(new, "etc/passwd"), "w", encoding="ascii") as f:
            f.write("root:x:0:0::/:/bin/sh\n")
        with open(os.path.join(new, "etc/group"), "w", encoding="ascii") as f:
            f.write("root:x:0:\n")
        os.rename(new, root)


class Trials:
    def __init__(self, build, scratch):
        self.build, self.scratch = build, scratch
        self.sdrun, self.port, self.lines = os.path.join(build, "sdrun"), 20000, []

    def note(self, name, verdict, why=""):
        self.lines.append(f"{verdict} {name}{': ' + why if why else ''}")
        print(self.lines[-1], flush=True)

    def trial(self, name, body, *arguments):
        try:
            body(*arguments)
        except (AssertionError, OSError, subprocess.SubprocessError) as error:
            self.note(name, "failed", " ".join(str(error).split())[-300:])
        else:
            self.note(name, "passed")

    def mount(self, root):
        """The build directory, the kernel's file systems, and a folder of this run, inside the image."""
        for source in (self.build, "/dev", "/proc", self.scratch):
            target = root + source
            os.makedirs(target, exist_ok=True)
            if libc.mount(source.encode(), target.encode(), None, MS_BIND | MS_REC, None) != 0:
                raise OSError(ctypes.get_errno(), "cannot bind " + target)

    def start(self, root, command, stats):
        environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "SD_STATS_FILE": os.path.join(self.scratch, stats),
                       "XDG_RUNTIME_DIR": os.environ["XDG_RUNTIME_DIR"]}
        return subprocess.Popen([self.sdrun, "/usr/sbin/chroot", root, *command], env=environment, stdin=subprocess.DEVNULL,
                                stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)

    def serve(self, kind, port):
        work = os.path.join(self.scratch, f"{kind}-{port}")
        if kind == "python":
            return ["/usr/bin/python3", "-c", SERVER.replace("PORT", str(port))]
        os.makedirs(work)
        if kind == "redis":
            return ["/usr/bin/redis-server", "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", work]
        with open(os.path.join(work, "nginx.conf"), "w", encoding="ascii") as f:
            f.write(f"user root; daemon off; pid {work}/pid; error_log stderr warn; events {{}}\n"
                    f"http {{ access_log off; client_body_temp_path {work}/body; server {{\n"
                    f"listen 127.0.0.1:{port}; keepalive_requests 1000; location / {{ return 200 'hello'; }} }} }}\n")
        return ["/usr/sbin/nginx", "-c", os.path.join(work, "nginx.conf")]

    def talk(self, kind, server_root, client_root):
        self.port += 1
        port = self.port
        server = self.start(server_root, self.serve(kind, port), f"server-{port}")
        try:
            code = (CLIENT + ASK[kind]).replace("PORT", str(port))
            client = self.start(client_root, ["/usr/bin/python3", "-c", code], f"client-{port}")
            _, text = client.communicate(timeout=60)
            assert client.returncode == 0 and not text, f"client: {client.returncode} {text}"
            with open(os.path.join(self.scratch, f"client-{port}"), encoding="ascii") as f:
                counts = [json.loads(line) for line in f]
            assert sum(c["accelerated_connects"] for c in counts) >= 1, f"not accelerated: {counts}"
        finally:
            server.terminate()
            _, text = server.communicate(timeout=30)
        assert "ld.so" not in text and "libsd" not in text, text

    def quiet(self, command, wanted, root=None, **environment):
        """Runs under sdrun, prints `wanted` and nothing else."""
        if root:
            command = ["/usr/sbin/chroot", root, *command]
        done = subprocess.run([self.sdrun, *command], env={**os.environ, **environment}, text=True, timeout=60, check=False,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        assert (done.returncode, done.stdout, done.stderr) == (0, wanted, ""), f"{done}"

    def foreign(self):
        """Programs that cannot have the library: of another C library, word size, or linked statically."""
        source = os.path.join(self.scratch, "show.c")
        with open(source, "w", encoding="ascii") as f:
            f.write('#include <stdio.h>\n#include <stdlib.h>\n'
                    'int main(void) { const char *p = getenv("LD_PRELOAD"); puts(p ? p : "none"); return 0; }\n')
        library = os.path.realpath(os.path.join(self.build, "libsd.so"))
        for name, compiler, wanted in (("musl", ["musl-gcc"], "none"), ("musl, static", ["musl-gcc", "-static"], library),
                                       ("32 bits", ["cc", "-m32"], "none")):
            program = os.path.join(self.scratch, name.replace(", ", "-").replace(" ", "-"))
            if not shutil.which(compiler[0]) or subprocess.run([*compiler, "-o", program, source], check=False,
                                                               stderr=subprocess.DEVNULL).returncode != 0:
                self.note(name, "skipped", "no compiler for it")
                continue
            if subprocess.run([program], check=False, stdout=subprocess.DEVNULL).returncode != 0:
                self.note(name, "skipped", "this kernel does not run it")
                continue
            text = wanted + "\n"
            self.trial(f"{name}, by sdrun", self.quiet, [program], text)
            self.trial(f"{name}, by a shell", self.quiet, ["sh", "-c", f"{program}; :"], text)
            python = "import os, subprocess, sys; p = sys.argv[1]\n"
            for way, code in (("subprocess", "subprocess.run([p])"), ("system", "os.system(p)"),
                              ("posix_spawn", "os.wait() if os.posix_spawn(p, [p], os.environ) else 0"), ("exec", "os.execv(p, [p])")):
                self.trial(f"{name}, by {way}", self.quiet, ["python3", "-c", python + code, program], text)
            script = os.path.join(self.scratch, "script-" + os.path.basename(program))
            with open(script, "w", encoding="ascii") as f:
                f.write(f"#!{program}\n")
            os.chmod(script, 0o755)
            self.trial(f"{name}, by a script", self.quiet, [script], text)
            if name == "musl":
                self.trial("musl, where it was not known beforehand", self.unknown, program, library)

    def unknown(self, program, library):
        done = subprocess.run([program], env={"LD_PRELOAD": library}, text=True, timeout=60, check=False,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        assert (done.returncode, done.stdout, done.stderr) == (0, library + "\n", ""), f"{done}"

    def own_libc(self, root):
        """A program started through the dynamic linker of another release, outside of that file system."""
        lib = os.path.join(root, "lib/x86_64-linux-gnu")
        command = [os.path.join(lib, "ld-linux-x86-64.so.2"), "--library-path", f"{lib}:{root}/usr/lib/x86_64-linux-gnu",
                   os.path.join(root, "usr/bin/python3"), "-S", "-c",
                   "print('libsd.so' in open('/proc/self/maps').read())"]
        self.quiet(command, "True\n", PYTHONHOME=os.path.join(root, "usr"))

    def all(self):
        roots = {r: os.path.join(cache(), r) for r in RELEASES if os.path.isdir(os.path.join(cache(), r))}
        for release in RELEASES:
            if release not in roots:
                self.note(release, "skipped", "Debian's packages of it could not be had")
        for release, root in roots.items():
            shown = ["/usr/bin/python3", "-c", "import os; print(os.environ.get('LD_PRELOAD', 'none'))"]
            self.trial(f"{release}, where the library cannot be seen", self.quiet, shown, "none\n", root)
            self.mount(root)
            self.trial(f"{release}'s own dynamic linker", self.own_libc, root)
        for server, server_root in roots.items():
            for client, client_root in roots.items():
                kinds = ("python", "redis", "nginx") if server == client else ("redis",)
                for kind in kinds:
                    self.trial(f"{kind} of {server}, client of {client}", self.talk, kind, server_root, client_root)
        self.foreign()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--fetch", action="store_true")
    parser.add_argument("--build")
    parser.add_argument("--results")
    args = parser.parse_args()
    if args.fetch:
        return fetch()
    began = time.monotonic()
    if libc.unshare(CLONE_NEWNS) != 0 or libc.mount(None, b"/", None, MS_REC | MS_PRIVATE, None) != 0:
        sys.exit("images.py: a mount namespace of one's own is needed: run it as root")
    for name in ("LD_PRELOAD", "SD_MONITOR", "SD_CONTROL_FD"):
        os.environ.pop(name, None)
    with tempfile.TemporaryDirectory(prefix="sd-images-") as scratch:
        os.chmod(scratch, 0o755)
        runtime = os.path.join(scratch, "run")
        os.mkdir(runtime, 0o700)
        os.environ["XDG_RUNTIME_DIR"] = runtime
        trials = Trials(os.path.realpath(args.build), scratch)
        trials.all()
        for root in os.listdir(cache()) if os.path.isdir(cache()) else []:
            # The places of this run, not what is bound there: those end with the mount namespace.
            for source in (scratch, "/dev", "/proc", trials.build):
                libc.umount2((os.path.join(cache(), root) + source).encode(), 2)
    if args.results:
        os.makedirs(args.results, exist_ok=True)
        with open(os.path.join(args.results, "testlog.json"), "w", encoding="ascii") as f:
            f.write('{"name": "images", "result": "OK"}\n')
        with open(os.path.join(args.results, "images.results"), "w", encoding="utf-8") as f:
            f.writelines(line + "\n" for line in trials.lines)
    failed = sum(line.startswith("failed") for line in trials.lines)
    print(f"{len(trials.lines)} trials, {failed} failed, {time.monotonic() - began:.0f} s")
    return 1 if failed else 0


sys.exit(main())
