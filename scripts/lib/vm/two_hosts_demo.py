"""Redis on one machine and redis-benchmark on the other: two_hosts_demo.py --build DIR. Started by scripts/demo-two-hosts."""
import argparse
import pathlib
import shutil
import sys
import tempfile
import threading

import machine
import rdma_system
import two_hosts

LIMIT = 300  # seconds
SHOWN = "show "  # what a line for the reader begins with

SERVER = r"""start_monitor true
$build/sdrun redis-server --bind 0.0.0.0 --protected-mode no --save '' --appendonly no >/tmp/two/redis 2>&1 &
server=$!
until_ok listens 6379
meet
meet
kill $server
wait $server
end_monitor
"""

CLIENT = r"""show() { sed 's/^/show /'; }
prompt() { echo "show "; echo "show alpha# $*"; }
until_ok sh -c "nc $there 7471 </dev/null" # beta's monitor: a failed try would be its last trouble
start_monitor true
meet
prompt cat /etc/socksdirect/sd-monitor.toml
sed 's#/tmp/two/#/etc/socksdirect/#' /tmp/two/monitor.toml | show
prompt sdctl peers
$build/sdctl peers 2>&1 | show
prompt sdrun redis-benchmark -h $there -c 4 -n 5000 -t set,get -q
begin_count
$build/sdrun redis-benchmark -h $there -c 4 -n 5000 -t set,get -q >out 2>&1 &
benchmark=$!
most=0
while kill -0 $benchmark 2>/dev/null; do
    if [ $(look) = 4 ] && [ $most = 0 ]; then
        most=4
        sleep 1
        $build/sdstat >/tmp/two/sdstat 2>&1
    fi
    sleep 0.3
done
wait $benchmark && [ $most = 4 ] && ended=0 || ended=1
tr '\r' '\n' <out | grep 'requests per second' | show
prompt "sdstat        # while that ran"
sed '/^$/,$d' /tmp/two/sdstat | show
tcp_out=$(take tcp_out 52) tcp_in=$(take tcp_in 52)
rdma_out=$(take rdma_out 0) rdma_in=$(take rdma_in 0)
[ $rdma_out -gt $tcp_out ] && [ $rdma_in -gt $tcp_in ] || ended=1
show <<END

Counted by nftables on alpha meanwhile:
  over RDMA  $rdma_out bytes to beta, $rdma_in back, with the headers of packets
  over TCP   $tcp_out bytes to beta, $tcp_in back: how the connections began
END
meet
end_monitor
(exit $ended)
"""


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", type=pathlib.Path, required=True)
    build = parser.parse_args().build.absolute()
    image = rdma_system.make()
    common = two_hosts.COMMON.replace("@BUILD@", str(build))
    scripts = (common + two_hosts.COUNTERS + two_hosts.LOOK + CLIENT, common + SERVER)
    machines, consoles = [None, None], [[], []]

    def line_seen(host, line):
        consoles[host].append(line)
        if line.startswith(SHOWN):
            print(line.removeprefix(SHOWN), flush=True)

    with tempfile.TemporaryDirectory(prefix="sd-job-") as folder:
        folder = pathlib.Path(folder)
        job = folder / "job"
        job.mkdir()
        two_hosts.make_key(job)
        ours = [*two_hosts.ours(build), build / "sdrun"]
        rdma_system.programs(job / "root", *two_hosts.files(job / "root", ("redis",)), *ours, shutil.which("rdma"))
        two_hosts.without_lines(job / "root", ours)
        for host in (0, 1):
            (job / f"programs.{host}").write_text(scripts[host], encoding="utf-8")
        (job / "run").write_text(two_hosts.DEVICE + "sh ./programs.$host\n", encoding="utf-8")
        print("starting two machines, alpha (10.77.0.1) and beta (10.77.0.2), with Redis on beta", flush=True)

        def run(host):
            machines[host] = machine.boot(image, job, LIMIT, lambda line: line_seen(host, line), f"sd_host={host}",
                                          devices=two_hosts.wire(folder, host))

        threads = [threading.Thread(target=run, args=(host,)) for host in (0, 1)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    if machines[0][0] == 0:
        return 0
    for host in (0, 1):
        print(f"host {host}:", *consoles[host], machines[host][1][-2000:], sep="\n", file=sys.stderr)
    print("scripts/demo-two-hosts: Redis did not go over RDMA; above is what both machines said", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
