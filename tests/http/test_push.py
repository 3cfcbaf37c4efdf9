"""POST /api/v1/push"""

import uuid

import pytest

from baton import Background, data_of, eventually


def push(server, *items):
    return server.post("/api/v1/push", {"items": list(items)})


def test_a_queued_item_is_answered_in_both_spellings(server, queue):
    trace = str(uuid.uuid4())
    item = {"queue": queue, "partition": "p", "payload": 1, "transactionId": "t1", "traceId": trace}
    answer = push(server, item)
    assert answer.status == 201
    (result,) = answer.json
    assert result["index"] == 0
    assert result["status"] == "queued"
    assert result["queueName"] == queue
    assert result["trace_id"] == trace
    for snake, camel in (
        ("transaction_id", "transactionId"),
        ("message_id", "messageId"),
        ("partition_id", "partitionId"),
    ):
        assert result[snake] == result[camel]
    assert result["transaction_id"] == "t1"
    uuid.UUID(result["message_id"])


def test_results_stand_in_the_order_of_the_items(server, queue):
    items = [{"queue": f"{queue}-{i % 3}", "partition": f"p{i % 2}", "transactionId": f"t{i}"} for i in range(50)]
    results = push(server, *items).json
    assert [result["transaction_id"] for result in results] == [f"t{i}" for i in range(50)]
    assert [result["index"] for result in results] == list(range(50))
    assert [result["queueName"] for result in results] == [item["queue"] for item in items]


def test_a_duplicate_is_answered_with_the_original(server, queue):
    item = {"queue": queue, "payload": 1, "transactionId": "t1"}
    (first,) = push(server, item).json
    again = push(server, item, {**item, "transactionId": "t2"}, item)
    assert again.status == 201
    assert [result["status"] for result in again.json] == ["duplicate", "queued", "duplicate"]
    assert again.json[0]["message_id"] == again.json[2]["message_id"] == first["message_id"]


def test_an_id_is_a_duplicate_also_when_retention_has_removed_its_message(server, queue):
    server.configure(queue, retentionEnabled=True, completedRetentionSeconds=1)
    server.push(queue, 1, ids=["x"])
    assert server.ack(server.pop(queue))[0]["success"] is True
    eventually(lambda: server.get(f"/api/v1/resources/queues/{queue}").json["totals"]["total"] == 0, 30)
    (again,) = push(server, {"queue": queue, "payload": 2, "transactionId": "x"}).json
    assert again["status"] == "duplicate"
    assert server.pop(queue) == []


def test_the_id_of_a_message_that_an_operator_deleted_is_accepted_again(server, queue):
    (pushed,) = push(server, {"queue": queue, "payload": 1, "transactionId": "x"}).json
    (message,) = server.pop(queue)
    assert server.delete(f"/api/v1/messages/{message['partitionId']}/x").status == 200
    (again,) = push(server, {"queue": queue, "payload": 2, "transactionId": "x"}).json
    assert (pushed["status"], again["status"]) == ("queued", "queued")


def test_concurrent_pushes_of_one_id_store_one_message(server, queue):
    item = {"queue": queue, "transactionId": "same"}
    pushes = [Background(push, server, {**item, "payload": i}) for i in range(16)]
    results = [pushing.result().json[0] for pushing in pushes]
    assert sorted(result["status"] for result in results) == [*["duplicate"] * 15, "queued"]
    assert len({result["message_id"] for result in results}) == 1
    assert len(server.pop(queue, batch=100)) == 1


def test_no_items_is_an_empty_answer(server):
    answer = push(server)
    assert (answer.status, answer.body) == (201, b"[]")


def test_a_missing_payload_is_null_and_a_missing_id_is_made(server, queue):
    results = push(server, {"queue": queue}, {"queue": queue, "transactionId": ""}).json
    assert len({result["transaction_id"] for result in results}) == 2
    assert all(result["transaction_id"] for result in results)
    assert data_of(server.pop(queue, batch=5)) == [None, None]


def test_unknown_fields_are_ignored(server, queue):
    item = {"queue": queue, "payload": 1, "producerSub": "spoofed", "namespace": 5, "task": None, "data": 2}
    assert push(server, item).status == 201
    (message,) = server.pop(queue)
    assert message["data"] == 1
    assert message["producerSub"] is None


def test_a_queue_made_by_a_push_takes_its_labels_from_its_name(server, queue):
    push(server, {"queue": f"{queue}.invoice.eu"}, {"queue": queue})
    dotted = server.get(f"/api/v1/resources/queues/{queue}.invoice.eu").json
    assert (dotted["namespace"], dotted["task"]) == (queue, "invoice")
    plain = server.get(f"/api/v1/resources/queues/{queue}").json
    assert (plain["namespace"], plain["task"]) == (queue, "")


def test_payload_bytes_come_back_exactly_as_they_were_sent(server, queue):
    payload = b'{"b" : 1.0,"a":1e3 , "a":[2 ,3], "n":123456789012345678901234567890, "u":"\\u00e9\xc3\xa9"}'
    body = b'{"items":[{"queue":"%s","payload":%s}]}' % (queue.encode(), payload)
    assert server.post("/api/v1/push", body).status == 201
    answer = server.get(f"/api/v1/pop/queue/{queue}")
    assert b'"data":' + payload in answer.body


def test_the_fields_of_an_item_may_come_in_any_order(server, queue):
    body = '{"x":[{}],"items":[{"payload":{"queue":"no"},"y":"]}","queue":"%s","partition":"p"}],"z":1}' % queue
    assert server.post("/api/v1/push", body.encode()).status == 201
    (message,) = server.pop(queue)
    assert (message["data"], message["partition"]) == ({"queue": "no"}, "p")


def test_escaped_names_are_the_names_they_spell(server, queue):
    body = '{"it\\u0065ms":[{"que\\u0075e":"%s\\u002dé","payload":1}]}' % queue
    assert server.post("/api/v1/push", body.encode()).status == 201
    assert data_of(server.pop(f"{queue}-é")) == [1]


@pytest.mark.parametrize("body", [{}, {"items": None}, {"items": {}}, {"items": "x"}, {"items": 1}, [], 5, None])
def test_a_body_without_an_items_array_is_refused(server, body):
    answer = server.post("/api/v1/push", body)
    assert (answer.status, answer.error) == (400, "items array is required")


WRONG = [
    ("queue", None, "Queue must be a string"),
    ("queue", 5, "Queue must be a string"),
    ("queue", {}, "Queue must be a string"),
    ("queue", ["q"], "Queue must be a string"),
    ("partition", None, "Partition must be a string"),
    ("partition", 0, "Partition must be a string"),
    ("partition", [], "Partition must be a string"),
    ("transactionId", None, "TransactionId must be a string"),
    ("transactionId", 17, "TransactionId must be a string"),
    ("transactionId", True, "TransactionId must be a string"),
    ("traceId", 17, "TraceId must be a string"),
    ("traceId", {}, "TraceId must be a string"),
]


@pytest.mark.parametrize("field, value, message", WRONG)
def test_a_field_of_the_wrong_type_is_named_and_nothing_is_stored(server, queue, field, value, message):
    answer = push(server, {"queue": queue, "payload": 1}, {"queue": queue, field: value})
    assert answer.status == 400
    assert message in answer.error
    assert server.pop(queue, batch=10) == []


def test_an_item_without_a_queue_is_refused(server):
    answer = push(server, {"payload": 1})
    assert answer.status == 400
    assert "Queue must be a string" in answer.error


@pytest.mark.parametrize("item", [None, 5, "text", [], True])
def test_an_item_that_is_no_object_is_refused(server, item):
    answer = push(server, item)
    assert answer.status == 400
    assert answer.error


def test_a_trace_id_that_is_no_uuid_never_breaks_the_queue(server, queue):
    answer = push(server, {"queue": queue, "payload": 1, "traceId": "not-a-uuid"})
    assert answer.status in (201, 400), answer
    server.push(queue, 2)
    assert data_of(server.pop(queue, batch=5))[-1] == 2


def test_a_full_queue_refuses_more_and_keeps_what_it_has(server, queue):
    server.configure(queue, maxSize=3)
    server.push(queue, 1, 2, 3)
    answer = push(server, {"queue": queue, "payload": 4})
    if answer.status == 201:
        assert [result["status"] for result in answer.json] == ["failed"]
    else:
        assert answer.status in (429, 503)
        assert answer.error
    messages = server.pop(queue, batch=10)
    assert data_of(messages) == [1, 2, 3]
    server.ack(messages)
    assert [result["status"] for result in server.push(queue, 5)] == ["queued"]
