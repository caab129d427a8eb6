"""MariaDB over TCP: transactions by several clients, rows of megabytes, a killed query, dump and load."""

import os
import time

from procs import RunError

TITLE = "MariaDB"
PACKAGES = ("mariadb-server", "mariadb-client")
WORKLOAD = "mariadb-slap with 8 clients, rows of 1 MiB, kill query, timeout, dump piped into a load"
QUICK = False


def run(r):
    data, port = r.path("data"), r.port()
    os.mkdir(data)
    r.give("mysql", data)
    os.makedirs(r.path("run"))
    r.give("mysql", r.path("run"))
    r.plain(["mariadb-install-db", "--no-defaults", f"--datadir={data}", "--user=mysql", "--skip-test-db",
             "--auth-root-authentication-method=normal"])
    server = r.server(r.as_user("mysql", ["/usr/sbin/mariadbd", "--no-defaults", f"--datadir={data}", f"--port={port}",
                                          "--bind-address=127.0.0.1", f"--socket={r.path('run')}/s",
                                          f"--pid-file={r.path('run')}/pid", "--innodb-flush-log-at-trx-commit=0",
                                          "--max-allowed-packet=64M", "--innodb-buffer-pool-size=64M"]), port, wait=60)
    to = ["-h", "127.0.0.1", "-P", str(port), "--protocol=tcp", "-u", "root"]

    def sql(text, *words):
        return r.run(["mariadb", "--no-defaults", *to, "-N", "-B", "-e", text, *words], 60).strip()

    r.equal("a query", sql("select 6*7"), "42")
    sql("create database d; create table d.t (i int primary key auto_increment, b longblob)")
    count = "200" if r.quick else "2000"
    r.attempt("8 clients", lambda: r.run(
        ["mariadb-slap", "--no-defaults", *to, "-c", "8", "-a", "--auto-generate-sql-load-type=mixed",
         f"--number-of-queries={count}", "--auto-generate-sql-guid-primary"], 120))
    r.attempt("a new connection for each query", lambda: r.run(
        ["mariadb-slap", "--no-defaults", *to, "-c", "4", "--create-schema=d", "-q", "select 1", "-i", "5",
         "--number-of-queries=100", "--detach=1"], 120))
    sql("insert into t (b) select repeat(char(65 + seq), 1048576) from seq_1_to_8", "d")
    r.equal("rows of 1 MiB", [len(x) for x in sql("select b from d.t order by i").split("\n")], [1 << 20] * 8)
    try:
        sql("set max_statement_time = 0.3; select sleep(20)")
        r.check("statement timeout", False)
    except RunError as error:
        r.check("statement timeout", "max_statement_time" in str(error), error)
    sleeper = r.start(["mariadb", "--no-defaults", *to, "-e", "select sleep(20)"])
    until, found = time.monotonic() + 10, ""
    while not found and time.monotonic() < until:
        found = sql("select id from information_schema.processlist where info like 'select sleep(20)%'")
    sql(f"kill {found}")
    r.check("a killed connection ends its client", r.wait(sleeper, 10) not in (0, None))
    sql("create database e")
    words = " ".join(to)
    r.attempt("dump piped into a load", lambda: r.run(
        ["sh", "-c", f"mariadb-dump --no-defaults {words} --hex-blob d | mariadb --no-defaults {words} e"], 60))
    r.equal("the copy is the same", sql("select count(*) from d.t join e.t using (i) where d.t.b = e.t.b"), "8")
    r.stop(server, patience=30)
