"""Baton on PostgreSQL beside the queue that people build in a table, and beside a bare insert: each on a fresh
PostgreSQL, in turn, with what it costs the database besides time."""

import contextlib
import pathlib
import subprocess
import sys
import time

from . import servers
from .setup import ROOT

sys.path.insert(0, str(ROOT / "tests"))

import postgres  # noqa: E402

PIPELINES = [(8, 100), (32, 100), (64, 100), (64, 1)]
PUSHES = [(8, 100)]
PARTITIONS = 100
GROWTH = [10, 10_000]
IDLE_SECONDS = 10


class Database(postgres.Postgres):
    """A throw-away PostgreSQL whose work can be counted."""

    def __init__(self):
        super().__init__()
        directory = pathlib.Path(self.sql("SHOW data_directory"))
        self.main = int((directory / "postmaster.pid").read_text().split()[0])

    def used(self):
        """Processor seconds of all its processes so far, those that have ended included."""
        ticks = 0
        for stat in pathlib.Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):
                fields = stat.read_text().rsplit(")", 1)[1].split()
                if int(stat.parent.name) == self.main:
                    ticks += sum(map(int, fields[11:15]))
                elif int(fields[1]) == self.main:
                    ticks += sum(map(int, fields[11:13]))
        return ticks / 100

    def scheduled(self):
        """The same by the scheduler, exactly, but of processes that still run only."""
        nanoseconds = 0
        for stat in pathlib.Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):
                parent = int(stat.read_text().rsplit(")", 1)[1].split()[1])
                if self.main in (int(stat.parent.name), parent):
                    nanoseconds += int((stat.parent / "schedstat").read_text().split()[0])
        return nanoseconds / 1e9

    def written(self):
        return float(self.sql("SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')"))

    def transactions(self):
        return int(self.sql("SELECT sum(xact_commit + xact_rollback) FROM pg_stat_database"))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


@contextlib.contextmanager
def baton(tools, plan, database):
    with servers.directory(plan.data) as path:
        log = path / "server.log"
        command = [tools.baton, "serve", "--listen", "127.0.0.1:0", "--data", path / "data", "--store", database.url]
        with servers.process(command, log, stdout=subprocess.PIPE, text=True) as child:
            first = child.stdout.readline().strip()
            url = first.removeprefix("baton is listening on ")
            if url == first:
                raise RuntimeError(f"the server said {first!r}: {log.read_text()[-2000:]}")
            yield servers.Running(url, child.pid)


def costed(database, measure):
    """The rows of a measurement, with what it cost the database for each message."""
    used, written = database.used(), database.written()
    rows = measure()
    used, written = database.used() - used, database.written() - written
    for row in rows:
        if row.get("messages"):
            row["database_cpu_us_per_message"] = used * 1e6 / row["messages"]
            row["wal_bytes_per_message"] = written / row["messages"]
    return rows


def of_baton(tools, plan, lines, scenario, *options):
    with Database() as database, baton(tools, plan, database) as server:
        command = [tools.baton, "bench", scenario, "--json", "--url", server.url, "--server-pid", server.pid, *options]
        return costed(database, lambda: lines(command))


def of_peer(tools, plan, lines, *options):
    with Database() as database:
        return costed(database, lambda: lines([tools.peers, *options, "--url", database.url]))


def comparisons(plan, tools, turn, lines):
    """Push, deliver, acknowledge; and push alone."""
    rows = []
    common = ["--duration", plan.duration, "--payload-bytes", plan.payload_bytes]
    for connections, batch in PIPELINES:
        size = [*common, "--connections", connections, "--batch", batch]
        for system in shifted(turn, ["baton-postgres", "skip-locked"]):
            if system == "baton-postgres":
                found = of_baton(tools, plan, lines, "pipeline", *size, "--partitions", PARTITIONS)
            else:
                found = of_peer(tools, plan, lines, "pipeline", "postgres", *size)
            rows += named(found, "postgres-pipeline", system)
    size = [*common, "--connections", 8, "--batch", 100, "--partitions", PARTITIONS]
    for ids in shifted(turn, [[], ["--ids"]]):
        found = of_baton(tools, plan, lines, "pipeline", *size, *ids)
        rows += [{**row, "ids": bool(ids)} for row in named(found, "postgres-ids", "baton-postgres")]
    for connections, batch in PUSHES:
        size = [*common, "--connections", connections, "--batch", batch]
        for system in shifted(turn, ["together", "scattered", "bare-insert"]):
            if system == "bare-insert":
                found = of_peer(tools, plan, lines, "insert", *size)
            else:
                how = ["--together"] if system == "together" else []
                found = of_baton(tools, plan, lines, "push", *size, "--partitions", PARTITIONS, *how)
            rows += named(found, "postgres-push", system)
    for partitions in shifted(turn, GROWTH):
        size = [*common, "--connections", 8, "--batch", 100, "--partitions", partitions]
        found = of_baton(tools, plan, lines, "pipeline", *size)
        rows += [{**row, "partitions": partitions} for row in named(found, "postgres-growth", "baton-postgres")]
    return rows


def shifted(turn, items):
    """The same in another order each turn, so that none is always first."""
    return items[turn % len(items):] + items[:turn % len(items)]


def named(rows, scenario, system):
    return [row if row.get("scenario") == "failed" else {**row, "scenario": scenario, "system": system} for row in rows]


def idle(plan, tools):
    """What an idle server costs its database, beyond what the database does by itself."""
    with Database() as database:
        time.sleep(3)
        alone = quietly(database)
        with baton(tools, plan, database):
            time.sleep(5)
            before = database.transactions()
            time.sleep(1)
            share = quietly(database)
            time.sleep(1)
            per_second = (database.transactions() - before) / (IDLE_SECONDS + 2)
    return [{"scenario": "postgres-idle", "system": "baton-postgres", "transactions_per_second": per_second,
             "database_cpu_share": max(share - alone, 0), "database_cpu_alone": alone}]


def quietly(database):
    """The share of a core that the database takes while idle: by the scheduler's own count,
    because so little is far below a tick of the clock."""
    before = database.scheduled()
    time.sleep(IDLE_SECONDS)
    return (database.scheduled() - before) / IDLE_SECONDS
