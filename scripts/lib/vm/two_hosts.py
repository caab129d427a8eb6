"""Two machines as two hosts whose monitors know each other, and real programs between them: what runs in them.

Host 1 (beta) has the servers, host 0 (alpha) the clients. Both have the library preloaded, and nothing else is said to
it: what is to go over RDMA, the configuration of the monitors says. First it says nothing of RDMA, and all that the
programs say to each other has to go over TCP. Then both say so and are told to reload, and the same is done again: of
each direction's bytes at most one in a hundred goes over TCP now. Both are what nftables counts on host 0.
"""
import os
import pathlib
import re
import secrets
import shutil
import subprocess
import tempfile

import rdma_system

# The files of the job, and the device.
DEVICE = r"""cp -a root/. /
export PATH=$PATH:/usr/bin:/usr/sbin
host=$(sed 's/.*sd_host=\([01]\).*/\1/' /proc/cmdline)
ip link set lo up
ip link set eth0 up
ip addr add 10.77.0.$((host + 1))/24 dev eth0
rdma link add rxe0 type rxe netdev eth0 || echo "failed make a verbs device"
i=0
until [ "$(cat /sys/class/infiniband/rxe0/ports/1/state 2>/dev/null)" = "4: ACTIVE" ] && \
    grep -q ffff:0a4d /sys/class/infiniband/rxe0/ports/1/gids/* || [ $i = 100 ]; do sleep 0.1; i=$((i+1)); done
"""

# What follows has these names. Output is text for report.py.
COMMON = r"""host=$(sed 's/.*sd_host=\([01]\).*/\1/' /proc/cmdline)
build=@BUILD@
[ $host = 0 ] && own=alpha other=beta || { own=beta other=alpha; }
there=10.77.0.2
export SD_MONITOR=/tmp/two/monitor.sock
check() { what="host $host: $1"; shift; if "$@"; then echo "passed $what"; else echo "failed $what"; fi; }
until_ok() {
    i=0
    until "$@" >/dev/null 2>&1; do
        [ $i -lt 600 ] || { echo "# host $host: in vain: $*"; return; }
        sleep 0.1
        i=$((i+1))
    done
}
listens() { cat /proc/net/tcp /proc/net/tcp6 | grep -q ":$(printf %04X $1) .* 0A "; }
sd() { LD_PRELOAD=$build/libsd.so "$@"; }
configure() { # RDMA: true, false or default
    cat >/tmp/two/monitor.toml <<END
[paths]
discovery = true
[peers]
name = "$own"
$([ $1 = default ] || echo "rdma = $1")
[[peer]]
name = "$other"
address = "10.77.0.$((2 - host))"
key = "/tmp/two/key"
END
}
start_monitor() { # RDMA
    mkdir -p -m 755 /tmp/two
    cp key /tmp/two/key
    chmod 600 /tmp/two/key
    configure $1
    mount -t cgroup2 cgroup2 /sys/fs/cgroup 2>/dev/null
    $build/sd-monitor --config /tmp/two/monitor.toml --socket $SD_MONITOR >/tmp/two/log 2>&1 &
    monitor=$!
    until_ok is_up
}
is_up() { $build/sdctl peers | grep -q "^$other .* up "; }
reconfigure() { # RDMA
    configure $1
    kill -HUP $monitor
    until_ok takes_soft_devices $1
}
takes_soft_devices() { $build/sdctl peers --json | grep -q "\"soft_devices\": *$1"; }
end_monitor() {
    kill $monitor
    wait $monitor
    sed 's/^/# /' /tmp/two/log
}
end_server() { kill $server; i=0; while kill -0 $server 2>/dev/null && [ $i -lt 100 ]; do sleep 0.1; i=$((i+1)); done; }
# Both wait until both are here.
meet() {
    if [ $host = 1 ]; then echo here | timeout 3000 nc -l -p 7999 >/dev/null
    else until_ok sh -c "echo here | nc $there 7999 | grep -q here"; fi
}
"""

# Of TCP: packets, and bytes with the header of IP, but for the two monitors' and meet()'s. Then those of the
# device.
COUNTERS = r"""nft -f - <<END
table ip sums
delete table ip sums
table ip sums {
    counter tcp_in { }
    counter tcp_out { }
    counter rdma_in { }
    counter rdma_out { }
    chain in {
        type filter hook input priority 0;
        iifname "eth0" tcp sport != { 7471, 7999 } tcp dport != { 7471, 7999 } counter name "tcp_in"
        udp dport 4791 counter name "rdma_in"
    }
    chain out {
        type filter hook output priority 0;
        oifname "eth0" tcp sport != { 7471, 7999 } tcp dport != { 7471, 7999 } counter name "tcp_out"
        udp dport 4791 counter name "rdma_out"
    }
}
END
# Headers of IP and TCP have 52 bytes there.
take() { nft reset counter ip sums $1 | sed -n 's/.*packets \([0-9]*\) bytes \([0-9]*\).*/\1 \2/p' | (read p b; echo $((b - p * $2))); }
begin_count() { for c in tcp_in tcp_out rdma_in rdma_out; do take $c 0 >/dev/null; done; }
"""

# What each has: serve, load (which says itself whether all is as it should be), port.
PROGRAMS = {
    "redis": r"""port=6379
serve() { exec redis-server --port $port --bind 0.0.0.0 --protected-mode no --save '' --appendonly no; }
# A command that is lost, repeated or out of order is seen in what a counter says.
load() {
    redis-cli -h $there DEL counter >/dev/null
    sd redis-cli -h $there -r $asked INCR counter >got
    seq 1 $asked >wanted
    cmp got wanted || return 1
    sd redis-benchmark -h $there -c $connections -n $requests -d 100 -t set,get --csv >out || return 1
    sed 's/^/# /' out
    [ $(grep -c '^"[SG]ET"' out) = 2 ]
}""",
    "nginx": r"""port=8080
serve() {
    mkdir -p /tmp/www /var/log/nginx /var/lib/nginx
    head -c 4096 /bin/busybox >/tmp/www/page
    printf '%s' "daemon off; user root; worker_processes 1; pid /tmp/nginx.pid; error_log stderr; events { } http {
        access_log off; sendfile on; keepalive_requests 1000000; server { listen $port; root /tmp/www; } }" >/tmp/nginx.conf
    exec nginx -e stderr -c /tmp/nginx.conf
}
load() {
    wget -q -O page http://$there:$port/page
    head -c 4096 /bin/busybox | cmp - page || return 1
    sd ab -q -k -c $connections -n $requests http://$there:$port/page >out 2>&1 || return 1
    grep -E '^(Requests per second|Transfer rate|HTML transferred)' out | sed 's/^/# /'
    grep -q "^Complete requests: *$requests\$" out && grep -q '^Failed requests: *0$' out &&
        grep -q "^HTML transferred: *$((requests * 4096)) bytes" out
}""",
    "iperf3": r"""port=5201
serve() { exec iperf3 -s -p $port; }
load() {
    for way in '' -R; do
        sd iperf3 -c $there -p $port -n $streamed -J $way >out || { grep '"error"' out | sed 's/^/# /'; return 1; }
        # Sent and received. It ends while the last bytes are under way.
        sed -n '/"sum_sent"/,$p' out | sed -n 's/.*"bytes":\t*\([0-9]*\).*/\1/p' >bytes
        echo "# iperf3 $way: $(echo $(cat bytes)) bytes"
        [ $(awk -v all=$streamed '$1 >= all * 0.95' bytes | wc -l) = 2 ] || return 1
    done
}""",
    "postgresql": r"""port=5432
serve() {
    exec @SETPRIV@ --reuid 65534 --regid 65534 --clear-groups @POSTGRES@ -D /tmp/data -p $port -c listen_addresses='*' \
        -c unix_socket_directories= -c shared_buffers=16MB -c fsync=off -c jit=off -c logging_collector=off
}
load() {
    echo 'SELECT :client_id + 7, repeat(chr(65), 200);' >select.sql
    sd $(dirname @POSTGRES@)/pgbench -n -h $there -p $port -U nobody -c 2 -t $transactions -f select.sql postgres >out 2>&1 || return 1
    grep -E '^(latency average|tps)' out | sed 's/^/# /'
    grep -q "^number of transactions actually processed: $((2 * transactions))/$((2 * transactions))\$" out
}""",
}

LOOK = r"""# Of the connections that this host has just now: how many go over RDMA in both directions.
look() {
    $build/sdstat --each --csv | awk -F, 'NR == 1 { for (i = 1; i <= NF; ++i) at[$i] = i; next }
        $at["to_server_path"] == "rdma" && $at["to_client_path"] == "rdma" { ++n } END { print n + 0 }'
}
"""

BOTH_WAYS = r"""
counted() { $build/sdstat --json | tr -d ' \n' | grep -q "\"$1\""; }
device_counters() { for c in /sys/class/infiniband/rxe0/ports/1/hw_counters/*_*; do echo "${c##*/} $(cat $c)"; done; }
run_load() { # NAME, how
    begin_count
    most=0
    device_counters >counters
    before=$(date +%s)
    ( load ) &
    pid=$!
    while kill -0 $pid 2>/dev/null; do
        now=$(look)
        [ "$now" -le $most ] || most=$now
        sleep 0.5
    done
    wait $pid
    check "$1 between two machines, $2: every answer is right" [ $? = 0 ]
    sleep 0.5
    got=$(take tcp_in 52) sent=$(take tcp_out 52)
    echo "# $1, $2: $(($(date +%s) - before)) s, of TCP $sent bytes there and $got back, of the device's packets" \
        "$(take rdma_out 0) and $(take rdma_in 0); at most $most connections at a time over RDMA"
    echo "# of the device: $(device_counters | awk 'NR == FNR { had[$1] = $2; next } $2 > had[$1] { printf "%s %d, ", $1, $2 - had[$1] }' counters -)"
}
"""

SERVERS = r"""
start_monitor default
@SERVED@
meet
meet
reconfigure true
meet
meet
for name in $names; do
    eval "server=\$server_$name"
    end_server
    tail -n 5 /tmp/two/log.$name | sed "s/^/# $name: /"
done
end_monitor
"""
SERVED = r"""( unset SD_STATS_FILE; export LD_PRELOAD=$build/libsd.so; serve ) >/tmp/two/log.@NAME@ 2>&1 &
server_@NAME@=$! names="$names @NAME@"
until_ok listens $port
listens $port || { echo "failed host 1: @NAME@ listens"; tail -n 20 /tmp/two/log.@NAME@ | sed "s/^/# @NAME@: /"; }
"""

CLIENTS = r"""
start_monitor default
meet
@DEFAULT@
meet
reconfigure true
meet
@LOADED@
meet
end_monitor
"""
BY_DEFAULT = r"""run_load @NAME@ "by default"
check "@NAME@ between two machines, by default: over TCP" [ $most = 0 -a $got -gt 0 ]
check "@NAME@ between two machines, by default: it is counted why" counted soft_rdma
sent_@NAME@=$sent got_@NAME@=$got
"""
OVER_RDMA = r"""run_load @NAME@ "with RDMA"
check "@NAME@ between two machines, with RDMA: sdstat shows the path" [ $most -gt 0 ]
check "@NAME@ between two machines, with RDMA: 99 of 100 bytes there" [ $((sent * 100)) -le $sent_@NAME@ ]
check "@NAME@ between two machines, with RDMA: 99 of 100 bytes back" [ $((got * 100)) -le $got_@NAME@ ]
"""

# What the device, kernel TCP and RDMA take, in turn. The servers of the first are without the library.
MEASURED_SERVERS = r"""start_monitor true
redis-server --port 6380 --bind 0.0.0.0 --protected-mode no --save '' >/dev/null 2>&1 &
sd redis-server --port 6379 --bind 0.0.0.0 --protected-mode no --save '' >/dev/null 2>&1 &
for round in $(seq 1 $rounds); do
    $build/tests/rdma/turns serve $((7200 + round)) $there &
    sd $build/tests/rdma/turns serve $((7300 + round)) $there &
done
iperf3 -s -p 5202 >/dev/null 2>&1 &
sd iperf3 -s -p 5201 >/dev/null 2>&1 &
for port in 6379 6380 5201 5202 7201 7301; do until_ok listens $port; done
meet
ib_write_lat -x $(address) -s 8 -n 2000 >/dev/null 2>&1
ib_write_bw -x $(address) -s 65536 -n 1000 >/dev/null 2>&1
meet
end_monitor
"""
MEASURED_CLIENTS = r"""start_monitor true
begin_count
meet
sleep 1
ib_write_lat -x $(address) -s 8 -n 2000 $there 2>&1 | grep -A1 '#bytes' | sed 's/^/# 8 bytes: /'
sleep 1
ib_write_bw -x $(address) -s 65536 -n 1000 $there 2>&1 | grep -A1 '#bytes' | sed 's/^/# 64 KiB: /'
requests() { sed -n 's/^"GET","\([0-9.]*\)".*/\1/p'; }
rate() { sed -n '/"sum_received"/,$p' | sed -n 's/.*"bits_per_second":\t*\([0-9]*\).*/\1/p' | head -n 1; }
# Packets there and back since the last time, of both.
packets() { for c in rdma_out rdma_in tcp_out tcp_in; do nft reset counter ip sums $c | sed -n 's/.*packets \([0-9]*\) bytes.*/\1/p'; done | tr '\n' ' '; }
for round in $(seq 1 $rounds); do
    for how in kernel RDMA; do
        with=sd redis=6379 iperf=5201 port=$((7300 + round))
        [ $how = RDMA ] || { with= redis=6380 iperf=5202 port=$((7200 + round)); }
        packets >/dev/null
        turns=$($with $build/tests/rdma/turns call $port $there 1000) turns_packets=$(packets)
        one=$($with redis-benchmark -h $there -p $redis -c 1 -n 2000 -t get --csv | requests) one_packets=$(packets)
        many=$($with redis-benchmark -h $there -p $redis -c 50 -n 10000 -t get --csv | requests) many_packets=$(packets)
        stream=$($with iperf3 -c $there -p $iperf -l 64K -n 50M -J | rate) stream_packets=$(packets)
        echo "# $how: $turns"
        echo "# $how: Redis with one connection $one/s, with 50 $many/s, stream $((stream / 8000)) kB/s"
        echo "# $how: packets there and back, the device's and TCP's: 1600 turns $turns_packets; 2000 requests $one_packets;" \
            "10000 requests $many_packets; 50 MB $stream_packets"
    done
done
meet
end_monitor
"""
# The index of the device's address that RoCE v2 has over IPv4.
ADDRESS = r"""address() { grep -l ffff:0a4d /sys/class/infiniband/rxe0/ports/1/gids/* | sed 's#.*/##' | sort -n | tail -n 1; }
"""

# How much each does, in a run of everybody's and with --long. Connections begin over TCP, and so few of the
# bytes must be of their beginnings.
STREAMED = 2_000_000_000  # 11 to 16 MB of it went over TCP while queue pairs were made
USUAL = {"connections": 2, "asked": 1000, "requests": 5000, "streamed": STREAMED, "transactions": 2000}
LONG = {"connections": 50, "asked": 10000, "requests": 200000, "streamed": STREAMED, "transactions": 20000}
USUAL_PROGRAMS = ("redis",)
PACKAGES = ("redis-server", "redis-tools", "nginx", "apache2-utils", "iperf3", "postgresql", "nftables")


def wire(folder, host):
    """A network card whose wire leads to the other machine."""
    return ["-netdev", f"dgram,id=n0,local.type=unix,local.path={folder}/wire.{host},"
                       f"remote.type=unix,remote.path={folder}/wire.{1 - host}",
            "-device", f"virtio-net-pci,netdev=n0,mac=52:54:00:77:00:0{host},romfile=,host_mtu=9000"]


def postgres():
    return max(pathlib.Path("/usr/lib/postgresql").glob("*/bin/postgres"), key=lambda path: int(path.parts[4]))


def ours(build):
    return [build / name for name in ("sd-monitor", "sd-peers", "sdctl", "sdstat", "libsd.so", "libsd-rdma.so")]


def make_database(into):
    """An empty one, in into/data, of uid 65534: PostgreSQL does not run as root."""
    with tempfile.TemporaryDirectory(prefix="sd-data-") as folder:
        os.chown(folder, 65534, 65534)
        subprocess.run(["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups", postgres().with_name("initdb"),
                        "-A", "trust", "-E", "UTF8", "--locale", "C", "--no-sync", "--wal-segsize", "1", "-D", f"{folder}/data"], check=True,
                       stdout=subprocess.DEVNULL, env={**os.environ, "HOME": "/", "TZ": "GMT"})
        with open(f"{folder}/data/pg_hba.conf", "a", encoding="utf-8") as out:
            out.write("host all all 10.77.0.0/24 trust\n")
        into.mkdir(parents=True, exist_ok=True)
        subprocess.run(["cp", "-a", f"{folder}/data", into], check=True)


def files(root, names):
    """Puts the programs, and what they read, into the file system that a job unpacks; the paths of the programs."""
    paths = [shutil.which(name) for name in ("nft", "setpriv")]
    commands = {"redis": ("redis-server", "redis-cli", "redis-benchmark"), "nginx": ("nginx", "ab"), "iperf3": ("iperf3",),
                "postgresql": ("pgbench",)}
    for name in names:
        paths += [shutil.which(command) if name != "postgresql" else str(postgres().with_name(command))
                  for command in commands[name]]
    (root / "etc").mkdir(parents=True, exist_ok=True)
    (root / "etc/passwd").write_text("root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/sh\n", encoding="utf-8")
    (root / "etc/group").write_text("root:x:0:\nnogroup:x:65534:\n", encoding="utf-8")
    if "postgresql" in names:
        paths.append(str(postgres()))
        share = pathlib.Path("/usr/share/postgresql") / postgres().parts[4]
        shutil.copytree(share, root / str(share).lstrip("/"), ignore=shutil.ignore_patterns("extension", "man", "tsearch_data"))
        (root / str(postgres().parents[1]).lstrip("/") / "lib").mkdir(parents=True)  # it wants to see it
        make_database(root / "tmp")
    return paths


def make_key(folder):
    (folder / "key").write_text(secrets.token_hex(32), encoding="utf-8")


def fill(text, **values):
    return re.sub(r"@([A-Z0-9]+)@", lambda found: str(values[found[1]]), text)


def scripts(build, names, amounts):
    """The scripts of host 0 and of host 1."""
    def each(block):
        return "".join(fill(f"{PROGRAMS[name]}\n{block}", NAME=name, POSTGRES=postgres() if name == "postgresql" else "",
                            SETPRIV=shutil.which("setpriv")) for name in names)

    given = "".join(f"{name}={value}\n" for name, value in amounts.items())
    common = COMMON.replace("@BUILD@", str(build))
    return (given + common + COUNTERS + LOOK + BOTH_WAYS + fill(CLIENTS, DEFAULT=each(BY_DEFAULT), LOADED=each(OVER_RDMA)),
            given + common + fill(SERVERS, SERVED=each(SERVED)))


def job(folder, build, names, amounts):
    """Puts all of it into the folder that both machines are handed: `programs` there runs it."""
    put(folder, build, files(folder / "root", names), scripts(build, names, amounts))


def measuring_job(folder, build, rounds):
    """The same for figures."""
    common = COMMON.replace("@BUILD@", str(build)) + ADDRESS + COUNTERS + f"rounds={rounds}\n"
    paths = files(folder / "root", ("redis", "iperf3")) + [shutil.which(name) for name in ("ib_write_lat", "ib_write_bw")]
    put(folder, build, paths, (common + MEASURED_CLIENTS, common.replace(COUNTERS, "") + MEASURED_SERVERS), [build / "tests/rdma/turns"])


def without_lines(root, paths):
    """With what debuggers read the programs are most of what each machine unpacks."""
    for path in paths:
        subprocess.run(["strip", "--strip-debug", root / str(path).lstrip("/")], check=True)


def put(folder, build, paths, texts, more=()):
    rdma_system.programs(folder / "root", *paths, *ours(build), *more)
    without_lines(folder / "root", [*ours(build), *more])
    for host, text in enumerate(texts):
        (folder / f"programs.{host}").write_text(text, encoding="utf-8")
    make_key(folder)
