"""rsync daemon: a tree sent and fetched, a delta, a broken transfer that is taken up again."""

import filecmp
import os

TITLE = "rsync"
PACKAGES = ("rsync",)
WORKLOAD = "daemon over TCP: 300 files and 20 MB sent, changed, sent again, fetched back and compared"
QUICK = True


def same(a, b):
    compared = filecmp.dircmp(a, b)
    if compared.left_only or compared.right_only or compared.funny_files:
        return False
    _, mismatch, errors = filecmp.cmpfiles(a, b, compared.common_files, shallow=False)
    return not mismatch and not errors and all(same(os.path.join(a, d), os.path.join(b, d)) for d in compared.common_dirs)


def run(r):
    port = r.port()
    os.makedirs(r.path("store"))
    root = "uid = root\ngid = root\n" if os.geteuid() == 0 else ""
    r.write("rsyncd.conf", f"{root}use chroot = no\n[m]\npath = {r.path('store')}\nread only = no\n")
    for i in range(300):
        r.write(f"tree/{i % 7}/{i}", os.urandom(i * 97))
    r.write("tree/large", os.urandom(16 << 20))
    server = r.server(["rsync", "--daemon", "--no-detach", f"--config={r.path('rsyncd.conf')}", f"--port={port}",
                       "--address=127.0.0.1"], port)
    there = f"rsync://127.0.0.1:{port}/m/"
    r.attempt("send", lambda: r.run(["rsync", "-a", r.path("tree") + "/", there]))
    r.check("the tree is there", same(r.path("tree"), r.path("store")))
    with open(r.path("tree/large"), "r+b") as f:
        f.seek(5 << 20)
        f.write(os.urandom(100))
    os.unlink(r.path("tree/1/1"))
    text = r.attempt("send what changed", lambda: r.run(["rsync", "-a", "-I", "--stats", "--delete", r.path("tree") + "/", there])) or ""
    r.check("only differences travel", "Literal data" in text and same(r.path("tree"), r.path("store")), text)
    r.attempt("fetch, compressed", lambda: r.run(["rsync", "-az", there, r.path("back")]))
    r.check("it comes back the same", same(r.path("tree"), r.path("back")))
    r.check("a module list", "m" in (r.attempt("list", lambda: r.run(["rsync", f"rsync://127.0.0.1:{port}/"])) or ""))
    r.stop(server, good=(0, 20, -15))
