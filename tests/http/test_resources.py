"""/api/v1/resources and /health"""

from urllib.parse import quote

import pytest

COUNTERS = {"total", "pending", "processing", "completed", "failed", "deadLetter"}


def test_queues_are_listed_with_their_counts(server, queue):
    server.configure(queue, labels={"namespace": "billing", "task": "invoice"})
    server.push(queue, 1, 2, partition="a")
    server.push(queue, 3, partition="b")
    server.pop(queue, "b")
    answer = server.get("/api/v1/resources/queues")
    assert answer.status == 200
    (row,) = [row for row in answer.json["queues"] if row["name"] == queue]
    assert (row["namespace"], row["task"]) == ("billing", "invoice")
    assert {"total": 3, "pending": 2, "processing": 1}.items() <= row["messages"].items()
    assert row["partitions"] in (2, 3), "with or without the one that configure makes"
    assert {"id", "createdAt"} <= row.keys()


def test_the_newest_queue_is_listed_first(server, queue):
    for name in ("a", "b"):
        server.configure(f"{queue}-{name}")
    names = [row["name"] for row in server.get("/api/v1/resources/queues").json["queues"]]
    assert names.index(f"{queue}-b") < names.index(f"{queue}-a")


def test_a_queue_is_shown_with_its_partitions_and_options(server, queue):
    server.push(queue, 1, 2, 3, 4, partition="a")
    messages = server.pop(queue, batch=3)
    server.ack(messages[:1])
    server.ack(messages[1:2], status="dlq")
    answer = server.get(f"/api/v1/resources/queues/{queue}")
    assert answer.status == 200
    body = answer.json
    assert (body["name"], body["namespace"], body["task"]) == (queue, queue, "")
    assert body["options"]["leaseTime"] == 300
    (partition,) = [partition for partition in body["partitions"] if partition["name"] == "a"]
    assert {"id", "createdAt", "oldestMessage", "newestMessage"} <= partition.keys()
    for counters in (partition["stats"], body["totals"]):
        assert counters.keys() >= COUNTERS
        assert (counters["total"], counters["completed"], counters["deadLetter"]) == (4, 1, 1)
        assert counters["pending"] + counters["processing"] == 2


def test_an_unknown_queue_is_404(server, queue):
    for name in (queue, "%2e%2e", quote("ä/ö", safe="")):
        answer = server.get(f"/api/v1/resources/queues/{name}")
        assert (answer.status, answer.error) == (404, "Queue not found")


def test_a_queue_is_deleted_with_an_answer(server, queue):
    server.push(queue, 1)
    answer = server.delete(f"/api/v1/resources/queues/{queue}")
    assert (answer.status, answer.json) == (200, {"deleted": True, "queue": queue, "existed": True})
    answer = server.delete(f"/api/v1/resources/queues/{queue}")
    assert (answer.status, answer.json) == (200, {"deleted": True, "queue": queue, "existed": False})
    assert server.get(f"/api/v1/resources/queues/{queue}").status == 404
    assert server.pop(queue) == []


def test_a_queue_made_again_starts_empty_for_every_group(server, queue):
    server.push(queue, 1, 2, partition="p", ids=["a", "b"])
    held = server.pop(queue, batch=1, consumerGroup="g")
    server.delete(f"/api/v1/resources/queues/{queue}")
    results = server.push(queue, 3, partition="p", ids=["a"])
    assert [result["status"] for result in results] == ["queued"], "the old transaction ids are forgotten"
    assert server.ack(held, group="g")[0]["success"] is False
    assert [message["data"] for message in server.pop(queue, batch=5, consumerGroup="g")] == [3]


def test_namespaces_and_tasks_count_their_queues(server, queue):
    for name in ("a", "b"):
        server.configure(f"{queue}-{name}", labels={"namespace": f"{queue}-ns", "task": f"{queue}-task"})
        server.push(f"{queue}-{name}", 1)
    for what in ("namespace", "task"):
        answer = server.get(f"/api/v1/resources/{what}s")
        assert answer.status == 200
        name = f"{queue}-ns" if what == "namespace" else f"{queue}-task"
        (row,) = [row for row in answer.json[f"{what}s"] if row[what] == name]
        assert row["queues"] == 2
        assert row["messages"]["total"] == 2
        assert row["messages"]["pending"] == 2
        assert "partitions" in row


def test_the_overview_counts_everything(server, queue):
    server.push(queue, 1)
    answer = server.get("/api/v1/resources/overview")
    assert answer.status == 200
    body = answer.json
    assert {"queues", "partitions", "namespaces", "tasks", "messages", "lag", "throughput", "timestamp"} <= body.keys()
    assert body["messages"].keys() >= COUNTERS
    assert body["queues"] >= 1 and body["messages"]["total"] >= 1
    assert {"time", "offset"} <= body["lag"].keys()
    assert {"ingestedPerSecond", "processedPerSecond"} <= body["throughput"].keys()


def test_the_partitions_of_a_queue_are_listed(server, queue):
    for partition in "ab":
        server.push(queue, 1, partition=partition)
    answer = server.get(f"/api/v1/resources/partitions?queue={queue}")
    assert answer.status == 200
    assert {"a", "b"} <= {partition["name"] for partition in answer.json["partitions"]}


def test_a_cleared_queue_is_empty_and_goes_on(server, queue):
    for partition in "ab":
        server.push(queue, partition, partition=partition)
    assert server.delete(f"/api/v1/queues/{queue}/clear?partition=a").status == 200
    messages = server.pop(queue, batch=10, partitions=10)
    assert [message["data"] for message in messages] == ["b"]
    cleared = server.delete(f"/api/v1/queues/{queue}/clear").json
    assert (cleared["cleared"], cleared["partitionsCleared"], cleared["nextCursor"]) == (True, 2, None)
    assert server.pop(queue, batch=10, partitions=10, consumerGroup="g") == []
    server.push(queue, "c", partition="a")
    assert [message["data"] for message in server.pop(queue, batch=10, partitions=10)] == ["c"]


def test_a_server_that_takes_requests_is_ready(server):
    assert server.get("/ready").status == 200


def test_the_server_says_that_it_is_healthy(server):
    answer = server.get("/health")
    assert answer.status == 200
    assert answer.json["status"] == "healthy"
    assert answer.json["version"]
