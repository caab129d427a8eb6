"""The zero-copy module tested in virtual machines: zerocopy_test.py --build DIR [--long] [--measure] [--kernel NAME] [--results DIR]

For each kernel of kernels.py the module is built, with all warnings and sparse, and loaded into a machine that has
nothing but busybox, the module's own programs (kmod-zerocopy/selftest), and libsd-pages.so with the program that tortures
it (tests/pages), from the build. report.py says what a check is. --measure has the costs of remapping and copying printed.
"""
import argparse
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

import kernels
import machine
import zerocopy_programs
from report import Report

MODULE = pathlib.Path(__file__).resolve().parents[3] / "kmod-zerocopy"
# The kernel then notices what is used after it was freed, or written beyond its end: memory, and pages.
CHECKED = "slub_debug=FZPU page_poison=1"
PROGRAMS = ("selftest", "fuzz", "measure")
PAGES = ("libsd-pages.so", "tests/pages/pages_torture", "libsd.so", "sdrun", "sd-monitor", "sdstat",
         "sdctl", "tests/pages/pages_exchange", "tests/pages/pages_frames", "tests/pages/pages_relay")

# What every machine's script begins with (zerocopy_long.py has others).
BEGIN = r"""name=socksdirect_zerocopy
counters=/sys/class/misc/socksdirect-zerocopy/counters
# MemFree does not have what a processor keeps to allocate again: megabytes, with 6.12.
memory() {
    sync; echo 3 >/proc/sys/vm/drop_caches; sleep 1
    awk '/^MemFree/ { free = $2 } /^Slab/ { slab = $2 } $1 == "count:" { free += $2 * 4 } END { print free, slab }' \
        /proc/meminfo /proc/zoneinfo
}
check() { if [ "$2" = 0 ]; then echo "passed $1"; else echo "failed $1: $3"; fi; }
# A selftest has one of a group killed that has no memory left: of that the kernel tells with a trace. Of the
# machine's it must not.
clean() { ! dmesg | sed '/ invoked oom-killer: /,/ oom-kill:constraint=/{/CONSTRAINT_NONE/!d}' | grep -E 'CONSTRAINT_NONE|BUG|WARNING|Oops|general protection|refcount_t|Bad page|bad pte|INFO: task|Object.*overwritten|Redzone|Poison|pagealloc|lockdep|Call Trace'; }

programs() {
    mkdir -p /lib64 /lib/x86_64-linux-gnu /tmp; cp lib/ld-linux-x86-64.so.2 /lib64; cp lib/* /lib/x86_64-linux-gnu
    mount -t tmpfs -o size=64m none /dev/shm 2>/dev/null
    ip link set lo up
}
"""

# What is counted before the first and after the last test must be the same, but for what the kernel itself
# keeps.
RUN = r"""insmod ./$name.ko; check "load the module" $?
export SLOW_DEVICE=/dev/vdb
if [ -n "$MEASURE" ]; then ./measure; programs; . ./sends; clean; exit; fi
programs
# Once before the count: what is used for the first time stays in caches.
./fuzz 2000 >/dev/null
set -- $(memory); free=$1 slab=$2
./selftest
./fuzz $FUZZ_CALLS; check "fuzz, $FUZZ_CALLS calls" $?
# Programs of this system's C library, with large memory from the device
export PAGES_SEEDS=2
LD_PRELOAD=./libsd-pages.so ./pages_torture
PAGES_DEVICE=no ./pages_torture >/dev/null; check "pages: the torture holds without the library" $?
. ./sends
left=$(cd $counters && grep -v '^0$' pools regions channels handles pages stock accounts)
[ -z "$left" ]; check "nothing is left in the module" $? "$left"
set -- $(memory)
[ $(($1 + 6144)) -gt $free ]; check "memory is free again" $? "$free kB before, $1 after"
[ $(($2 - 6144)) -lt $slab ]; check "slabs are free again" $? "$slab kB before, $2 after"
(cd $counters && grep . *) | sed 's/^/# /'
rmmod $name; check "unload the module" $?
[ ! -e /dev/socksdirect-zerocopy ] && insmod ./$name.ko && ./selftest info && rmmod $name; check "load it again" $?
clean; check "the kernel has nothing to say" $? "see above"
"""


# What libsd hands over. The shell is static: nothing is preloaded into it.
MONITOR = r"""mkdir -p /run/socksdirect
./sd-monitor >monitor.log 2>&1 & monitor=$!
until ./sdstat >/dev/null 2>&1; do usleep 50000; done
"""
RELAYED = r"""# relayed SHIFT: bytes from one program through another to a third
cat >relayed <<'end'
: >got; : >between
./pages_relay receive ${BYTES:-33554432} >>got & taker=$!
until port=$(sed -n 's/^port //p' got) && [ -n "$port" ]; do usleep 50000; done
./pages_relay relay $port $1 >>between & middle=$!
until port=$(sed -n 's/^port //p' between) && [ -n "$port" ]; do usleep 50000; done
./pages_relay send $port ${BYTES:-33554432} && wait $middle && wait $taker && grep -q 'all arrived' got
end
"""
SENDS = MONITOR + RELAYED + r"""count() { cat $counters/$1; }
# frames FRAMES BUFFERS WHAT: the seconds are in `got`; with a monitor what sdstat shows of the connection in
# `shown`
cat >frames <<'end'
rm -f shown hold; mkfifo hold; exec 7<>hold; : >got
PAGES_WAIT=1 ./pages_frames receive $1 $2 $3 >>got <hold &
until port=$(sed -n 's/^port //p' got) && [ -n "$port" ]; do usleep 50000; done
./pages_frames send $port $1 $2 $3; status=$?
[ -z "$SHOW" ] || ./sdstat --json >shown
echo >&7; wait $! && exit $status
end
# Both programs are detached while frames go, of which there are more than pass until then: who makes no call
# does not leave. What they have is looked at while they wait for their end.
cat >detached <<'end'
rm -f hold; mkfifo hold; exec 7<>hold; : >got
PAGES_WAIT=1 ./pages_frames receive 200 3 all >>got <hold & taker=$!
until port=$(sed -n 's/^port //p' got) && [ -n "$port" ]; do usleep 50000; done
PAGES_WAIT=1 ./pages_frames send $port 200 3 all <hold & giver=$!
until grep -q socksdirect-zerocopy /proc/$taker/maps && [ $(cat $counters/taken) -gt $had ]; do usleep 50000; done
./sdctl detach $taker && ./sdctl detach $giver || exit 1
until grep -q seconds got; do kill -0 $taker && kill -0 $giver || exit 1; usleep 50000; done
usleep 200000; bad=0
for pid in $taker $giver; do
    grep socksdirect-zerocopy /proc/$pid/maps && bad=1; ls -l /proc/$pid/fd | grep dev/socksdirect-zerocopy && bad=1
done
echo >&7; echo >&7; wait $giver && wait $taker && exit $bad
end
if [ -z "$MEASURE" ]; then
    ./sdrun --zero-copy ./pages_exchange 1 $SEEDS | sed 's/^/# /' >exchanged; grep -q 'passed pages' exchanged
    check "sends: $SEEDS seeds of overwritten buffers, forks and kills" $? "$(cat exchanged)"
    had=$(count taken)
    SHOW=1 ./sdrun --zero-copy sh frames 20 3 all; check "sends: 20 frames, each byte checked" $? "$(cat got)"
    took=$(($(count taken) - had))
    [ $((took * 4096 * 10)) -ge $((20 * 3110400 * 8)) ]; check "sends: the module has moved 80 of 100 bytes" $? "$took pages"
    sed 's/.*"handed":{\("given":[0-9]*,"mapped":[0-9]*\).*/# \1/' shown
    mapped=$(sed -n 's/.*"handed":{"given":[0-9]*,"mapped":\([0-9]*\).*/\1/p' shown)
    [ "${mapped:-0}" = $((took * 4096)) ]; check "sends: sdstat has counted the same" $? "$mapped bytes, $took pages"
    had=$(count taken) copies=$(count cow_copies)
    ./sdrun --zero-copy sh relayed 0; check "relay: what is passed on unread arrives" $? "$(cat got)"
    took=$(($(count taken) - had))
    [ $((took * 4096 * 10)) -ge $((2 * 33554432 * 8)) ]; check "relay: 80 of 100 bytes were moved, twice" $? "$took pages"
    ./sdrun --zero-copy sh relayed 1000; check "relay: through an unaligned buffer" $? "$(cat got)"
    export counters had=$(count taken)
    ./sdrun --zero-copy sh detached; check "detach: frames of two programs, detached in between" $? "$(cat got)"
    ./sdctl calibrate | sed 's/^/# /'; cat /sys/module/$name/parameters/least_give | grep -qv '^0$'
    check "calibrate: the module has been told" $? "least_give is 0"
    SHOW=1 ./sdrun --zero-copy sh frames 20 3 all; check "calibrate: frames afterwards" $? "$(cat got)"
else
    ./sdctl calibrate --all-sizes | sed 's/^/# /'
    ./pages_frames alone 48 4 | sed 's/^/# frames alone 4 /'
    for what in "stamp 4" "read 4" "all 4" "all 1" "all 4:1"; do
        set -- $what
        for round in 1 2 3 4 5 6 7; do
            ./sdrun --zero-copy sh frames 60 $2 $1; sed -n "s/^seconds/# frames $1 $2 pages/p" got
            SD_ZERO_COPY=0 ./sdrun sh frames 60 $2 $1; sed -n "s/^seconds/# frames $1 $2 copied/p" got
            sh frames 60 $2 $1; sed -n "s/^seconds/# frames $1 $2 kernel/p" got
        done
    done
    ROUNDS="1 2 3" REDIS=60 NGINX=6
    . ./programs
fi
kill $monitor; wait $monitor
"""


def copy_pages(folder, build_folder):
    """libsd-pages.so and the programs that use it, and the libraries that they need."""
    (folder / "lib").mkdir()
    for name in PAGES:
        shutil.copy(build_folder / name, folder)
        needs = subprocess.run(["ldd", build_folder / name], check=True, stdout=subprocess.PIPE, text=True).stdout
        for path in re.findall(r"(/\S+) \(0x", needs):
            shutil.copy(path, folder / "lib")
    (folder / "sends").write_text(SENDS, encoding="utf-8")


def build(kernel, into):
    """Builds module and programs; what make says if it fails."""
    source = into / "source"
    shutil.copytree(MODULE, source)
    for words in (["check", f"KDIR={kernel / 'build'}", "CC=gcc-12"], ["selftest"]):
        made = subprocess.run(["make", "-C", source, *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              check=False)
        if made.returncode:
            return made.stdout
    shutil.copy(source / "socksdirect_zerocopy.ko", into)
    for name in PROGRAMS:
        shutil.copy(source / "selftest" / name, into)
    shutil.rmtree(source)
    return None


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", type=pathlib.Path, required=True, help="where libsd-pages.so is built")
    parser.add_argument("--results", type=pathlib.Path)
    parser.add_argument("--long", action="store_true")
    parser.add_argument("--measure", action="store_true")
    parser.add_argument("--kernel", choices=kernels.NAMES, action="append")
    parser.add_argument("--calls", type=int, help="of the fuzzer")
    parser.add_argument("--limit", type=int, default=0, help="seconds after which a machine is given up")
    options = parser.parse_args()
    report = Report("vm-zerocopy", options.results)
    for name in options.kernel or kernels.NAMES:
        def line_seen(line, name=name):
            report.line(line, f"{name}: ")

        with tempfile.TemporaryDirectory(prefix="sd-job-") as folder:
            folder = pathlib.Path(folder)
            kernel = kernels.make(name)
            trouble = build(kernel, folder)
            line_seen(f"{'failed' if trouble else 'passed'} build without a warning")
            if trouble:
                print(trouble, file=sys.stderr)
                continue
            copy_pages(folder, options.build)
            if options.measure:
                zerocopy_programs.copy_programs(folder)
            calls = options.calls or (10_000_000 if options.long else 60_000)
            seeds = 500 if options.long else 20
            settings = f"FUZZ_CALLS={calls} SEEDS={seeds} MEASURE={'yes' if options.measure else ''}\n"
            (folder / "run").write_text(settings + BEGIN + RUN, encoding="utf-8")
            limit = options.limit or (6 * 3600 if options.long else 600)
            status, console = machine.boot(kernel, folder, limit, line_seen, "" if options.measure else CHECKED)
        report.machine_ended(status, console, limit, f"{name}: ")
    sys.exit(report.end())


if __name__ == "__main__":
    main()
