#!/usr/bin/env python3
"""How much of each parser the fuzzers' seeds reach: clang's source coverage.

scripts/lib/fuzz_coverage.py --build DIR [--corpus DIR] [--missing] [PARSER...]

DIR is a build directory of its own:
  CC=clang CXX=clang++ meson setup DIR -Doptimization=0 -Dtests=false -Dbench=false -Dfuzz=true -Db_ndebug=false \\
    '-Dcpp_args=-fprofile-instr-generate -fcoverage-mapping' -Dcpp_link_args=-fprofile-instr-generate
  ninja -C DIR fuzzers
With --corpus the inputs in DIR/TARGET count, too; --missing names the lines that no input reaches.
"""
import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile

# Each parser, that is whatever reads what others could have written: the targets that feed it, and where it
# is, as files or as functions of one. What several targets reach is put together.
PARSERS = {
    "control packets": (["control_fuzz"], [
        "monitor/service/packet.cpp", "monitor/operations/monitor.cpp: handle channel_ready find_operation accept_client",
        "monitor/operations/requests.cpp"]),
    "libsd's end of the channel": (["accept_fuzz", "exec_fuzz", "segment_fuzz"], ["libsd/control/packets.cpp: receive_answer"]),
    "a link's rings": (["link_fuzz", "ring_fuzz"], [
        "libsd/queue/ring.hpp", "libsd/queue/cork.hpp", "libsd/queue/small_record.hpp",
        "libsd/transport/arena.cpp: larger_ring sound address_of mapped_part map_ahead map_until provide_ring next_piece"]),
    "a link's flags and arms": (["link_fuzz"], [
        "libsd/vfs/connections/connection.cpp", "libsd/vfs/readiness/stream_readiness.cpp", "libsd/vfs/streams/urgent.cpp",
        "libsd/vfs/streams/cork.cpp"]),
    "send and recv": (["link_fuzz"], ["libsd/vfs/streams/stream_recv.cpp", "libsd/vfs/streams/stream_send.cpp"]),
    "accept": (["accept_fuzz", "link_fuzz"], [
        "libsd/vfs/connections/listener_links.cpp",
        "libsd/vfs/connections/accept.cpp: can_be_names take_over accept_link refuse credible"]),
    "segments and passports": (["segment_fuzz", "exec_fuzz", "link_fuzz"], [
        "libsd/vfs/sharing/handoff.cpp: handoff_valid admit",
        "libsd/vfs/family/orphans.cpp: repair_direction adopt look_after_orphans",
        "libsd/vfs/family/segment.cpp: map_segment join_segment find_segment",
        "libsd/vfs/sharing/descriptor_passing.cpp: claim claim_parcel take_over admit_once link_for file_we_have"]),
    "segments and links, at the monitor": (["reap_fuzz"], ["monitor/records/segment.cpp", "monitor/records/link.cpp"]),
    "exec tables": (["exec_fuzz", "image_fuzz"], [
        "libsd/layout/exec_table.hpp", "libsd/vfs/sharing/exec_resume.cpp",
        "monitor/operations/images.cpp: read_table read_at for_each_record"]),
    "TOML": (["config_fuzz"], ["monitor/service/config.cpp", "monitor/service/config_reader.hpp", "monitor/peers/peer_config.cpp"]),
    "messages of other hosts": (["peers_fuzz"], ["monitor/peers/message.cpp"]),
    "messages over RDMA": (["rdma_fuzz"], [
        "libsd/rdma/receiving.cpp: put_records show_held put_message take_message recycle_in ring_of store_changed"]),
    "the TCP option": (["option_fuzz"], ["monitor/discovery/option.bpf.c"]),
    "sd-bridge's channel": (["bridge_fuzz"], ["monitor/bridge/bridge.cpp: run turn take_packets take_descriptors start", "monitor/bridge/bridge_pump.cpp"]),
}


def tool(name):
    return shutil.which(name + "-14") or shutil.which(name) or sys.exit(f"{name} is missing (Debian: llvm-14)")


def measure(target, build_dir, folders, scratch):
    """The export of llvm-cov, after a run over the inputs in those folders."""
    program = os.path.join(build_dir, "tests/fuzz", target)
    raw = os.path.join(scratch, target + ".profraw")
    done = subprocess.run([program, "-runs=0", "-max_len=4096", "-rss_limit_mb=8192", *folders], check=False,
                          stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace",
                          env={**os.environ, "LLVM_PROFILE_FILE": raw})
    if done.returncode != 0 or not os.path.exists(raw):
        sys.exit(f"{target} failed:\n{done.stderr[-2000:]}")
    data = os.path.join(scratch, target + ".profdata")
    subprocess.run([tool("llvm-profdata"), "merge", "-sparse", raw, "-o", data], check=True)
    export = subprocess.run([tool("llvm-cov"), "export", program, "-instr-profile", data], check=True, capture_output=True,
                            text=True)
    return json.loads(export.stdout)["data"][0]


def lines_of(export, path, source_dir, names):
    """{line: whether reached} of a file, or of the functions of those names in it."""
    lines = {}
    for function in export["functions"]:
        files = function["filenames"]
        if os.path.relpath(os.path.realpath(files[0]), source_dir) != path:
            continue
        if names and not any(re.search(rf"\d{name}(E|I|v|R|P|N|O|i|j|K)", function["name"]) for name in names):
            continue
        # Regions are [first line, column, last line, column, count, file, expanded file, kind]; later ones
        # lie within.
        own = {}
        for first, _, last, _, count, file, _, kind in function["regions"]:
            if file == 0 and kind == 0:
                for line in range(first, last + 1):
                    own[line] = count if line == first or first != last else min(own.get(line, count), count)
        for line, count in own.items():
            lines[line] = lines.get(line, False) or count > 0
    return lines


def source_lines(path, lines):
    """Without lines that hold nothing but brackets and comments."""
    with open(path, encoding="utf-8") as file:
        text = file.read().splitlines()
    return {n: hit for n, hit in lines.items()
            if n <= len(text) and re.search(r"\w", text[n - 1].split("//")[0])}


def ranges(numbers):
    result = []
    for n in sorted(numbers):
        if result and result[-1][1] == n - 1:
            result[-1][1] = n
        else:
            result.append([n, n])
    return " ".join(str(a) if a == b else f"{a}-{b}" for a, b in result)


def main():
    parser = argparse.ArgumentParser(description="Coverage of the parsers by the fuzzers' inputs.")
    parser.add_argument("--build", required=True)
    parser.add_argument("--corpus")
    parser.add_argument("--missing", action="store_true")
    parser.add_argument("parser", nargs="*")
    args = parser.parse_args()
    source_dir = os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__))))
    chosen = args.parser or list(PARSERS)
    exports = {}
    with tempfile.TemporaryDirectory() as scratch:
        for target in sorted({t for name in chosen for t in PARSERS[name][0]}):
            folders = [os.path.join(source_dir, "tests/fuzz/seeds", target)]
            if args.corpus and os.path.isdir(os.path.join(args.corpus, target)):
                folders.append(os.path.join(args.corpus, target))
            exports[target] = measure(target, args.build, folders, scratch)
    low = False
    print("| parser | target | lines reached | |\n| --- | --- | --- | --- |")
    for name in chosen:
        names_of_targets, places = PARSERS[name]
        hit = total = 0
        rows = []
        for place in places:
            path, _, functions = place.partition(": ")
            found = {}
            for target in names_of_targets:
                lines = lines_of(exports[target], path, source_dir, functions.split())
                for line, reached in source_lines(os.path.join(source_dir, path), lines).items():
                    found[line] = found.get(line, False) or reached
            reached = sum(found.values())
            hit, total = hit + reached, total + len(found)
            rows.append(f"    {path} {functions}: {reached} of {len(found)}, not "
                        + ranges(n for n, reached in found.items() if not reached))
        share = 100 * hit / total if total else 0
        low = low or share < 85
        print(f"| {name} | {', '.join(f'`{t}`' for t in names_of_targets)} | {hit} of {total} | {share:.0f} % |")
        if args.missing:
            print("\n".join(rows))
    return 1 if low else 0


if __name__ == "__main__":
    sys.exit(main())
