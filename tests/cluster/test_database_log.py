"""PostgreSQL's log while servers work: who watches it for errors must not be called for nothing."""

import re
import threading
import time
import uuid

import postgres
import pytest

from baton import Server

COMPLAINT = re.compile(r"\b(WARNING|ERROR|FATAL|PANIC):")
# The second is of a batch that was on its way when the one before it failed.
CONFLICT = re.compile(
    r"ERROR: +(baton: another server changed .* first; this transaction is repeated|current transaction is aborted)"
)


@pytest.fixture
def database(monkeypatch):
    """A PostgreSQL of the test's own."""
    database = postgres.Postgres()
    monkeypatch.setenv("BATON_TEST_POSTGRES", str(database.port))
    yield database
    database.close()


def complaints(database):
    beginning = "the database system is starting up"
    return [line for line in database.log() if COMPLAINT.search(line) and beginning not in line]


def work(node, queue, seconds):
    """Messages, a record, a lock and a job, again and again; how often."""
    deadline, rounds = time.monotonic() + seconds, 0
    while time.monotonic() < deadline:
        node.push(queue, rounds)
        messages = node.pop(queue)
        if messages:
            node.ack(messages)
        if rounds % 5 == 0:
            operation = {"op": "put", "ns": "n", "key": f"{queue}-{rounds}", "value": rounds, "forever": True}
            assert node.post("/api/v1/kv", {"operations": [operation]}).status == 200
            assert node.post("/api/v1/jobs", {"jobType": "t", "queue": queue}).status == 201
        rounds += 1
    return rounds


def at_once(nodes, queue_of, seconds):
    """The same on several servers at a time; how often in all."""
    done = []
    threads = [
        threading.Thread(target=lambda node=node: done.append(work(node, queue_of(node), seconds))) for node in nodes
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(done) == len(nodes)
    return sum(done)


def test_one_server_leaves_nothing_in_the_log(database, tmp_path):
    with Server(tmp_path / "data", "--store", database.url) as server:
        assert work(server, "q", 5) > 20
        assert server.delete("/api/v1/resources/queues/q").status == 200
        assert server.stop() == 0
        server.start()
        assert work(server, "q", 1) > 0
    assert complaints(database) == []


def test_servers_that_share_a_database_leave_next_to_nothing_in_the_log(database, cluster):
    nodes = list(cluster().nodes.values())
    at_once(nodes, lambda node: f"warm-{node.name}", 3)
    before = len(complaints(database))
    time.sleep(10)
    idle = complaints(database)[before:]
    assert len(idle) <= 5, "\n".join(idle)
    before = len(complaints(database))
    rounds = at_once(nodes, lambda node: f"own-{node.name}", 10)
    own = complaints(database)[before:]
    assert all(CONFLICT.search(line) for line in own), "\n".join(own)
    assert rounds > 100 and len(own) <= rounds // 20, f"{len(own)} of {rounds}\n" + "\n".join(own[:20])
    before, queue = len(complaints(database)), f"shared-{uuid.uuid4().hex[:8]}"
    rounds = at_once(nodes, lambda _: queue, 10)
    shared = complaints(database)[before:]
    assert all(CONFLICT.search(line) for line in shared), "\n".join(shared)
    assert rounds > 50 and len(shared) <= rounds // 10, f"{len(shared)} of {rounds}\n" + "\n".join(shared[:20])
