"""Encryption at rest: callers see plain text, the disk never does."""

import base64

import pytest

from baton import Server, data_of, eventually

FIRST, SECOND = "1f" * 32, "2e" * 32
MARKER = "plain-text-marker"


def start(path, *keys):
    return Server(path / "data", environment={"BATON_ENCRYPTION_KEYS": ",".join(keys)} if keys else {})


def on_disk(server, text):
    """The files of a stopped server that hold a text."""
    assert not server.running()
    return [path for path in server.data.rglob("*") if path.is_file() and text.encode() in path.read_bytes()]


def test_a_queue_that_asks_for_encryption_needs_a_key(server, queue):
    answer = server.post("/api/v1/configure", {"queue": queue, "options": {"encryptionEnabled": True}})
    assert answer.status == 400 and "encryption_keys" in answer.error
    assert server.get(f"/api/v1/resources/queues/{queue}").status == 404


def test_the_disk_never_holds_the_payload(tmp_path):
    with start(tmp_path, FIRST) as server:
        server.configure("q", encryptionEnabled=True, deadLetterQueue=True, retryLimit=0)
        server.push("q", *({"secret": f"{MARKER}-{i}"} for i in range(5)), ids=[f"t{i}" for i in range(5)])
        in_transaction = {"queue": "q", "payload": f"{MARKER}-tx", "transactionId": "tx"}
        answer = server.post("/api/v1/transaction", {"operations": [{"type": "push", "items": [in_transaction]}]})
        assert answer.json["success"], answer
        # A repeated message is still recognised.
        again = server.push("q", {"secret": f"{MARKER}-0"}, ids=["t0"])
        assert again[0]["status"] == "duplicate"
        messages = server.pop("q", batch=10)
        assert data_of(messages) == [{"secret": f"{MARKER}-{i}"} for i in range(5)] + [f"{MARKER}-tx"]
        assert server.ack(messages[:1], "failed")[0]["success"]
        letters = server.get("/api/v1/dlq?queue=q").json["messages"]
        assert data_of(letters) == [{"secret": f"{MARKER}-0"}]
        detail = server.get(f"/api/v1/messages/{messages[1]['partitionId']}/t1").json
        assert detail["payload"] == {"secret": f"{MARKER}-1"} and detail["isEncrypted"] is True
        listed = server.get("/api/v1/messages?queue=q").json["messages"]
        assert {"secret": f"{MARKER}-4"} in data_of(listed)
        assert server.post(f"/api/v1/messages/{messages[0]['partitionId']}/t0/retry").status in (200, 201)
        # A dead letter ended the lease; the rest comes again, and then what was tried again.
        rest = server.pop("q", batch=10)
        assert data_of(rest) == [*data_of(messages[1:]), {"secret": f"{MARKER}-0"}]
        server.ack(rest[:-1])
        assert server.stop() == 0
    assert on_disk(server, MARKER) == []
    assert on_disk(server, "t3"), "the test must be able to find what is there"
    assert on_disk(server, FIRST) == []


def test_the_disk_never_holds_the_data_of_traces_and_the_payloads_of_timers(tmp_path):
    with start(tmp_path, FIRST) as server:
        server.configure("q", encryptionEnabled=True)
        server.push("q", 1, ids=["t"])
        [message] = server.pop("q")
        place = {"transactionId": "t", "partitionId": message["partitionId"]}
        trace = {**place, "eventType": "step", "traceNames": ["a-name"], "data": {"text": f"{MARKER}-trace"}}
        assert server.post("/api/v1/traces", trace).status == 201
        timer = {"op": "schedule", "queue": "q", "timerKey": "k", "delayMs": 600_000}
        timer["payload"] = base64.b64encode(f'"{MARKER}-timer"'.encode()).decode()
        answer = server.post("/api/v1/timers", {"operations": [timer]})
        assert answer.status in (200, 201), answer
        assert server.stop() == 0
    assert on_disk(server, MARKER) == []
    assert on_disk(server, "a-name"), "the test must be able to find what is there"
    by_message, by_name = f"/api/v1/traces/{message['partitionId']}/t", "/api/v1/traces/by-name/a-name"
    with start(tmp_path, FIRST) as server:
        for path in (by_message, by_name):
            [found] = server.get(path).json["traces"]
            assert found["data"] == {"text": f"{MARKER}-trace"}, (path, found)
        assert server.stop() == 0
    # Without the key the trace is there, but not what it says.
    with start(tmp_path, SECOND) as server:
        for path in (by_message, by_name):
            [found] = server.get(path).json["traces"]
            assert (found["data"], found["event_type"]) == (None, "step"), (path, found)


def test_a_plain_queue_that_becomes_encrypted(tmp_path):
    with start(tmp_path, FIRST) as server:
        server.push("q", "plain-before")
        server.configure("q", encryptionEnabled=True)
        server.push("q", f"{MARKER}-after")
        assert data_of(server.pop("q", batch=5)) == ["plain-before", f"{MARKER}-after"]
        assert server.stop() == 0
    assert on_disk(server, "plain-before") and not on_disk(server, MARKER)
    # A server that has just started does not know yet which queues are encrypted, and never writes plain text.
    with start(tmp_path, FIRST) as server:
        server.push("q", f"{MARKER}-restarted")
        assert server.stop() == 0
    assert not on_disk(server, MARKER)


def test_a_letter_from_before_is_encrypted_when_it_is_pushed_again(tmp_path):
    with start(tmp_path, FIRST) as server:
        server.configure("q", deadLetterQueue=True, retryLimit=0)
        server.push("q", "letter", ids=["t"])
        messages = server.pop("q")
        server.ack(messages, "failed")
        server.configure("q", encryptionEnabled=True)
        assert server.post(f"/api/v1/messages/{messages[0]['partitionId']}/t/retry").status in (200, 201)
        assert data_of(server.pop("q")) == ["letter"]


def test_keys_are_rotated_by_putting_a_new_one_first(tmp_path):
    with start(tmp_path, FIRST) as server:
        server.configure("q", encryptionEnabled=True)
        server.push("q", f"{MARKER}-old")
        assert server.stop() == 0
    with start(tmp_path, SECOND, FIRST) as server:
        server.push("q", f"{MARKER}-new")
        messages = server.pop("q", batch=5)
        assert data_of(messages) == [f"{MARKER}-old", f"{MARKER}-new"]
        server.ack(messages[:1])
        assert server.stop() == 0
    with start(tmp_path, SECOND) as server:
        assert data_of(server.pop("q", batch=5, consumerGroup="g"))[-1] == f"{MARKER}-new"


@pytest.mark.parametrize("auto_ack", [False, True])
def test_a_message_whose_key_is_gone_is_in_nobodys_way(tmp_path, auto_ack):
    with start(tmp_path, FIRST) as server:
        server.configure("q", encryptionEnabled=True)
        partition = server.push("q", f"{MARKER}-lost", ids=["lost"])[0]["partitionId"]
        assert server.stop() == 0
    with start(tmp_path, SECOND) as server:
        server.push("q", "a", "b")
        server.push("other", "plain")
        detail = server.get(f"/api/v1/messages/{partition}/lost")
        assert (detail.status, detail.json["code"]) == (503, "encryption_key_missing"), detail
        assert len(server.get("/api/v1/messages?queue=q").json["messages"]) == 3
        messages = server.pop("q", batch=5, autoAck=auto_ack)
        assert data_of(messages) == ["a", "b"]
        if not auto_ack:
            assert all(result["success"] for result in server.ack(messages))
        assert data_of(server.pop("other")) == ["plain"]
        letters = server.get("/api/v1/dlq?queue=q").json["messages"]
        assert [letter["transactionId"] for letter in letters] == ["lost"]
        assert "is not among the server's encryption_keys" in letters[0]["errorMessage"]
        assert letters[0]["data"] is None
        assert server.stop() == 0
    # With the key back it is all there.
    with start(tmp_path, SECOND, FIRST) as server:
        letters = server.get("/api/v1/dlq?queue=q").json["messages"]
        assert data_of(letters) == [f"{MARKER}-lost"]
        assert server.post(f"/api/v1/messages/{letters[0]['partitionId']}/lost/retry").status in (200, 201)
        assert f"{MARKER}-lost" in data_of(server.pop("q", batch=5))


def test_a_server_that_was_not_given_its_key_refuses_and_loses_nothing(tmp_path):
    with start(tmp_path, FIRST) as server:
        server.configure("q", encryptionEnabled=True)
        server.push("q", f"{MARKER}-1")
        assert server.stop() == 0
    with start(tmp_path) as server:
        eventually(lambda: "ENCRYPTED QUEUES AND NO KEY" in server.text())
        push = server.post("/api/v1/push", {"items": [{"queue": "q", "payload": MARKER}]})
        assert (push.status, push.json["code"]) == (503, "encryption_key_missing"), push
        operations = [{"type": "push", "items": [{"queue": "q", "payload": MARKER}]}]
        transaction = server.post("/api/v1/transaction", {"operations": operations})
        assert transaction.json["success"] is False and transaction.json["reason"] == "encryption_key_missing"
        pop = server.get("/api/v1/pop/queue/q")
        assert (pop.status, pop.json["code"]) == (503, "encryption_key_missing"), pop
        server.push("other", "plain")
        assert data_of(server.pop("other")) == ["plain"]
        assert server.stop() == 0
    assert on_disk(server, MARKER) == []
    with start(tmp_path, FIRST) as server:
        assert data_of(server.pop("q", batch=5)) == [f"{MARKER}-1"]
