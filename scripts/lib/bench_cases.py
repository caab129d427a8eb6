"""What scripts/bench measures with its own programs: every case, its alternatives, and what is asked of it."""

import os

from bench_model import NOT_SLOWER, Bar, Case, Variant, both, size_name
from bench_forking import forking_cases
from bench_programs import program_cases

FRAME = 1920 * 1080 * 3 // 2  # a picture of 4:2:0 video, 3.1 MB


def round_trips(_build):
    for size in (8, 64, 512, 4096, 65536, 1 << 20):
        words = ["pingpong", "--size", str(size)]
        variants = both(*words, busy=[*words, "--mode", "spin"], sockmap=[*words, "--via", "sockmap"],
                        unix=[*words, "--via", "unix"], pipe=[*words, "--via", "pipe"],
                        limit=["rawring", "--size", str(size)])
        bars = [Bar("at most 1.25 times the bare ring's", "limit", 1 / 1.25), Bar("100 times lower than kernel TCP", factor=100, limit="limit"),
                Bar("20 times lower than busy-polling TCP", "busy", 20, limit="limit")] if size == 8 else []
        yield Case(f"rtt-{size}", "rtt", f"round trip {size_name(size)}", "p50_ns", "ns", variants, bars, seconds=0.6, turns=("limit", "sd"))
    for mode, name in (("spin", "both ends asking again and again"), ("epoll", "epoll")):
        yield Case(f"rtt-8-{mode}", "rtt", f"round trip 8 B, {name}", "p50_ns", "ns",
                   both("pingpong", "--mode", mode), seconds=0.6)


def streams(_build):
    for size in (8, 64, 512, 4096, 65536, 1 << 20):
        words = ["stream", "--size", str(size)]
        more = {"sockmap": [*words, "--via", "sockmap"], "unix": [*words, "--via", "unix"],
                "pipe": [*words, "--via", "pipe"], "limit": ["rawring", "--what", "stream", "--size", str(size)]}
        if size == 8:
            bars = [Bar("50 M/s or 85 % of the bare ring, whichever is lower", "limit", 0.85,
                        either=Bar("", value=50e6)), Bar("40 times kernel TCP", factor=40, limit="limit")]
        elif size <= 4096:
            bars = [Bar("10 times kernel TCP", factor=10, limit="limit")]
        else:
            # Not in turn with the others: where one processor is idle for a moment, some hosts move the two
            # apart.
            more["memcpy"] = ["memcpy", "--cpu", "1", "--size", str(size)]
            bars = [Bar("2.5 times kernel TCP", factor=2.5, limit="limit"),
                    Bar("45 % of one-thread memcpy", "memcpy", 0.45, limit="limit")]
        metric, unit = ("messages_per_s", "1/s") if size < 4096 else ("bytes_per_s", "B/s")
        yield Case(f"stream-{size}", "stream", f"stream {size_name(size)}", metric, unit, both(*words, **more), bars,
                   seconds=0.6, turns=("limit", "sd"))
    for size in (8, 4096, 65536):
        words = ["duplex", "--size", str(size)]
        metric, unit = ("messages_per_s", "1/s") if size < 4096 else ("bytes_per_s", "B/s")
        yield Case(f"duplex-{size}", "stream", f"both directions at once, {size_name(size)}, each way", metric, unit,
                   both(*words, sockmap=[*words, "--via", "sockmap"], unix=[*words, "--via", "unix"],
                        pipe=[*words, "--via", "pipe"]), seconds=0.6)
    words = ["stream", "--size", str(FRAME)]
    yield Case("frame", "stream", "video frame of 3.1 MB per message", "messages_per_s", "1/s",
               both(*words, sockmap=[*words, "--via", "sockmap"], unix=[*words, "--via", "unix"],
                    pipe=[*words, "--via", "pipe"], limit=["rawring", "--what", "stream", "--size", str(FRAME)]),
               [Bar("2 times kernel TCP", factor=2, limit="limit")], seconds=0.6)


def connections(_build):
    yield Case("connrate", "connections", "connect + accept + close", "connections_per_s", "1/s", both("connrate"),
               [Bar("20 times kernel TCP", factor=20), Bar("1.4 M/s", value=1.4e6)])
    for count in (1, 10, 100, 1000):
        words = ["manyconn", "--connections", str(count)]
        variants, bars = both(*words, limit=["manyrings", "--connections", str(count)]), []
        if count == 1000:
            variants["one"] = Variant(["manyconn", "--connections", "1"], True)
            bars = [Bar("8 times kernel TCP", factor=8), Bar("at most 1.3 times the cost of one connection", "one", 1 / 1.3)]
        yield Case(f"epoll-{count}", "connections",
                   f"64 B requests, {count} connection{'s' * (count > 1)} in one epoll", "ns_per_request", "ns",
                   variants, bars, turns=("one", "sd") if count == 1000 else ())
    pairs = 6
    many = ["manyconn", "--connections", "100000", "--active", "100", "--pairs", str(pairs)]
    few = ["--connections", "100"]
    yield Case("open-100000", "connections", "64 B requests, 100 of 100,000 connections active", "ns_per_request", "ns",
               both(*many, limit_few=["manyrings", *few], limit=["manyrings", "--connections", str(100000 // pairs), "--active", "100"],
                    few=Variant(["manyconn", *few], True)),
               [Bar("within 10 % of 100 open", "few", 0.9, limit="limit", limit_against="limit_few")],
               turns=("limit_few", "limit", "few", "sd"),
               note="A process may have 20,000 descriptors where this was written, and root cannot raise that there: the connections "
               "are spread over six pairs of processes; the active ones are among the 16,666 of one pair, and so are the bare rings.")
    memory = both("membytes", "--connections", "10000")
    yield Case("memory-connection", "connections", "memory of a silent connection, both ends", "user_bytes", "B", memory,
               [Bar("at most 4 KiB", value=4096)], seconds=0, rounds=1,
               note="Memory of the processes alone; that of kernel sockets is not in it, so kernel TCP shows nearly none here. "
               "What the kernel spends is in the JSON (kernel_bytes).")


def between_users(_build):
    """The same where both ends are one user's, and of two."""
    alike = [Bar(NOT_SLOWER), Bar("at most 5 % slower than within one user", "user", 0.95)]

    def case(key, title, metric, unit, program, words, strangers, turns=("user", "sd"), bars=alike):
        one, two = [program, *words], [program, *words, *strangers]
        variants = {"kernel": Variant(two), "user": Variant(one, True), "sd": Variant(two, True)}
        return Case(f"users-{key}", "users", f"two users: {title}", metric, unit, variants, bars, turns=turns)

    via = ["--via", "strangers"]
    for size in (8, 4096):
        yield case(f"rtt-{size}", f"round trip {size_name(size)}", "p50_ns", "ns", "pingpong", ["--size", str(size)], via)
    yield case("rtt-epoll", "round trip 8 B, epoll", "p50_ns", "ns", "pingpong", ["--mode", "epoll"], via)
    yield case("wake", "round trip 8 B after 1 ms of silence", "p50_ns", "ns", "pingpong", ["--gap-us", "1000", "--warmup", "0"], via)
    for size in (8, 4096, 65536):
        yield case(f"stream-{size}", f"stream {size_name(size)}", "messages_per_s", "1/s", "stream", ["--size", str(size)], via)
    yield case("connrate", "connect + accept + close", "connections_per_s", "1/s", "connrate", [], ["--strangers", "1"], ())


def sharing(_build):
    for pairs in (1, 2, 3, 4):
        words = ["pingpong", "--cpu", "0,0", "--pairs", str(pairs)]
        yield Case(f"onecore-{2 * pairs}", "sharing", f"round trip 8 B, {2 * pairs} processes on one core", "mean_ns", "ns",
                   both(*words, unix=[*words, "--via", "unix"], pipe=[*words, "--via", "pipe"],
                        limit=["rawring", "--yield", "1", "--cpu", "0,0", "--pairs", str(pairs)]),
                   [Bar("a quarter of kernel TCP", factor=4, limit="limit")],
                   note="The bare ring gives the core away with sched_yield after each look.")
    for who in ("threads", "processes"):
        words = ["contention", "--who", who]
        yield Case(f"contention-{who}", "sharing", f"two {who} sending 8 B on one connection", "messages_per_s", "1/s",
                   both(*words, mutex=[*words, "--via", "ring"]), [Bar("the ring under a pthread mutex", "mutex")])
    yield Case("takeover", "sharing", "a takeover, in membarrier calls", "takeover_in_membarriers", "",
               {"sd": Variant(["takeover"], True)}, [Bar("at most 2", value=2.0)], seconds=0, rounds=3)
    yield Case("fork-10000", "sharing", "fork with 10,000 connections, up to the child's end", "whole_ns", "ns", both("forkcost"),
               [Bar("at most 2 ms more", value=2e6, over="kernel")], seconds=0, rounds=3)
    yield Case("fork-connection", "sharing", "connection to a server that forks for each, three exchanges", "p50_ns", "ns", both("forkserver"),
               [Bar("at most kernel TCP's", factor=1.0)])
    for what, title in (("round_trip", "round trip between two cores"), ("alone", "send and receive by one thread")):
        ratio = f"{what}_ratio"
        yield Case(f"tokens-{what}", "sharing", f"8 B {title}: with tokens, against compiled without", ratio, "",
                   {"sd": Variant(["sharing"])}, [Bar("at most 3 % more", value=1.03)], seconds=0, rounds=3)
    yield Case("tokens-handlers", "sharing",
               "8 B send and receive by one thread: with tokens, against compiled to put off its own signal handlers only",
               "alone_handlers_ratio", "", {"sd": Variant(["sharing"])}, seconds=0, rounds=3)


def silence(_build):
    for gap, name in ((1000, "1 ms"), (1_000_000, "1 s")):
        yield Case(f"wake-{gap}", "silence", f"round trip 8 B after {name} of silence", "p50_ns", "ns",
                   both("pingpong", "--gap-us", str(gap), "--warmup", "0"),
                   [Bar("at most 1.1 times kernel TCP's", factor=1 / 1.1)] if gap > 1000 else [],
                   seconds=1 if gap == 1000 else 8, rounds=None if gap == 1000 else 3)
    # The monitor looks once more, two seconds after the last connection was made.
    idle = both("idle", "--connections", "100", "--seconds", "10", "--settle", "5")
    yield Case("idle-wakeups", "silence", "100 silent connections, wake-ups per second, both ends and monitor",
               "wakeups_per_s", "", idle, [Bar("none", value=0.0)], seconds=0, rounds=1)
    yield Case("idle-cpu", "silence", "100 silent connections, processor time", "cpu_percent", "%", idle, seconds=0, rounds=1)


def part_load(_build):
    for mode, connections in (("blocking", 1), ("epoll", 1), ("epoll", 8)):
        for rate in (100, 1000, 5000, 10000, 20000):
            words = ["paced", "--rate", str(rate), "--mode", mode, "--connections", str(connections)]
            key = f"paced-{mode}-{connections}-{rate}"
            title = f"64 B requests, {rate:,} a second, {connections} connection{'s' * (connections > 1)}, {mode}"
            yield Case(key, "paced", title, "p50_ns", "ns", both(*words),
                       [Bar("median at most 0.6 times kernel TCP's", factor=1 / 0.6),
                        Bar("processor time at most 1.1 times kernel TCP's", factor=1 / 1.1, metric="cpu_ns_per_request", lower=True)],
                       rounds=3)
    words = ["paced", "--rate", "1000", "--busy", "1"]
    yield Case("paced-busy-1000", "paced", "64 B requests, 1,000 a second, both cores busy with other work", "p50_ns", "ns",
               both(*words), [Bar("processor time at most 1.1 times kernel TCP's", factor=1 / 1.1, metric="cpu_ns_per_request", lower=True)],
               rounds=3)


def nothing_to_gain(_build):
    for what, title in (("pipe", "64 B through a pipe"), ("file", "4 KiB of a file"), ("open", "open, dup, close")):
        yield Case(f"pass-{what}", "pass", f"pass-through: {title}", "ns_per_operation", "ns",
                   both("passthrough", "--what", what), [Bar("at most 2 % more", factor=0.98)], turns=("kernel", "sd"))
    # Not in turn: the server has one client at a time.
    yield Case("pass-tcp", "pass", "pass-through: TCP to a peer without libsd", "ns_per_operation", "ns",
               both("passthrough", "--what", "tcp", "--port", "9999"), [Bar("at most 2 % more", factor=0.98)],
               server=["passthrough", "--what", "serve", "--port", "9999"])
    start = {"kernel": Variant(["footprint"]), "sd": Variant(["footprint", "--launcher", "{sdrun}"])}
    yield Case("start", "pass", "start and end of /bin/true", "start_ns", "ns", start,
               [Bar("at most 3 ms more", value=3e6, over="kernel")], seconds=0)
    yield Case("start-child", "pass", "start and end of /bin/true, as a child of a preloaded program", "start_ns", "ns",
               both("footprint", "--count", "500"), [Bar("at most 0.15 ms more", value=150e3, over="kernel")], seconds=0)
    yield Case("memory-process", "pass", "private memory of a sleeping process", "private_bytes", "B", start, seconds=0, rounds=1)


def pipelines(_build):
    for stages in (1, 2, 3, 4):
        words = ["pipeline", "--stages", str(stages)]
        bars = [Bar("4 times kernel TCP", factor=4), Bar("4 times pipes", "pipe", 4)] if stages == 4 else []
        yield Case(f"pipeline-{stages}", "pipeline", f"64 B packets through {stages} stage{'s' * (stages > 1)} on 2 cores",
                   "packets_per_s", "1/s", both(*words, unix=[*words, "--via", "unix"], pipe=[*words, "--via", "pipe"]), bars)


def rpc(build):
    if os.path.exists(os.path.join(build, "bench", "rpc")):
        yield Case("rpc-1024", "programs", "Cap'n Proto call of 1 KiB", "mean_ns", "ns", both("rpc"),
                   [Bar("a third of kernel TCP", factor=3)])


GROUPS = {"rtt": round_trips, "stream": streams, "connections": connections, "users": between_users, "sharing": sharing,
          "silence": silence, "paced": part_load, "pass": nothing_to_gain, "pipeline": pipelines, "forking": lambda _build: forking_cases(), "programs": None}


def all_cases(build, groups=None):
    for name, make in GROUPS.items():
        if groups and name not in groups:
            continue
        if make:
            yield from make(build)
        else:
            yield from rpc(build)
            yield from program_cases()
