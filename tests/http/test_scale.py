"""Many partitions, many messages: still every one, still in order."""

import threading
import time

from baton import Background, Connection, ack_of, pop_path

PARTITIONS = 5_000
MESSAGES = 20_000
WORKERS = 10


def push_to_each(server, queue, payload):
    items = [{"queue": queue, "partition": f"p{i}", "payload": payload} for i in range(PARTITIONS)]
    assert server.post("/api/v1/push", {"items": items}, timeout=60).status == 201


def test_a_new_group_on_thousands_of_partitions_gets_one_new_message_of_each(server, queue):
    push_to_each(server, queue, "old")
    time.sleep(0.02)
    started = time.monotonic()
    assert server.pop(queue, consumerGroup="late", subscriptionMode="new") == []
    assert time.monotonic() - started < 10
    push_to_each(server, queue, "new")
    seen = []

    def work():
        with Connection(server.port) as connection:
            last = time.monotonic()
            while time.monotonic() - last < 2 and len(seen) < PARTITIONS:
                answer = connection.call("GET", pop_path(queue, batch=1, consumerGroup="late"))
                if answer.status == 204:
                    time.sleep(0.02)
                    continue
                (message,) = answer.json["messages"]
                seen.append((message["partition"], message["data"]))
                connection.call("POST", "/api/v1/ack", {**ack_of(message), "consumerGroup": "late"})
                last = time.monotonic()

    for worker in [Background(work) for _ in range(WORKERS)]:
        worker.result(120)
    assert sorted(seen) == sorted((f"p{i}", "new") for i in range(PARTITIONS))


def test_many_consumers_of_one_partition_see_every_message_once_and_in_order(server, queue):
    for start in range(0, MESSAGES, 1000):
        server.push(queue, *range(start, start + 1000), partition="p")
    seen = []
    lock = threading.Lock()

    def work():
        with Connection(server.port) as connection:
            while len(seen) < MESSAGES:
                answer = connection.call("GET", pop_path(queue, batch=100, wait=True, timeout=1000))
                if answer.status == 204:
                    continue
                messages = answer.json["messages"]
                with lock:
                    seen.extend(message["data"] for message in messages)
                connection.call("POST", "/api/v1/ack/batch", {"acknowledgments": [ack_of(m) for m in messages]})

    for worker in [Background(work) for _ in range(WORKERS)]:
        worker.result(120)
    assert seen == list(range(MESSAGES))


def test_a_pop_of_the_largest_batch_brings_ten_thousand(server, queue):
    for start in range(0, 12_000, 4000):
        server.push(queue, *range(start, start + 4000))
    messages = server.pop(queue, batch=10_000)
    assert [message["data"] for message in messages] == list(range(10_000))
    assert all(result["success"] for result in server.ack(messages))
    assert [message["data"] for message in server.pop(queue, batch=10_000)] == list(range(10_000, 12_000))
