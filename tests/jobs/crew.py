"""Several servers on one PostgreSQL that share its jobs, the workers and producers that use them, and what must hold.

Always: a worker's lease is longer than any fault lasts, so that whatever runs twice ran twice because a server was lost,
which must not be. Start at `Crew`, then `check`.
"""

import itertools
import subprocess
import sys
import threading
import time
from pathlib import Path

from baton import Server, eventually
from postgres import Postgres, free_port

WORKER = Path(__file__).resolve().parent.parent / "crash" / "job_worker.py"

# Short, and far enough apart that a busy machine does not mix them up.
TIMES = {
    "job-leader-lease-ms": 6000,
    "job-leader-renew-ms": 1000,
    "job-leader-margin-ms": 1500,
    "job-node-heartbeat-ms": 1000,
    "job-node-dead-after-ms": 6000,
    "job-handoff-ack-timeout-ms": 3000,
    "job-handoff-tail-ms": 4000,
    "job-handoff-ceiling-ms": 25000,
    "job-orphan-check-ms": 1000,
    "job-rebalance-cooldown-ms": 1000,
    "job-lease-ms": 60000,
    "job-heartbeat-ms": 1000,
}
OPEN = ("scheduled", "pending", "dispatched", "running", "cancelling")


class Member(Server):
    """One server of a crew; it keeps its port over starts."""

    def __init__(self, crew, name, times):
        self.name = name
        flags = [part for key, value in times.items() for part in (f"--{key}", str(value))]
        store = ["--store", crew.database.url, "--store-schema", "crew"]
        listen = f"127.0.0.1:{free_port()}"
        super().__init__(crew.directory / name, "--node-id", name, *store, *flags, listen=listen)
        self.data.mkdir(parents=True, exist_ok=True)
        self.port = int(listen.rsplit(":", 1)[1])
        self.is_stopped = False

    def json(self, path):
        answer = self.get(f"/api/v1{path}")
        assert answer.status == 200, answer
        return answer.json


class Crew:
    """Servers, workers and a producer; all of them end with it."""

    def __init__(self, directory, count=3, times=None):
        self.directory = Path(directory)
        self.database = Postgres()
        self.times = TIMES | (times or {})
        self.members = [Member(self, f"node-{number}", self.times) for number in range(count)]
        self.workers = []
        self.numbers = itertools.count()

    def __enter__(self):
        try:
            for member in self.members:
                member.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for worker in self.workers:
            if worker.process.poll() is None:
                worker.process.kill()
            worker.process.wait(30)
        for member in self.members:
            if member.process is not None and member.running():
                member.kill()
        self.database.close()

    @property
    def running(self):
        return [member for member in self.members if member.process and member.running() and not member.is_stopped]

    def any(self):
        """A server that answers."""
        return self.running[0]

    def work(self, queue="q", at_once=1):
        self.workers.append(Worker(self, queue, at_once))
        return self.workers[-1]

    def view(self):
        return self.any().json("/nodes")

    def term(self):
        """The number of the leader's term; 0 while nobody leads."""
        leader = self.view()["leader"]
        return leader["term"] if leader else 0

    def node(self, name):
        """What the store says of the living node of this name."""
        found = [node for node in self.view()["nodes"] if node["name"] == name and node["state"] != "dead"]
        return found[-1] if found else None

    def leader(self, seconds=60):
        """The member that leads, once one does."""

        def look():
            view = self.view()
            leading = [node["name"] for node in view["nodes"] if node["isLeader"] and node["state"] != "dead"]
            return [member for member in self.running if member.name in leading]

        return eventually(look, seconds, every=0.1)[0]

    def settled(self, seconds=90):
        """Waits until every slice has a living owner, and every running server its share."""

        def look():
            view = self.view()
            alive = [node for node in view["nodes"] if node["state"] == "active"]
            names = {node["name"] for node in alive}
            shared = len(alive) == len(self.running) and names == {member.name for member in self.running}
            fair = all(node["slices"] >= 64 // (3 * len(alive)) for node in alive)
            whole = sum(node["slices"] for node in alive) == 64 and not view["orphanedSlices"]
            still = not any(node["offered"] for node in alive)
            return shared and fair and whole and still and view

        return eventually(look, seconds, every=0.1)

    def owned(self):
        return {node["name"]: node["ownedJobs"] for node in self.view()["nodes"] if node["state"] == "active"}

    def counts(self, queue="q"):
        return self.any().json(f"/job-queues/{queue}")["counts"]

    def done(self, queue="q", seconds=180):
        """Waits until no job of the queue is open; the counts."""

        def look():
            counts = self.counts(queue)
            return not any(counts[state] for state in OPEN) and counts

        return eventually(look, seconds, every=0.2)


class Worker:
    """One worker process that knows all servers, and its diary."""

    def __init__(self, crew, queue, at_once):
        self.diary = crew.directory / f"worker-{next(crew.numbers)}"
        self.diary.touch()
        # Each begins with another server.
        ports = [str(member.port) for member in crew.members]
        first = len(crew.workers) % len(ports)
        ports = ",".join(ports[first:] + ports[:first])
        self.process = subprocess.Popen([sys.executable, str(WORKER), ports, queue, str(self.diary), str(at_once)])

    def lines(self, word):
        found = [line.split() for line in self.diary.read_text().splitlines()]
        return [line[1:] for line in found if line and line[0] == word]


class Producer(threading.Thread):
    """Enqueues batches under idempotency keys, each again until a server has answered."""

    def __init__(self, crew, queue="q", seconds=0.3, batch=5, pause=0.05):
        super().__init__(daemon=True)
        self.crew, self.queue, self.seconds, self.batch, self.pause = crew, queue, seconds, batch, pause
        self.accepted, self.moments, self.refused, self.stopping = [], [], 0, False

    def run(self):
        for number in itertools.count():
            if self.stopping:
                return
            job = {"jobType": "t", "queue": self.queue, "args": {"seconds": self.seconds}}
            path = f"/api/v1/jobs:batch?idempotencyKey={self.queue}-{number}"
            for attempt in itertools.count():
                member = self.crew.members[(number + attempt) % len(self.crew.members)]
                try:
                    answer = member.post(path, {"jobs": [job] * self.batch})
                    if answer.status == 201:
                        break
                except OSError:
                    pass
                self.refused += 1
                time.sleep(0.05)
            self.accepted += [item["jobId"] for item in answer.json["items"]]
            self.moments.append((time.monotonic(), self.batch))
            time.sleep(self.pause)

    def finish(self):
        self.stopping = True
        self.join(120)
        assert not self.is_alive(), "a producer could not be served"


class Watcher(threading.Thread):
    """Looks at leader and owners all the time; terms and epochs that go back are wrong."""

    def __init__(self, crew):
        super().__init__(daemon=True)
        self.crew, self.stopping = crew, False
        self.wrong, self.terms, self.epochs, self.looks = [], [], {}, 0

    def run(self):
        while not self.stopping:
            for member in list(self.crew.running):
                try:
                    view = member.json("/nodes")
                except (OSError, AssertionError):
                    continue
                self.looks += 1
                if view["leader"]:
                    self.see(view["leader"])
            time.sleep(0.1)

    def see(self, leader):
        now = time.monotonic()
        last = self.terms[-1] if self.terms else None
        if last and leader["term"] == last[1] and leader["nodeId"] != last[2]:
            self.wrong.append(f"term {leader['term']} has two leaders: {last[2]} and {leader['nodeId']}")
        if not last or leader["term"] > last[1]:
            self.terms.append((now, leader["term"], leader["nodeId"]))

    def finish(self):
        self.stopping = True
        self.join(60)
        assert not self.wrong, self.wrong


def check(crew, accepted, queue="q"):
    """I1, I2, I3, I7, I13 and I14 over a history: every job that was accepted ended once, and ran once."""
    assert len(set(accepted)) == len(accepted), "a batch was accepted twice"
    found = crew.done(queue)
    assert found["completed"] == sum(found.values()), found
    told = {}
    for worker in crew.workers:
        assert not worker.lines("lost"), "a worker lost a job though it was heard"
        for job_id, fence, _ in worker.lines("ok"):
            assert told.setdefault(job_id, fence) == fence, f"{job_id} was accepted under two fences"
    member = crew.any()
    for job_id in accepted:
        job = member.json(f"/jobs/{job_id}")
        assert job["state"] == "completed", job
        assert job["executions"] == 1, f"losing a server ran a job again: {job}"
    for job_id, fence in itertools.islice(told.items(), 200):
        assert member.json(f"/jobs/{job_id}/result") == f"{job_id}.{fence}"
    # Every node serves, and what they say is the same.
    for member in crew.running:
        assert member.json(f"/job-queues/{queue}")["counts"] == found


def check_fires(crew, schedule, cadence=1.0):
    """I6: no nominal time has two jobs, and none between the first and the last is missing."""
    jobs, cursor = [], ""
    while True:
        page = crew.any().json(f"/jobs?scheduleId={schedule}&limit=500{cursor}")
        jobs += [job["scheduledFor"] for job in page["jobs"]]
        if not page["nextCursor"]:
            break
        cursor = f"&cursor={page['nextCursor']}"
    assert len(set(jobs)) == len(jobs), "a nominal time was fired for twice"
    from datetime import datetime

    moments = sorted(datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp() for text in jobs)
    gaps = [later - earlier for earlier, later in itertools.pairwise(moments)]
    assert all(abs(gap - cadence) < 0.01 for gap in gaps), "a nominal time was lost"
    return moments
