"""/api/v1/timers: messages that are pushed later."""

import base64
import json
import uuid
from datetime import datetime
from urllib.parse import quote

import pytest

from baton import Server, data_of

DAY = 24 * 3600 * 1000


def encoded(payload):
    return base64.b64encode(json.dumps(payload).encode()).decode()


def schedule(queue, key="k", payload=1, delay=DAY, **fields):
    return {"op": "schedule", "queue": queue, "timerKey": key, "payload": encoded(payload), "delayMs": delay, **fields}


def call(server, *operations):
    return server.post("/api/v1/timers", {"operations": list(operations)})


def one(server, operation):
    answer = call(server, operation)
    assert answer.status == 200, answer
    (result,) = answer.json["results"]
    return result


def path(queue, key=None):
    return f"/api/v1/timers/{quote(queue, safe='')}" + ("" if key is None else f"/{quote(key, safe='/')}")


def moment(text):
    return datetime.fromisoformat(text)


def test_a_timer_becomes_a_message_and_is_gone(server, queue):
    result = one(server, schedule(queue, payload={"a": "ü"}, delay=300, txn="t-1", partition="p"))
    assert {"ok": True, "status": "scheduled", "queue": queue, "timerKey": "k", "txn": "t-1"}.items() <= result.items()
    assert uuid.UUID(result["messageId"])
    (message,) = server.pop(queue, wait=True, timeout=20000)
    assert (message["data"], message["transactionId"], message["partition"]) == ({"a": "ü"}, "t-1", "p")
    assert moment(message["createdAt"]) >= moment(result["deliverAt"])
    assert server.get(path(queue, "k")).json == {"found": False}
    assert server.pop(queue, batch=10) == []


@pytest.mark.parametrize("delay", [0, -5000])
def test_a_timer_without_a_delay_fires_at_once(server, queue, delay):
    one(server, schedule(queue, delay=delay))
    assert data_of(server.pop(queue, wait=True, timeout=20000)) == [1]


def test_many_timers_fire_each_once(server, queue):
    operations = [schedule(queue, f"k{i:03}", i, delay=100 + i % 7, txn=f"t{i}") for i in range(250)]
    assert all(result["ok"] for result in call(server, *operations).json["results"])
    seen = []
    while len(seen) < 250:
        messages = server.pop(queue, batch=300, wait=True, timeout=20000)
        assert messages
        seen += data_of(messages)
        server.ack(messages)
    assert sorted(seen) == list(range(250))
    assert server.pop(queue, batch=300) == []
    assert server.get(f"{path(queue)}?mode=count").json == {"count": 0}


def test_a_later_schedule_replaces_an_earlier_one(server, queue):
    first = one(server, schedule(queue, payload="old", txn="t-1"))
    second = one(server, {**schedule(queue, payload="new", delay=100), "op": "reschedule"})
    assert (first["status"], second["status"]) == ("scheduled", "rescheduled")
    assert second["txn"] not in (None, "t-1")
    assert data_of(server.pop(queue, wait=True, timeout=20000)) == ["new"]
    assert server.pop(queue) == []


def test_a_cancelled_timer_never_fires(server, queue):
    one(server, schedule(queue, "a/b c", txn="t-1", delay=1000))
    one(server, schedule(queue, "other", payload="other", delay=1100))
    cancelled = server.delete(path(queue, "a/b c"))
    assert (cancelled.status, cancelled.json["ok"], cancelled.json["status"], cancelled.json["txn"]) == (200, True, "cancelled", "t-1")
    again = server.delete(path(queue, "a/b c") + "?txn=t-1").json
    assert (again["ok"], again["status"], again["txn"]) == (False, "absent", "t-1")
    assert one(server, {"op": "cancel", "queue": queue, "timerKey": "never"})["status"] == "absent"
    assert data_of(server.pop(queue, wait=True, timeout=20000)) == ["other"]
    assert server.pop(queue) == []


def test_a_timer_can_be_looked_at(server, queue):
    result = one(server, schedule(queue, "x/y", {"a": 1}, txn="t", partition="p"))
    shown = server.get(path(queue, "x/y")).json
    assert json.loads(base64.b64decode(shown["payload"])) == {"a": 1}
    expected = {"found": True, "queue": queue, "timerKey": "x/y", "partition": "p", "txn": "t", "attempts": 0, "lastError": None}
    assert expected.items() <= shown.items()
    assert (shown["deliverAt"], shown["messageId"]) == (result["deliverAt"], result["messageId"])
    other = one(server, schedule(queue, "x/y", {"a": 1}, txn="u", partition="p"))
    assert other["messageId"] != result["messageId"], "another transaction id is another message"


def test_timers_are_listed_in_pages_by_key(server, queue):
    call(server, *(schedule(queue, f"k{i:02}") for i in range(25)))
    one(server, schedule(f"{queue}x", "other queue"))
    seen, after = [], ""
    while True:
        page = server.get(f"{path(queue)}?limit=10{after}").json
        assert all("payload" not in row for row in page["rows"])
        seen += [row["timerKey"] for row in page["rows"]]
        if not page["truncated"]:
            assert page["nextAfter"] is None
            break
        after = f"&after={page['nextAfter']}"
    assert seen == [f"k{i:02}" for i in range(25)]
    assert server.get(f"{path(queue)}?mode=count&prefix=k1").json == {"count": 10}


def test_a_message_that_exists_already_is_not_repeated(server, queue):
    server.push(queue, "first", partition="p", ids=["t"])
    one(server, schedule(queue, txn="t", partition="p", delay=0))
    one(server, schedule(queue, "later", "later", partition="p", delay=50))
    seen = []
    while "later" not in seen:
        messages = server.pop(queue, batch=10, wait=True, timeout=20000)
        seen += data_of(messages)
        server.ack(messages)
    assert seen == ["first", "later"]


@pytest.mark.parametrize(
    "change, status, code, reason",
    [
        ({"deliverAt": "2030-01-01T00:00:00Z"}, 400, "timers_bad_request", "timers_server_owned_field"),
        ({"producerSub": "me"}, 400, "timers_bad_request", "timers_server_owned_field"),
        ({"_x": 1}, 400, "timers_bad_request", "timers_server_owned_field"),
        ({"delayMs": 91 * DAY}, 403, "timer_horizon_exceeded", "timer_horizon_exceeded"),
        ({"delayMs": "soon"}, 400, "timers_bad_request", "timers_bad_delay"),
        ({"delayMs": None}, 400, "timers_bad_request", "timers_bad_delay"),
        ({"payload": "%%%"}, 400, "timers_bad_request", "timers_bad_payload"),
        ({"payload": base64.b64encode(b"no json").decode()}, 400, "timers_bad_request", "timers_bad_payload"),
        ({"payload": base64.b64encode(b'"\xff"').decode()}, 400, "timers_bad_request", "timers_bad_payload"),
        ({"payload": encoded("x" * 1_100_000)}, 413, "payload_too_large", "timers_payload_too_large"),
        ({"payloadZstd": True}, 400, "timers_bad_request", "timers_bad_payload"),
        ({"timerKey": ""}, 400, "timers_bad_request", "timers_bad_key"),
        ({"timerKey": "k" * 513}, 400, "timers_bad_request", "timers_bad_key"),
        ({"queue": ""}, 400, "timers_bad_request", "timers_bad_body"),
        ({"op": "sing"}, 400, "timers_bad_request", "timers_unknown_op"),
    ],
)
def test_a_wrong_operation_says_what_is_wrong(server, queue, change, status, code, reason):
    answer = call(server, {**schedule(queue), **change})
    assert answer.status == status, answer
    assert (answer.json["error"], answer.json["reason"]) == (code, reason)
    assert server.get(f"{path(queue)}?mode=count").json == {"count": 0}


def test_a_call_is_bounded_and_names_a_timer_once(server, queue):
    assert call(server, schedule(queue), schedule(queue)).json["reason"] == "timers_duplicate_key_in_call"
    assert call(server, *(schedule(queue, str(i)) for i in range(257))).json["reason"] == "timers_too_many_ops"
    assert call(server).status == 400
    assert server.post("/api/v1/timers", {"operations": 7}).status == 400


def test_the_largest_payload_is_delivered(server, queue):
    payload = "x" * 970_000
    one(server, schedule(queue, payload=payload, delay=0, txn="t" * 65535))
    assert data_of(server.pop(queue, wait=True, timeout=20000)) == [payload]


def test_timers_survive_a_kill_and_fire_once(tmp_path):
    with Server(tmp_path / "data") as server:
        one(server, schedule("q", "soon", "soon", delay=1500))
        one(server, schedule("q", "far", "far"))
        server.kill()
        server.start()
        assert data_of(server.pop("q", wait=True, timeout=20000)) == ["soon"]
        assert [row["timerKey"] for row in server.get(path("q")).json["rows"]] == ["far"]
        server.kill()
        server.start()
        assert server.get(path("q", "soon")).json == {"found": False}
        assert server.get("/api/v1/resources/queues/q/depth").json["pending"] == 1
