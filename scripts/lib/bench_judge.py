"""From the rounds of a case to medians, spreads and verdicts."""

import statistics

from bench_model import NOT_SLOWER, Bar
from table import median

PASS, MISSED, IMPOSSIBLE, WIDE, MISSING = "pass", "missed", "cannot be shown here", "spread too wide", "not measured"
# Rounds whose ratios differ by more than this factor, with the bar between them, allow no conclusion
TOO_WIDE = 1.3
NOISE = 0.97  # "not slower" within what two runs of the same thing differ by


def middle(values):
    """Sorted, without the two extremes where there are enough rounds to spare them."""
    values = sorted(v for v in values if v is not None)
    return values[1:-1] if len(values) >= 5 else values


def spread(values):
    """Half the width of the middle rounds, as a part of the median."""
    values = middle(values)
    if len(values) < 2 or not statistics.median(values):
        return None
    return (values[-1] - values[0]) / 2 / abs(statistics.median(values))


def times_better(ours, theirs, lower_is_better):
    """How many times as good as theirs, round by round, so that what disturbs a round disturbs both."""
    return [(b / a if lower_is_better else a / b) for a, b in zip(ours, theirs) if a and b]


def figure(result, variant, bar):
    """The values that a bar is about, one for each round."""
    if bar.metric is None:
        return result["runs"].get(variant, [])
    return [run.get(bar.metric) for run in result["details"].get(variant, [])]


def ratios(result, one, other, bar, lower_is_better):
    """How many times as good variant `one` is as `other`, for each round. Where the two took turns within the rounds: the median of the windows'
    ratios, each taken of two windows that follow one another."""
    if bar.metric is None and {one, other} <= set(result.get("turns", ())):
        rounds = zip(result["details"].get(one, []), result["details"].get(other, []))
        windows = [times_better(a["windows"], b["windows"], lower_is_better) for a, b in rounds]
        return [statistics.median(w) for w in windows if w]
    return times_better(figure(result, one, bar), figure(result, other, bar), lower_is_better)


def verdict_on(values, factor, at_most=False):
    """Values of the rounds against a bar: at least (or at most) `factor`."""
    good = [(v <= factor) if at_most else (v >= factor) for v in middle(values)]
    if any(good) and not all(good):
        low, high = middle(values)[0], middle(values)[-1]
        if low <= 0 or high / low > TOO_WIDE:
            return WIDE
    reached = statistics.median(values)
    return PASS if (reached <= factor if at_most else reached >= factor) else MISSED


def judge_bar(result, bar, lower_is_better):
    """One bar of one case: verdict, what was reached (a ratio, or a plain value), and why, where that needs words."""
    lower = lower_is_better if bar.lower is None else bar.lower
    ours = figure(result, "sd", bar)
    answer = {"text": bar.text, "absolute": bar.value is not None, "asked": bar.value if bar.value is not None else bar.factor,
              "reached": None, "verdict": MISSING, "why": "", "limit": None,
              # To be shown as times as much, not as good
              "inverse": bar.value is None and bar.text.startswith("at most")}
    theirs = figure(result, bar.over or bar.against, bar) if bar.over or bar.value is None else []
    if not ours or ((bar.over or bar.value is None) and not theirs):
        answer["why"] = "; ".join(e["error"].splitlines()[0] for e in result["errors"]) or "no rounds"
        return answer
    if bar.value is not None:
        values = [a - b for a, b in zip(ours, theirs)] if bar.over else ours
        answer["reached"] = statistics.median(values)
        answer["verdict"] = verdict_on(values, bar.value, at_most=lower)
    else:
        values = ratios(result, "sd", bar.against, bar, lower)
        if not values:
            answer["why"] = "a variant measured nothing"
            return answer
        answer["reached"] = statistics.median(values)
        answer["verdict"] = verdict_on(values, bar.factor * (NOISE if bar.text == NOT_SLOWER else 1.0))
    if answer["verdict"] == WIDE:
        answer["why"] = f"rounds from {middle(values)[0]:.3g} to {middle(values)[-1]:.3g}"
    if bar.either is not None and answer["verdict"] != PASS:
        other = judge_bar(result, bar.either, lower_is_better)
        if other["verdict"] == PASS:
            other["text"] = bar.text
            return other
    if bar.limit and bar.value is None:
        limit = ratios(result, bar.limit, bar.limit_against or bar.against, bar, lower)
        if limit:
            answer["limit"] = statistics.median(limit)
            if answer["verdict"] in (MISSED, WIDE) and verdict_on(limit, bar.factor) == MISSED:
                answer["why"] = f"the bare limit reaches {answer['limit']:.3g}, asked is {bar.factor:.3g}; {answer['verdict']}"
                answer["verdict"] = IMPOSSIBLE
    return answer


def judge(case, result):
    runs = result["runs"]
    result["median"] = {name: median(values) for name, values in runs.items()}
    result["spread"] = {name: spread(values) for name, values in runs.items()}
    bars = list(case.bars)
    comparable = case.unit not in ("%", "", "B") and not any(bar.over or bar.factor < 1 for bar in bars if bar.against == "kernel" or bar.over)
    if comparable:
        bars.append(Bar(NOT_SLOWER))
    result["bars"] = [judge_bar(result, bar, case.lower_is_better) for bar in bars] if "sd" in runs else []
    against = times_better(runs.get("sd", []), runs.get("kernel", []), case.lower_is_better)
    result["times_better"] = statistics.median(against) if against else None
    result["times_better_spread"] = spread(against)
