"""A server is killed, stopped or cut off under load: nothing is lost, nothing comes again after its ack, requests to
the others go on, and the cluster recovers."""

import threading
import time

import pytest

from baton import Connection, eventually, pop_path

PARTITIONS = 8
LOAD_SECONDS = 1.2
# A request to a server that is well may have to wait until another one is known not to be.
REQUEST_SECONDS_MAX = 15
LEASE_SECONDS = 4


class Load:
    """Pushes and pops through all servers until it is stopped, and remembers what was answered."""

    def __init__(self, nodes, queue):
        self.nodes, self.queue = nodes, queue
        self.stopping = threading.Event()
        self.lock = threading.Lock()
        self.accepted, self.acked, self.again, self.slowest = set(), set(), [], 0.0
        # Acks that a failing server did not answer: they may have happened or not.
        self.unanswered = set()
        self.usable = {name: True for name in nodes.nodes}
        self.threads = [threading.Thread(target=self._produce, args=(name,), daemon=True) for name in nodes.nodes]
        # Nobody waits on c, so what is pushed there is passed on.
        self.threads += [threading.Thread(target=self._consume, args=(name,), daemon=True) for name in "abab"]
        for thread in self.threads:
            thread.start()

    def _call(self, name, method, path, body=None):
        """An answer through a server, or None if there was none. Of those that are well the slowest is noted."""
        well, began = self.usable[name], time.monotonic()
        try:
            with Connection(self.nodes[name].port, timeout=REQUEST_SECONDS_MAX) as connection:
                answer = connection.call(method, path, body) if body is not None else connection.call(method, path)
        except (OSError, ValueError) as error:
            if well and self.usable[name] and name != "b":
                raise AssertionError(f"{name} did not answer: {error!r}") from error
            return None
        except Exception:  # a connection that breaks off in the middle of an answer
            return None
        if name != "b":
            with self.lock:
                self.slowest = max(self.slowest, time.monotonic() - began)
        return answer

    def _produce(self, name):
        number = 0
        while not self.stopping.is_set():
            number += 1
            key = f"{name}-{number}"
            item = {"queue": self.queue, "partition": f"{number % PARTITIONS}", "payload": key, "transactionId": key}
            while not self.stopping.is_set():
                answer = self._call(name, "POST", "/api/v1/push", {"items": [item]})
                if answer is not None and answer.status == 201:
                    with self.lock:
                        self.accepted.add(key)
                    break
                time.sleep(0.05)
            time.sleep(0.01)

    def _consume(self, name):
        path = pop_path(self.queue, wait=True, timeout=300, batch=10)
        while not self.stopping.is_set():
            self._take(name, path)

    def _take(self, name, path):
        """Pops and acks once; how many messages that were."""
        # Only what was acked before the pop began must not come: a server that is stopped with a pop's answer in its
        # hands gives it when it goes on, and the lease may have ended and another consumer have acked by then.
        with self.lock:
            acked = set(self.acked)
        answer = self._call(name, "GET", path)
        if answer is None or answer.status != 200:
            if answer is None:
                time.sleep(0.05)
            return 0
        messages = answer.json["messages"]
        with self.lock:
            self.again += [message["data"] for message in messages if message["data"] in acked]
        acks = [{key: m[key] for key in ("transactionId", "partitionId", "leaseId")} for m in messages]
        done = self._call(name, "POST", "/api/v1/ack/batch", {"acknowledgments": acks})
        with self.lock:
            if done is not None and done.status == 200:
                self.acked |= {m["data"] for m, one in zip(messages, done.json) if one["success"]}
            else:
                self.unanswered |= {m["data"] for m in messages}
        return len(messages)

    def stop(self):
        self.stopping.set()
        for thread in self.threads:
            thread.join(REQUEST_SECONDS_MAX + 5)

    def drain(self, name):
        """Takes what is left, also what an outage left under a lease."""
        path = pop_path(self.queue, wait=True, timeout=500, batch=100)
        eventually(lambda: self._take(name, path) == 0 and not self.missing(), seconds=60, every=0)

    def missing(self):
        return self.accepted - self.acked - self.unanswered


def kill(nodes):
    nodes["b"].kill()


def restart(nodes):
    nodes["b"].start()


FAULTS = {
    "kill": (kill, restart),
    "stop": (lambda nodes: nodes["b"].pause(), lambda nodes: nodes["b"].resume()),
    "cut": (lambda nodes: nodes.cut("b"), lambda nodes: nodes.heal("b")),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_server_that_fails_under_load_costs_nothing_but_a_moment(cluster, queue, fault):
    nodes = cluster()
    a = nodes["a"]
    a.configure(queue, leaseTime=LEASE_SECONDS, retryLimit=1000)
    load = Load(nodes, queue)
    time.sleep(LOAD_SECONDS)
    fail, repair = FAULTS[fault]
    load.usable["b"] = False
    fail(nodes)
    eventually(lambda: a.sees("b", alive=False), seconds=30)
    time.sleep(LOAD_SECONDS)
    before = len(load.acked)
    eventually(lambda: len(load.acked) > before + 10, seconds=30)
    repair(nodes)
    eventually(lambda: a.sees("b") and nodes["b"].sees("a"), seconds=60)
    load.usable["b"] = True
    time.sleep(LOAD_SECONDS)
    load.stop()
    load.drain("a")

    forwarded = sum(
        nodes[name].metric("baton_cluster_requests_total", outcome="forwarded") for name in "ac"
    )
    print(f"{fault}: {len(load.accepted)} accepted, {forwarded:.0f} forwarded, slowest {load.slowest:.2f} s")
    assert len(load.accepted) > 50 and forwarded > 0, "the load was there, and some of it was forwarded"
    assert not load.missing(), sorted(load.missing())[:10]
    assert len(load.unanswered) < 50, "only what was under way when the server failed"
    assert load.again == [], "an acked message came again"
    assert load.slowest < REQUEST_SECONDS_MAX
