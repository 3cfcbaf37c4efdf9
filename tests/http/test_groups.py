"""/api/v1/consumer-groups"""

import time
from datetime import datetime, timezone
from urllib.parse import quote

import pytest

from baton import data_of


@pytest.fixture
def group(queue):
    """A group of the test's own: groups are listed over all queues."""
    return f"{queue}-group"


def now():
    return datetime.now(timezone.utc).isoformat().replace("+00:00", "Z")


def consume(server, queue, group, batch=100):
    messages = server.pop(queue, batch=batch, partitions=10, consumerGroup=group)
    server.ack(messages, group=group)
    return data_of(messages)


def test_groups_are_listed_by_queue(server, queue, group):
    server.push(queue, 1, 2, 3)
    consume(server, queue, group, batch=1)
    answer = server.get("/api/v1/consumer-groups")
    assert answer.status == 200
    assert isinstance(answer.json, list)
    (row,) = [row for row in answer.json if row["name"] == group]
    assert {"topics": [queue], "queueName": queue, "members": 1, "partitionsWithLag": 1}.items() <= row.items()
    assert row["state"] in ("Stable", "Lagging", "Dead")
    assert {"totalLag", "maxTimeLag", "subscriptionMode", "subscriptionTimestamp", "subscriptionCreatedAt"} <= row.keys()


def test_a_group_is_shown_by_partition(server, queue, group):
    server.push(queue, 1, 2, 3, partition="p")
    consume(server, queue, group, batch=1)
    answer = server.get(f"/api/v1/consumer-groups/{group}")
    assert answer.status == 200
    (partition,) = answer.json[queue]["partitions"]
    expected = {"partition": "p", "totalConsumed": 1, "offsetLag": 2, "leaseActive": False, "workerId": None}
    assert expected.items() <= partition.items()
    assert {"lastConsumedAt", "timeLagSeconds"} <= partition.keys()
    server.pop(queue, consumerGroup=group)
    (partition,) = server.get(f"/api/v1/consumer-groups/{group}").json[queue]["partitions"]
    assert partition["leaseActive"] is True


def test_a_lease_is_shown_with_its_token_its_beginning_and_its_end(server, queue, group):
    server.configure(queue, leaseTime=60)
    server.push(queue, 1, 2, partition="p")
    shown = lambda: server.get(f"/api/v1/consumer-groups/{group}").json[queue]["partitions"][0]  # noqa: E731
    (message,) = server.pop(queue, consumerGroup=group)
    lease = shown()["lease"]
    assert (lease["group"], lease["leaseId"]) == (group, message["leaseId"]) and lease["token"] > 0
    since, until = (datetime.fromisoformat(lease[name]) for name in ("since", "until"))
    assert 59 <= (until - since).total_seconds() <= 61
    (row,) = [row for row in server.get(f"/api/v1/messages?queue={queue}").json["messages"] if row["leases"]]
    assert (row["transactionId"], row["leases"]) == (message["transactionId"], [lease])
    assert row["leaseExpiresAt"] == lease["until"]
    server.ack([message], group=group)
    assert shown()["lease"] is None
    assert all(row["leases"] == [] for row in server.get(f"/api/v1/messages?queue={queue}").json["messages"])


def test_a_group_that_has_just_popped_nothing_is_not_dead(server, queue, group):
    server.configure(queue)
    assert server.pop(queue, consumerGroup=group) == []
    (row,) = [row for row in server.get("/api/v1/consumer-groups").json if row["name"] == group]
    assert (row["members"], row["state"]) == (0, "Stable")


def test_an_unknown_group_is_an_empty_object(server, group):
    answer = server.get(f"/api/v1/consumer-groups/{group}")
    assert (answer.status, answer.json) == (200, {})


def test_lagging_groups_are_a_list_of_partitions(server, queue, group):
    server.push(queue, 1, 2, partition="p")
    consume(server, queue, group, batch=1)
    time.sleep(1.1)
    rows = server.get("/api/v1/consumer-groups/lagging?minLagSeconds=1").json
    (row,) = [row for row in rows if row["consumer_group"] == group]
    assert {"queue_name": queue, "partition_name": "p", "offset_lag": 1}.items() <= row.items()
    assert row["time_lag_seconds"] >= 1
    expected = {"partition_id", "worker_id", "lag_hours", "oldest_unconsumed_at", "last_consumed_at"}
    assert expected <= row.keys()
    assert [row for row in server.get("/api/v1/consumer-groups/lagging").json if row["consumer_group"] == group] == []


def test_a_deleted_group_starts_again_everywhere(server, queue, group):
    for name in ("a", "b"):
        server.push(f"{queue}-{name}", name)
        consume(server, f"{queue}-{name}", group)
    answer = server.delete(f"/api/v1/consumer-groups/{group}?deleteMetadata=true")
    assert answer.status == 200
    assert answer.json == {"success": True, "consumerGroup": group, "deletedPartitions": 2, "metadataDeleted": True}
    assert consume(server, f"{queue}-a", group) == ["a"]
    assert consume(server, f"{queue}-b", group) == ["b"]


def test_a_group_deleted_without_its_subscription_starts_where_it_subscribed(server, queue, group):
    server.push(queue, "old")
    time.sleep(0.02)
    server.pop(queue, consumerGroup=group, subscriptionMode="new")
    server.push(queue, "new")
    assert consume(server, queue, group) == ["new"]
    assert server.delete(f"/api/v1/consumer-groups/{group}?deleteMetadata=false").json["metadataDeleted"] is False
    assert consume(server, queue, group) == ["new"]
    server.delete(f"/api/v1/consumer-groups/{group}")
    assert consume(server, queue, group) == ["old", "new"]


def test_a_group_deleted_for_one_queue_stays_in_the_others(server, queue, group):
    for name in ("a", "b"):
        server.push(f"{queue}-{name}", name)
        consume(server, f"{queue}-{name}", group)
    answer = server.delete(f"/api/v1/consumer-groups/{group}/queues/{queue}-a")
    assert answer.json["success"] is True
    assert answer.json["queueName"] == f"{queue}-a"
    assert answer.json["deletedPartitions"] == 1
    assert consume(server, f"{queue}-a", group) == ["a"]
    assert consume(server, f"{queue}-b", group) == []


def test_deleting_an_unknown_group_succeeds(server, queue, group):
    for path in (group, f"{group}/queues/{queue}"):
        answer = server.delete(f"/api/v1/consumer-groups/{path}")
        assert answer.status == 200
        assert (answer.json["success"], answer.json["deletedPartitions"]) == (True, 0)


def test_deleting_a_group_ends_its_lease(server, queue, group):
    server.push(queue, 1)
    (message,) = server.pop(queue, consumerGroup=group)
    server.delete(f"/api/v1/consumer-groups/{group}")
    (result,) = server.ack([message], group=group)
    assert (result["success"], result["error"]) == (False, "Invalid or expired lease")
    assert data_of(server.pop(queue, consumerGroup=group)) == [1]


def seek(server, group, queue, body, partition=None):
    middle = f"/partitions/{quote(partition, safe='')}" if partition is not None else ""
    return server.post(f"/api/v1/consumer-groups/{group}/queues/{queue}{middle}/seek", body)


def test_a_seek_to_the_end_skips_everything(server, queue, group):
    for partition in "ab":
        server.push(queue, 1, 2, partition=partition)
    held = server.pop(queue, batch=10, partitions=10, consumerGroup=group)
    assert len(held) == 4
    answer = seek(server, group, queue, {"toEnd": True})
    assert answer.status == 200
    expected = {"success": True, "consumerGroup": group, "queueName": queue, "seekToEnd": True, "targetTimestamp": None}
    assert expected.items() <= answer.json.items()
    assert answer.json["partitionsUpdated"] == 2
    assert server.pop(queue, batch=10, partitions=10, consumerGroup=group) == []
    assert not any(result["leaseReleased"] for result in server.ack(held, group=group)), "the lease is gone"
    server.push(queue, 3, partition="a")
    assert consume(server, queue, group) == [3]


def test_a_seek_to_a_time_reads_what_came_after_it(server, queue, group):
    server.push(queue, "before")
    time.sleep(0.02)
    moment = now()
    time.sleep(0.02)
    server.push(queue, "after")
    assert consume(server, queue, group) == ["before", "after"]
    answer = seek(server, group, queue, {"timestamp": moment})
    assert answer.json["success"] is True
    assert answer.json["seekToEnd"] is False
    assert consume(server, queue, group) == ["after"]
    seek(server, group, queue, {"timestamp": "2001-01-01T00:00:00Z"})
    assert consume(server, queue, group) == ["before", "after"]


def test_a_seek_of_one_partition_leaves_the_others(server, queue, group):
    for partition in "ab":
        server.push(queue, partition, partition=partition)
    server.pop(queue, "a", consumerGroup=group)
    answer = seek(server, group, queue, {}, partition="a")
    assert answer.status == 200
    expected = {"success": True, "consumerGroup": group, "queueName": queue, "partitionName": "a", "updated": True}
    assert expected.items() <= answer.json.items()
    assert answer.json["cursorMovedTo"]
    assert consume(server, queue, group) == ["b"]


@pytest.mark.parametrize("body", [{}, {"toEnd": False}, {"timestamp": None}, {"other": 1}])
def test_a_seek_to_nowhere_is_refused(server, queue, group, body):
    server.push(queue, 1)
    answer = seek(server, group, queue, body)
    assert (answer.status, answer.error) == (400, "Must specify either 'toEnd': true or 'timestamp'")


@pytest.mark.parametrize("timestamp", ["yesterday", "", 5, {}, "2026-13-45T00:00:00Z"])
def test_a_seek_to_a_time_that_cannot_be_read_is_refused(server, queue, group, timestamp):
    server.push(queue, 1, 2)
    assert consume(server, queue, group) == [1, 2]
    answer = seek(server, group, queue, {"timestamp": timestamp})
    assert answer.status == 400
    assert answer.error
    assert consume(server, queue, group) == [], "nothing has moved"


def test_a_seek_on_an_unknown_queue_or_partition_says_so(server, queue, group):
    answer = seek(server, group, f"{queue}-none", {"toEnd": True})
    if answer.status == 200:
        assert answer.json["partitionsUpdated"] == 0
    else:
        assert (answer.status, bool(answer.error)) == (404, True)
    server.push(queue, 1)
    answer = seek(server, group, queue, {}, partition="none")
    assert (answer.status, answer.error) == (404, "Partition not found")


def test_a_subscription_is_moved(server, queue, group):
    server.configure(queue)
    server.pop(queue, consumerGroup=group, subscriptionMode="new")
    moment = "2020-01-01T00:00:00.000Z"
    answer = server.post(f"/api/v1/consumer-groups/{group}/subscription", {"subscriptionTimestamp": moment})
    assert answer.status == 200
    assert answer.json == {"success": True, "consumerGroup": group, "newTimestamp": moment, "rowsUpdated": 1}


@pytest.mark.parametrize("body", [{}, {"subscriptionTimestamp": None}, {"timestamp": "x"}])
def test_a_subscription_without_a_time_is_refused(server, group, body):
    answer = server.post(f"/api/v1/consumer-groups/{group}/subscription", body)
    assert (answer.status, answer.error) == (400, "Missing subscriptionTimestamp in request body")


@pytest.mark.parametrize("to", [{"toEnd": True}, {"timestamp": "2020-01-01T00:00:00Z"}])
def test_a_group_that_was_moved_is_not_dead(server, queue, to):
    for partition in ("p", "q"):
        server.push(queue, 1, partition=partition)
    server.ack(server.pop(queue, batch=2, partitions=2, consumerGroup=queue), group=queue)
    assert server.post(f"/api/v1/consumer-groups/{queue}/queues/{queue}/seek", to).status == 200
    (row,) = [row for row in server.get("/api/v1/consumer-groups").json if row["name"] == queue]
    assert (row["members"], row["state"]) == (2, "Stable")
