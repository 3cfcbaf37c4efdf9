"""A crew under load, to which faults are done one after the other.

Always: a fault is shown to have happened before anything is concluded from it; while it lasts some jobs must be accepted and
completed, unless nobody can serve; it has healed when its own condition says so, within its bound; then so many jobs must be
accepted and completed, every server must take a job of its own, and the next fault finds a settled crew. Start at
`Drill.fault`.
"""

import contextlib
import time
from typing import NamedTuple

from baton import eventually
from crew import SLICES, Crew
from job_history import Ends, check, check_fires, check_statuses, consume
from job_load import Producer, Watcher, Worker

# Jobs that must be accepted, and as many completed, after each fault.
FLOOR = 15
# The same while a fault lasts that leaves somebody able to serve.
SERVED = 5
STATUS = "orchestrix.job.status"


class Tally(NamedTuple):
    """What succeeded: jobs that a server answered for, and outcomes that one took from a worker."""

    accepted: int
    completed: int

    def since(self, before):
        return Tally(self.accepted - before.accepted, self.completed - before.completed)


class Drill:
    """What is done to a crew, and what came of it."""

    def __init__(self, crew, rng, producer, watcher):
        self.crew, self.rng, self.producer, self.watcher = crew, rng, producer, watcher
        self.ends = Ends()
        self.started = time.monotonic()
        self.rows, self.marks, self.notes = [], [], []
        self.ended = 0.0
        seconds = {name: value / 1000 for name, value in crew.times.items()}
        self.lease, self.dead = seconds["job-leader-lease-ms"], seconds["job-node-dead-after-ms"]
        self.check, self.ceiling = seconds["job-orphan-check-ms"], seconds["job-handoff-ceiling-ms"]
        self.cooldown = seconds["job-rebalance-cooldown-ms"]
        # Until what a dead server owned has new owners; until somebody else leads.
        self.orphaned, self.led = self.dead + self.check + 5, self.lease + 5
        # What a server may take beyond the bound because a debug build shares two cores with everything else.
        self.slack = 20.0

    def now(self):
        return time.monotonic() - self.started

    def fault(self, number, name, hit, healed, bound, undo=None, floor=SERVED):
        """Does something, waits until it has healed, and writes down how long that took and what succeeded meanwhile, which is
        to be no less than `floor`: nothing where nobody can serve."""
        begin, before = self.now(), self.tally()
        shown = hit()
        assert shown, f"{name}: the fault did not happen"
        after = self.now()
        eventually(lambda: quietly(healed), bound + self.slack, every=0.05)
        took, during = self.now() - after, self.served(before, floor)
        more = undo() if undo else None
        shown = f"{shown}; {more}" if more else shown
        self.row(number, name, shown, took, bound, begin, during)
        self.recover()

    def tally(self):
        """What has succeeded so far."""
        return Tally(len(self.producer.accepted), sum(len(worker.lines("ok")) for worker in self.crew.workers))

    def served(self, before, floor=SERVED):
        """What has succeeded since, once it is enough; to be asked for as long as the fault lasts."""

        def look():
            now = self.tally().since(before)
            return min(now) >= floor and now

        return eventually(look, 90, every=0.2)

    def row(self, number, name, shown, took, bound, begin, during):
        self.rows.append((number, name, shown, took, bound, during))
        self.marks.append((begin, self.now(), number))
        words = f"{shown}; healed after {took:.2f} s (bound {bound:.0f} s)"
        words += f"; {during.accepted} jobs accepted and {during.completed} completed meanwhile"
        print(f"{self.now():7.1f} s  {number} {name}: {words}", flush=True)

    def recover(self):
        """Starts what does not run, waits until the crew is settled, and has everybody prove that it serves."""
        begin, accepted = self.now(), len(self.producer.accepted)
        for member in self.crew.members:
            if not member.running():
                member.start()
        self.crew.settled(self.dead + self.check + self.lease + self.cooldown + 90)
        settled = self.now() - begin
        completed = self.crew.counts()["completed"]
        for member in self.crew.members:
            jobs = self.producer.batch(0)[:1]
            key = f"serves-{member.name}-{len(self.rows)}-{self.started}"
            items = eventually(lambda: self.producer.send(key, jobs, [member]), 60)
            self.producer.note(jobs, items)
        eventually(lambda: len(self.producer.accepted) >= accepted + FLOOR, 90)
        eventually(lambda: self.crew.counts()["completed"] >= completed + FLOOR, 120)
        self.ends.look(self.crew, self.producer.accepted)
        print(f"           settled after {settled:.1f} s, everybody served after {self.now() - begin:.1f} s", flush=True)

    # What scenarios ask.

    def follower(self):
        leader = self.crew.leader()
        return self.rng.choice([member for member in self.crew.running if member is not leader])

    def completed(self):
        return self.crew.counts()["completed"]

    def owned(self, member):
        """How many jobs a server owns, once it owns some."""
        return eventually(lambda: self.crew.node(member.name)["ownedJobs"], 120)

    def owns_nothing(self, node_id):
        return not any(node["slices"] for node in self.crew.view()["nodes"] if node["nodeId"] == node_id)

    def owned_by_others(self, gone):
        """Whether a node leads that is none of these, and all slices belong to such nodes."""
        nodes = [node for node in self.crew.view()["nodes"] if node["nodeId"] not in gone]
        return any(node["isLeader"] for node in nodes) and sum(node["slices"] for node in nodes) == 64

    def events(self, kind, **fields):
        """What the servers have written down of one kind, newest last."""
        found, after = [], ""
        while page := self.crew.any().json(f"/events{after}")["events"]:
            found += page
            after = f"?after={page[-1]['id']}"
        found = [event for event in found if event["type"] == kind]
        return [event for event in found if all(event.get(name) == value for name, value in fields.items())]


def quietly(look):
    """What a look tells; nothing while the server that is asked cannot tell."""
    try:
        return look()
    except (OSError, AssertionError, StopIteration):
        return None


@contextlib.contextmanager
def under_load(directory, rng, servers=3, times=None, links=True, clock=None, program=None, running=0, watched=True):
    """A settled crew with work under way. At the end everything that was accepted must have come to a good end."""
    crew = Crew(directory, servers, times, links, clock)
    for member in crew.members:
        member.program = program
    with crew:
        body = {"kind": "interval", "everyMs": 1000, "misfire": "all", "job": {"jobType": "t", "queue": "fires"}}
        assert crew.any().call("PUT", "/api/v1/schedules/beat", body).status in (200, 201)
        if watched:
            crew.any().configure(STATUS)
        crew.settled(180)
        if watched:
            told_of_all(crew)
        run_long(crew, running)
        for _ in range(2):
            Worker(crew)
        producer, watcher = Producer(crew), Watcher(crew)
        drill = Drill(crew, rng, producer, watcher)
        producer.start()
        watcher.start()
        eventually(lambda: len(producer.accepted) > 20 and crew.counts()["completed"] > 5, 120)
        try:
            yield drill
        finally:
            producer.stopping = watcher.stopping = True
        producer.finish()
        watcher.finish()
        seen = check(crew, producer, drill.ends)
        late = check_fires(crew, "beat")
        told = check_statuses(crew.any(), STATUS, producer.accepted) if watched else 0
        if running:
            check_long(crew, running)
        for member in crew.members:
            assert "panicked" not in member.text(), member.text()
        drill.notes.append(
            f"{len(drill.rows)} faults in {drill.now():.0f} s; {seen['jobs']} jobs accepted, each ended once and began once "
            f"(and again where it was to fail); {producer.held} found their unique key taken; {producer.refused} calls "
            f"refused meanwhile {producer.codes}; {seen['unheard']} leases nobody heard of; {told} statuses told in order; "
            f"{len(watcher.terms)} terms, {len(watcher.owners)} owners seen; the latest fire was {late:.1f} s late"
        )
        print(drill.notes[-1], flush=True)


def told_of_all(crew):
    """Waits until what happens to a job is told whichever server does it and whoever owns the job: by then everybody has noticed
    that somebody watches."""
    job, told = {"jobType": "t", "queue": "canary", "args": {}, "delayMs": 86_400_000}, set()

    def look():
        answers = [member.post("/api/v1/jobs:batch", {"jobs": [job] * SLICES}) for member in crew.members]
        made = {item["jobId"] for answer in answers for item in answer.json["items"]}

        def is_heard():
            told.update(partition for partition, _ in consume(crew.any(), STATUS, "canary"))
            return made <= told

        with contextlib.suppress(AssertionError):
            return eventually(is_heard, 3)

    eventually(look, 60)
    assert crew.any().post("/api/v1/jobs:bulk", {"action": "cancel", "filter": {"queue": "canary"}}).status == 200


def check_long(crew, count):
    """Whether so many long jobs run, each still for the first time."""
    counts = crew.counts("long")
    begun = [words[0] for worker in crew.workers if worker.queue == "long" for words in worker.lines("begin")]
    assert counts["running"] == count and len(begun) == len(set(begun)) == count, (counts, len(begun))


def run_long(crew, count):
    """Jobs that run for as long as all of this takes."""
    for first in range(0, count, 500):
        job = {"jobType": "t", "queue": "long", "args": {"seconds": 100_000}, "timeoutMs": 0}
        assert crew.any().post("/api/v1/jobs:batch", {"jobs": [job] * min(500, count - first)}).status == 201
    while count and crew.counts("long")["dispatched"]:
        Worker(crew, "long", at_once=1000)
        before = crew.counts("long")["running"]
        eventually(lambda before=before: crew.counts("long")["running"] > before, 120)
