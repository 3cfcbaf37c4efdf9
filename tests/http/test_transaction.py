"""POST /api/v1/transaction"""

import pytest

from baton import Background, ack_of, data_of


def commit(server, *operations, **fields):
    return server.post("/api/v1/transaction", {"operations": list(operations), **fields})


def leased(server, queue, *payloads):
    server.push(queue, *payloads)
    return server.pop(queue, batch=len(payloads))


def test_the_answer_has_one_result_per_ack_and_per_item(server, queue):
    (message,) = leased(server, queue, 1)
    answer = commit(
        server,
        {"type": "ack", **ack_of(message)},
        {"type": "push", "items": [{"queue": f"{queue}-next", "payload": i, "transactionId": f"x{i}"} for i in range(2)]},
        {"type": "push", "queue": f"{queue}-next", "partition": "p", "data": {"inline": True}},
        requiredLeases=[message["leaseId"]],
    )
    assert answer.status == 200
    body = answer.json
    assert body["success"] is True
    assert body["transactionId"]
    assert [(result["index"], result["type"]) for result in body["results"]] == [
        (0, "ack"),
        (1, "push"),
        (2, "push"),
        (3, "push"),
    ]
    ack, first, *_ = body["results"]
    assert {"success": True, "transactionId": message["transactionId"], "error": None, "dlq": False}.items() <= ack.items()
    assert {"success": True, "transactionId": "x0", "queueName": f"{queue}-next"}.items() <= first.items()
    assert first["messageId"] and first["partitionId"]
    assert data_of(server.pop(f"{queue}-next", "Default", batch=5)) == [0, 1]
    assert data_of(server.pop(f"{queue}-next", "p", batch=5)) == [{"inline": True}]


def test_a_push_without_a_payload_is_an_empty_object(server, queue):
    assert commit(server, {"type": "push", "queue": queue}).json["success"] is True
    assert data_of(server.pop(queue)) == [{}]


@pytest.mark.parametrize("body", [{}, {"operations": None}, {"operations": {}}, {"operations": "x"}])
def test_a_body_without_operations_is_refused(server, body):
    answer = server.post("/api/v1/transaction", body)
    assert (answer.status, answer.error) == (400, "operations array required")


def test_no_operations_are_refused(server):
    answer = commit(server)
    assert (answer.status, answer.error) == (400, "operations array cannot be empty")


def rolled_back(server, queue, *operations, **fields):
    """The error of a transaction that must not have pushed anything to `queue`."""
    answer = commit(server, {"type": "push", "queue": queue, "payload": "gone"}, *operations, **fields)
    assert answer.status == 200, answer
    body = answer.json
    assert body["success"] is False
    assert server.pop(queue, batch=5) == []
    assert server.get(f"/api/v1/resources/queues/{queue}").status == 404, "the queue was not made either"
    return body["error"]


def test_an_ack_of_an_unknown_message_takes_everything_back(server, queue):
    operation = {"type": "ack", "transactionId": "ghost", "partitionId": "00000000-0000-0000-0000-000000000000"}
    assert "Message not found" in rolled_back(server, queue, operation)


def test_an_ack_under_a_foreign_lease_takes_everything_back(server, queue):
    (message,) = leased(server, f"{queue}-in", 1)
    operation = {"type": "ack", **ack_of(message), "leaseId": "01980000-0000-7000-8000-000000000000"}
    assert "Invalid or expired lease" in rolled_back(server, queue, operation)
    assert server.ack([message])[0]["success"] is True


def test_a_required_lease_that_is_gone_takes_everything_back(server, queue):
    (message,) = leased(server, f"{queue}-in", 1)
    server.ack([message], status="retry")
    operation = {"type": "ack", "transactionId": message["transactionId"], "partitionId": message["partitionId"]}
    error = rolled_back(server, queue, operation, requiredLeases=[message["leaseId"]])
    assert "Invalid or expired lease" in error
    assert data_of(server.pop(f"{queue}-in")) == [1]


def test_a_duplicate_push_takes_everything_back(server, queue):
    server.push(f"{queue}-in", 1, ids=["t1"])
    operation = {"type": "push", "queue": f"{queue}-in", "payload": 2, "transactionId": "t1"}
    assert rolled_back(server, queue, operation)


def test_an_unknown_operation_takes_everything_back(server, queue):
    answer = commit(server, {"type": "push", "queue": queue, "payload": 1}, {"type": "explode"})
    if answer.status == 200:
        assert answer.json["success"] is False
        assert "Unknown operation type: explode" in answer.json["error"]
    else:
        assert answer.status == 400
        assert "explode" in answer.error
    assert server.pop(queue) == []


@pytest.mark.parametrize(
    "operation",
    [
        None,
        5,
        [],
        {},
        {"type": 5},
        {"type": "push"},
        {"type": "push", "queue": 5},
        {"type": "push", "items": 5},
        {"type": "push", "items": [{"payload": 1}]},
        {"type": "push", "items": [{"queue": "q", "partition": 5}]},
        {"type": "ack"},
        {"type": "ack", "transactionId": 5, "partitionId": "p"},
        {"type": "ack", "transactionId": "t"},
    ],
)
def test_a_malformed_operation_takes_everything_back(server, queue, operation):
    answer = commit(server, {"type": "push", "queue": queue, "payload": 1}, operation)
    assert answer.status in (200, 400), answer
    assert answer.json["error"]
    assert answer.json.get("success", False) is False
    assert server.pop(queue) == []


def test_a_failed_ack_spends_a_retry(server, queue):
    server.configure(queue, retryLimit=1)
    (message,) = leased(server, queue, 1)
    assert commit(server, {"type": "ack", **ack_of(message), "status": "failed"}).json["success"] is True
    (again,) = server.pop(queue)
    answer = commit(server, {"type": "ack", **ack_of(again), "status": "failed", "error": "boom"}).json
    assert answer["results"][0]["dlq"] is True
    assert server.pop(queue) == []


def test_a_transaction_wakes_a_waiting_poll(server, queue):
    polling = Background(server.pop, queue, wait=True, timeout=20000)
    commit(server, {"type": "push", "queue": queue, "payload": 1})
    assert data_of(polling.result(5)) == [1]


def test_acks_of_a_whole_batch_release_its_lease(server, queue):
    messages = leased(server, queue, 1, 2, 3)
    operations = [{"type": "ack", **ack_of(message)} for message in messages]
    assert commit(server, *operations).json["success"] is True
    server.push(queue, 4)
    assert data_of(server.pop(queue, batch=5)) == [4]


def put(ns, key, value, **fields):
    return {"op": "put", "ns": ns, "key": key, "value": value, "forever": True, **fields}


def record(server, ns, key):
    answer = server.post("/api/v1/kv", {"operations": [{"op": "get", "ns": ns, "key": key}]})
    return answer.json["results"][0]


def timer(queue, key, **fields):
    return {"op": "schedule", "queue": queue, "timerKey": key, "payload": "MQ==", "delayMs": 3_600_000, **fields}


def test_records_and_timers_ride_along(server, queue):
    (message,) = leased(server, queue, 1)
    answer = commit(
        server,
        {"type": "ack", **ack_of(message)},
        {"type": "push", "items": [{"queue": f"{queue}-next", "payload": i} for i in range(2)]},
        kv=[put(queue, "state", {"n": 1}), {"op": "incr", "ns": queue, "key": "count", "delta": 2, "ttlSeconds": 60}],
        timers=[timer(queue, "t", txn="x")],
    )
    body = answer.json
    assert body["success"] is True
    assert [(r["index"], r["type"], r.get("opIndex")) for r in body["results"]] == [
        (0, "ack", None),
        (1, "push", None),
        (2, "push", None),
        (3, "kv", 0),
        (4, "kv", 1),
        (5, "timer", 0),
    ]
    assert {"op": "incr", "applied": True, "key": "count", "value": 2}.items() <= body["results"][4].items()
    assert {"ok": True, "status": "scheduled", "txn": "x"}.items() <= body["results"][5].items()
    assert record(server, queue, "state")["value"] == {"n": 1}
    assert server.get(f"/api/v1/timers/{queue}/t").json["found"] is True


def test_riders_need_no_operations(server, queue):
    for body in ({"kv": [put(queue, "a", 1)]}, {"operations": [], "timers": [timer(queue, "a")]}):
        answer = server.post("/api/v1/transaction", body)
        assert (answer.status, answer.json["success"]) == (200, True)


def test_a_lost_record_takes_everything_back(server, queue):
    (message,) = leased(server, queue, 1)
    version = commit(server, kv=[put(queue, "gate", "v")]).json["results"][0]["version"]
    body = commit(
        server,
        {"type": "ack", **ack_of(message)},
        {"type": "push", "queue": f"{queue}-next", "payload": 2},
        kv=[put(queue, "other", 1), put(queue, "gate", "w", expect=version + 1, required=True)],
        timers=[timer(queue, "t")],
    ).json
    assert (body["success"], body["reason"], body["results"]) == (False, "kv_precondition", [])
    assert (body["ok"], body["failedIndex"], body["kvReason"], body["version"], body["value"]) == (False, 3, "version", version, "v")
    assert record(server, queue, "other")["found"] is False
    assert server.get(f"/api/v1/timers/{queue}/t").json["found"] is False
    assert server.pop(f"{queue}-next") == []
    assert server.ack([message])[0]["success"] is True, "the ack was taken back too"


def test_a_bad_ack_takes_records_and_timers_back(server, queue):
    (message,) = leased(server, queue, 1)
    ghost = {**ack_of(message), "transactionId": "no-such-message"}
    body = commit(server, {"type": "ack", **ghost}, kv=[put(queue, "a", 1)], timers=[timer(queue, "t")]).json
    assert (body["success"], body["reason"]) == (False, "rejected_ack")
    assert record(server, queue, "a")["found"] is False
    assert server.get(f"/api/v1/timers/{queue}/t").json["found"] is False


def test_a_losing_write_that_is_not_required_undoes_nothing(server, queue):
    body = commit(server, {"type": "push", "queue": queue, "payload": 1}, kv=[put(queue, "a", 1, expect=5)]).json
    assert body["success"] is True
    assert (body["results"][1]["applied"], body["results"][1]["reason"]) == (False, "absent")
    assert data_of(server.pop(queue)) == [1]


@pytest.mark.parametrize(
    "riders, reason",
    [
        ({"kv": [{"op": "getPrefix", "ns": "n", "prefix": "p"}]}, "kv_unknown_op"),
        ({"kv": [{"op": "get", "ns": "n", "key": "k"}] * 65}, "kv_too_many_ops"),
        ({"kv": [{"op": "getMany", "ns": "n", "keys": ["k"] * 257}]}, "kv_too_many_keys"),
        ({"kv": [{"op": "put", "ns": "n", "key": "k", "value": 1}]}, "kv_expiry_not_specified"),
        ({"timers": [{"op": "schedule", "deliverAt": 1}]}, "timers_server_owned_field"),
    ],
)
def test_a_wrong_rider_undoes_nothing_because_nothing_was_done(server, queue, riders, reason):
    answer = commit(server, {"type": "push", "queue": queue, "payload": 1}, **riders)
    assert (answer.status, answer.json["reason"]) == (400, reason)
    assert server.pop(queue) == []


def test_a_position_moves_a_group_with_everything_else(server, queue):
    server.push(queue, *range(5))
    held = server.pop(queue, consumerGroup="g", subscriptionMode="all", batch=2)
    push = {"type": "push", "items": [{"queue": f"{queue}-out", "payload": 1, "transactionId": "x"}]}
    place = {"queue": queue, "consumerGroup": "g", "offset": 3, "metadata": "m"}
    body = {"operations": [push], "positions": [place]}
    answer = server.post("/api/v1/transaction", body).json
    assert answer["success"], answer
    assert [(r["type"], r["success"]) for r in answer["results"]] == [("push", True), ("position", True)]
    stale = {"transactionId": held[0]["transactionId"], "partitionId": held[0]["partitionId"], "leaseId": held[0]["leaseId"], "status": "failed"}
    assert not server.post("/api/v1/ack", {**stale, "consumerGroup": "g"}).json[0]["success"], "its lease is gone"
    assert [m["data"] for m in server.pop(queue, consumerGroup="g", batch=10)] == [3, 4]
    forgotten = server.post("/api/v1/transaction", {"positions": [{**place, "offset": None}]}).json
    assert forgotten["success"] and [m["data"] for m in server.pop(queue, consumerGroup="g", batch=10)] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("change, reason", [({"queue": "no-such-queue"}, "queue_not_found"), ({"offset": 99}, "bad_request")])
def test_a_position_that_cannot_be_undoes_everything(server, queue, change, reason):
    server.push(queue, 1)
    push = {"type": "push", "items": [{"queue": queue, "payload": 2, "transactionId": "y"}]}
    place = {"queue": queue, "consumerGroup": "g", "offset": 0, **change}
    answer = server.post("/api/v1/transaction", {"operations": [push], "positions": [place]}).json
    assert (answer["success"], answer["reason"], answer["results"]) == (False, reason, [])
    assert [m["data"] for m in server.pop(queue, batch=10)] == [1]


@pytest.mark.parametrize("change", [{"offset": -1}, {"offset": "1"}, {"consumerGroup": 1}, {"metadata": "m" * 5000}])
def test_a_position_that_cannot_be_read_is_refused(server, queue, change):
    place = {"queue": queue, "consumerGroup": "g", "offset": 0, **change}
    assert server.post("/api/v1/transaction", {"positions": [place]}).status == 400


def push_to(queue, *payloads):
    return {"type": "push", "items": [{"queue": queue, "payload": payload} for payload in payloads]}


def jobs_of(server, queue):
    return server.get(f"/api/v1/jobs?queue={queue}").json["jobs"]


@pytest.mark.parametrize("form", ["own lease", "requiredLeases", "no lease"])
def test_a_transaction_that_acks_takes_effect_once(server, queue, form):
    """Two messages are held, so that the lease outlives the first transaction."""
    message, other = leased(server, queue, 1, 2)
    ack = ack_of(message)
    fields = {"jobs": [{"jobType": "t", "queue": f"{queue}-jobs"}]}
    if form != "own lease":
        del ack["leaseId"]
    if form == "requiredLeases":
        fields["requiredLeases"] = [message["leaseId"]]
    operations = [push_to(f"{queue}-next", 2), {"type": "ack", **ack}]
    assert commit(server, *operations, **fields).json["success"] is True
    for _ in range(3):
        body = commit(server, *operations, **fields).json
        assert (body["success"], body["reason"], body["failedIndex"]) == (False, "ack_conflict", 1)
        assert "Message is finished already" in body["error"]
    assert data_of(server.pop(f"{queue}-next", batch=10)) == [2]
    assert len(jobs_of(server, f"{queue}-jobs")) == 1
    assert server.ack([other])[0]["success"] is True, "the lease is untouched"


def test_a_late_transaction_cannot_finish_what_another_consumer_has_finished(server, queue):
    server.push(queue, 1, 2)
    (late, _) = server.pop(queue, batch=2, leaseSeconds=1)
    (second, _) = server.pop(queue, batch=2, wait=True, timeout=10000)
    assert server.ack([second])[0]["success"] is True
    body = commit(server, {"type": "ack", **ack_of(late)}, push_to(f"{queue}-next", 2)).json
    assert (body["success"], body["reason"], body["failedIndex"]) == (False, "ack_conflict", 0)
    assert server.pop(f"{queue}-next") == []


def commit_under(server, key, *operations, **fields):
    body = {"operations": list(operations), **fields}
    return server.post("/api/v1/transaction", body, headers={"Idempotency-Key": key})


def test_a_transaction_repeated_under_its_key_gets_the_first_answer(server, queue):
    (message,) = leased(server, queue, 1)
    operations = [{"type": "ack", **ack_of(message)}, push_to(f"{queue}-next", *range(5))]
    fields = {
        "kv": [{"op": "incr", "ns": queue, "key": "n", "delta": 1, "forever": True}],
        "timers": [timer(queue, "t")],
        "jobs": [{"jobType": "t", "queue": f"{queue}-jobs"}],
    }
    first = commit_under(server, queue, *operations, **fields)
    assert (first.status, first.json["success"], len(first.json["results"])) == (200, True, 9)
    for _ in range(3):
        again = commit_under(server, queue, *operations, **fields)
        assert (again.status, again.json) == (200, first.json)
    assert data_of(server.pop(f"{queue}-next", batch=10)) == [0, 1, 2, 3, 4]
    assert record(server, queue, "n")["value"] == 1
    assert len(jobs_of(server, f"{queue}-jobs")) == 1


def test_a_key_with_another_transaction_is_a_conflict(server, queue):
    assert commit_under(server, queue, push_to(queue, 1)).json["success"] is True
    answer = commit_under(server, queue, push_to(queue, 2))
    assert (answer.status, answer.json["reason"]) == (409, "idempotency_key_reused")
    assert data_of(server.pop(queue, batch=10)) == [1]


def test_a_refused_transaction_is_decided_anew_under_its_key(server, queue):
    server.push(queue, 1)
    operations = [push_to(queue, 2), {"type": "ack", "transactionId": "t", "partitionId": "1"}]
    for _ in range(2):
        assert commit_under(server, queue, *operations).json["reason"] == "rejected_ack"
    gate = put(queue, "gate", 1, expect=0, required=True)
    server.post("/api/v1/kv", {"operations": [put(queue, "gate", 0)]})
    assert commit_under(server, f"{queue}-2", push_to(queue, 2), kv=[gate]).json["success"] is False
    server.post("/api/v1/kv", {"operations": [{"op": "delete", "ns": queue, "key": "gate"}]})
    assert commit_under(server, f"{queue}-2", push_to(queue, 2), kv=[gate]).json["success"] is True


def test_a_long_answer_is_kept_too(server, queue):
    """Longer than what the store keeps in one record."""
    operations = [push_to(queue, *range(9000))]
    first = commit_under(server, queue, *operations).json
    assert len(first["results"]) == 9000
    assert commit_under(server, queue, *operations).json == first


def test_a_key_has_a_bound(server, queue):
    assert commit_under(server, "k" * 256, push_to(queue, 1)).status == 400


def test_a_refusal_names_the_culprit(server, queue):
    """Among acks and messages, records, timers and positions, in this order."""
    (message,) = leased(server, queue, 1)
    server.push(queue, 2, ids=["t2"])
    fine = {"type": "ack", **ack_of(message)}
    ghost = {**fine, "transactionId": "ghost"}

    def failed(*operations, **fields):
        body = commit(server, *operations, **fields).json
        assert body["success"] is False
        return body

    body = failed(push_to(f"{queue}-next", 1, 2), fine, ghost)
    assert (body["reason"], body["failedIndex"]) == ("rejected_ack", 3)
    assert [(r["index"], r["success"]) for r in body["results"]] == [(2, True), (3, False)]
    duplicate = {"type": "push", "items": [{"queue": queue, "transactionId": "t2", "payload": 1}]}
    body = failed(push_to(f"{queue}-next", 1), fine, push_to(queue, 5), duplicate)
    assert (body["reason"], body["failedIndex"], body["results"]) == ("duplicate", 3, [])
    riders = {"kv": [put(queue, "a", 1)], "timers": [timer(queue, "t")]}
    place = {"queue": queue, "consumerGroup": "g", "offset": 0}
    body = failed(push_to(queue, 1), positions=[place, {**place, "offset": 99}], **riders)
    assert (body["reason"], body["failedIndex"]) == ("bad_request", 4)


def test_a_refusal_names_its_culprit_among_the_required_leases(server, queue):
    (message,) = leased(server, queue, 1)
    ack_step = {"type": "ack", **ack_of(message)}
    held, gone = message["leaseId"], "0198a000-0000-7000-8000-000000000001"
    for leases, culprit in ([[None, held, gone], 2], [["", "no lease", gone], 1], [[gone, held], 0]):
        body = commit(server, ack_step, requiredLeases=leases).json
        assert (body["success"], body["reason"], body["failedIndex"]) == (False, "lease", culprit), leases
    assert commit(server, ack_step, requiredLeases=[None, held]).json["success"] is True


def test_a_refusal_names_the_message_that_does_not_fit(server, queue):
    server.configure(f"{queue}-full", maxSize=2)
    server.push(f"{queue}-full", 0, ids=["known"])
    (message,) = leased(server, queue, 1)
    full = [{"queue": f"{queue}-full", "payload": i, "transactionId": f"t{i}"} for i in range(3)]
    body = commit(
        server,
        {"type": "push", "items": [{"queue": f"{queue}-next", "payload": 1}, full[0]]},
        {"type": "ack", **ack_of(message)},
        {"type": "push", "items": [{"queue": f"{queue}-next", "payload": 2}, full[1], full[2]]},
    ).json
    assert (body["success"], body["reason"], body["failedIndex"]) == (False, "queue_full", 4)


def test_a_refusal_names_the_job(server, queue):
    (message,) = leased(server, queue, 1)
    job = {"jobType": "t", "queue": queue}
    taken = {**job, "uniqueKey": "k", "onConflict": "reject"}
    assert server.post("/api/v1/jobs", taken).status == 201
    body = commit(
        server,
        {"type": "ack", **ack_of(message)},
        {"type": "push", "queue": f"{queue}-next", "payload": 2},
        kv=[put(queue, "a", 1)],
        timers=[timer(queue, "t")],
        jobs=[job, job, taken, job],
    ).json
    assert (body["success"], body["reason"], body["failedIndex"]) == (False, "unique_key_taken", 6)
    body = commit(server, jobs=[{**job, "dependsOn": ["#3"]}]).json
    assert (body["success"], body["reason"], body["failedIndex"]) == (False, "bad_request", 0)


def test_a_refusal_names_an_operation_of_an_unknown_type(server, queue):
    push = {"type": "push", "items": [{"queue": queue, "payload": i} for i in range(2)]}
    body = commit(server, push, {"type": "jump"}, {"type": "skip"}).json
    assert (body["reason"], body["failedIndex"]) == ("bad_request", 2)
