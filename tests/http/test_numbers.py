"""Numbers that clients send back, read as JavaScript reads them: as doubles, on every store."""

import json
import uuid

import pytest

import postgres
from baton import Server

EXACT_MAX = 2**53


@pytest.fixture(params=["embedded", "postgres"], scope="module")
def store(request, tmp_path_factory):
    data = tmp_path_factory.mktemp("numbers") / "data"
    schema = f"numbers_{uuid.uuid4().hex[:16]}"
    arguments = ["--store", postgres.shared(), "--store-schema", schema] if request.param == "postgres" else []
    with Server(data, *arguments) as server:
        yield server


def as_doubles(answer):
    """The answer's JSON with every whole number as a double has it."""
    assert answer.status in (200, 201), answer

    def number(text):
        assert abs(int(text)) < EXACT_MAX, text
        return int(float(text))

    return json.loads(answer.body, parse_int=number)


def call(server, path, operation, **more):
    return as_doubles(server.post(path, {"operations": [operation], **more}))["results"][0]


def test_versions_and_tokens_can_be_sent_back(store, queue):
    record = {"op": "put", "ns": queue, "key": "k", "forever": True}
    first = call(store, "/api/v1/kv", {**record, "value": 1})
    second = call(store, "/api/v1/kv", {**record, "value": 2, "expect": first["version"]})
    assert second["applied"] is True and second["version"] > first["version"]
    lock = {"name": queue, "owner": "a", "ttlSeconds": 60}
    held = call(store, "/api/v1/locks", {"op": "acquire", **lock})
    push = {"type": "push", "items": [{"queue": queue, "payload": 1}]}
    guarded = as_doubles(store.post("/api/v1/transaction", {"operations": [push], "kv": [held["guard"]]}))
    assert guarded["success"] is True, guarded
    renewed = call(store, "/api/v1/locks", {"op": "renew", **lock, "token": held["token"]})
    assert renewed["renewed"] is True and renewed["token"] > held["token"]
    released = call(store, "/api/v1/locks", {"op": "release", "name": queue, "token": renewed["token"]})
    assert released["released"] is True


def test_fences_and_offsets_can_be_sent_back(store, queue):
    as_doubles(store.post("/api/v1/jobs", {"jobType": "t", "queue": queue}))
    worker = as_doubles(store.post("/api/v1/workers", {"name": "w", "queues": [queue]}))["workerId"]
    (lease,) = as_doubles(store.post(f"/api/v1/workers/{worker}/lease", {"max": 1, "waitMs": 10_000}))["leases"]
    item = {"jobId": lease["jobId"], "fence": lease["fence"], "outcome": "succeeded"}
    (reported,) = as_doubles(store.post("/api/v1/executions:report", {"items": [item]}))["items"]
    assert reported["ok"] is True, reported
    as_doubles(store.post("/api/v1/push", {"items": [{"queue": queue, "payload": n} for n in range(3)]}))
    entry = {"queue": queue, "partition": "Default", "offset": 1}
    (fetched,) = as_doubles(store.post("/api/v1/fetch", {"entries": [entry]}))["entries"]
    assert [message["offset"] for message in fetched["records"]] == [1, 2], fetched
