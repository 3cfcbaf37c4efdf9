"""Producers and consumers that keep going while the server under them is killed, and write down what they saw.

Each is a thread with one keep-alive connection. A call whose answer is cut off is not guessed at: a producer sends
the same ids again until it is answered, a consumer sends the same ack again, and what was never answered stays
unanswered in the history. Start at `Load`.
"""

import http.client
import random
import threading
import time
import zlib

from baton import Connection, ack_of, eventually, pop_path
from history import Ack, Delivery, History, Push

QUEUE = "crash"
DEFAULT_GROUP = "__QUEUE_MODE__"
GROUPS = (DEFAULT_GROUP, "billing")
PARTITIONS = tuple(f"partition-{i}" for i in range(6))
LEASE_SECONDS = 1
CUT_OFF = (OSError, http.client.HTTPException)


def all_arrive(server):
    """Waits until nothing waits on the server's own disk for the database."""

    def pending():
        answer = server.get("/api/v1/status/buffers")
        return answer.json["pending"] if answer.status == 200 and answer.json["dbHealthy"] else answer

    eventually(lambda: pending() == 0, 120)


class Load:
    """A running load; `history` may be read once `stop` has returned."""

    def __init__(self, seed, producers=3, consumers=2):
        self.history = History(groups=GROUPS)
        self.seed = seed
        self.stopping = threading.Event()
        self.port = None
        self.up = threading.Event()
        self.cut_off = 0
        self.buffered = 0
        self.failures = []
        workers = [(self._produce, (i,)) for i in range(producers)]
        workers += [(self._consume, (group, i)) for group in GROUPS for i in range(consumers)]
        self.threads = [
            threading.Thread(target=self._guard, args=(work, args), daemon=True) for work, args in workers
        ]

    def start(self, server):
        self.server_is_up(server)
        for thread in self.threads:
            thread.start()
        return self

    def server_is_up(self, server):
        self.port = server.port
        self.up.set()

    def server_is_down(self):
        self.up.clear()

    def stop(self, forgotten=False):
        """Lets every worker finish the call it is in; the server must be up. If it has `forgotten` messages, it may refuse
        to ack them."""
        self.stopping.set()
        for thread in self.threads:
            thread.join(30)
            assert not thread.is_alive(), "a worker did not stop"
        failures = [failure for failure in self.failures if not (forgotten and "Message not found" in failure)]
        assert not failures, failures

    def abandon(self):
        """Stops the workers when there is no server any more."""
        self.stopping.set()
        self.up.set()

    def drain(self, server):
        """Reads and acks, for every group, until nothing has come for longer than a lease lasts."""
        if self.buffered:
            all_arrive(server)
        for group in GROUPS:
            worker = Worker(self, random.Random(0))
            while worker.pop_and_ack(group, batch=1000, wait_ms=LEASE_SECONDS * 2500, careful=True):
                pass
        assert server.running()

    def accepted(self):
        return sum(len(push.ids) for push in self.history.pushes if push.end is not None)

    def _guard(self, work, args):
        try:
            work(*args)
        except BaseException as failure:  # reported by `stop`
            self.failures.append(repr(failure))

    def _produce(self, number):
        rng = random.Random(f"{self.seed} producer {number}")
        worker = Worker(self, rng)
        count = 0
        while not self.stopping.is_set():
            size = rng.choice([1, 1, 2, 5, 20])
            ids = tuple(f"{number}-{count + i}" for i in range(size))
            count += size
            worker.push(rng.choice(PARTITIONS), ids)

    def _consume(self, group, number):
        rng = random.Random(f"{self.seed} {group} {number}")
        worker = Worker(self, rng)
        while not self.stopping.is_set():
            worker.pop_and_ack(group, batch=rng.choice([1, 10, 100]), wait_ms=200)


class Worker:
    """One connection, made again whenever it was cut off."""

    def __init__(self, load, rng):
        self.load = load
        self.rng = rng
        self.connection = None
        self.connected_to = None

    def call(self, *args):
        """One call; None when its answer was cut off."""
        port = self.load.port
        if self.connection is None or self.connected_to != port:
            self.connection = Connection(port)
            self.connected_to = port
        try:
            return self.connection.call(*args)
        except CUT_OFF:
            self.connection.close()
            self.connection = None
            self.load.cut_off += 1
            self.load.up.wait(10)
            return None

    def push(self, partition, ids):
        """Pushes under the same ids until the server says that it has them."""
        items = [
            {"queue": QUEUE, "partition": partition, "transactionId": id, "payload": payload(id)} for id in ids
        ]
        start = time.monotonic()
        end = None
        while end is None:
            answer = self.call("POST", "/api/v1/push", {"items": items})
            if answer is not None and answer.status == 201:
                results = answer.json
                assert [result["transaction_id"] for result in results] == list(ids), results
                statuses = {result["status"] for result in results}
                assert statuses <= {"queued", "duplicate", "buffered"}, results
                self.load.buffered += len(ids) if "buffered" in statuses else 0
                end = time.monotonic()
            elif answer is not None:
                assert answer.status == 503, answer
            elif self.load.stopping.is_set():
                break
        self.load.history.pushes.append(Push(partition, ids, start, end))

    def pop_and_ack(self, group, batch, wait_ms, careful=False):
        """One pop and the acks of what it brought; returns how many messages that were."""
        params = {"batch": batch, "wait": True, "timeout": wait_ms, "partitions": self.rng.choice([1, 3])}
        if group != DEFAULT_GROUP:
            params["consumerGroup"] = group
        start = time.monotonic()
        answer = self.call("GET", pop_path(QUEUE, **params))
        end = time.monotonic()
        if answer is None or answer.status == 503:
            return 0
        assert answer.status in (200, 204), answer
        messages = answer.json["messages"] if answer.status == 200 else []
        self.load.history.deliveries.extend(
            Delivery(
                group,
                message["partition"],
                message["transactionId"],
                message["offset"],
                message["data"] == payload(message["transactionId"]),
                start,
                end,
            )
            for message in messages
        )
        how = "batch" if careful else self.rng.choice(["batch", "batch", "batch", "one by one", "walk away"])
        if how == "batch" and messages:
            self.ack(group, messages)
        elif how == "one by one":
            for message in messages[:10]:
                self.ack(group, [message])
        return len(messages)

    def ack(self, group, messages):
        """Acks as completed, again and again until answered."""
        acks = [{**ack_of(message), "status": "completed"} for message in messages]
        body = {"acknowledgments": acks}
        if group != DEFAULT_GROUP:
            body["consumerGroup"] = group
        answer = None
        for _ in range(10):
            start = time.monotonic()
            answer = self.call("POST", "/api/v1/ack/batch", body)
            if answer is not None and answer.status == 200:
                break
            self.load.history.acks.extend(Ack(group, m["transactionId"], start, None) for m in messages)
        else:
            return
        end = time.monotonic()
        for message, result in zip(messages, answer.json, strict=True):
            if result["success"]:
                self.load.history.acks.append(Ack(group, message["transactionId"], start, end))
            else:
                assert result["error"] == "Invalid or expired lease", result


def payload(id):
    """What is pushed under an id: large enough to notice a torn write, different for each id."""
    return {"id": id, "text": f"{zlib.crc32(id.encode()):08x}" * (1 + zlib.crc32(id.encode()) % 40)}
