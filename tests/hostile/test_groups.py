"""Many groups over many partitions, and many queues: what a stranger's GETs may cost."""

import time

from baton import Connection, Server
from watch import MIB, Watch

PARTITIONS = 20_000
GROUPS = 1_000
BATCH = 10_000
QUEUES = 100_000
# A list takes time by the groups and by the partitions, a hundred times as much on a test machine that is busy. One step for
# each group and partition takes several times this.
LISTED_SECONDS_MAX = 30
LISTS = [
    "/api/v1/consumer-groups",
    "/metrics/prometheus",
    "/api/v1/consumer-groups/lagging",
    "/api/v1/consumer-groups/lagging?minLagSeconds=0",
]


def push_to(server, items):
    for start in range(0, len(items), BATCH):
        answer = server.post("/api/v1/push", {"items": items[start : start + BATCH]})
        assert answer.status == 201, answer.body


def test_groups_by_partitions_take_neither_memory_nor_time(tmp_path, queue):
    with Server(tmp_path) as server:
        push_to(server, [{"queue": queue, "partition": f"p{n}", "payload": 1} for n in range(PARTITIONS)])
        with Watch(server) as watch, Connection(server.port) as connection:
            for number in range(GROUPS):
                answer = connection.call("GET", f"/api/v1/pop/queue/{queue}?consumerGroup=g{number}&batch=1")
                assert answer.status == 200, answer
        # A hundred bytes for each group and partition would be 2 GB.
        watch.check(200 * MIB, times=1)
        for path in LISTS:
            began = time.monotonic()
            with Watch(server) as watch:
                answer = server.get(path, timeout=4 * LISTED_SECONDS_MAX)
            assert answer.status == 200 and time.monotonic() - began < LISTED_SECONDS_MAX, (path, answer.status)
            watch.check(64 * MIB, times=1)
        assert len(answer.json) == 10_000, "the list of partitions where groups are behind has an end"
        held = resident(server)
        with Connection(server.port) as connection:
            for number in range(GROUPS):
                path = f"/api/v1/consumer-groups/g{number}/queues/{queue}"
                assert connection.call("DELETE", path).status == 200
        # An allocator keeps some; nothing may be added.
        assert resident(server) < held + 50 * MIB
        assert server.pop(queue, batch=1)


def test_many_queues_are_listed_while_others_are_served(tmp_path, queue):
    with Server(tmp_path) as server:
        push_to(server, [{"queue": f"{queue}-{n}", "payload": 1} for n in range(QUEUES // 10)])
        few = min(seconds_of(server, QUEUES // 10) for _ in range(3))
        with Watch(server) as watch:
            push_to(server, [{"queue": f"{queue}-{n}", "payload": 1} for n in range(QUEUES // 10, QUEUES)])
            many = seconds_of(server, QUEUES)
            for path in ("/metrics/prometheus", "/api/v1/consumer-groups"):
                assert server.get(path, timeout=LISTED_SECONDS_MAX).status == 200
        watch.check(QUEUES * 1000, times=8)
        # Ten times as many, on a machine that may have become four times as slow meanwhile.
        assert many < 10 * 4 * few + 1, (few, many)


def seconds_of(server, queues):
    """The time that a list of all queues takes."""
    began = time.monotonic()
    answer = server.get("/api/v1/resources/queues", timeout=4 * LISTED_SECONDS_MAX)
    taken = time.monotonic() - began
    assert len(answer.json["queues"]) == queues
    return taken


def resident(server):
    return Watch(server)._kib("VmRSS") * 1024
