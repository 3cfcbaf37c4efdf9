"""POST /api/v1/traces, GET /api/v1/traces/…"""

import pytest

from baton import Server, eventually


@pytest.fixture
def message(server, queue):
    (pushed,) = server.push(queue, {"of": queue}, partition="p", ids=[f"{queue}/t 1"])
    return {"transactionId": pushed["transactionId"], "partitionId": pushed["partitionId"]}


def trace(server, message, names=None, **fields):
    body = {**message, "traceNames": names, "data": {"text": "done"}, **fields}
    answer = server.post("/api/v1/traces", body)
    assert answer.status == 201, answer
    assert answer.json["success"] is True
    return answer.json["traceId"]


def of(server, message):
    answer = server.get(f"/api/v1/traces/{message['partitionId']}/{message['transactionId'].replace('/', '%2F').replace(' ', '%20')}")
    assert answer.status == 200
    return answer.json["traces"]


def by_name(server, name, query=""):
    answer = server.get(f"/api/v1/traces/by-name/{name}{query}")
    assert answer.status == 200, answer
    return answer.json


def test_a_message_shows_its_traces_the_oldest_first(server, message, queue):
    first = trace(server, message, [f"{queue}-b", f"{queue}-a"], consumerGroup="g", eventType="step", data={"n": 1.50})
    second = trace(server, message, consumerGroup=None)
    one, two = of(server, message)
    assert (one["id"], two["id"]) == (first, second)
    assert {"event_type": "step", "data": {"n": 1.5}, "consumer_group": "g"}.items() <= one.items()
    assert one["trace_names"] == [f"{queue}-a", f"{queue}-b"]
    assert one["worker_id"] and one["created_at"] <= two["created_at"]
    assert {"event_type": "info", "consumer_group": "__QUEUE_MODE__", "trace_names": []}.items() <= two.items()


def test_a_name_leads_to_its_traces_the_newest_first_with_their_messages(server, message, queue):
    name = f"{queue} name/with %"
    encoded = name.replace("%", "%25").replace(" ", "%20").replace("/", "%2F")
    ids = [trace(server, message, name) for _ in range(5)]
    trace(server, message, f"{name}2")
    page = by_name(server, encoded)
    assert [row["id"] for row in page["traces"]] == ids[::-1]
    assert (page["total"], page["pagination"]) == (5, {"limit": 100, "offset": 0})
    row = page["traces"][0]
    expected = {
        "transaction_id": message["transactionId"],
        "partition_id": message["partitionId"],
        "queue_name": queue,
        "partition_name": "p",
        "message_payload": {"of": queue},
        "trace_names": [name],
    }
    assert expected.items() <= row.items()
    page = by_name(server, encoded, "?limit=2&offset=1")
    assert [row["id"] for row in page["traces"]] == ids[::-1][1:3]
    assert (page["total"], page["pagination"]) == (5, {"limit": 2, "offset": 1})
    assert by_name(server, "never-used") == {"traces": [], "total": 0, "pagination": {"limit": 100, "offset": 0}}


def test_names_are_counted_by_trace_and_by_message(server, queue):
    pushed = server.push(queue, 1, 2)
    messages = [{"transactionId": row["transactionId"], "partitionId": row["partitionId"]} for row in pushed]
    for index in (0, 0, 1):
        trace(server, messages[index], [f"{queue}-x"])
    trace(server, messages[0], [f"{queue}-y"])
    answer = server.get("/api/v1/traces/names?limit=2").json
    newest, other = answer["trace_names"]
    assert (newest["trace_name"], newest["trace_count"], newest["message_count"]) == (f"{queue}-y", 1, 1)
    assert (other["trace_name"], other["trace_count"], other["message_count"]) == (f"{queue}-x", 3, 2)
    assert newest["last_seen"] >= other["last_seen"]
    assert answer["total"] >= 2 and answer["pagination"] == {"limit": 2, "offset": 0}


def test_a_trace_of_an_unknown_message_is_refused(server, message):
    for wrong in ({**message, "transactionId": "ghost"}, {**message, "partitionId": "9999"}, {**message, "partitionId": "x"}):
        answer = server.post("/api/v1/traces", {**wrong, "data": {}})
        assert (answer.status, answer.json["success"], answer.error) == (404, False, "Message not found")
    assert server.get("/api/v1/traces/9999/ghost").json == {"traces": []}
    assert server.get("/api/v1/traces/no-partition/ghost").json == {"traces": []}


@pytest.mark.parametrize(
    "change, status, words",
    [
        ({"transactionId": None}, 400, "transactionId and partitionId are required"),
        ({"partitionId": ""}, 400, "transactionId and partitionId are required"),
        ({"data": None}, 400, "data is required"),
        ({"traceNames": {"a": 1}}, 400, "traceNames must be"),
        ({"traceNames": ["n"] * 17}, 400, "at most 16"),
        ({"traceNames": "n" * 256}, 413, "256 bytes"),
        ({"data": "x" * (16 << 10)}, 413, "are allowed"),
        ({"eventType": "e" * 256}, 413, "256 bytes"),
    ],
)
def test_what_cannot_be_kept_is_refused(server, message, change, status, words):
    answer = server.post("/api/v1/traces", {**message, "data": {}, **change})
    assert answer.status == status and words in answer.error


def test_a_message_has_only_so_many_traces(server, message):
    for _ in range(100):
        trace(server, message)
    answer = server.post("/api/v1/traces", {**message, "data": {}})
    assert answer.status == 400 and "at most 100 traces" in answer.error
    assert len(of(server, message)) == 100


def test_traces_go_with_their_queue(server, message, queue):
    trace(server, message, f"{queue}-gone")
    server.delete(f"/api/v1/resources/queues/{queue}")
    assert of(server, message) == []
    assert by_name(server, f"{queue}-gone")["total"] == 0
    names = server.get("/api/v1/traces/names?limit=1000").json["trace_names"]
    assert f"{queue}-gone" not in [row["trace_name"] for row in names]


def test_traces_survive_a_kill_and_expire(tmp_path, queue):
    with Server(tmp_path / "data") as server:
        (pushed,) = server.push(queue, 1)
        message = {"transactionId": pushed["transactionId"], "partitionId": pushed["partitionId"]}
        kept = trace(server, message, ["n"])
        server.kill()
        server.start()
        assert [row["id"] for row in of(server, message)] == [kept]
        assert by_name(server, "n")["total"] == 1
    with Server(tmp_path / "data", "--trace-retention-ms", "1", "--retention-interval-ms", "50") as server:
        trace(server, message, ["n", "m"])
        eventually(lambda: by_name(server, "m")["total"] == 0)
        assert [row["id"] for row in of(server, message)] == [kept], "it was promised a longer life"
        names = server.get("/api/v1/traces/names").json["trace_names"]
        assert [(row["trace_name"], row["trace_count"], row["message_count"]) for row in names] == [("n", 1, 1)]


def test_a_message_can_be_given_up_by_hand(server, queue):
    (pushed,) = server.push(queue, "bad")
    path = f"/api/v1/messages/{pushed['partitionId']}/{pushed['transactionId']}/dlq"
    answer = server.post(path)
    assert answer.status == 404 and answer.error == "Consumer group not found"
    (message,) = server.pop(queue)
    answer = server.post(path, {"error": "looked wrong"})
    assert answer.status == 200 and answer.json["dlq"] is True
    (letter,) = server.get(f"/api/v1/dlq?queue={queue}").json["messages"]
    assert (letter["data"], letter["errorMessage"]) == ("bad", "looked wrong")
    assert server.pop(queue) == []
    assert server.post(f"/api/v1/messages/{pushed['partitionId']}/ghost/dlq").status == 404
