"""PostgreSQL over TCP: pgbench, bulk COPY both ways, a cancelled query, notifications, a restart."""

import glob
import time
import os

from procs import RunError

TITLE = "PostgreSQL"
PACKAGES = ("postgresql", "postgresql-contrib")
VERSION = "postgresql-15"
WORKLOAD = "pgbench TPC-B and SELECT, 4 clients, a new connection each time, COPY both ways, cancel, NOTIFY, dump"
QUICK = True


def run(r):
    bin_ = sorted(glob.glob("/usr/lib/postgresql/*/bin"))[-1]
    data, port = r.path("data"), r.port()
    os.mkdir(data)
    r.give("postgres", data)
    r.plain(r.as_user("postgres", [f"{bin_}/initdb", "-D", data, "-U", "postgres", "-A", "trust", "-N", "-E", "UTF8"]))
    command = r.as_user("postgres", [f"{bin_}/postgres", "-D", data, "-p", str(port), "-c", "listen_addresses=127.0.0.1,::1",
                                     "-c", "unix_socket_directories=", "-c", "fsync=off", "-c", "max_connections=60"])
    server = r.server(command, port)
    env = {"PGHOST": "127.0.0.1", "PGPORT": str(port), "PGUSER": "postgres", "PGDATABASE": "postgres"}

    def psql(sql, timeout=60):
        return r.run([f"{bin_}/psql", "-XAtq", "-v", "ON_ERROR_STOP=1", "-c", sql], timeout, env=env).strip()

    def wait_until_ready():  # it listens before it takes anybody in
        for patience in range(60):
            try:
                psql("select 1")
                return
            except Exception:
                if patience == 59:
                    raise
                time.sleep(0.5)

    def pgbench(*words):
        return r.run([f"{bin_}/pgbench", *words], 120, env=env)

    wait_until_ready()
    r.attempt("pgbench fills its tables", lambda: pgbench("-i", "-q", "-s", "1"))
    transactions = 50 if r.quick else 1000
    r.attempt("pgbench TPC-B", lambda: pgbench("-c", "4", "-j", "2", "-t", str(transactions)))
    r.equal("every transaction is there", psql("select count(*) from pgbench_history"), str(4 * transactions))
    r.equal("accounts and tellers agree",
            psql("select (select sum(abalance) from pgbench_accounts) = (select sum(tbalance) from pgbench_tellers)"), "t")
    r.attempt("pgbench SELECT, prepared", lambda: pgbench("-S", "-M", "prepared", "-c", "8", "-j", "2", "-t", "500"))
    r.attempt("pgbench, a new connection each time", lambda: pgbench("-S", "-C", "-c", "2", "-t", "20" if r.quick else "100"))
    # A parent and its children: psql | psql, with 10 MB of rows in between.
    rows = 20000 if r.quick else 200000
    psql(f"create table big as select i, repeat(md5(i::text), 4) as t from generate_series(1, {rows}) i;"
         "create table copy (like big)")
    out = r.path("big.txt")
    r.attempt("COPY to the client", lambda: psql(f"\\copy big to '{out}'"))
    r.attempt("COPY from the client", lambda: psql(f"\\copy copy from '{out}'"))
    r.equal("the copy is the same", psql("select count(*), (select md5(string_agg(t, '' order by i)) from big) = "
                                         "md5(string_agg(t, '' order by i)) from copy"), f"{rows}|t")
    try:
        psql("set statement_timeout = 300; select pg_sleep(20)")
        r.check("statement timeout", False, "the query was not cancelled")
    except RunError as error:
        r.check("statement timeout", "statement timeout" in str(error), error)
    r.equal("a backend that is terminated",
            psql("select pg_terminate_backend(pid) from pg_stat_activity where application_name = 'nobody'"), "")
    r.check("the client's address is seen", psql("select inet_client_addr()") == "127.0.0.1")
    r.equal("IPv6", r.run([f"{bin_}/psql", "-XAtq", "-h", "::1", "-c", "select inet_client_addr()"], env=env).strip(), "::1")
    # LISTEN and NOTIFY: the server speaks first while the client sleeps in psql's poll.
    text = r.run([f"{bin_}/psql", "-XAtq", "-c", "listen news", "-c", "select pg_sleep(0.1)", "-c", "notify news, 'hello'",
                  "-c", "select 1"], env=env)
    r.check("NOTIFY arrives", "hello" in text, text)
    dump = r.run([f"{bin_}/pg_dump", "-t", "pgbench_branches"], env=env)
    r.check("pg_dump", "PostgreSQL database dump complete" in dump, dump)
    r.stop(server)
    server = r.server(command, port)
    wait_until_ready()
    r.equal("after a restart", psql("select count(*) from copy"), str(rows))
    r.stop(server)
