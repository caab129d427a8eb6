"""What scripts/bench measures: every case, the alternatives it is compared with, and what is asked of it."""

from dataclasses import dataclass, field


@dataclass
class Ask:
    """`text` is met when we are at least `factor` times as good as `against`, or as a value at least (at most,
    where lower is better) `value`. The first of two levels is what a release must hold, the second the goal."""
    text: str
    against: str = "kernel"
    factor: float = 1.0
    value: float | None = None
    over: str | None = None  # `value` is how far we may be above this alternative
    goal: bool = False


@dataclass
class Case:
    key: str
    title: str
    metric: str
    unit: str  # ns, 1/s, B/s, %, B, ms
    variants: dict  # name -> (command words, under sdrun)
    asks: list = field(default_factory=list)
    seconds: float = 1.0  # as a part of --seconds; 0: the program has its own length
    rounds: int | None = None
    server: list | None = None  # an unaccelerated server that the case talks to

    @property
    def lower_is_better(self):
        return self.unit not in ("1/s", "B/s")


def both(*words, **more):
    """The same command on kernel TCP and under sdrun, and whatever else is named."""
    return {"kernel": (list(words), False), "sd": (list(words), True), **more}


def size_name(size):
    return f"{size >> 20} MiB" if size >= 1 << 20 else f"{size >> 10} KiB" if size >= 1024 else f"{size} B"


def round_trips():
    for size in (8, 64, 4096, 65536, 1 << 20):
        words = ["pingpong", "--size", str(size)]
        variants = both(*words, busy=(words + ["--mode", "spin"], False), unix=(words + ["--via", "unix"], False),
                        pipe=(words + ["--via", "pipe"], False))
        asks = [Ask("not slower")]
        if size <= 65536:
            variants["limit"] = (["rawring", "--size", str(size)], False)
        if size == 8:
            asks = [Ask("50x kernel", factor=50), Ask("100x kernel", factor=100, goal=True),
                    Ask("20x busy-polling kernel", "busy", 20, goal=True),
                    Ask("1.25x the bare ring's time", "limit", 1 / 1.25, goal=True)]
        yield Case(f"rtt-{size}", f"round trip {size_name(size)}, blocking", "p50_ns", "ns", variants, asks)
    for mode, asks in (("spin", [Ask("20x kernel", factor=20, goal=True)]), ("epoll", [Ask("50x kernel", factor=50)])):
        yield Case(f"rtt-8-{mode}", f"round trip 8 B, {'busy-polling' if mode == 'spin' else mode}", "p50_ns", "ns",
                   both("pingpong", "--mode", mode), asks)


def streams():
    for size in (8, 64, 512, 4096, 65536, 1 << 20):
        words = ["stream", "--size", str(size)]
        variants = both(*words, unix=(words + ["--via", "unix"], False), pipe=(words + ["--via", "pipe"], False))
        if size == 8:
            asks = [Ask("40x kernel", factor=40, goal=True), Ask("50 M/s", value=50e6, goal=True),
                    Ask("85 % of the bare ring", "limit", 0.85, goal=True)]
        elif size <= 4096:
            asks = [Ask("10x kernel", factor=10, goal=True)]
        else:
            asks = [Ask("2.5x kernel", factor=2.5, goal=True), Ask("45 % of memcpy", "limit", 0.45, goal=True)]
        asks.insert(0, Ask("not slower"))
        variants["limit"] = ((["rawring", "--what", "stream"] if size <= 4096 else ["memcpy", "--cpu", "1"])
                             + ["--size", str(size)], False)
        metric, unit = ("messages_per_s", "1/s") if size < 4096 else ("bytes_per_s", "B/s")
        yield Case(f"stream-{size}", f"one-way stream {size_name(size)}", metric, unit, variants, asks)
    yield Case("stream-8-nodelay", "one-way stream 8 B, TCP_NODELAY", "messages_per_s", "1/s",
               both("stream", "--nodelay", "1"), [Ask("not slower"), Ask("40x kernel", factor=40, goal=True)])


def connections():
    yield Case("connrate", "connect + accept + close", "connections_per_s", "1/s", both("connrate"),
               [Ask("not slower"), Ask("20x kernel", factor=20, goal=True), Ask("1.4 M/s", value=1.4e6, goal=True)])
    one = ["manyconn", "--connections", "1"]
    yield Case("many-1", "64 B requests, 1 connection, epoll", "ns_per_request", "ns", both(*one), [Ask("not slower")])
    yield Case("many-1000", "64 B requests, 1000 connections, epoll", "ns_per_request", "ns",
               both("manyconn", "--connections", "1000", one=(one, True)),
               [Ask("8x kernel", factor=8, goal=True), Ask("1.3x the time of one", "one", 1 / 1.3, goal=True)])
    yield Case("many-idle", "64 B requests, 100 of 18,000 connections", "ns_per_request", "ns",
               both("manyconn", "--connections", "18000", "--active", "100",
                    few=(["manyconn", "--connections", "100"], True)),
               [Ask("not slower"), Ask("within 10 % of 100 open", "few", 0.9, goal=True)], rounds=3)


def sharing_and_sleeping():
    for pairs in (1, 2, 4):
        yield Case(f"onecore-{2 * pairs}", f"round trip 8 B, {2 * pairs} processes on one core", "mean_ns", "ns",
                   both("pingpong", "--cpu", "0,0", "--pairs", str(pairs)),
                   [Ask("not slower"), Ask("4x kernel", factor=4, goal=True)])
    for gap, name in ((1000, "1 ms"), (1_000_000, "1 s")):
        yield Case(f"wake-{gap}", f"round trip 8 B after {name} of silence", "p50_ns", "ns",
                   both("pingpong", "--gap-us", str(gap)),
                   [Ask("1.1x kernel's time", factor=1 / 1.1, goal=True)], seconds=1 if gap == 1000 else 4,
                   rounds=None if gap == 1000 else 3)
    idle = both("idle", "--connections", "100", "--seconds", "10")
    yield Case("idle-cpu", "100 silent connections, processor time", "cpu_percent", "%", idle,
               [Ask("0.1 % of a core", value=0.1)], seconds=0, rounds=1)
    yield Case("idle-wakeups", "100 silent connections, wake-ups per second", "wakeups_per_s", "", idle,
               [Ask("none", value=0.0, goal=True)], seconds=0, rounds=1)
    yield Case("memory-connection", "memory of a silent connection, both ends", "user_bytes", "B",
               both("membytes", "--connections", "1000"), [Ask("4 KiB", value=4096)], seconds=0, rounds=1)


def nothing_to_gain():
    for what, title in (("pipe", "64 B through a pipe"), ("file", "4 KiB of a file"), ("open", "open, dup, close")):
        yield Case(f"pass-{what}", f"pass-through: {title}", "ns_per_operation", "ns",
                   both("passthrough", "--what", what), [Ask("within 2 %", factor=0.98)])
    yield Case("pass-tcp", "pass-through: TCP to a peer without libsd", "ns_per_operation", "ns",
               both("passthrough", "--what", "tcp", "--port", "9999"), [Ask("within 2 %", factor=0.98)],
               server=["passthrough", "--what", "serve", "--port", "9999"])
    start = {"kernel": (["footprint"], False), "sd": (["footprint", "--launcher", "{sdrun}"], False)}
    yield Case("start", "start and end of /bin/true", "start_ns", "ns", start,
               [Ask("3 ms more", value=3e6, over="kernel", goal=True)], seconds=0)
    yield Case("memory-process", "private memory of a sleeping process", "private_bytes", "B", start,
               [Ask("3 MiB more", value=3 << 20, over="kernel")], seconds=0, rounds=1)


GROUPS = {"rtt": round_trips, "stream": streams, "connections": connections, "sleeping": sharing_and_sleeping,
          "pass": nothing_to_gain}


def all_cases(groups=None):
    for name, make in GROUPS.items():
        if not groups or name in groups:
            yield from make()
