"""The terms of a benchmark: a case, the variants it is measured in, and what is asked of it."""

from dataclasses import dataclass, field


# Column titles, in the order of the tables and plots.
VARIANTS = {
    "kernel": "kernel TCP", "busy": "busy-polling TCP", "sockmap": "TCP + sockmap", "unix": "AF_UNIX", "pipe": "pipe",
    "limit": "bare ring", "mutex": "ring + mutex", "memcpy": "memcpy", "user": "one user", "sd": "SocksDirect",
}


@dataclass
class Variant:
    words: list  # program of build/bench and its arguments; {sdrun} stands for the launcher
    under_sdrun: bool = False


@dataclass
class Bar:
    """Met when we are at least `factor` times as good as the variant `against`; or, with `value`, when the result is
    at least (where lower is better: at most) that; or, with `over`, when it is at most `value` above that variant.
    `limit` names the variant that shows what the machine can do at all: where that misses the bar too, no library can
    meet it here. It is compared with the variant `limit_against` where the bar compares us with ourselves in another
    setting. `either` is a second bar, one of the two being enough."""
    text: str
    against: str | None = "kernel"
    factor: float = 1.0
    value: float | None = None
    over: str | None = None
    limit: str | None = None
    limit_against: str | None = None
    either: "Bar | None" = None
    metric: str | None = None  # another figure than the case's own
    lower: bool | None = None


NOT_SLOWER = "not slower than kernel TCP"


@dataclass
class Case:
    key: str
    group: str
    title: str
    metric: str
    unit: str  # ns, 1/s, B/s, %, B, "" (plain number)
    variants: dict  # name -> Variant, or for programs anything its runner understands
    bars: list = field(default_factory=list)
    seconds: float = 1.0  # as a part of --seconds; 0: the program has its own length
    rounds: int | None = None  # at most so many
    # Variants that run at the same time and measure in turn, in short windows (bench/common/turns.hpp)
    turns: tuple = ()
    server: list | None = None  # an unaccelerated server that the case talks to
    runner: type | None = None  # for real programs; see bench_programs.py
    note: str = ""

    @property
    def lower_is_better(self):
        return self.unit not in ("1/s", "B/s")


def both(*words, **more):
    """The same command on kernel TCP and under sdrun, and whatever else is named (as lists of words)."""
    result = {"kernel": Variant(list(words))}
    for name, value in more.items():
        result[name] = value if isinstance(value, Variant) else Variant(list(value))
    result["sd"] = Variant(list(words), True)
    return result


def size_name(size):
    return f"{size >> 20} MiB" if size >= 1 << 20 else f"{size >> 10} KiB" if size >= 1024 else f"{size} B"
