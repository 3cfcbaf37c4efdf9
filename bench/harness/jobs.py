"""Jobs that do nothing, on both stores; on PostgreSQL beside a table with a row per job."""

from . import postgres, svg
from .figures import median, millis, number, percentile, rate, ratio, shown_ratio, table

CONNECTIONS, BATCH = 12, 500


def measurements(plan, tools, turn, lines, alone):
    size = ["--connections", CONNECTIONS, "--batch", BATCH, "--duration", plan.duration]
    rows = alone(plan, tools, "jobs", *size, "--messages", plan.jobs, "--samples", plan.samples)
    if turn == 0:
        rows += alone(plan, tools, "jobs-tomorrow", *size, "--messages", plan.jobs_tomorrow)
    return rows + on_postgres(plan, tools, turn, lines, size)


def on_postgres(plan, tools, turn, lines, size):
    rows = []
    for system in postgres.shifted(turn, ["baton-postgres", "job-table"]):
        if system == "baton-postgres":
            found = postgres.of_baton(tools, plan, lines, "jobs-steady", *size)
        else:
            found = postgres.of_peer(tools, plan, lines, "pipeline", "postgres-jobs", *size, "--payload-bytes", 100)
        rows += postgres.named(found, "jobs-steady", system)
    if turn == 0:
        found = postgres.of_baton(tools, plan, lines, "jobs", *size, "--messages", plan.jobs // 3, "--samples", plan.samples)
        rows += [{**row, "system": "baton-postgres-once"} for row in found]
    return rows


# What the page says of it

STEPS = [("jobs-enqueue", "enqueue alone"), ("jobs-burn-down", "lease and report what waits"),
         ("jobs-steady", "enqueue, lease and report together"), ("jobs-keys", "the same with a limit per key"),
         ("jobs-pickup", "one job for an idle worker")]


def rounds(rows, scenario, system="baton"):
    return {row.get("round", 0): row for row in rows if (row["scenario"], row["system"]) == (scenario, system)}


def section(rows, pictures):
    rows = [row for row in rows if row["scenario"].startswith("jobs-")]
    if not rows:
        return ""
    parts = ["## Jobs", f"""\
Jobs that do nothing, over HTTP: enqueued, leased and reported in batches of {BATCH} by {CONNECTIONS} connections, a third of
which enqueue where all happens at once. Every job was completed, and none accepted twice. "Pick-up" is the time from just
before the call that enqueues to the answer that holds the job. Producers stop while four batches each are unfinished."""]
    parts.append(table(["embedded store", "jobs per second", "pick-up p50 ms", "p99 ms", "server µs per job", "bytes written per job"],
                       [line(name, rounds(rows, scenario)) for scenario, name in STEPS if rounds(rows, scenario)]))
    parts += [keys(rows), tomorrow(rows), beside_a_table(rows)]
    picture = chart(rows)
    if picture:
        (pictures / "jobs.svg").write_text(picture)
        parts.append("![Jobs per second](benchmarks/jobs.svg)")
    return "\n\n".join(part for part in parts if part)


def line(name, found):
    has_latency = all(row.get("latency_us") for row in found.values())
    has_rate = all(row.get("messages_per_second") for row in found.values())
    return [name, number(median(found, rate)) if has_rate else "–",
            *(millis(median(found, percentile(p))) if has_latency else "–" for p in ["p50", "p99"]),
            number(median(found, lambda row: row.get("server_cpu_us_per_message", 0))),
            number(median(found, lambda row: row.get("written_bytes_per_message", 0)))]


def keys(rows):
    found = ratio(rounds(rows, "jobs-keys"), rounds(rows, "jobs-steady"), rate)
    return found and f"With a limit per key ÷ without: {shown_ratio(found)} of the rate (a hundred keys)."


def tomorrow(rows):
    waiting, before, beside = (rounds(rows, f"jobs-{name}") for name in ["tomorrow", "before", "beside"])
    if not (waiting and before and beside):
        return ""
    row = waiting[0]
    return (f"{row['messages']:,} jobs that wait for tomorrow: enqueued at {number(rate(row))} per second; then an idle server "
            f"takes {row.get('server_cpu_idle', 0):.1%} of a core, and the steady rate beside them ÷ before them is "
            f"{shown_ratio(ratio(beside, before, rate))}.")


def beside_a_table(rows):
    ours, theirs = (rounds(rows, "jobs-steady", system) for system in ["baton-postgres", "job-table"])
    if not (ours and theirs):
        return ""
    measures = [("jobs per second", rate), ("database CPU per job", lambda row: row["database_cpu_us_per_message"]),
                ("WAL per job", lambda row: row["wal_bytes_per_message"])]
    lines = [[name, shown_ratio(ratio(ours, theirs, value)), number(median(ours, value)), number(median(theirs, value))]
             for name, value in measures]
    once = [line(name, rounds(rows, scenario, "baton-postgres-once")) for scenario, name in STEPS
            if rounds(rows, scenario, "baton-postgres-once")]
    text = """\
On PostgreSQL, beside a table with a row per job, taken with SKIP LOCKED, completed with an update, in the same batches and
with prepared statements; its clients speak to the database themselves."""
    parts = [text, table(["PostgreSQL, together", "Baton ÷ table", "Baton", "table"], lines)]
    if once:
        parts.append(table(["PostgreSQL, Baton alone", "jobs per second", "pick-up p50 ms", "p99 ms", "server µs per job",
                            "bytes written per job"], once))
    return "\n\n".join(parts)


def chart(rows):
    systems = [("baton", "baton"), ("baton-postgres", "baton on PostgreSQL"), ("job-table", "a row per job")]
    groups = []
    for scenario, name in STEPS[:4]:
        bars = [(shown, median(rounds(rows, scenario, system), rate)) for system, shown in systems
                if rounds(rows, scenario, system)]
        groups += [(name, bars)] if bars else []
    return svg.grouped("Jobs per second", "jobs/s", groups)
