"""POST /streams/v1/queries, /streams/v1/state/get, /streams/v1/cycle"""

import pytest

from baton import Server, data_of, eventually

GROUP = "streams.test"


def register(server, name, config_hash="h1", **fields):
    body = {"name": name, "source_queue": f"{name}-in", "config_hash": config_hash, **fields}
    return server.post("/streams/v1/queries", body)


@pytest.fixture
def query(server, queue):
    """The id of a query named after the queue that it reads."""
    answer = register(server, queue)
    assert answer.status == 200, answer
    return answer.json["query_id"]


def read(server, queue, *payloads, group=GROUP, batch=None):
    """Pushes to one partition and pops as the query does."""
    server.push(f"{queue}-in", *payloads, partition="p")
    return server.pop(f"{queue}-in", batch=batch or len(payloads), consumerGroup=group)


def state(server, query, partition, **fields):
    answer = server.post("/streams/v1/state/get", {"query_id": query, "partition_id": partition, **fields})
    assert answer.status == 200, answer
    assert answer.json["success"] is True
    return answer.json["rows"]


def values(server, query, partition, **fields):
    return {row["key"]: row["value"] for row in state(server, query, partition, **fields)}


def cycle(server, query, partition, **fields):
    body = {"query_id": query, "partition_id": partition, "consumer_group": GROUP, **fields}
    answer = server.post("/streams/v1/cycle", body)
    assert answer.status == 200, answer
    return answer.json


def ack_up_to(message, **fields):
    return {"transactionId": message["transactionId"], "leaseId": message["leaseId"], "status": "completed", **fields}


def put(key, value):
    return {"type": "upsert", "key": key, "value": value}


def test_a_query_is_fresh_once(server, queue):
    first = register(server, queue, sink_queue="out").json
    assert {"success": True, "name": queue, "config_hash": "h1", "fresh": True, "reset": False}.items() <= first.items()
    again = register(server, queue, sink_queue="", reset=True).json
    assert again == {**first, "fresh": False}


@pytest.mark.parametrize("missing", ["name", "source_queue", "config_hash"])
@pytest.mark.parametrize("value", ["", None, 7])
def test_a_query_needs_its_names(server, missing, value):
    body = {"name": "n", "source_queue": "s", "config_hash": "h", missing: value}
    answer = server.post("/streams/v1/queries", body)
    assert (answer.status, answer.error) == (400, f"{missing} is required")


def test_another_configuration_is_refused_or_starts_over(server, queue, query):
    (message,) = read(server, queue, 1)
    partition = message["partitionId"]
    assert cycle(server, query, partition, state_ops=[put("k", 1)])["success"] is True
    answer = register(server, queue, "h2")
    assert answer.status == 409
    assert {"success": False, "query_id": query, "name": queue}.items() <= answer.json.items()
    assert answer.error.startswith("config_hash mismatch: ")
    assert values(server, query, partition) == {"k": 1}
    answer = register(server, queue, "h2", reset=True)
    assert (answer.status, answer.json["query_id"]) == (200, query)
    assert (answer.json["fresh"], answer.json["reset"]) == (False, True)
    assert values(server, query, partition) == {}
    assert register(server, queue, "h1").status == 409


def test_a_cycle_does_everything_it_names(server, queue, query):
    messages = read(server, queue, "a", "b", "c")
    partition = messages[0]["partitionId"]
    answer = cycle(
        server,
        query,
        partition,
        state_ops=[put("k", {"n": 1}), put("gone", 0), {"type": "delete", "key": "gone"}],
        push_items=[
            {"queue": f"{queue}-out", "partition": "x", "payload": {"sum": 3}, "transactionId": "t1"},
            {"queue": f"{queue}-out", "partition": "x", "payload": {"sum": 4}, "transactionId": "t1"},
        ],
        ack={**ack_up_to(messages[1]), "count": 2},
        release_lease=False,
    )
    assert (answer["success"], answer["query_id"], answer["partition_id"]) == (True, query, partition)
    assert (answer["queueName"], answer["state_ops_applied"]) == (f"{queue}-in", 3)
    assert [row["status"] for row in answer["push_results"]] == ["queued", "duplicate"]
    assert answer["push_results"][0]["queueName"] == f"{queue}-out"
    assert answer["ack_result"] == {"success": True, "count": 2, "lease_released": False, "dlq": False}
    assert values(server, query, partition) == {"k": {"n": 1}}
    assert data_of(server.pop(f"{queue}-out", batch=5)) == [{"sum": 3}]
    assert server.pop(f"{queue}-in", batch=5, consumerGroup=GROUP) == [], "the lease is kept"
    rest = cycle(server, query, partition, ack=ack_up_to(messages[2]))
    assert rest["ack_result"] == {"success": True, "count": 1, "lease_released": True, "dlq": False}
    assert data_of(read(server, queue, "d")) == ["d"], "everything before is finished"


def test_what_a_partial_ack_leaves_comes_back_in_order_when_the_lease_ends(server, queue, query):
    server.configure(f"{queue}-in", leaseTime=1)
    messages = read(server, queue, 1, 2, 3)
    cycle(server, query, messages[0]["partitionId"], ack=ack_up_to(messages[0]), release_lease=False)
    again = eventually(lambda: server.pop(f"{queue}-in", batch=5, consumerGroup=GROUP))
    assert data_of(again) == [2, 3]


def test_a_released_lease_gives_the_rest_to_the_next_pop(server, queue, query):
    messages = read(server, queue, 1, 2, 3)
    answer = cycle(server, query, messages[0]["partitionId"], ack=ack_up_to(messages[1]))
    assert answer["ack_result"]["lease_released"] is True
    assert data_of(server.pop(f"{queue}-in", batch=5, consumerGroup=GROUP)) == [3]


def test_a_cycle_without_an_ack_moves_no_cursor(server, queue, query):
    messages = read(server, queue, 1, 2)
    partition = messages[0]["partitionId"]
    answer = cycle(server, query, partition, state_ops=[put("k", 1)], ack=None)
    assert (answer["success"], answer["ack_result"]) == (True, None)
    assert cycle(server, query, partition, ack=ack_up_to(messages[1]))["success"] is True


def refused(server, queue, query, partition, **fields):
    """The error of a cycle that must have changed nothing."""
    before = values(server, query, partition)
    answer = cycle(
        server,
        query,
        partition,
        **{"state_ops": [put("rolled back", 1)], "push_items": [{"queue": f"{queue}-none", "payload": 1}], **fields},
    )
    assert (answer["success"], answer["state_ops_applied"]) == (False, 0)
    assert (answer["push_results"], answer["ack_result"]) == ([], None)
    assert values(server, query, partition) == before
    assert server.get(f"/api/v1/resources/queues/{queue}-none").status == 404
    return answer["error"]


def test_a_cycle_that_cannot_be_done_changes_nothing(server, queue, query):
    messages = read(server, queue, 1, 2)
    partition, last = messages[0]["partitionId"], messages[1]
    fail = lambda **fields: refused(server, queue, query, partition, **fields)  # noqa: E731
    other = "01980000-0000-7000-8000-000000000000"
    assert fail(ack=ack_up_to(last, leaseId=other)) == "Invalid or expired lease"
    assert fail(ack=ack_up_to(last, leaseId=None)) == "Invalid or expired lease"
    assert fail(ack=ack_up_to(last), consumer_group="other") == "Invalid or expired lease"
    assert fail(ack=ack_up_to(last, transactionId="ghost")) == "unresolvable: Message not found"
    assert fail(ack=ack_up_to(last, status="retry")) == "Unknown ack.status: retry"
    assert fail(ack=ack_up_to(last, transactionId="")) == "ack.transactionId is required"
    assert fail(state_ops=[put("a", 1), {"type": "merge", "key": "b"}]) == "Unknown state_op type: merge"
    server.configure(f"{queue}-full", maxSize=1)
    server.push(f"{queue}-full", 1)
    assert "is full" in fail(push_items=[{"queue": f"{queue}-none"}, {"queue": f"{queue}-full"}])
    server.push(f"{queue}-in", 3, partition="p")
    assert data_of(server.pop(f"{queue}-in", "p", consumerGroup="spy", batch=9)) == [1, 2, 3]
    assert cycle(server, query, partition, ack=ack_up_to(last))["success"] is True
    unknown = cycle(server, other, partition, state_ops=[put("a", 1)])
    assert (unknown["success"], "Query not found" in unknown["error"]) == (False, True)
    assert cycle(server, query, "999999")["error"] == "Partition not found"
    assert cycle(server, query, "x")["error"] == "Partition not found"


def test_a_cycle_sent_twice_happens_once(server, queue, query):
    messages = read(server, queue, 1, 2, 3)
    partition = messages[0]["partitionId"]
    for release, message in ((False, messages[0]), (True, messages[2])):
        fields = {
            "state_ops": [put("k", message["data"])],
            "push_items": [{"queue": f"{queue}-out", "payload": message["data"]}],
            "ack": ack_up_to(message),
            "release_lease": release,
        }
        assert cycle(server, query, partition, **fields)["success"] is True
        assert cycle(server, query, partition, **fields)["success"] is False
    assert data_of(server.pop(f"{queue}-out", batch=9)) == [1, 3]


def test_a_flush_emits_what_is_there_and_nothing_twice(server, queue, query):
    (message,) = read(server, queue, 1)
    partition = message["partitionId"]
    delete = {"type": "delete", "key": "w"}
    emit = {"push_items": [{"queue": f"{queue}-out", "payload": 1}], "ack": None}
    assert cycle(server, query, partition, state_ops=[put("w", 1)])["success"] is True
    assert cycle(server, query, partition, state_ops=[delete], **emit)["success"] is True
    again = cycle(server, query, partition, state_ops=[delete], **emit)
    assert (again["success"], "is gone" in again["error"]) == (False, True)
    assert data_of(server.pop(f"{queue}-out", batch=9)) == [1]
    # Without anything to emit, or with a lease to tell it apart, removing what is gone is no matter.
    assert cycle(server, query, partition, state_ops=[delete])["success"] is True
    assert cycle(server, query, partition, state_ops=[put("w", 2), delete], **emit)["success"] is True
    acked = {**emit, "ack": ack_up_to(message)}
    assert cycle(server, query, partition, state_ops=[delete], **acked)["success"] is True


def test_a_failed_message_follows_the_rules_of_retries(server, queue, query):
    server.configure(f"{queue}-in", retryLimit=1)
    (message,) = read(server, queue, "bad")
    partition = message["partitionId"]
    answer = cycle(server, query, partition, ack=ack_up_to(message, status="failed", error="no"))
    assert answer["ack_result"] == {"success": True, "count": 0, "lease_released": True, "dlq": False}
    (message,) = server.pop(f"{queue}-in", consumerGroup=GROUP)
    answer = cycle(server, query, partition, ack=ack_up_to(message, status="dlq", error="never"))
    assert answer["ack_result"]["dlq"] is True
    (letter,) = server.get(f"/api/v1/dlq?queue={queue}-in").json["messages"]
    assert (letter["errorMessage"], letter["consumerGroup"]) == ("never", GROUP)


def test_state_is_read_by_key_prefix_and_ripeness(server, queue, query):
    (message,) = read(server, queue, 1)
    partition = message["partitionId"]
    rows = {
        "w\x1fa": {"windowEnd": 100, "acc": 1},
        "w\x1fb": {"windowEnd": 200.5},
        "w\x1fc": {"windowEnd": "50"},
        "x": [1, {"deep": 1e30}],
        "é": None,
    }
    cycle(server, query, partition, state_ops=[put(key, value) for key, value in rows.items()])
    found = state(server, query, partition)
    assert [row["key"] for row in found] == sorted(rows)
    assert {row["key"]: row["value"] for row in found} == rows
    assert found[0]["updated_at"].endswith("+00:00")
    assert values(server, query, partition, keys=[]) == rows
    assert list(values(server, query, partition, keys=["x", "missing", "é"])) == ["x", "é"]
    assert list(values(server, query, partition, key_prefix="w\x1f")) == ["w\x1fa", "w\x1fb", "w\x1fc"]
    assert list(values(server, query, partition, ripe_at_or_before=100)) == ["w\x1fa"]
    assert list(values(server, query, partition, ripe_at_or_before=1000, keys=["w\x1fb", "x"])) == ["w\x1fb"]
    assert list(values(server, query, partition, keys=["x", "w\x1fa"], key_prefix="w")) == ["w\x1fa"]
    assert values(server, query, "999999") == {} and values(server, query, "x") == {}
    assert values(server, "unknown", partition) == {}


def test_a_large_state_is_read_whole(server, queue, query):
    (message,) = read(server, queue, 1)
    partition = message["partitionId"]
    keys = [f"k{i:05}" for i in range(2500)]
    cycle(server, query, partition, state_ops=[put(key, key) for key in keys])
    assert list(values(server, query, partition)) == keys
    assert len(values(server, query, partition, keys=keys + ["none"])) == 2500


def test_state_goes_with_the_queue_it_was_computed_from(server, queue, query):
    (message,) = read(server, queue, 1)
    assert cycle(server, query, message["partitionId"], state_ops=[put("k", 1)])["success"] is True
    server.delete(f"/api/v1/resources/queues/{queue}-other")
    assert values(server, query, message["partitionId"]) == {"k": 1}
    server.delete(f"/api/v1/resources/queues/{queue}-in")
    assert values(server, query, message["partitionId"]) == {}
    assert register(server, queue).json["fresh"] is False
    (message,) = read(server, queue, 2)
    assert cycle(server, query, message["partitionId"], state_ops=[put("k", 2)])["success"] is True


@pytest.mark.parametrize("body", [{}, [], {"query_id": "q"}, {"query_id": "", "partition_id": "1"}, {"query_id": "q", "partition_id": 1}])
@pytest.mark.parametrize("path", ["/streams/v1/cycle", "/streams/v1/state/get"])
def test_query_and_partition_are_required(server, path, body):
    answer = server.post(path, body)
    assert answer.status == 400 and answer.error in ("query_id is required", "partition_id is required")


@pytest.mark.parametrize(
    "fields, status",
    [
        ({"state_ops": [put("k" * 1025, 1)]}, 413),
        ({"state_ops": [put("k", "x" * (1 << 20))]}, 413),
        ({"state_ops": [put("a\x00b", 1)]}, 400),
        ({"state_ops": [{"key": "k"}]}, 400),
        ({"push_items": [{"payload": 1}]}, 400),
        ({"consumer_group": 5}, 400),
        ({"ack": {"transactionId": 5}}, 400),
    ],
)
def test_what_cannot_be_kept_is_refused(server, fields, status):
    answer = server.post("/streams/v1/cycle", {"query_id": "q", "partition_id": "1", **fields})
    assert answer.status == status and answer.error


def test_queries_and_state_survive_a_kill(tmp_path, queue):
    with Server(tmp_path / "data") as server:
        query = register(server, queue).json["query_id"]
        messages = read(server, queue, 1, 2)
        partition = messages[0]["partitionId"]
        fields = {
            "state_ops": [put("k", {"n": 2})],
            "push_items": [{"queue": f"{queue}-out", "payload": 2}],
            "ack": ack_up_to(messages[1]),
        }
        assert cycle(server, query, partition, **fields)["success"] is True
        server.kill()
        server.start()
        assert register(server, queue).json == {
            "success": True, "query_id": query, "name": queue, "config_hash": "h1", "fresh": False, "reset": False,
        }  # fmt: skip
        assert register(server, queue, "h2").status == 409
        assert values(server, query, partition) == {"k": {"n": 2}}
        assert data_of(server.pop(f"{queue}-out", batch=9)) == [2]
        assert server.pop(f"{queue}-in", consumerGroup=GROUP) == []
