"""What is measured, with which parameters and in which order."""

import contextlib
import datetime
import functools
import json
import os
import pathlib
import platform
import subprocess
import sys
import time

from . import cores, jobs, postgres, servers
from .setup import BENCH, ROOT

SYSTEMS = ["baton", "redis", "nats", "nats-atomic", "nats-lanes", "nats-default", "limit"]
PARTS = ["pipeline", "wake-up", "asleep", "engine", "growth", "postgres", "waiters", "restart", "shapes", "jobs",
         "balanced"]
# Measurements of single messages in each round.
SINGLES_MEASURED = 3
# Parts that measure Baton alone with programs of its own, for which the clients of other systems are not built.
WITHOUT_PEERS = {"balanced"}
# Seconds of each measurement of several servers behind a balancer.
BALANCED_SECONDS = 20
ENGINE_LIMIT = ROOT / "crates" / "store-embedded" / "examples" / "engine_limit.rs"


class Plan:
    """The arguments with their defaults filled in."""

    def __init__(self, given):
        quick = given.quick
        self.quick = quick
        self.report_only = given.report_only
        self.add = given.add
        self.rounds = given.rounds or (1 if quick else 3)
        self.duration = given.duration or (1.0 if quick else 4.0)
        self.connections = numbers(given.connections) or ([8] if quick else [1, 8, 32])
        self.batch = numbers(given.batch) or ([1, 100] if quick else [1, 10, 100])
        self.systems = words(given.systems, SYSTEMS, [s for s in SYSTEMS if not (quick and s == "nats-lanes")])
        self.parts = words(given.parts, PARTS, PARTS)
        self.payload_bytes = given.payload_bytes
        self.restart_messages = given.restart_messages or (200_000 if quick else 10_000_000)
        self.many_partitions = 100_000 if quick else 1_000_000
        self.jobs = 50_000 if quick else 300_000
        self.jobs_tomorrow = 100_000 if quick else 1_000_000
        self.waiters = 1_000 if quick else 10_000
        self.samples = 50 if quick else 300
        self.data = (given.data or BENCH / "data").resolve()
        self.baton = given.baton and given.baton.resolve()
        self.output = (given.output or ROOT / "docs").resolve()

    def wants_peers(self):
        return not set(self.parts) <= WITHOUT_PEERS

    def wants_baton(self):
        return "baton" in self.systems

    def parameters(self):
        keep = ["quick", "rounds", "duration", "connections", "batch", "systems", "parts", "payload_bytes",
                "restart_messages", "many_partitions", "jobs", "jobs_tomorrow", "waiters", "samples"]
        return {name: getattr(self, name) for name in keep}


def numbers(text):
    return [int(part) for part in text.split(",")] if text else None


def words(text, known, usual):
    if not text:
        return list(usual)
    chosen = text.split(",")
    unknown = set(chosen) - set(known)
    if unknown:
        sys.exit(f"unknown: {', '.join(sorted(unknown))}; known: {', '.join(known)}")
    return chosen


def everything(plan, tools):
    rows = []
    measurements = {
        "pipeline": pipelines, "wake-up": wake_ups, "engine": engine, "growth": growth, "waiters": waiters,
        "restart": restart, "shapes": shapes, "postgres": on_postgres, "jobs": on_jobs, "asleep": asleep,
        "balanced": balanced,
    }
    # Comparisons are interleaved and repeated; the rest concerns Baton alone and is measured once.
    for turn in range(plan.rounds):
        for part in ["pipeline", "wake-up", "asleep", "engine", "growth", "postgres", "jobs", "balanced"]:
            if part in plan.parts:
                with contextlib.nullcontext() if part == "asleep" else cores.awake():
                    rows += [{"round": turn, **row} for row in measurements[part](plan, tools, turn)]
    for part in ["waiters", "restart", "shapes"]:
        if part in plan.parts:
            with cores.awake():
                rows += measurements[part](plan, tools, 0)
    return {"machine": machine(), "versions": versions(tools), "parameters": plan.parameters(), "rows": rows}


def added(earlier, results):
    """Earlier results with the rows of these in place of those of the same scenarios."""
    measured = {row["scenario"] for row in results["rows"]}
    kept = [row for row in earlier["rows"] if row["scenario"] not in measured]
    return {**earlier, "rows": kept + results["rows"]}


def machine():
    model = next((line.split(":")[1].strip() for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines()
                  if line.startswith("model name")), platform.machine())
    return {"processor": model, "cores": os.cpu_count(), "cores_stay_awake": cores.can_stay_awake(),
            "kernel": platform.release(), "date": datetime.date.today().isoformat()}


def versions(tools):
    found = {}
    for name in ["baton", "redis", "nats"]:
        program = getattr(tools, name)
        if program:
            found[name] = servers.version(program)
    return found


def lines(command, **options):
    """Runs a program and reads the JSON lines that it prints. A measurement that fails its own check is
    reported and left out; it must never look like a figure."""
    say(" ".join(str(part) for part in command[1:]))
    others = busy()
    done = subprocess.run([str(part) for part in command], stdout=subprocess.PIPE, text=True, **options)
    rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode != 0:
        say(f"  failed with {done.returncode}")
        # Paths say more about the machine than about the failure.
        return [{"scenario": "failed", "command": [str(part) for part in command[1:] if "/" not in str(part)]}]
    for row in rows:
        rate = row.get("messages_per_second")
        latency = row.get("latency_us") or {}
        say(f"  {row.get('system')}: " + (f"{rate:,.0f} msg/s " if rate else "")
            + " ".join(f"{name} {latency[name] / 1e3:.2f} ms" for name in ["p50", "p99"] if name in latency))
    return [{**row, "busy_before": round(others, 3)} for row in rows]


def busy():
    """The share of all cores that others use just before a measurement: what its figures suffer from."""
    def ticks():
        fields = [int(field) for field in pathlib.Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
        return sum(fields), fields[3] + fields[4]

    (all_before, idle_before), _ = ticks(), time.sleep(0.3)
    all_after, idle_after = ticks()
    return 1 - (idle_after - idle_before) / max(all_after - all_before, 1)


def say(text):
    print(text, file=sys.stderr, flush=True)


def shifted(items, turn):
    turn %= max(len(items), 1)
    return items[turn:] + items[:turn]


def server_of(system, tools, plan):
    """The server of a system, or nothing for the plain file."""
    return {
        "baton": functools.partial(servers.baton, tools, plan.data),
        "redis": functools.partial(servers.redis, tools, plan.data),
        "nats": functools.partial(servers.nats, tools, plan.data),
        "nats-atomic": functools.partial(servers.nats, tools, plan.data),
        "nats-lanes": functools.partial(servers.nats, tools, plan.data),
        "nats-default": functools.partial(servers.nats, tools, plan.data, sync=""),
        "limit": contextlib.nullcontext,
    }[system]()


def pipelines(plan, tools, turn):
    cells = [(connections, batch) for connections in plan.connections for batch in plan.batch]
    return [row for cell in cells for row in compared(plan, tools, turn, plan.systems, *cell)]


def compared(plan, tools, turn, systems, connections, batch):
    """The systems in turn, in one combination. Single messages vary most, so they are measured more often."""
    rows = []
    times = SINGLES_MEASURED if batch == 1 and not plan.quick else 1
    for again in range(turn * times, (turn + 1) * times):
        for system in shifted(systems, again):
            with server_of(system, tools, plan) as server:
                rows += [{**row, "round": again} for row in pipeline(plan, tools, system, server, connections, batch)]
    return rows


def pipeline(plan, tools, system, server, connections, batch):
    common = ["--duration", plan.duration, "--payload-bytes", plan.payload_bytes]
    if system == "limit":
        # A producer has at most one push under way, so a perfect group commit joins one batch of each.
        group = max(connections // 2, 1) * batch
        with servers.directory(plan.data) as path:
            found = lines([tools.peers, "limit", "--directory", path, "--group", group, *common])
        return [{**row, "connections": connections, "batch": batch} for row in found]
    common += ["--connections", connections, "--batch", batch, "--url", server.url, "--server-pid", server.pid]
    if system == "baton":
        return lines([tools.baton, "bench", "pipeline", "--json", "--partitions", 100, *common])
    if system == "nats-atomic" and batch == 1:
        return []
    peer = system.split("-")[0]
    extra = {"nats-atomic": ["--atomic"], "nats-lanes": ["--atomic", "--lanes"]}.get(system, [])
    return lines([tools.peers, "pipeline", peer, "--system", system, *extra, *common])


def wake_ups(plan, tools, turn):
    rows = []
    common = ["--samples", plan.samples, "--payload-bytes", plan.payload_bytes]
    for system in shifted([s for s in plan.systems if s not in ("limit", "nats-atomic", "nats-lanes")], turn):
        with server_of(system, tools, plan) as server:
            if system == "baton":
                command = [tools.baton, "bench", "wake-up", "--json"]
            else:
                command = [tools.peers, "wake-up", system.split("-")[0], "--system", system]
            rows += lines([*command, "--url", server.url, *common])
    return rows


def asleep(plan, tools, turn):
    """What suffers most from cores that sleep: one message at a time. Where they cannot be kept awake, everything else
    shows it."""
    if not cores.can_stay_awake():
        return []
    systems = [system for system in plan.systems if system in ("baton", "redis", "nats", "nats-lanes")]
    rows = wake_ups(plan, tools, turn) + compared(plan, tools, turn, systems, 1, 1)
    return [{**row, "scenario": f"{row['scenario']}-asleep"} if row["scenario"] != "failed" else row for row in rows]


def engine(plan, tools, turn):
    """The storage engine alone beside the plain file, as its own crate measures it, and the same pushes over HTTP."""
    if not plan.wants_baton() or not ENGINE_LIMIT.exists():
        return []
    command = ["cargo", "run", "--profile", "dist", "--locked", "--quiet", "-p", "baton-store-embedded",
               "--example", "engine_limit"]
    plan.data.mkdir(parents=True, exist_ok=True)
    with servers.directory(plan.data) as path:
        # The example puts its files where it is started.
        found = lines([*command, "--manifest-path", ROOT / "Cargo.toml"], cwd=path)
    rows = [{**row, "scenario": "engine"} if row.get("scenario") != "failed" else row for row in found]
    for batch in [100, 1000]:
        found = alone(plan, tools, "push", "--together", "--connections", 4, "--partitions", 1, "--batch", batch,
                      "--duration", plan.duration)
        rows += [{**row, "scenario": "engine-http"} if row.get("scenario") == "push" else row for row in found]
    return rows


def alone(plan, tools, scenario, *options):
    """A scenario for which `baton bench` starts servers of its own."""
    plan.data.mkdir(parents=True, exist_ok=True)
    return lines([tools.baton, "bench", scenario, "--json", "--data", plan.data,
                  "--payload-bytes", plan.payload_bytes, *options])


def growth(plan, tools, turn):
    if not plan.wants_baton():
        return []
    rows = []
    for partitions in shifted([100, plan.many_partitions], turn):
        found = alone(plan, tools, "push", "--batch", 100, "--partitions", partitions, "--duration", plan.duration)
        rows += [{**row, "scenario": "growth"} if row.get("scenario") == "push" else row for row in found]
    return rows


def on_postgres(plan, tools, turn):
    if not plan.wants_baton():
        return []
    rows = postgres.comparisons(plan, tools, turn, lines)
    return rows if turn else rows + postgres.idle(plan, tools)


def on_jobs(plan, tools, turn):
    return jobs.measurements(plan, tools, turn, lines, alone) if plan.wants_baton() else []


def balanced(plan, tools, _turn):
    """Three servers behind a plain balancer beside one."""
    if not plan.wants_baton():
        return []
    seconds = 5 if plan.quick else BALANCED_SECONDS
    command = [sys.executable, BENCH / "cluster" / "balanced.py", "--json", "--seconds", seconds]
    return lines(command, env={**os.environ, "BATON_BIN": str(tools.baton)})


def waiters(plan, tools, _turn):
    return alone(plan, tools, "many-waiters", "--waiters", plan.waiters) if plan.wants_baton() else []


def restart(plan, tools, _turn):
    return alone(plan, tools, "restart", "--messages", plan.restart_messages) if plan.wants_baton() else []


def shapes(plan, tools, _turn):
    """Baton alone over its whole range, with a picture of each scenario."""
    if not plan.wants_baton():
        return []
    pictures = plan.output / "benchmarks"
    pictures.mkdir(parents=True, exist_ok=True)
    quick = ["--quick"] if plan.quick else ["--duration", plan.duration]
    rows = []
    for scenario in ["push", "fan-out", "drain"]:
        # The numbers of messages that the drain stores are its own, so a duration does not touch it.
        rows += alone(plan, tools, scenario, *quick, "--plot", pictures / f"{scenario}.svg")
    return rows
