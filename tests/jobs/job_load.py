"""Who uses a crew: workers as processes, a producer, and a watcher that looks at leaders and owners all the time.

What they see and do is what `job_history` judges. Always: a producer gives a batch up only when a server has answered it, under
a key that makes it one batch however often it was sent. Start at `Producer`.
"""

import itertools
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import NamedTuple

from crew import SLICES

WORKER = Path(__file__).resolve().parent.parent / "crash" / "job_worker.py"

# At most so many jobs of a key run at a time.
KEY_LIMIT = 2
RETRY = {"maxRetries": 2, "initialDelayMs": 200, "multiplier": 1, "maxDelayMs": 200, "jitter": 0}


class Worker:
    """One worker process that knows all servers, and its diary."""

    def __init__(self, crew, queue="q", at_once=50):
        self.queue, self.diary = queue, crew.directory / f"worker-{next(crew.numbers)}"
        self.diary.touch()
        # Each begins with another server.
        ports = [str(member.port) for member in crew.members]
        first = len(crew.workers) % len(ports)
        ports = ",".join(ports[first:] + ports[:first])
        self.process = subprocess.Popen([sys.executable, str(WORKER), ports, queue, str(self.diary), str(at_once)])
        crew.workers.append(self)

    def lines(self, word):
        found = [line.split() for line in self.diary.read_text().splitlines()]
        return [line[1:] for line in found if line and line[0] == word]

    def close(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(30)


class Producer(threading.Thread):
    """Enqueues batches, each again until a server has answered.

    A batch has five kinds of jobs: a plain one, one of a limited key, one that fails at first, one that writes a log, and
    one with a unique key, which is there already if its last holder has not ended.
    """

    def __init__(self, crew, queue="q", seconds=0.3, pause=0.2):
        super().__init__(daemon=True)
        self.crew, self.queue, self.seconds, self.pause = crew, queue, seconds, pause
        self.accepted, self.moments, self.stopping = [], [], False
        self.refused, self.held, self.codes = 0, 0, {}
        self.expected = {}

    def batch(self, number):
        plain = {"jobType": "t", "queue": self.queue, "args": {"seconds": self.seconds}, "retry": RETRY}
        args = plain["args"]
        return [
            plain,
            plain | {"concurrencyKey": f"key-{number % 3}", "concurrencyLimit": KEY_LIMIT},
            plain | {"args": args | {"fails": 1}},
            plain | {"args": args | {"lines": 6}},
            plain | {"args": args | {"seconds": 1}, "uniqueKey": f"unique-{number % 3}", "onConflict": "return"},
        ]

    def send(self, key, jobs, members, pause=0.05):
        """Sends a batch to one member after the other, until one has taken it; what each became."""
        for member in members:
            try:
                # Somebody who has other servers does not wait long for one.
                answer = member.post(f"/api/v1/jobs:batch?idempotencyKey={key}", {"jobs": jobs}, timeout=5)
                if answer.status == 201:
                    return answer.json["items"]
                self.codes[answer.status] = self.codes.get(answer.status, 0) + 1
                assert answer.status < 500 or answer.status == 503, answer
                assert answer.status != 503 or "retry-after" in answer.headers, answer
            except OSError:
                pass
            if self.stopping and pause is None:
                return None
            self.refused += 1
            time.sleep(pause or 0)
        return None

    def note(self, jobs, items):
        """Writes down what was accepted."""
        new = [(job, item["jobId"]) for job, item in zip(jobs, items, strict=True) if not item["deduplicated"]]
        self.held += len(items) - len(new)
        self.expected |= {job_id: job for job, job_id in new}
        self.accepted += [job_id for _, job_id in new]
        # A job whose unique key is taken is answered for too: how many are says more of the workers than of the servers.
        self.moments.append((time.monotonic(), len(items)))

    def run(self):
        members = self.crew.members
        for number in itertools.count():
            if self.stopping:
                return
            jobs = self.batch(number)
            order = (members[(number + attempt) % len(members)] for attempt in itertools.count())
            self.note(jobs, self.send(f"{self.queue}-{number}", jobs, order))
            time.sleep(self.pause)

    def rate(self, seconds):
        """Jobs answered for a second, lately."""
        since = time.monotonic() - seconds
        return sum(count for moment, count in list(self.moments) if moment > since) / seconds

    def finish(self):
        self.stopping = True
        self.join(120)
        assert not self.is_alive(), "a producer could not be served"


class Told(NamedTuple):
    """How a call was answered, and when."""

    at: float
    took: float
    code: str
    job: str | None


class Caller(threading.Thread):
    """Somebody who enqueues one job with one server under one key, waits for every answer, and comes again as told."""

    def __init__(self, drill, member, number):
        super().__init__(daemon=True)
        self.drill, self.member, self.key = drill, member, f"caller-{member.name}-{number}-{drill.started}"
        self.stopping, self.answers, self.wrong, self.pause = False, [], [], 0.0

    def send(self):
        """Sends it once; the job, if there is one."""
        job, begin = {"jobType": "t", "queue": "q", "args": {"seconds": 0}, "tags": [self.key]}, self.drill.now()
        answer = self.member.post(f"/api/v1/jobs?idempotencyKey={self.key}", job, timeout=300)
        self.pause = float(answer.headers.get("retry-after", 0))
        if answer.status not in (200, 201) and not (answer.status == 503 and self.pause):
            self.wrong.append(answer)
        told, at = answer.json, self.drill.now()
        self.answers.append(Told(at, at - begin, told.get("code", "accepted"), told.get("jobId")))
        return told.get("jobId")

    def run(self):
        while not self.stopping:
            try:
                if self.send():
                    return
            except OSError as error:
                self.wrong.append(error)
            time.sleep(self.pause)

    def finish(self):
        self.stopping = True
        self.join(300)
        assert not self.is_alive() and not self.wrong and self.answers, (self.wrong, self.answers)


class Watcher(threading.Thread):
    """Looks at leader and owners all the time. Terms and epochs that go back, or have two holders, are wrong (I3, I5)."""

    def __init__(self, crew):
        super().__init__(daemon=True)
        self.crew, self.stopping = crew, False
        self.wrong, self.terms, self.looks = [], [], 0
        # By slice and epoch the owner; by server, its start and slice the last epoch it told of.
        self.owners, self.told = {}, {}
        self.probes = probes(crew)

    def run(self):
        for turn in itertools.count():
            if self.stopping:
                return
            for member in list(self.crew.running):
                try:
                    self.look(member, turn)
                except (OSError, AssertionError, ValueError):
                    continue
            time.sleep(0.1)

    def look(self, member, turn):
        start = member.process.pid
        view = member.json("/nodes")
        self.looks += 1
        if view["leader"]:
            self.see(view["leader"])
        slice_ = turn % SLICES
        owner = member.json(f"/jobs/{self.probes[slice_]}")["owner"]
        if owner:
            self.see_owner(member.name, start, slice_, owner)

    def see(self, leader):
        now, term = time.monotonic(), leader["term"]
        known = {number: node for _, number, node in self.terms}
        if known.get(term, leader["nodeId"]) != leader["nodeId"]:
            self.wrong.append(f"term {term} has two leaders: {known[term]} and {leader['nodeId']}")
        if not known or term > max(known):
            self.terms.append((now, term, leader["nodeId"]))

    def see_owner(self, name, start, slice_, owner):
        epoch, node = owner["epoch"], owner["nodeId"]
        known = self.owners.setdefault((slice_, epoch), node)
        if known != node:
            self.wrong.append(f"slice {slice_} has two owners in epoch {epoch}: {known} and {node}")
        last = self.told.get((name, start, slice_), 0)
        if epoch < last:
            self.wrong.append(f"{name} says that the epoch of slice {slice_} fell from {last} to {epoch}")
        self.told[name, start, slice_] = epoch

    def finish(self):
        self.stopping = True
        self.join(60)
        assert not self.wrong, self.wrong
        assert self.looks and self.terms and self.owners, "the watcher saw nothing"


def probes(crew):
    """A job of each slice, in order, that waits for a day: it shows who owns the slice."""
    job = {"jobType": "t", "queue": "probe", "args": {}, "delayMs": 86_400_000}
    answer = crew.any().post("/api/v1/jobs:batch?idempotencyKey=probes", {"jobs": [job] * SLICES})
    assert answer.status == 201, answer
    return [item["jobId"] for item in answer.json["items"]]


def epochs(crew, jobs):
    """Owner and epoch of every slice, as one server sees them in the end."""
    member = crew.any()
    owners = [member.json(f"/jobs/{job}")["owner"] for job in jobs]
    return [(owner["nodeId"], owner["epoch"]) for owner in owners]
