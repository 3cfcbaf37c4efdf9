"""The first table of the page: what Baton aims at, what was measured, and whether that is enough."""

import statistics

from .figures import cell_name, number, percentile, rate, ratio, table


def section(rows, cells):
    lines = [*pipeline(cells), *wake_up(rows), *engine(rows), *growth(rows), *waiters(rows), *restart(rows)]
    return lines and """## At a glance

What Baton aims at, and the median of what was measured; of several combinations the worst. The sections below have all of
them, with their extremes.""" + asleep(rows) + "\n\n" + table(
        ["", "aim", "measured", "reached"],
        [[what, aim, shown, "yes" if is_enough else "**no**"] for what, aim, shown, is_enough in lines])


def asleep(rows):
    measured = any(row["scenario"].endswith("-asleep") for row in rows)
    return " Idle cores stayed awake; see what changes [where they sleep](#where-idle-cores-sleep)." if measured else ""


def pipeline(cells):
    for peer, name in [("redis", "Redis Streams"), ("best-nats", "NATS JetStream")]:
        found = {cell_name(cell): ratio(of.get("baton", {}), of.get(peer, {}), rate) for cell, of in cells.items()}
        found = {name: middle for name, (middle, *_) in ((name, found) for name, found in found.items() if found)}
        if found:
            worst = min(found, key=found.get)
            yield (f"push, deliver, acknowledge: messages per second ÷ {name}", "above 1",
                   f"{number(found[worst])} ({worst})", found[worst] > 1)


def wake_up(rows):
    found = rounds(rows, "wake-up", lambda row: row["system"])
    for peer, name in [("redis", "Redis Streams"), ("nats", "NATS JetStream")]:
        compared = ratio(found.get("baton", {}), found.get(peer, {}), percentile("p50"))
        if compared:
            yield f"waking an idle consumer: p50 ÷ {name}", "below 1", number(compared[0]), compared[0] < 1


def engine(rows):
    """A batch goes to one partition; of one, 100 and 10,000 partitions the worst."""
    for ids in [False, True]:
        for batch in [100, 1000]:
            found = {}
            for row in rows:
                if (row["scenario"] == "engine" and row.get("test") == "throughput" and row["batch"] == batch
                        and row["transaction_ids"] == ids and row["batch_goes_to"] == "one partition"):
                    share = row["engine_messages_per_s"] / row["limit_messages_per_s"]
                    found.setdefault(row["partitions"], []).append(share)
            if found:
                worst = min(statistics.median(shares) for shares in found.values())
                named = "with transaction ids" if ids else "without transaction ids"
                yield f"the engine alone ÷ the disk, batch {batch}, {named}", "at least 0.5", number(worst), worst >= 0.5


def growth(rows):
    found = rounds(rows, "growth", lambda row: row["partitions"])
    if len(found) < 2:
        return
    few, many = min(found), max(found)
    name = f"{many:,} partitions ÷ {few:,}"
    for what, value in [("time", lambda row: 1 / rate(row)), ("processor time", lambda row: row["server_cpu_us_per_message"])]:
        compared = ratio(found[many], found[few], value)
        if compared:
            yield f"{name}: {what} per message", "below 2", number(compared[0]), compared[0] < 2
    each = statistics.median(row["server_memory_bytes_each"] for row in found[many].values())
    yield "a partition: bytes of memory", "below 500", number(each), each < 500


def waiters(rows):
    for row in rows:
        if row["scenario"] == "many-waiters" and "server_memory_bytes_each" in row:
            megabytes = row["server_memory_bytes_each"] * row["connections"] / 1e6
            yield f"{row['connections']:,} idle long polls: MB of memory", "below 100", number(megabytes), megabytes < 100
            if "server_cpu_idle" in row:
                idle = row["server_cpu_idle"]
                yield f"{row['connections']:,} idle long polls: of one core", "below 1%", f"{idle:.2%}", idle < 0.01


def restart(rows):
    for row in rows:
        if row["scenario"] == "restart":
            yield f"restart with {row['messages']:,} stored messages: seconds", "below 5", f"{row['seconds']:.2f}", row["seconds"] < 5


def rounds(rows, scenario, key):
    """The rows of a scenario by `key`, each by its round."""
    found = {}
    for row in rows:
        if row["scenario"] == scenario:
            found.setdefault(key(row), {})[row.get("round", 0)] = row
    return found
