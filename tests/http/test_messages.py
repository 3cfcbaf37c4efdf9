"""GET and DELETE /api/v1/messages, and POST …/retry"""

import uuid
from urllib.parse import quote

import pytest

from baton import data_of


def listed(server, **params):
    query = "&".join(f"{name}={quote(str(value))}" for name, value in params.items())
    answer = server.get(f"/api/v1/messages?{query}")
    assert answer.status == 200, answer
    return answer.json


def address(message):
    return f"/api/v1/messages/{message['partitionId']}/{quote(message['transactionId'], safe='')}"


def dead_letter(server, queue, payload="poison"):
    """Pushes a message and gives it up; returns it as it was popped."""
    server.push(queue, payload)
    (message,) = server.pop(queue)
    server.ack([message], status="dlq", error="boom")
    return message


def test_a_listing_is_newest_first_with_every_field(server, queue):
    server.push(queue, *range(3), partition="p", ids=["t0", "t1", "t2"])
    body = listed(server, queue=queue)
    assert [row["transactionId"] for row in body["messages"]] == ["t2", "t1", "t0"]
    row = body["messages"][0]
    expected = {
        "queue": queue,
        "partition": "p",
        "queuePath": f"{queue}/p",
        "status": "pending",
        "queueStatus": "pending",
        "traceId": None,
        "producerSub": None,
        "queuePriority": 0,
        "leaseExpiresAt": None,
    }
    assert expected.items() <= row.items()
    assert {"id", "partitionId", "namespace", "task", "busStatus", "createdAt"} <= row.keys()
    assert body["mode"]["type"] in ("none", "queue")


def test_a_message_that_every_group_has_finished_is_completed(server, queue):
    server.push(queue, 1, 2, ids=["one", "two"])
    for group in ("a", "b"):
        held = server.pop(queue, batch=2, consumerGroup=group)
        assert {row["status"] for row in listed(server, queue=queue)["messages"]} == {"pending"}
        server.ack(held[:1] if group == "a" else held, group=group)
    rows = {row["status"]: row["transactionId"] for row in listed(server, queue=queue)["messages"]}
    assert rows == {"completed": "one", "pending": "two"}, "group a still holds the second"
    (row,) = listed(server, queue=queue, status="completed")["messages"]
    assert row["transactionId"] == "one"


def test_a_listing_tells_what_became_of_each_message(server, queue):
    server.push(queue, *range(4), partition="p", ids=["done", "dead", "held", "more"])
    messages = server.pop(queue, batch=2)
    server.ack(messages[:1])
    server.ack(messages[1:2], status="dlq")
    server.pop(queue)
    status = {row["transactionId"]: row["status"] for row in listed(server, queue=queue)["messages"]}
    assert status["done"] == "completed"
    assert status["dead"] == "dead_letter"
    assert status["held"] == "processing"
    for wanted, ids in (("completed", {"done"}), ("dead_letter", {"dead"})):
        rows = listed(server, queue=queue, status=wanted)["messages"]
        assert {row["transactionId"] for row in rows} == ids
    assert listed(server, queue=queue)["mode"]["hasQueueMode"] is True


def test_a_listing_is_paged_and_filtered(server, queue):
    server.push(queue, *range(10), partition="p", ids=[f"t{i}" for i in range(10)])
    server.push(queue, "other", partition="q")
    page = listed(server, queue=queue, partition="p", limit=3, offset=2)["messages"]
    assert [row["transactionId"] for row in page] == ["t7", "t6", "t5"]
    assert listed(server, queue=queue, **{"from": "2001-01-01T00:00:00Z", "to": "2001-01-02T00:00:00Z"})["messages"] == []
    assert listed(server, queue=f"{queue}-none")["messages"] == []


@pytest.mark.parametrize("params", ["limit=-1", "limit=999999999999999999999", "offset=-1", "offset=x", "from=x&to=y", "status=x"])
def test_odd_parameters_of_a_listing_are_no_error_of_the_server(server, queue, params):
    server.push(queue, 1)
    answer = server.get(f"/api/v1/messages?queue={queue}&{params}")
    assert answer.status in (200, 400), answer


def test_a_message_is_shown_with_its_payload_and_groups(server, queue):
    server.push(queue, {"n": 302}, partition="p", ids=["a/b c"])
    (message,) = server.pop(queue, consumerGroup="g")
    answer = server.get(address(message))
    assert answer.status == 200
    body = answer.json
    expected = {
        "id": message["id"],
        "transactionId": "a/b c",
        "partitionId": message["partitionId"],
        "queue": queue,
        "partition": "p",
        "queuePath": f"{queue}/p",
        "payload": {"n": 302},
        "data": {"n": 302},
        "isEncrypted": False,
        "status": "pending",
        "traceId": None,
        "producerSub": None,
        "errorMessage": None,
        "retryCount": None,
    }
    assert expected.items() <= body.items()
    assert {"leaseTime", "retryLimit", "retryDelay", "ttl", "priority"} <= body["queueConfig"].keys()
    assert body["mode"]["type"] == "bus"
    assert [(group["name"], group["consumed"]) for group in body["consumerGroups"]] == [("g", False)]


def test_a_dead_letter_is_shown_with_its_error(server, queue):
    message = dead_letter(server, queue)
    body = server.get(address(message)).json
    assert (body["status"], body["errorMessage"]) == ("dead_letter", "boom")


GHOSTS = [f"{uuid.UUID(int=0)}/ghost", "no-uuid/ghost", "%00/%00", f"{'9' * 400}/ghost"]


@pytest.mark.parametrize("ghost", GHOSTS)
def test_an_unknown_message_is_404(server, ghost):
    answer = server.get(f"/api/v1/messages/{ghost}")
    assert (answer.status, answer.error) == (404, "Message not found")
    answer = server.delete(f"/api/v1/messages/{ghost}")
    assert answer.status == 404
    assert answer.json["success"] is False
    assert answer.json["message"] == "Message not found"
    answer = server.post(f"/api/v1/messages/{ghost}/retry", {})
    assert answer.status == 404
    assert answer.json["success"] is False


def test_a_deleted_message_is_gone_for_every_group(server, queue):
    server.push(queue, 1, 2, 3, partition="p", ids=["a", "b", "c"])
    partition = server.push(queue, 4, partition="p")[0]["partition_id"]
    answer = server.delete(f"/api/v1/messages/{partition}/b")
    assert answer.status == 200
    assert answer.json == {
        "success": True,
        "partitionId": partition,
        "transactionId": "b",
        "message": "Message deleted successfully",
    }
    assert server.get(f"/api/v1/messages/{partition}/b").status == 404
    assert data_of(server.pop(queue, batch=5)) == [1, 3, 4]
    assert data_of(server.pop(queue, batch=5, consumerGroup="g")) == [1, 3, 4]


def test_a_deleted_message_does_not_hold_up_its_partition(server, queue):
    partition = server.push(queue, 1, 2, partition="p", ids=["a", "b"])[0]["partition_id"]
    for id in ("a", "b"):
        assert server.delete(f"/api/v1/messages/{partition}/{id}").status == 200
    assert server.pop(queue, batch=5) == []
    server.push(queue, 3, partition="p")
    messages = server.pop(queue, batch=5)
    assert data_of(messages) == [3]
    assert server.ack(messages)[0]["leaseReleased"] is True
    assert server.pop(queue, batch=5) == []


def test_a_deleted_dead_letter_is_gone(server, queue):
    message = dead_letter(server, queue)
    assert server.delete(address(message)).status == 200
    assert server.get(f"/api/v1/dlq?queue={queue}").json["messages"] == []


def test_a_retried_dead_letter_is_delivered_again(server, queue):
    message = dead_letter(server, queue, {"n": 1})
    for body in ({}, None):
        answer = server.post(f"{address(message)}/retry", *([body] if body is not None else []))
        if body == {}:
            assert answer.status == 200
            result = answer.json
            assert {"success": True, "result": "moved", "queue": queue, "dlqRowRemoved": True}.items() <= result.items()
            assert result["originalTransactionId"] == message["transactionId"]
            assert result["replayedAs"]["status"] == "queued"
        else:
            assert answer.status == 404, "it is a dead letter no more"
    assert server.get(f"/api/v1/dlq?queue={queue}").json["messages"] == []
    (again,) = server.pop(queue, batch=5)
    assert again["data"] == {"n": 1}
    assert server.ack([again])[0]["success"] is True
