"""Several servers on one PostgreSQL that share its jobs, and the links between them that a test can cut.

Always: a worker's lease is longer than any fault lasts, so that whatever runs twice ran twice because a server was lost,
which must not be. Not here: who uses them (`job_load`), what must hold afterwards (`job_history`). Start at `Crew`.
"""

import itertools
import os
import signal
import tempfile
import time
from pathlib import Path

from baton import Server, eventually
from links import Gate, Wire
from ports import free_port
from postgres import Postgres

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
# Those of a server that was told nothing.
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
    "job-lease-ms": 30000,
    "job-heartbeat-ms": 10000,
}
# How long a server may be too busy to tell something.
BUSY_SECONDS = 10
OPEN = ("scheduled", "pending", "dispatched", "running", "cancelling")
SLICES = 64
FAKETIME = next(iter(sorted(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"))), None)


class FalseClock:
    """A wall clock that a test sets, for a process that is started with its environment; needs libfaketime."""

    def __init__(self):
        # Whoever runs PostgreSQL must be able to read it.
        self.directory = tempfile.TemporaryDirectory()
        os.chmod(self.directory.name, 0o755)
        self.file = Path(self.directory.name) / "clock"
        self.set("+0")

    def set(self, offset):
        """`+600`, `-3600`, or a moment at which the clock stands still; seen within a second."""
        self.file.write_text(offset)

    @property
    def environment(self):
        return {
            "LD_PRELOAD": str(FAKETIME),
            "FAKETIME_TIMESTAMP_FILE": str(self.file),
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            "FAKETIME_CACHE_DURATION": "1",
        }


class Member(Server):
    """One server of a crew; it reaches the database and the others over links."""

    def __init__(self, crew, name, times):
        self.name = name
        flags = [part for key, value in times.items() for part in (f"--{key}", str(value))]
        self.link = Gate(crew.database.port) if crew.is_linked else None
        url = crew.database.url_over(self.link.port) if self.link else crew.database.url
        super().__init__(crew.directory / name, "--node-id", name, "--store", url, "--store-schema", "crew", *flags)
        self.data.mkdir(parents=True, exist_ok=True)
        self.is_stopped = False
        # Whether it is not to be asked for what the store says.
        self.is_cut = False
        self.gossip = free_port()

    def freeze(self):
        os.kill(self.process.pid, signal.SIGSTOP)
        self.is_stopped = True

    def thaw(self):
        os.kill(self.process.pid, signal.SIGCONT)
        self.is_stopped = False

    def kill(self):
        self.is_stopped = False
        return super().kill()

    def json(self, path):
        """What a look at something tells. Who is told to come again, as when a connection has just broken, does, and at least
        once: the first answer may have taken long because the whole machine stood still."""
        deadline = time.monotonic() + BUSY_SECONDS
        for tries in itertools.count():
            answer = self.get(f"/api/v1{path}")
            if answer.status != 503 or (tries and time.monotonic() > deadline):
                break
            time.sleep(0.1)
        assert answer.status == 200, answer
        return answer.json


class Crew:
    """Servers and the workers that they serve; all of them end with it."""

    def __init__(self, directory, count=3, times=None, links=False, clock=None):
        self.directory = Path(directory)
        self.database = Postgres(environment=clock.environment if clock else None)
        self.times = TIMES | (times or {})
        self.is_linked = links
        self.members = [Member(self, f"node-{number}", self.times) for number in range(count)]
        self.wires = {}
        for member in self.members if links else ():
            others = [other for other in self.members if other is not member]
            self.wires |= {(member.name, other.name): Wire(other.gossip) for other in others}
            peers = ",".join(f"127.0.0.1:{self.wires[member.name, other.name].port}" for other in others)
            told = ("--gossip-listen", f"127.0.0.1:{member.gossip}", "--peers", peers, "--gossip-dead-after-ms", "2000")
            member.args += (*told, "--gossip-heartbeat-ms", "300")
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
            worker.close()
        for member in self.members:
            if member.process is not None and member.running():
                member.kill()
        links = [member.link for member in self.members if member.link]
        for link in [*links, *self.wires.values()]:
            link.close()
        self.database.close()

    @property
    def running(self):
        return [member for member in self.members if member.process and member.running() and not member.is_stopped]

    def any(self):
        """A server that answers."""
        return next(member for member in self.running if not member.is_cut)

    def cut_gossip(self, name, cut):
        """Has a server not be heard by the others, nor hear them; both know the store."""
        for pair, wire in self.wires.items():
            if name in pair:
                wire.cut = cut

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
            fair = all(node["slices"] >= SLICES // (3 * len(alive)) for node in alive)
            whole = sum(node["slices"] for node in alive) == SLICES and not view["orphanedSlices"]
            still = not any(node["offered"] for node in alive)
            return shared and fair and whole and still and view

        return eventually(look, seconds, every=0.1)

    def counts(self, queue="q"):
        return self.any().json(f"/job-queues/{queue}")["counts"]

    def done(self, queue="q", seconds=300):
        """Waits until no job of the queue is open; the counts."""

        def look():
            counts = self.counts(queue)
            return not any(counts[state] for state in OPEN) and counts

        return eventually(look, seconds, every=0.2)
