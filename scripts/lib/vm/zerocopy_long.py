"""A piece of what the zero-copy module must hold for long: zerocopy_long.py PART --build DIR [--kernel NAME] [--seconds N] [--first N]

    seeds       pages_exchange from seed --first on
    fuzz        the module's fuzzer, whose seeds begin at --first
    hashed      bytes that a third program passes on, each of which follows from its place
    allocators  the tests of public allocators (allocator_tests.py) with their large memory from the device, from the
                --first one on; "# end allocators" when the last one has run

A machine is booted and does it for that many seconds (120). It prints what zerocopy_test.py does, and a line
"# done PART AMOUNT" for each step that held. long_pages.py adds them up.
"""
import argparse
import pathlib
import shutil
import sys
import tempfile

import allocator_tests
import kernels
import machine
from report import Report
from zerocopy_test import BEGIN, CHECKED, MONITOR, RELAYED, build, copy_pages

START = r"""insmod ./$name.ko; check "load the module" $?
programs
begun=$(cut -d. -f1 /proc/uptime)
time_left() { [ $(($(cut -d. -f1 /proc/uptime) - begun)) -lt $LONG_SECONDS ]; }
count() { cat $counters/$1; }
"""
END = r"""[ -z "$monitor" ] || { kill $monitor; wait $monitor; }
left=$(cd $counters && grep -v '^0$' pools regions channels handles pages stock accounts)
[ -z "$left" ]; check "nothing is left in the module" $? "$left"
(cd $counters && grep . *) | sed 's/^/# /'
rmmod $name; check "unload the module" $?
clean; check "the kernel has nothing to say" $? "see above"
"""
PARTS = {
    "seeds": MONITOR + r"""seed=$FIRST
while time_left; do
    ./sdrun --zero-copy ./pages_exchange $seed 10 >said && echo "# done seeds 10" || echo "failed seeds from $seed: $(cat said)"
    seed=$((seed + 10))
done
""",
    "fuzz": r"""seed=$FIRST
while time_left; do
    ./fuzz 20000 $seed >said && echo "# done fuzz 20000" || echo "failed fuzz 20000 $seed: $(cat said)"
    seed=$((seed + 1))
done
""",
    "hashed": MONITOR + RELAYED + r"""export BYTES=134217728
while time_left; do
    before=$(count taken)
    ./sdrun --zero-copy sh relayed 0 && echo "# done hashed $BYTES" || echo "failed hashed: $(cat got)"
    echo "# done pages $(($(count taken) - before))"
done
""",
    # Large is what has a page: few of these tests have blocks of 128 KiB. jemalloc's run with its allocator
    # in front, whose memory is then the device's by mmap, and behind. A test of the C library's that writes
    # in front of a freed block, so that its allocator notices, needs a small one.
    "allocators": r"""export TIMEOUTFACTOR=20 LD_LIBRARY_PATH=$PWD/jemalloc; pages=$PWD/libsd-pages.so number=0
# one NAME FROM PRELOADED COMMAND...: the test of that name is the next one
one() {
    number=$((number + 1))
    [ $number -ge $FIRST ] && time_left || return
    what=$1 from=$2 preloaded=$3 had=$(count faults); shift 3
    SD_ZERO_COPY_FROM=$from LD_PRELOAD=$preloaded timeout 280 "$@" >said 2>&1
    status=$? had=$(($(count faults) - had)) what="$what, pages from $from bytes on"
    case $status in
    143) echo "skipped $what: it takes more than 280 s here" ;;
    *) check "$what ($had faults)" $status "$status, $(tail -n 3 said)" ;;
    esac
    echo "# done allocators 1"
}
for test in glibc/*; do
    case $test in */tst-malloc-backtrace) from=131072 ;; *) from=4096 ;; esac
    one $test $from $pages ./$test
done
for conf in jemalloc/*.conf; do
    test=${conf%.conf}
    export MALLOC_CONF=$(cat $conf)
    for from in 4096 131072; do one "$test in front" $from $PWD/jemalloc/libjemalloc.so.2:$pages ./$test; done
    one "$test behind" 4096 $pages ./$test
    unset MALLOC_CONF
done
for from in 4096 131072; do one mimalloc/test-stress $from $pages ./mimalloc/test-stress 8 20 10; done
time_left && echo "# end allocators"
""",
}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("--build", type=pathlib.Path, required=True)
    parser.add_argument("--kernel", choices=kernels.NAMES, default="stable")
    parser.add_argument("--seconds", type=int, default=120)
    parser.add_argument("--first", type=int, default=1)
    options = parser.parse_args()
    report = Report("vm-zerocopy-long", None)
    with tempfile.TemporaryDirectory(prefix="sd-job-") as folder:
        folder, kernel = pathlib.Path(folder), kernels.make(options.kernel)
        if trouble := build(kernel, folder):
            sys.exit(trouble)
        copy_pages(folder, options.build)
        if options.part == "allocators":
            shutil.copytree(allocator_tests.make(), folder, dirs_exist_ok=True)
        settings = f"LONG_SECONDS={options.seconds} FIRST={options.first}\n"
        (folder / "run").write_text(settings + BEGIN + START + PARTS[options.part] + END, encoding="utf-8")
        limit = options.seconds + 480  # a step that has begun ends
        # Poisoned pages take more time than all else; the fuzzer is there to find what they tell.
        status, console = machine.boot(kernel, folder, limit, report.line, CHECKED if options.part == "fuzz" else "")
    report.machine_ended(status, console, limit)
    sys.exit(report.end())


if __name__ == "__main__":
    main()
