"""Turns rows into docs/benchmarks.md: ratios first, absolute figures second."""

import json
import statistics

from . import glance, jobs, svg
from .figures import by_cell, cell_name, median, millis, number, percentile, percentiles, rate, ratio, shown_ratio, table

PEERS = ["redis", "best-nats", "limit"]
SYSTEMS = ["baton", "redis", "nats", "nats-atomic", "nats-lanes", "nats-default", "limit"]
NATS_WAYS = ["nats", "nats-atomic", "nats-lanes"]
NAMES = {"baton": "Baton", "redis": "Redis Streams", "best-nats": "NATS JetStream", "nats": "NATS JetStream",
         "nats-atomic": "NATS, atomic batches", "nats-lanes": "NATS, split by hand",
         "nats-default": "NATS, not synced", "limit": "the disk",
         "skip-locked": "SKIP LOCKED table", "bare-insert": "bare insert"}


def save(output, results):
    path = output / "benchmarks" / "results.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = ",\n  ".join(json.dumps(row) for row in results["rows"])
    head = {name: value for name, value in results.items() if name != "rows"}
    path.write_text(json.dumps(head, indent=1)[:-2] + f',\n "rows": [\n  {rows}\n ]\n}}\n')


def load(output):
    return json.loads((output / "benchmarks" / "results.json").read_text())


def write(output, results):
    rows = results["rows"]
    pictures = output / "benchmarks"
    pictures.mkdir(parents=True, exist_ok=True)
    made = {name: picture(pictures / f"{name}.svg", content) for name, content in charts(rows).items()}
    sections = [intro(results), glance.section(rows, pipeline_cells(rows)), pipeline(rows, made), latencies(rows, made),
                wake_up(rows), asleep(rows), engine(rows, results["machine"]["cores"]), growth(rows), on_postgres(rows), balanced(rows),
                jobs.section(rows, pictures), waiters(rows), restart(rows), shapes(rows, pictures), failures(rows),
                method(results)]
    (output / "benchmarks.md").write_text("\n\n".join(s for s in sections if s) + "\n")


# Reading rows


def pipeline_cells(rows, scenarios=frozenset({"pipeline", "limit"})):
    """The cells, with a system added that is NATS at its best: in each round, its fastest way of those measured."""
    cells = by_cell(rows, scenarios)
    for cell in cells.values():
        ways = [cell[way] for way in NATS_WAYS if way in cell]
        turns = {turn for way in ways for turn in way}
        best = {turn: max((way[turn] for way in ways if turn in way), key=rate) for turn in turns}
        if best:
            cell["best-nats"] = best
    return cells


def against(found, peer, value):
    """Baton ÷ `peer`, as a page shows it."""
    return shown_ratio(ratio(found.get("baton", {}), found.get(peer, {}), value))


# Sections


def intro(results):
    return """# Benchmarks

Written by `bench/run`; do not edit. Figures of one machine say little, ratios more: every ratio below compares
measurements of the same round, taken minutes apart at most, and is the median of all rounds with the extremes in
brackets. **A rate ratio above 1 means that Baton is faster; a time ratio below 1 means that Baton is quicker.** Every
run behind a figure checked that each message came once, none was lost, and order was kept where it is promised.
To reproduce: `bench/run` (or `bench/run --quick` for a first look), nothing else to set up."""


def pipeline(rows, made):
    cells = pipeline_cells(rows)
    peers = [peer for peer in PEERS if any(peer in cell for cell in cells.values())]
    compared = [[cell_name(cell), *(against(found, peer, rate) for peer in peers)]
                for cell, found in cells.items() if "baton" in found]
    systems = [name for name in SYSTEMS if any(name in c for c in cells.values())]
    absolute = [[cell_name(cell), *(number(median(found.get(name), rate)) for name in systems)]
                for cell, found in cells.items()]
    if not absolute:
        return ""
    parts = ["## Push, deliver, acknowledge", """\
Payloads of 300 bytes of JSON; half of the connections push a batch and wait until it is stored, half take what there
is, up to a batch, and wait until their acks are confirmed; a single connection does it in turn. Every system syncs to
disk before it confirms (Redis `appendfsync always`, NATS `sync_interval: always`). "The disk" is a loop that appends
the same bytes to a file with one fdatasync for all batches that producers can have under way at once: pushes only, no
deliveries and no acks."""]
    if compared:
        parts.append("Messages per second, Baton ÷ other:\n\n" + table(["", *(NAMES[p] for p in peers)], compared))
    parts.append("Messages per second:\n\n" + table(["", *(NAMES[s] for s in systems)], absolute))
    parts.append(made["throughput"])
    return "\n\n".join(part for part in parts if part)


def latencies(rows, made):
    cells = pipeline_cells(rows)
    peers = [peer for peer in PEERS if peer != "limit" and any(peer in cell for cell in cells.values())]
    parts = ["### How long a message is under way",
             "From just before its push to its receipt, while the pipeline is full."]
    for name in ["p50", "p99"]:
        compared = [[cell_name(cell), *(against(found, peer, percentile(name)) for peer in peers)]
                    for cell, found in cells.items() if "baton" in found]
        if compared:
            parts.append(f"{name}, Baton ÷ other:\n\n" + table(["", *(NAMES[p] for p in peers)], compared))
    systems = [name for name in ["baton", *peers] if any(name in c for c in cells.values())]
    absolute = [[cell_name(cell), *(percentiles(found.get(name)) for name in systems)] for cell, found in cells.items()]
    if not absolute or not systems:
        return ""
    parts.append("p50 / p95 / p99 in milliseconds:\n\n" + table(["", *(NAMES[s] for s in systems)], absolute))
    parts.append(made["latency"])
    return "\n\n".join(part for part in parts if part)


def wake_up(rows):
    found = glance.rounds(rows, "wake-up", lambda row: row["system"])
    if not found:
        return ""
    lines = []
    for system, rounds in sorted(found.items()):
        compared = [against(found, system, percentile(p)) if system != "baton" else "" for p in ["p50", "p99"]]
        lines.append([NAMES[system], *compared, *(millis(median(rounds, percentile(p))) for p in ["p50", "p95", "p99"])])
    return """## Waking an idle consumer

One consumer waits, one message is pushed after a pause; from just before the push until the consumer holds it, the
sync to disk included.

""" + table(["", "p50, Baton ÷ other", "p99, Baton ÷ other", "p50 ms", "p95 ms", "p99 ms"], lines)


def asleep(rows):
    """Beside each other what was measured on cores that sleep, and how it compares with cores that are awake."""
    compared = [("one connection, batch 1: messages per second", rate, "best-nats",
                 *(pipeline_cells(rows, {scenario}).get((1, 1), {}) for scenario in ["pipeline", "pipeline-asleep"])),
                ("waking an idle consumer: p50", percentile("p50"), "nats",
                 *(glance.rounds(rows, scenario, lambda row: row["system"]) for scenario in ["wake-up", "wake-up-asleep"]))]
    lines = []
    for name, value, nats, awake, sleeping in compared:
        systems = ["baton", "redis", nats]
        if all(system in found for system in systems for found in (awake, sleeping)):
            lines.append([name, *(against(sleeping, peer, value) for peer in systems[1:]),
                          *(number(median(sleeping[system], value) / median(awake[system], value)) for system in systems)])
    return lines and """## Where idle cores sleep

All figures of this page but these were taken on cores that wait awake, as server profiles set it (`tuned-adm profile
latency-performance`). By default an idle core sleeps. To wake a virtual one takes between next to nothing and several
times a small sync, as its host has time for it, and a client that sends one message at a time waits for that more than once a
message, with any system.

""" + table(["", "Baton ÷ Redis Streams", "Baton ÷ NATS JetStream", "Baton, asleep ÷ awake", "Redis", "NATS"], lines)


def engine(rows, cores):
    """What the engine's own program measured: pushes without HTTP and queue rules, beside the plain file."""
    found = {}
    for row in rows:
        if row["scenario"] == "engine" and row.get("test") == "throughput":
            ids = "with" if row["transaction_ids"] else "without"
            where = f"{row['batch_goes_to']} of {row['partitions']:,}" if row["partitions"] > 1 else "one partition"
            found.setdefault(f"batch {row['batch']} to {where}, {ids} transaction ids", []).append(row)
    lines = []
    for name, cases in found.items():
        ratios = [row["engine_messages_per_s"] / row["limit_messages_per_s"] for row in cases]
        lines.append([name, shown_ratio((statistics.median(ratios), min(ratios), max(ratios))),
                      number(statistics.median(row["engine_messages_per_s"] for row in cases))])
    return lines and "\n\n".join(["""## The storage engine alone

Pushes without HTTP and queue rules, four under way at a time, beside a plain file to which the same bytes are
appended in the same groups, with one fdatasync each. Where every message goes to another partition, each is a segment
of its own, and the processor is the limit.""",
                                  table(["", "engine ÷ disk", "messages per second"], lines),
                                  *engine_over_http(rows, cores)])


def engine_over_http(rows, cores):
    """The same pushes as clients make them."""
    lines = []
    for batch in sorted({row["batch"] for row in rows if row["scenario"] == "engine-http"}):
        over_http = {row["round"]: row for row in rows if row["scenario"] == "engine-http" and row["batch"] == batch}
        alone = {row["round"]: row for row in rows
                 if row["scenario"] == "engine" and row.get("test") == "throughput" and row["batch"] == batch
                 and row["partitions"] == 1 and not row["transaction_ids"]}
        both = [(rate(over_http[turn]), alone[turn]) for turn in over_http if turn in alone]
        if not both:
            continue
        spread = lambda values: shown_ratio((statistics.median(values), min(values), max(values)))  # noqa: E731
        cost = median(over_http, lambda row: row["server_cpu_us_per_message"])
        share = median(over_http, lambda row: row["server_cpu_us_per_message"] * rate(row) / 1e6 / cores)
        lines.append([f"batch {batch} to one partition, over HTTP",
                      spread([here / row["engine_messages_per_s"] for here, row in both]),
                      spread([here / row["limit_messages_per_s"] for here, row in both]),
                      number(median(over_http, rate)), number(cost), f"{share:.0%}", f"{1 - share:.0%}"])
    return lines and ["""The same over HTTP, on four connections. What is missing to the engine went to the load generator, which
shares the cores, and to what a request costs the server besides. In a profile made once, with batches of 100 and 1000, the
server spent 54 and 32 % of its time in the kernel (sockets, the file, switching threads), 16 and 31 % reading JSON, 10 and 13 %
copying and allocating, 6 and 11 % writing answers, 4 and 7 % on rules, and 3 % in the engine's own code.""",
                      table(["", "÷ engine", "÷ disk", "messages per second", "server µs per message",
                             "of the cores: server", "load generator and idle"], lines)]


def on_postgres(rows):
    """Baton and the home-made queue, each on a PostgreSQL of its own."""
    measures = [("messages per second", rate, True), ("database CPU per message", database_cpu, False),
                ("WAL per message", lambda row: row["wal_bytes_per_message"], False)]
    lines = []
    for scenario, system, peer, name in [
            ("postgres-pipeline", "baton-postgres", "skip-locked", "push, deliver, acknowledge"),
            ("postgres-push", "together", "bare-insert", "push alone, a batch to one partition"),
            ("postgres-push", "scattered", "bare-insert", "push alone, each message of a batch to another partition")]:
        for cell, found in by_cell(rows, {scenario}).items():
            ours, theirs = found.get(system, {}), found.get(peer, {})
            if ours and theirs:
                lines.append([f"{name}, {cell_name(cell)}", NAMES[peer],
                              *(shown_ratio(ratio(ours, theirs, value)) for _, value, _ in measures),
                              number(median(ours, rate)), number(median(theirs, rate))])
    if not lines:
        return ""
    parts = ["## On PostgreSQL", """\
Baton on a PostgreSQL beside a table with one row per message, a status and a lease, claimed with SKIP LOCKED and
written as well as we know how, and beside a bare bulk insert of the same bytes. Database, clients and Baton share the
machine; Baton's clients speak HTTP to it, the others speak to the database themselves. A rate above 1 and a cost below
1 are in favour of Baton.""",
             table(["", "other", *(f"{name}, Baton ÷ other" for name, _, _ in measures), "Baton msg/s", "other msg/s"], lines)]
    recognised = {}
    for row in rows:
        if row["scenario"] == "postgres-ids":
            recognised.setdefault(row["ids"], {})[row.get("round", 0)] = row
    if len(recognised) > 1:
        parts.append("With a transaction id in every message, looked for among those of the last hour: "
                     f"{shown_ratio(ratio(recognised[True], recognised[False], rate))} of the rate without, and "
                     f"{shown_ratio(ratio(recognised[True], recognised[False], database_cpu))} times the database's "
                     "processor time for a message (8 connections, batch 100).")
    grown = {}
    for row in rows:
        if row["scenario"] == "postgres-growth":
            grown.setdefault(row["partitions"], {})[row.get("round", 0)] = row
    if len(grown) > 1:
        few, many = min(grown), max(grown)
        parts.append(f"With {many:,} partitions instead of {few}, a message costs the database "
                     f"{shown_ratio(ratio(grown[many], grown[few], database_cpu))} times the processor time.")
    for row in rows:
        if row["scenario"] == "postgres-idle":
            parts.append(f"An idle server makes {row['transactions_per_second']:.1f} transactions per second "
                         f"on the database, which take {row['database_cpu_share']:.2%} of a core; by itself the database "
                         f"takes {row['database_cpu_alone']:.2%}.")
    return "\n\n".join(parts)


def balanced(rows):
    """One server, and three behind a plain balancer, with and without each other's addresses."""
    found = glance.rounds(rows, "balanced", lambda row: row["servers"])
    one = found.get("one server")
    if not one:
        return ""
    measures = ["messages_per_s", "push_p99_ms", "delivery_p99_ms"]
    lines = []
    for name, rounds in found.items():
        value = lambda key: median(rounds, lambda row: row[key])  # noqa: B023, E731
        against_one = ["" if rounds is one else shown_ratio(ratio(rounds, one, lambda row: row[key]))  # noqa: B023
                       for key in measures]
        lines.append([name, number(value("messages_per_s")), *against_one, number(value("push_p99_ms")),
                      f"{number(value('delivery_p50_ms'))} / {number(value('delivery_p99_ms'))}",
                      *(number(sum(row[key] for row in rounds.values())) for key in ["deadlocks", "refused"])])
    seconds = next(iter(one.values()))["seconds"]
    return "\n\n".join(["## Three servers behind a plain balancer", f"""\
Six producers push to ten queues per call every 50 ms, 30 consumers of one group wait; every client sends its requests
to the servers in turn. All servers share one PostgreSQL and the cores. Ratios are to one server in the same round,
{seconds:g} s each; deadlocks and refused calls are those of all rounds.""", table(
        ["", "messages/s", "rate ÷ one", "push p99 ÷ one", "delivery p99 ÷ one", "push p99 ms",
         "delivery p50 / p99 ms", "deadlocks", "refused"], lines)])


def database_cpu(row):
    return row["database_cpu_us_per_message"]


def growth(rows):
    found = glance.rounds(rows, "growth", lambda row: row["partitions"])
    if len(found) < 2:
        return ""
    few, many = min(found), max(found)
    cost = lambda row: row["server_cpu_us_per_message"]  # noqa: E731
    each = median(found[many], lambda row: row["server_memory_bytes_each"])
    lines = [[f"{partitions:,} partitions", number(median(rounds, rate)), number(median(rounds, cost))]
             for partitions, rounds in sorted(found.items())]
    return f"""## Growth

Batches of 100, each message to another partition, all of which exist before the clock starts.
{many:,} partitions ÷ {few:,} partitions: rate {shown_ratio(ratio(found[many], found[few], rate))}, processor time per
message {shown_ratio(ratio(found[many], found[few], cost))}. A partition costs about {number(each)} bytes of memory.

""" + table(["", "messages per second", "processor µs per message"], lines)


def waiters(rows):
    found = [row for row in rows if row["scenario"] == "many-waiters"]
    lines = [[f"{row['connections']:,}", number(row.get("server_memory_bytes_each")),
              f"{row['server_cpu_idle']:.2%}" if "server_cpu_idle" in row else "–",
              millis(row["latency_us"]["p50"]), millis(row["latency_us"]["p99"])] for row in found]
    return lines and """## Idle long polls

Each on a connection of its own, half of them for any partition, half for one partition each. Then one message for
each, pushed in batches of 100; every waiter got exactly one.

""" + table(["waiting", "bytes of memory each", "of one core while idle", "delivered p50 ms", "p99 ms"], lines)


def restart(rows):
    found = [row for row in rows if row["scenario"] == "restart"]
    lines = [[f"{row['messages']:,}", f"{row['seconds']:.2f}", millis(row["latency_us"]["p50"]),
              number(row.get("disk_bytes_per_message")), number(row.get("server_memory_bytes", 0) / 1e6)] for row in found]
    return lines and "## Restart after kill -9\n\n" + table(
        ["stored messages", "seconds until it listens", "then ms until the first delivery", "bytes on disk per message",
         "MB of memory"], lines)


def shapes(rows, pictures):
    parts = []
    for scenario, title in [("push", "Push only"), ("fan-out", "Several groups"), ("drain", "A stored backlog")]:
        found = [row for row in rows if row["scenario"] == scenario]
        lines = [[f"{row['partitions']:,}", number(row["batch"]), str(row.get("groups", "–")), number(rate(row)),
                  millis((row.get("latency_us") or {}).get("p99")), number(row.get("server_cpu_us_per_message"))]
                 for row in found]
        if lines:
            parts.append(f"### {title}\n\n" + table(
                ["partitions", "batch", "groups", "messages per second", "p99 ms", "processor µs per message"], lines))
            if (pictures / f"{scenario}.svg").exists():
                parts.append(f"![{title}](benchmarks/{scenario}.svg)")
    return parts and "\n\n".join(["## Baton over its range", *parts])


def failures(rows):
    found = [" ".join(row["command"]) for row in rows if row["scenario"] == "failed"]
    return found and "## Runs that failed their own checks\n\n" + "\n".join(f"- `{command}`" for command in found)


def method(results):
    machine, parameters = results["machine"], results["parameters"]
    programs = "; ".join(shortened(version) for version in results["versions"].values())
    return f"""## How this was measured

{machine['processor']}, {machine['cores']} cores, Linux {machine['kernel']}, {machine['date']}. {programs}.
{parameters['rounds']} round(s) of {parameters['duration']:g} s each{parameters.get('note', '')}; each measurement on a fresh server with an empty
directory, all on one disk; load generator and server share the cores, which {staying(machine)}.
Just before the measurements, other programs used {others(results["rows"])} of the machine; above a tenth, read
absolute figures with care.

- Each peer is driven through a native client: `async-nats` and `redis-rs` on tokio; Baton by `baton bench`.
- Single messages (batch 1) vary most and are measured three times in each round, unless with `--quick`.
- Producers stop while four batches each are unfinished, so times are those of the system and not of a growing backlog.
- A single connection pushes a batch, takes it and acks it before the next. It asks for the batch with the same write as
  it pushes it: Baton with two HTTP requests, Redis with one pipeline; the client of NATS has asked before.
- Redis: one stream, pipelined XADD, XREADGROUP that blocks, one XACK for a batch.
- NATS: one stream in files, acks confirmed and awaited together; three ways, of which ratios take the fastest in each
  round: plain publishes whose acks are awaited together, with one durable pull consumer that all share and an ack for
  each message; the same with one atomic batch publish for a batch; and, "split by hand", atomic batches with a subject
  and a consumer with cumulative acks for each pair of connections. "Not synced" is the default `sync_interval` with
  plain publishes, for information: it can lose confirmed messages when the machine fails, so it is in no ratio.
- What is synced, by a trace of system calls made once with Redis 7.0 and NATS 2.15: Redis syncs pushes, deliveries and
  acks before it answers; NATS syncs every push, but writes acks to disk about ten times a second, after it has
  confirmed them. Baton promises pushes and acks on disk before it answers; this script does not trace it.
- Baton: 100 partitions, a batch goes to one of them; any consumer may take any partition."""


def staying(machine):
    return "stay awake unless said otherwise" if machine.get("cores_stay_awake") else "may sleep when idle"


def shortened(version):
    """A version line without what only its makers need."""
    return " ".join(word for word in version.split() if not word.startswith(("sha=", "malloc=", "bits=", "build=")))


def others(rows):
    found = sorted(row["busy_before"] for row in rows if "busy_before" in row)
    return f"{statistics.median(found):.0%} (median; at most {found[-1]:.0%})" if found else "an unknown share"


# Pictures


def charts(rows):
    cells = pipeline_cells(rows)
    label = lambda cell: f"{cell[0]} × {cell[1]}"  # noqa: E731
    throughput = [(label(cell), [(s, median(found[s], rate)) for s in SYSTEMS if s in found])
                  for cell, found in cells.items()]
    latency = [(label(cell), [(s, median(found[s], percentile("p99")) / 1e3) for s in SYSTEMS[:-1] if s in found])
               for cell, found in cells.items()]
    return {"throughput": svg.grouped("Messages per second, connections × batch", "msg/s", throughput),
            "latency": svg.grouped("p99 under way, connections × batch", "ms", latency)}


def picture(path, content):
    """Writes the picture and says how a page shows it."""
    if not content:
        return ""
    path.write_text(content)
    return f"![{path.stem}](benchmarks/{path.name})"
