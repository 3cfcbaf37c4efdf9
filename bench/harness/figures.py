"""Rows into figures: medians of rounds, ratios within rounds, tables."""

import statistics


def rate(row):
    return row["messages_per_second"]


def percentile(name):
    return lambda row: row["latency_us"][name]


def by_cell(rows, scenarios):
    """(connections, batch) → system → round → row."""
    cells = {}
    for row in rows:
        if row["scenario"] in scenarios and "batch" in row:
            cell = cells.setdefault((row["connections"], row["batch"]), {})
            cell.setdefault(row["system"], {})[row.get("round", 0)] = row
    return dict(sorted(cells.items()))


def median(rounds, value):
    return statistics.median(value(row) for row in rounds.values()) if rounds else None


def ratio(ours, theirs, value):
    """The median over rounds of ours ÷ theirs, each taken within one round; and its extremes."""
    pairs = [value(ours[turn]) / value(theirs[turn]) for turn in ours if turn in theirs and value(theirs[turn])]
    return (statistics.median(pairs), min(pairs), max(pairs)) if pairs else None


def shown_ratio(found):
    if not found:
        return "–"
    middle, low, high = found
    spread = f" ({low:.3g}–{high:.3g})" if low != high else ""
    return f"**{middle:.3g}**{spread}"


def table(head, lines):
    if not lines:
        return ""
    ruler = "|".join("---" if index == 0 else "---:" for index in range(len(head)))
    body = "\n".join("| " + " | ".join(line) + " |" for line in lines)
    return f"| {' | '.join(head)} |\n|{ruler}|\n{body}"


def number(value):
    if value is None:
        return "–"
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def millis(micros):
    return "–" if micros is None else f"{micros / 1e3:.3g}"


def percentiles(rounds):
    return " / ".join(millis(median(rounds, percentile(name))) for name in ["p50", "p95", "p99"])


def cell_name(cell):
    return f"{cell[0]} connection{'s' if cell[0] > 1 else ''}, batch {cell[1]}"
