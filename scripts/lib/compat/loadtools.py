"""The load tools that Debian carries, each with its server: what they measure is not compared, only that they end well."""

import os

from procs import RunError

TITLE = "Load tools"
PACKAGES = ("iperf3", "sockperf", "netpipe-tcp", "qperf", "wrk", "apache2-utils", "nghttp2-client", "nginx-light", "redis-server",
            "redis-tools", "memcached", "libmemcached-tools")
WORKLOAD = "iperf3, sockperf, NetPIPE, qperf, wrk, ab, h2load, redis-benchmark, memslap, memcapable"
QUICK = False
NOTE = ("sockperf's ping-pong client is told to make room for more than its 600,000 messages a second; qperf's control connection asks for "
        "SIGURG and is bridged")

NGINX = """
daemon off; user root; worker_processes 2; pid {0}/nginx.pid; error_log {0}/error.log; worker_rlimit_nofile 8000;
events {{ worker_connections 3000; }}
http {{ access_log off; sendfile on; tcp_nopush on; keepalive_requests 1000000;
  client_body_temp_path {0}/body; proxy_temp_path {0}/proxy; fastcgi_temp_path {0}/f; uwsgi_temp_path {0}/u; scgi_temp_path {0}/s;
  server {{ listen 127.0.0.1:{1}; root {0}/www; location /up/ {{ proxy_pass http://127.0.0.1:{2}/; }} }}
  server {{ listen 127.0.0.1:{2} reuseport; root {0}/www; }} }}
"""


def tool(r, name, command, wanted=(), unwanted=(), timeout=90):
    """Runs a client; its words say whether it was content, since most of these tools end with 0 whatever happens."""
    try:
        text = r.run(command, timeout)
    except RunError as error:
        r.check(name, False, error)
        return
    bad = [w for w in wanted if w not in text] + [w for w in unwanted if w in text]
    r.check(name, not bad, lambda: f"{bad}: {text}")


def iperf3(r):
    for name, words in (("4 connections", ["-P", "4"]), ("both ways", ["--bidir"]), ("zero copy, reversed", ["-Z", "-R"])):
        port = r.port()
        server = r.server(["iperf3", "-s", "-1", "-B", "127.0.0.1", "-p", str(port)], port)
        tool(r, f"iperf3, {name}", ["iperf3", "-c", "127.0.0.1", "-p", str(port), "-t", "2", *words], ["iperf Done"], ["error -"])
        r.wait(server, 20)


# Without it, sockperf's table is for 600,000 messages a second, and it ends with an error when there are more
ROOM = "--mps=10000000"


def sockperf(r):
    bad = ["ERROR", "error"]
    for name, words in (("ping-pong", ["pp", "-m", "64", ROOM]), ("throughput", ["tp", "-m", "1024"]), ("under load", ["ul", "-m", "64"])):
        port = str(r.port())
        server = r.server(["sockperf", "sr", "--tcp", "-i", "127.0.0.1", "-p", port], int(port))
        tool(r, f"sockperf, {name}", ["sockperf", words[0], "--tcp", "-i", "127.0.0.1", "-p", port, "-t", "2", *words[1:]],
             ["Summary"], bad)
        r.stop(server, good=(0, -15, 143))
    ports = [r.port() for _ in range(8)]
    feed = r.write("feed", "".join(f"T:127.0.0.1:{p}\n" for p in ports))
    for how in "eps":  # epoll, poll, select
        server = r.server(["sockperf", "sr", "-f", feed, "-F", how], ports[-1])
        tool(r, f"sockperf, 8 connections, -F {how}", ["sockperf", "pp", "-f", feed, "-F", how, "-t", "2", ROOM], ["Summary"], bad)
        r.stop(server, good=(0, -15, 143))


def netpipe_qperf(r):
    server = r.start(["NPtcp", "-p", "0", "-u", "1048576"])
    out = r.path("np.out")
    tool(r, "NetPIPE", ["sh", "-c", f"sleep 1; NPtcp -h 127.0.0.1 -p 0 -u 1048576 -o {out} && cat {out}"], ["1048576 "])
    r.equal("NetPIPE's server ends", r.wait(server, 20), 0)
    port = r.port()
    server = r.server(["qperf", "-lp", str(port)], port)
    tool(r, "qperf", ["qperf", "-lp", str(port), "-t", "1", "127.0.0.1", "tcp_bw", "tcp_lat"], ["bw", "latency"], ["failed"])
    r.stop(server)


def databases(r):
    port = str(r.port())
    server = r.server(["redis-server", "--port", port, "--bind", "127.0.0.1", "--save", "", "--io-threads", "2", "--dir", r.directory],
                      int(port))
    for words in (["-n", "50000", "-c", "50"], ["-n", "100000", "-c", "100", "-P", "16", "-d", "1024", "--threads", "2"]):
        tool(r, f"redis-benchmark {' '.join(words)}", ["redis-benchmark", "-p", port, "-q", "-t", "set,get", *words], ["SET:", "GET:"])
    r.stop(server)
    port = str(r.port())
    server = r.server(["memcached", "-u", "root", "-l", "127.0.0.1", "-p", port, "-t", "2"], int(port))
    for words in (["--test=set"], ["--test=get"], ["--test=mget", "--non-blocking", "--binary"]):
        tool(r, f"memcslap {' '.join(words)}", ["memcslap", f"--servers=127.0.0.1:{port}", "--concurrency=8",
                                                "--execute-number=1000", *words], ["Time"], ["Failed", "FAIL"])
    tool(r, "memccapable", ["memccapable", "-h", "127.0.0.1", "-p", port, "-a"], ["All tests passed"])
    r.stop(server)


def web(r):
    port, upstream = r.port(), r.port()
    r.write("www/index.html", "ok\n")
    r.write("www/64k", os.urandom(65536))
    conf = r.write("nginx.conf", NGINX.format(r.directory, port, upstream))
    server = r.server(["nginx", "-c", conf, "-e", r.path("error.log")], port)
    url = f"http://127.0.0.1:{port}"
    for words in (["-n", "5000"], ["-k", "-n", "20000"]):
        tool(r, f"ab {' '.join(words)}", ["ab", "-q", "-c", "100", *words, f"{url}/"], ["Failed requests:        0"])
    for name, words in (("400 connections", ["-c400", f"{url}/"]), ("through a proxy", ["-c64", f"{url}/up/"]),
                        ("one request each", ["-c64", "-H", "Connection: close", f"http://127.0.0.1:{upstream}/"])):
        tool(r, f"wrk, {name}", ["wrk", "-t2", "-d2s", *words], ["Requests/sec"], ["Socket errors", "Non-2xx"])
    tool(r, "h2load", ["h2load", "--h1", "-n", "20000", "-c", "100", "-t", "2", f"{url}/64k"], ["20000 succeeded, 0 failed, 0 errored"])
    r.stop(server)


def run(r):
    iperf3(r)
    sockperf(r)
    netpipe_qperf(r)
    databases(r)
    web(r)
