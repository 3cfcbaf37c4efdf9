"""Faults in a crew of servers, one after the other, under load: python tests/jobs/faults.py [--seed N] [--rounds N] ...

Each fault is shown to have happened, the crew is healed, and how long that took is held against its bound. At the end all
that was accepted must have ended once, every fire must be there once, and every server must serve. Prints a report and
writes a timeline as an SVG. With `--times default` the times are those of a server that was told nothing, which takes
minutes for each fault; unless told otherwise they are short.
"""

import argparse
import os
import random
import signal
import sys
import tempfile
import time
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parent), str(Path(__file__).resolve().parent.parent)]

from baton import eventually  # noqa: E402
from crew import TIMES, Crew, Producer, Watcher, check, check_fires  # noqa: E402

DEFAULT = {
    "job-leader-lease-ms": 30000,
    "job-leader-renew-ms": 10000,
    "job-leader-margin-ms": 5000,
    "job-node-heartbeat-ms": 10000,
    "job-node-dead-after-ms": 30000,
    "job-handoff-ack-timeout-ms": 5000,
    "job-handoff-tail-ms": 30000,
    "job-handoff-ceiling-ms": 60000,
    "job-orphan-check-ms": 30000,
    "job-rebalance-cooldown-ms": 30000,
    "job-lease-ms": 300000,
    "job-heartbeat-ms": 1000,
}


class Run:
    """A crew under load, and what was done to it."""

    def __init__(self, crew, rng):
        self.crew, self.rng = crew, rng
        self.started = time.monotonic()
        self.rows, self.marks = [], []
        times = crew.times
        self.lease, self.dead = times["job-leader-lease-ms"] / 1000, times["job-node-dead-after-ms"] / 1000
        self.check = times["job-orphan-check-ms"] / 1000
        # What a server may take beyond the bound because a debug build shares two cores with everything else.
        self.slack = 10.0

    def now(self):
        return time.monotonic() - self.started

    def fault(self, name, hit, healed, bound):
        """Does something, waits until it has healed, and writes down how long that took."""
        begin = self.now()
        shown = hit()
        assert shown, f"{name}: the fault did not happen"
        after = self.now()
        eventually(healed, bound + self.slack, every=0.05)
        took = self.now() - after
        self.rows.append((name, shown, took, bound))
        self.marks.append((begin, self.now(), name))
        print(f"{self.now():7.1f} s  {name}: {shown}; healed after {took:.2f} s (bound {bound:.0f} s)", flush=True)
        self.heal()

    def heal(self):
        for member in self.crew.members:
            if not member.running():
                member.start()
        self.crew.settled(self.dead + self.check + self.lease + 60)

    # Faults.

    def kill_leader(self):
        leader, term = self.crew.leader(), self.crew.term()

        def hit():
            leader.kill()
            return f"{leader.name} led term {term}"

        self.fault("leader killed", hit, lambda: self.crew.term() > term, self.lease + 5)

    def stop_leader(self):
        leader, term = self.crew.leader(), self.crew.term()

        def hit():
            os.kill(leader.process.pid, signal.SIGSTOP)
            leader.is_stopped = True
            return f"{leader.name} was stopped in term {term}"

        self.fault_then(hit, "leader stopped", lambda: self.crew.term() > term, self.lease + 5, leader)

    def fault_then(self, hit, name, healed, bound, member):
        begin = self.now()
        shown = hit()
        after = self.now()
        eventually(healed, bound + self.slack, every=0.05)
        took = self.now() - after
        os.kill(member.process.pid, signal.SIGCONT)
        member.is_stopped = False
        self.rows.append((name, shown, took, bound))
        self.marks.append((begin, self.now(), name))
        print(f"{self.now():7.1f} s  {name}: {shown}; healed after {took:.2f} s (bound {bound:.0f} s)", flush=True)
        self.heal()

    def follower(self):
        leader = self.crew.leader()
        return self.rng.choice([member for member in self.crew.running if member is not leader])

    def kill_follower(self):
        member = self.follower()
        owned = eventually(lambda: self.crew.node(member.name)["ownedJobs"], 120)
        dead = self.crew.node(member.name)["nodeId"]

        def hit():
            member.kill()
            return f"{member.name} owned {owned} jobs"

        def healed():
            nodes = self.crew.view()["nodes"]
            return not any(node["slices"] for node in nodes if node["nodeId"] == dead)

        self.fault("follower killed", hit, healed, self.dead + self.check + 5)

    def stop_follower(self):
        member = self.follower()
        node = self.crew.node(member.name)["nodeId"]

        def hit():
            os.kill(member.process.pid, signal.SIGSTOP)
            member.is_stopped = True
            return f"{member.name} was stopped"

        def healed():
            return not any(one["slices"] for one in self.crew.view()["nodes"] if one["nodeId"] == node)

        self.fault_then(hit, "follower stopped", healed, self.dead + self.check + 5, member)

    def drain(self):
        member = self.rng.choice(self.crew.running)
        owned = eventually(lambda: self.crew.node(member.name)["ownedJobs"], 120)
        begin = self.now()
        member.terminate()
        assert member.wait(90) == 0, member.text()
        took = self.now() - begin
        line = next(line for line in member.text().splitlines() if "drained: slices" in line)
        view = self.crew.view()
        assert view["orphanedSlices"] == 0, "a drain left jobs behind"
        assert " c=0 " in line and " d=0 " in line, line
        self.rows.append(("drained with SIGTERM", f"{member.name} owned {owned} jobs, exit 0, no orphans", took, 60.0))
        self.marks.append((begin, self.now(), "drained"))
        print(f"{self.now():7.1f} s  drained: {member.name} owned {owned} jobs; took {took:.2f} s", flush=True)
        self.heal()

    def owned_by_others(self, gone):
        """Whether a node leads that is none of these, and all slices belong to such nodes."""
        nodes = [node for node in self.crew.view()["nodes"] if node["nodeId"] not in gone]
        return any(node["isLeader"] for node in nodes) and sum(node["slices"] for node in nodes) == 64

    def receiver_dies(self):
        leaving, dying = self.rng.sample(self.crew.running, 2)
        gone = {self.crew.node(member.name)["nodeId"] for member in (leaving, dying)}

        def hit():
            dying.kill()
            leaving.terminate()
            assert leaving.wait(120) == 0, leaving.text()
            return f"{leaving.name} left while {dying.name} was dead and not yet known to be"

        self.fault("receiver killed during a drain", hit, lambda: self.owned_by_others(gone), self.dead + self.check + 5)

    def kill_all(self):
        pause = self.rng.uniform(1, 3) if self.lease < 20 else 60
        gone = {node["nodeId"] for node in self.crew.view()["nodes"]}

        def hit():
            for member in self.crew.members:
                member.kill()
            time.sleep(pause)
            for member in self.crew.members:
                member.start()
            return f"all servers were away for {pause:.0f} s"

        self.fault("all killed", hit, lambda: self.owned_by_others(gone), max(self.lease, self.dead) + self.check + 5)

    def restart_database(self):
        before = self.crew.counts()["completed"]

        def hit():
            self.crew.database.stop()
            time.sleep(self.rng.uniform(0.5, 2))
            self.crew.database.start()
            return "the database lost its power and came back"

        def healed():
            try:
                return self.crew.counts()["completed"] > before and self.crew.term()
            except (AssertionError, OSError):
                return False

        self.fault("database restarted", hit, healed, 60)

    def cut_connections(self):
        before = self.crew.counts()["completed"]

        def hit():
            statement = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE pid <> pg_backend_pid() " \
                "AND backend_type = 'client backend'"
            return f"{self.crew.database.sql(statement)} connections of the database were ended"

        def healed():
            try:
                return self.crew.counts()["completed"] > before
            except (AssertionError, OSError):
                return False

        self.fault("connections cut", hit, healed, 60)


FAULTS = [
    "kill_leader", "stop_leader", "kill_follower", "stop_follower", "drain", "receiver_dies", "kill_all",
    "restart_database", "cut_connections",
]


def timeline(run, producer, watcher, path):
    """The accepted jobs of each second, the faults, and who led, as an SVG."""
    end, width, height = max(run.now(), 1), 1000, 260
    x = lambda at: 60 + (width - 80) * at / end  # noqa: E731
    counts = {}
    for moment, batch in producer.moments:
        second = int(moment - run.started)
        counts[second] = counts.get(second, 0) + batch
    most = max(counts.values(), default=1)
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="sans-serif" font-size="11">']
    out.append(f'<rect width="{width}" height="{height}" fill="white"/>')
    for number, (begin, until, name) in enumerate(run.marks):
        out.append(f'<rect x="{x(begin):.1f}" y="20" width="{max(x(until) - x(begin), 1):.1f}" height="180" fill="#f6d5d5"/>')
        out.append(f'<text x="{x(begin):.1f}" y="{12 + 10 * (number % 2)}">{name}</text>')
    points = " ".join(f"{x(second):.1f},{200 - 160 * counts.get(second, 0) / most:.1f}" for second in range(int(end)))
    out.append(f'<polyline fill="none" stroke="#24527a" points="{points}"/>')
    out.append(f'<text x="4" y="44">{most}/s</text><text x="4" y="204">0</text>')
    colours = ["#4e9a51", "#c98a1b", "#7a4ea3", "#3aa0a0", "#a33a5c"]
    names = sorted({node.rsplit("-", 1)[0] for _, _, node in watcher.terms})
    for (moment, term, node), following in zip(watcher.terms, watcher.terms[1:] + [(run.started + end, 0, "")], strict=True):
        left, right = x(moment - run.started), x(following[0] - run.started)
        colour = colours[names.index(node.rsplit("-", 1)[0]) % len(colours)]
        out.append(f'<rect x="{left:.1f}" y="215" width="{max(right - left, 1):.1f}" height="14" fill="{colour}"/>')
        out.append(f'<text x="{left:.1f}" y="244">{term}</text>')
    out.append('<text x="4" y="226">leader</text><text x="4" y="244">term</text>')
    out.append(f'<text x="60" y="257">accepted jobs a second, faults (red), leaders by term; {end:.0f} s</text></svg>')
    Path(path).write_text("\n".join(out))


def report(run, producer, watcher):
    print("\n| fault | shown by | healed after | bound |\n|---|---|---:|---:|")
    for name, shown, took, bound in run.rows:
        print(f"| {name} | {shown} | {took:.2f} s | {bound:.0f} s |")
    late = [row for row in run.rows if row[2] > row[3]]
    print(f"\n{len(run.rows)} faults, {len(producer.accepted)} jobs accepted, {producer.refused} calls refused meanwhile, "
          f"{len(watcher.terms)} terms, {len(late)} beyond their bound")
    return late


def run_long(crew, count):
    """Jobs that run for as long as all of this takes."""
    for first in range(0, count, 500):
        job = {"jobType": "t", "queue": "long", "args": {"seconds": 100_000}, "timeoutMs": 0}
        assert crew.any().post("/api/v1/jobs:batch", {"jobs": [job] * min(500, count - first)}).status == 201
    while count and crew.counts("long")["dispatched"]:
        crew.work("long", at_once=1000)
        before = crew.counts("long")["running"]
        eventually(lambda before=before: crew.counts("long")["running"] > before, 120)


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--seed", type=int, default=random.randrange(1 << 31))
    arguments.add_argument("--rounds", type=int, default=1, help="how often each fault is done")
    arguments.add_argument("--servers", type=int, default=3)
    arguments.add_argument("--running", type=int, default=0, help="jobs that run all the time, besides")
    arguments.add_argument("--times", choices=["short", "default"], default="short")
    arguments.add_argument("--faults", default=",".join(FAULTS))
    arguments.add_argument("--timeline", default="faults.svg")
    given = arguments.parse_args()
    rng = random.Random(given.seed)
    print(f"seed {given.seed}", flush=True)
    times = TIMES if given.times == "short" else DEFAULT
    faults = given.faults.split(",") * given.rounds
    rng.shuffle(faults)
    with tempfile.TemporaryDirectory() as directory, Crew(directory, given.servers, times) as crew:
        body = {"kind": "interval", "everyMs": 1000, "misfire": "all", "job": {"jobType": "t", "queue": "fires"}}
        assert crew.any().call("PUT", "/api/v1/schedules/beat", body).status in (200, 201)
        crew.settled(180)
        run_long(crew, given.running)
        for _ in range(2):
            crew.work(at_once=50)
        producer, watcher, run = Producer(crew, pause=0.2), Watcher(crew), Run(crew, rng)
        producer.start()
        watcher.start()
        eventually(lambda: len(producer.accepted) > 20 and crew.counts()["completed"] > 5, 120)
        for fault in faults:
            getattr(run, fault)()
        producer.finish()
        watcher.finish()
        check(crew, producer.accepted)
        check_fires(crew, "beat")
        if given.running:
            counts = crew.counts("long")
            assert counts["running"] == given.running, counts
        timeline(run, producer, watcher, given.timeline)
        late = report(run, producer, watcher)
    sys.exit(1 if late else 0)


if __name__ == "__main__":
    main()
