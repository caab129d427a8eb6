"""Verbs between two machines with soft-RoCE: rdma_test.py --build DIR [--results DIR] [--limit SECONDS] [--write] [--long] [--measure] [NAME...]

Each script of tests/verbs/scripts has one side on each machine. What completes there, in contents and order, must be
what NAME.expected says, which is also what the fake verbs are held to (tests/verbs/run_scripts.py). --write: makes
those files of what was found. report.py says what a check is.

Without names, each machine then has two processes of its own (tests/rdma/exchange.cpp) exchange bytes with libsd over
its device: their sums must be equal, and the device's own counters say that the bytes went through it. Then each has
one process, and the two exchange bytes between the machines, joined by the monitors of both. Then real programs do
(two_hosts.py); a NAME may be one of these, too.
"""
import argparse
import collections
import pathlib
import shutil
import sys
import tempfile
import threading

import machine
import rdma_system
import two_hosts
from report import Report

SCRIPTS = pathlib.Path(__file__).resolve().parents[3] / "tests/verbs/scripts"

# Whatever waits for the other side ends with it: both have the same time limit.
RUN = two_hosts.DEVICE + r"""port=7000
for script in scripts/*.verbs; do
    [ -e $script ] || continue
    name=${script#scripts/}; name=${name%.verbs}
    timeout 120 ./verbs_script $script $host $port 10.77.0.1 >out 2>&1
    status=$?
    sed "s/^/found $name /" out
    echo "ended $name $status"
    port=$((port + 1))
done
[ ! -e exchange ] || sh ./exchange
[ ! -e between ] || sh ./between
[ ! -e programs.$host ] || sh ./programs.$host 2>&1
rdma resource show | sed 's/^/# /'
[ "$(rdma resource show qp | grep -c verbs_script)" = 0 ] && echo "passed host $host: no queue pair is left" || \
    echo "failed host $host: no queue pair is left"
"""

# Both processes have one monitor, which sdrun starts. A packet has at most the port's MTU of 4096 bytes; what
# is not in packets goes through lo, as do the first bytes, before the two are joined.
EXCHANGE = r"""host=$(sed 's/.*sd_host=\([01]\).*/\1/' /proc/cmdline)
export XDG_RUNTIME_DIR=/tmp/run SD_TEST_PATHS=shm SD_TEST_TRANSPORT=rdma SD_STATS_FILE=/tmp/stats
mkdir -m 700 $XDG_RUNTIME_DIR
bytes=@BYTES@ build=@BUILD@
packets() { cat /sys/class/infiniband/rxe0/ports/1/hw_counters/rcvd_pkts; }
loopback() { sed -n 's/^ *lo: *\([0-9]*\).*/\1/p' /proc/net/dev; }
resources() { rdma resource show | sed 's/ ctx [0-9]*//'; }
check() { what="host $host: $1"; shift; if "$@"; then echo "passed $what"; else echo "failed $what"; fi; }
resources >before
had=$(packets) lo_had=$(loopback)
timeout 100 $build/sdrun sh -c "$build/tests/rdma/exchange serve 7000 $bytes $((host + 5)) >served 2>&1 & sleep 1
    $build/tests/rdma/exchange call 7000 $bytes $((host + 5)) >called 2>&1; wait" 2>&1 | sed 's/^/# /'
now=$(packets) lo_now=$(loopback)
sed 's/^/# /' served called $SD_STATS_FILE
read -r _ _ sent sum _ received got <served
read -r _ _ their_sent their_sum _ their_received their_got <called
check "libsd over soft-RoCE: the bytes that were sent" [ "$sent $sum $their_sent $their_sum" = \
    "$their_received $their_got $received $got" -a "$sent" = $bytes -a "$received" = $bytes ]
echo "# of $((2 * bytes)) bytes: $((now - had)) packets of the device, $((lo_now - lo_had)) bytes through lo"
check "libsd over soft-RoCE: 99 of 100 bytes went through the device" \
    [ $(((now - had) * 4096)) -ge $((2 * bytes / 100 * 99)) -a $((lo_now - lo_had)) -le $((2 * bytes / 100)) ]
i=0
until resources >after; cmp -s before after || [ $i = 100 ]; do sleep 0.1; i=$((i+1)); done
check "libsd over soft-RoCE: nothing of the device is left in use" cmp before after
"""
EXCHANGED = 12_000_000

# The second machine serves. The connection lives until both have looked.
BETWEEN = two_hosts.COMMON + two_hosts.COUNTERS + r"""bytes=@BYTES@
packets() { cat /sys/class/infiniband/rxe0/ports/1/hw_counters/rcvd_pkts; }
[ $host = 0 ] && role=call || role=serve
start_monitor true
had=$(packets)
begin_count
mkfifo /tmp/two/hold
sd timeout 100 $build/tests/rdma/exchange $role 7100 $bytes 9 $there \
    </tmp/two/hold >/tmp/two/out 2>/tmp/two/err &
exchange=$!
exec 9>/tmp/two/hold
until_ok grep -q received /tmp/two/out
$build/sdctl peers --json >/tmp/two/peers
$build/sdstat --each 2>&1 | sed 's/^/# /'
by_tcp=$(($(take tcp_in 52) + $(take tcp_out 52)))
now=$(packets)
sed 's/^/# /' /tmp/two/out /tmp/two/err
echo "# of $((2 * bytes)) bytes between the machines: $((now - had)) packets came to this device, $by_tcp bytes went by TCP"
check "between two machines: a connection is joined" grep -q '"joined": 1,' /tmp/two/peers
check "between two machines: 99 of 100 bytes went through the device" \
    [ $(((now - had) * 4096)) -ge $((bytes / 100 * 99)) -a "$by_tcp" -gt 0 -a "$by_tcp" -le $((2 * bytes / 100)) ]
exec 9>&-
wait $exchange
check "between two machines: the bytes that were sent" [ $? = 0 ]
links() { $build/sdctl peers --json | grep -q '"links": 0,'; }
until_ok links
check "between two machines: no link is left" links
sleep 1 # the other one looks, too
end_monitor
"""


def job(folder, build, names, exchange, real, amounts):
    if amounts is None:
        two_hosts.measuring_job(folder, build, 3)
    elif real:
        two_hosts.job(folder, build, real, amounts)
    two_hosts.make_key(folder)
    programs = [build / "tests/verbs/verbs_script"]
    if exchange:
        programs += [build / name for name in ("sdrun", "sd-monitor", "libsd.so", "libsd-rdma.so", "tests/rdma/exchange")]
        text = EXCHANGE.replace("@BYTES@", str(EXCHANGED)).replace("@BUILD@", str(build.absolute()))
        (folder / "exchange").write_text(text, encoding="utf-8")
        programs += [build / "sd-peers", build / "sdctl", build / "sdstat", shutil.which("nft")]
        text = BETWEEN.replace("@BYTES@", str(EXCHANGED)).replace("@BUILD@", str(build.absolute()))
        (folder / "between").write_text(text, encoding="utf-8")
    rdma_system.programs(folder / "root", *programs, shutil.which("rdma"))
    two_hosts.without_lines(folder / "root", [path for path in programs if build in pathlib.Path(path).parents])
    shutil.copy(build / "tests/verbs/verbs_script", folder)
    (folder / "scripts").mkdir()
    for name in names:
        shutil.copy(SCRIPTS / f"{name}.verbs", folder / "scripts")
    (folder / "run").write_text(RUN, encoding="utf-8")


def in_order(lines):
    """Of both sides' lines one transcript: by line of the script, then by side; each side's own order is kept."""
    return sorted(lines, key=lambda line: (int(line.split(":")[0].split()[1]), line.split()[0]))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", type=pathlib.Path, required=True)
    parser.add_argument("--results", type=pathlib.Path)
    parser.add_argument("--limit", type=int, help="seconds after which a machine is given up")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--measure", action="store_true", help="nothing but figures")
    parser.add_argument("--long", action="store_true", help="more programs, and each with more to do")
    parser.add_argument("names", nargs="*")
    options = parser.parse_args()
    names = [name for name in options.names if name not in two_hosts.PROGRAMS]
    real = [name for name in options.names if name in two_hosts.PROGRAMS]
    if not options.names and not options.measure:
        names = sorted(path.stem for path in SCRIPTS.glob("*.verbs"))
        real = list(two_hosts.PROGRAMS if options.long else two_hosts.USUAL_PROGRAMS)
    options.limit = options.limit or (3600 if options.long or options.measure or set(real) - set(two_hosts.USUAL_PROGRAMS) else 600)
    amounts = None if options.measure else two_hosts.LONG if options.long else two_hosts.USUAL
    report = Report("vm-rdma", options.results)
    image = rdma_system.make()
    found, ended, lock = collections.defaultdict(list), collections.Counter(), threading.Lock()

    def line_seen(host, line):
        with lock:
            kind, _, rest = line.partition(" ")
            name, _, text = rest.partition(" ")
            if kind == "found" and text[:2] in ("0 ", "1 "):
                found[name].append(text)
            elif kind == "ended":
                ended[name] += int(text) == 0
            else:
                report.line(line, f"host {host}: " if kind == "found" else "")

    machines = [None, None]
    with tempfile.TemporaryDirectory(prefix="sd-job-") as folder:
        folder = pathlib.Path(folder)
        (folder / "job").mkdir()
        job(folder / "job", options.build.absolute(), names, not options.names and not options.measure, real, amounts)

        def run(host):
            machines[host] = machine.boot(image, folder / "job", options.limit, lambda line: line_seen(host, line),
                                          f"sd_host={host}", devices=two_hosts.wire(folder, host))

        threads = [threading.Thread(target=run, args=(host,)) for host in (0, 1)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    for host, (status, console) in enumerate(machines):
        report.machine_ended(status, console, options.limit, f"host {host}: ")
    for name in names:
        expected, lines = SCRIPTS / f"{name}.expected", in_order(found[name])
        text = "".join(f"{line}\n" for line in lines)
        if options.write and ended[name] == 2:
            expected.write_text(text, encoding="utf-8")
        same = ended[name] == 2 and expected.exists() and expected.read_text(encoding="utf-8") == text
        report.line(f"{'passed' if same else 'failed'} {name}")
        if not same:
            print(text, file=sys.stderr)
    sys.exit(report.end())


if __name__ == "__main__":
    main()
