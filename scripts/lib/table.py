"""Plain text tables and numbers for people."""

import statistics


def number(value):
    """Three significant digits, thousands separated."""
    if value is None:
        return "-"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    if abs(value) >= 100:
        return f"{value:.0f}"
    if abs(value) >= 10:
        return f"{value:.1f}"
    return f"{value:.2f}"


def micros(value):
    if value is None:
        return "-"
    return f"{value / 1000:.2f} ms" if value >= 1000 else f"{number(value)} us"


def nanos(value):
    return "-" if value is None else f"{value:.0f} ns" if value < 1000 else micros(value / 1000)


def ratio(value):
    return "-" if value is None else f"{value:.2f}x" if value < 10 else f"{value:.1f}x"


def median(values):
    values = [v for v in values if v is not None]
    return statistics.median(values) if values else None


def spread(values):
    """Distance between the extremes as a part of the median."""
    values = [v for v in values if v is not None]
    if len(values) < 2 or not statistics.median(values):
        return None
    return (max(values) - min(values)) / statistics.median(values)


def render(header, rows):
    """First column to the left, the others to the right."""
    cells = [header] + [[str(c) for c in row] for row in rows]
    widths = [max(len(row[i]) for row in cells) for i in range(len(header))]
    lines = []
    for index, row in enumerate(cells):
        line = [row[0].ljust(widths[0])] + [c.rjust(w) for c, w in zip(row[1:], widths[1:])]
        lines.append("  ".join(line).rstrip())
        if index == 0:
            lines.append("  ".join("-" * w for w in widths))
    return "\n".join(lines)


def fit(header, rows, width, least):
    """render(), without the columns that are too much for `width`: the last ones go first, down to the first `least`.
    None where not even those have room."""
    for columns in range(len(header), least - 1, -1):
        text = render(header[:columns], [row[:columns] for row in rows])
        if max(len(line) for line in text.splitlines()) <= width:
            return text
    return None
