"""Jobs over HTTP: what producers and operators ask for, and what workers hear."""

import http.client
import json
import threading
import time
import uuid

import pytest

from baton import eventually

API = "/api/v1"


@pytest.fixture
def queue():
    return f"q-{uuid.uuid4().hex[:12]}"


def ok(answer, status=200):
    assert answer.status == status, answer
    return answer.json


def enqueue(server, queue, **fields):
    return ok(server.post(f"{API}/jobs", {"jobType": "t", "queue": queue, **fields}), 201)["jobId"]


@pytest.fixture
def worker(server, queue):
    return ok(server.post(f"{API}/workers", {"name": "w", "queues": [queue]}), 201)["workerId"]


def lease(server, worker, max=10, wait=0):
    return ok(server.post(f"{API}/workers/{worker}/lease", {"max": max, "waitMs": wait}))["leases"]


def report(server, lease, outcome="succeeded", **fields):
    item = {"jobId": lease["jobId"], "fence": lease["fence"], "outcome": outcome, **fields}
    return ok(server.post(f"{API}/executions:report", {"items": [item]}))["items"][0]


def job(server, job_id):
    return ok(server.get(f"{API}/jobs/{job_id}"))


def test_a_job_goes_through(server, queue, worker):
    job_id = enqueue(server, queue, args={"to": "a"}, tags=["x"], correlationId="c", priority="high")
    (leased,) = lease(server, worker)
    assert leased["jobId"] == job_id and leased["args"] == {"to": "a"} and leased["attempt"] == 1
    assert report(server, leased, result={"id": 1}) == {"jobId": job_id, "ok": True, "state": "completed"}
    assert report(server, leased, result={"id": 1})["code"] == "repeated"
    assert report(server, leased | {"fence": 0}) == {
        "jobId": job_id, "ok": False, "code": "stale_fence", "currentFence": 1,
    }
    shown = job(server, job_id)
    assert shown["state"] == "completed" and shown["hasResult"] and shown["priority"] == 2
    assert [attempt["outcome"] for attempt in shown["history"]] == ["succeeded"]
    assert ok(server.get(f"{API}/jobs/{job_id}/result")) == {"id": 1}


def test_a_lease_waits_for_the_first_job(server, queue, worker):
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    connection.request("POST", f"{API}/workers/{worker}/lease", json.dumps({"max": 5, "waitMs": 30000}))
    job_id = enqueue(server, queue)
    leases = json.loads(connection.getresponse().read())["leases"]
    assert [leased["jobId"] for leased in leases] == [job_id]


def test_a_failure_is_tried_again_and_then_a_dead_letter(server, queue, worker):
    retry = {"maxRetries": 1, "initialDelayMs": 1, "jitter": 0}
    job_id = enqueue(server, queue, retry=retry)
    for state in ("scheduled", "failed"):
        (leased,) = eventually(lambda: lease(server, worker), 30)
        error = {"type": "io", "message": "no"}
        assert report(server, leased, "failed", error=error)["state"] == state
    shown = job(server, job_id)
    assert shown["error"] == {"type": "io", "message": "no"} and len(shown["history"]) == 2
    letters = ok(server.get(f"{API}/dead-letters?limit=1000"))["jobs"]
    assert job_id in [letter["jobId"] for letter in letters]
    assert ok(server.post(f"{API}/dead-letters/{job_id}/replay"))["state"] == "dispatched"
    (leased,) = lease(server, worker)
    assert report(server, leased)["ok"]
    assert server.post(f"{API}/dead-letters/{job_id}/replay").status == 404


def test_a_batch_is_all_or_none_or_each_by_itself(server, queue):
    good, bad = {"jobType": "t", "queue": queue}, {"jobType": "", "queue": queue}
    assert server.post(f"{API}/jobs:batch", {"jobs": [good, bad]}).status == 422
    assert server.get(f"{API}/job-queues/{queue}").status == 404, "nothing of it was done"
    items = ok(server.post(f"{API}/jobs:batch", {"jobs": [good, bad, good], "atomic": False}), 201)["items"]
    assert ["jobId" in item for item in items] == [True, False, True] and items[1]["code"] == "unprocessable"
    assert server.post(f"{API}/jobs:batch", {"jobs": [good] * 1001}).status == 413
    chain = [good, {**good, "dependsOn": ["#0"]}]
    states = [item["state"] for item in ok(server.post(f"{API}/jobs:batch", {"jobs": chain}), 201)["items"]]
    assert states == ["dispatched", "pending"]


def test_a_repeated_call_is_answered_as_the_first(server, queue):
    body = {"jobType": "t", "queue": queue}
    key = {"Idempotency-Key": queue}
    first = ok(server.post(f"{API}/jobs", body, headers=key), 201)
    assert ok(server.post(f"{API}/jobs", body, headers=key), 201)["jobId"] == first["jobId"]
    assert ok(server.post(f"{API}/jobs?idempotencyKey={queue}", body), 201)["jobId"] == first["jobId"]
    assert ok(server.get(f"{API}/job-queues/{queue}"))["counts"]["dispatched"] == 1
    later = body | {"delayMs": 60_000}
    first = ok(server.post(f"{API}/jobs?idempotencyKey={queue}-later", later), 201)
    assert first["runAt"] and ok(server.post(f"{API}/jobs?idempotencyKey={queue}-later", later), 201) == first


def test_a_key_of_another_request_is_refused(server, queue):
    """Two jobs were silently dropped: a second call under the key of a first was answered with the first's job."""
    body = {"jobType": "t", "queue": queue}
    schedule = {"kind": "interval", "everyMs": 86_400_000, "job": body}
    ok(server.call("PUT", f"{API}/schedules/{queue}", schedule), 201)
    ok(server.call("PUT", f"{API}/schedules/{queue}-2", schedule), 201)
    year = {"from": "2026-01-01T00:00:00Z", "to": "2026-01-02T00:00:00Z"}
    calls = [
        (f"{API}/jobs", body),
        (f"{API}/jobs", body | {"args": 2}),
        (f"{API}/jobs:batch", {"jobs": [body]}),
        (f"{API}/jobs:batch", {"jobs": [body, body]}),
        (f"{API}/jobs:batch", {"jobs": [{"jobType": ""}, body], "atomic": False}),
        (f"{API}/jobs:batch", {"jobs": [body, body], "atomic": False}),
        (f"{API}/schedules/{queue}/trigger", None),
        (f"{API}/schedules/{queue}-2/trigger", None),
        (f"{API}/schedules/{queue}/backfill", year),
        (f"{API}/schedules/{queue}/backfill", year | {"max": 1}),
    ]
    for place, (path, sent) in enumerate(calls):
        key = {"Idempotency-Key": f"{queue}-{place}"}
        first = server.post(path, sent, headers=key)
        assert first.status in (200, 201), first
        before = ok(server.get(f"{API}/job-queues/{queue}"))["counts"]
        for other, (other_path, other_sent) in enumerate(calls):
            again = server.post(other_path, other_sent, headers=key)
            if other == place:
                assert again.json == first.json
            else:
                assert again.status == 409 and again.json["reason"] == "idempotency_key_reused", again
        assert ok(server.get(f"{API}/job-queues/{queue}"))["counts"] == before


def test_a_unique_key_returns_rejects_or_replaces(server, queue):
    body = {"jobType": "t", "queue": queue, "uniqueKey": "k"}
    first = ok(server.post(f"{API}/jobs", body), 201)["jobId"]
    assert ok(server.post(f"{API}/jobs", body)) == {
        "jobId": first, "state": "dispatched", "runAt": None, "deduplicated": True,
    }
    refused = server.post(f"{API}/jobs", body | {"onConflict": "reject"})
    assert refused.status == 409 and refused.json["reason"] == "unique_key_taken"
    assert ok(server.post(f"{API}/jobs", body | {"onConflict": "replace"}), 201)["jobId"] != first
    assert job(server, first)["state"] == "cancelled"


def test_cancel_and_retry(server, queue, worker):
    job_id = enqueue(server, queue)
    assert ok(server.post(f"{API}/jobs/{job_id}/cancel"))["state"] == "cancelled"
    assert server.post(f"{API}/jobs/{job_id}/cancel").json["reason"] == "already_ended"
    assert ok(server.post(f"{API}/jobs/{job_id}/retry", {"args": [7]}))["state"] == "dispatched"
    (leased,) = lease(server, worker)
    assert leased["args"] == [7] and leased["fence"] == 2
    assert server.post(f"{API}/jobs/{job_id}/retry").json["reason"] == "not_terminal"
    asked = server.post(f"{API}/jobs/{job_id}/cancel", {"reason": "no need"})
    assert asked.status == 202 and asked.json["state"] == "cancelling"
    beat = {"running": [{"jobId": job_id, "fence": 2, "progress": {"percent": 50, "message": "half"}}]}
    heard = ok(server.post(f"{API}/workers/{worker}/heartbeat", beat))
    assert heard["cancel"] == [job_id] and heard["desiredState"] == "active"
    assert job(server, job_id)["progress"]["percent"] == 50
    assert ok(server.post(f"{API}/jobs/{job_id}/cancel", {"force": True}))["state"] == "cancelled"
    assert report(server, leased)["code"] == "stale_fence"


def test_jobs_are_found_and_changed_together(server, queue):
    ids = [enqueue(server, queue, tags=[queue], correlationId=f"{queue}-{n}") for n in range(5)]
    found = ok(server.get(f"{API}/jobs?queue={queue}&limit=2"))
    assert [row["jobId"] for row in found["jobs"]] == ids[:2:-1]
    rest = ok(server.get(f"{API}/jobs?queue={queue}&cursor={found['nextCursor']}"))
    assert [row["jobId"] for row in rest["jobs"]] == ids[2::-1]
    by_tag = ok(server.get(f"{API}/jobs?tag={queue}&state=dispatched"))["jobs"]
    assert len(by_tag) == 5
    (one,) = ok(server.get(f"{API}/jobs?correlationId={queue}-3"))["jobs"]
    assert one["jobId"] == ids[3]
    bulk = {"action": "cancel", "filter": {"tag": queue}, "dryRun": True}
    dry = ok(server.post(f"{API}/jobs:bulk", bulk))
    assert (dry["matched"], dry["changed"]) == (5, 0)
    assert ok(server.post(f"{API}/jobs:bulk", bulk | {"dryRun": False}))["changed"] == 5
    assert ok(server.post(f"{API}/jobs:bulk", bulk | {"action": "retry", "dryRun": False}))["changed"] == 5
    # A filter that was left out meant every job of every queue.
    for wrong in ({}, {"filter": {}}, {"filter": {"tag": queue}, "all": True}):
        assert server.post(f"{API}/jobs:bulk", {"action": "cancel"} | wrong).status == 422
    everything = ok(server.post(f"{API}/jobs:bulk", {"action": "cancel", "all": True, "dryRun": True}))
    assert everything["matched"] >= 5
    assert server.get(f"{API}/jobs?state=sleeping").status == 400
    assert server.get(f"{API}/jobs?cursor=here").status == 400


def test_a_queue_is_paused_and_limited(server, queue, worker):
    for _ in range(3):
        enqueue(server, queue)
    assert ok(server.post(f"{API}/job-queues/{queue}/pause"))["paused"]
    assert lease(server, worker) == []
    assert ok(server.post(f"{API}/job-queues/{queue}/resume"))["paused"] is False
    ok(server.call("PUT", f"{API}/job-queues/{queue}", {"concurrency": 2}))
    assert len(lease(server, worker)) == 2
    assert lease(server, worker) == []
    assert server.call("PUT", f"{API}/job-queues/{queue}", {"concurrency": 0}).status == 422


def test_a_queue_has_a_weight_and_may_do_without_dead_letters(server, queue, worker):
    put = lambda **fields: server.call("PUT", f"{API}/job-queues/{queue}", fields)  # noqa: E731
    shown = ok(put(weight=3, dlq=False))
    assert (shown["weight"], shown["dlq"]) == (3, False)
    assert put(weight=0).status == 422
    job_id = enqueue(server, queue, retry={"maxRetries": 0})
    (leased,) = lease(server, worker)
    assert report(server, leased, "failed")["state"] == "failed"
    assert server.post(f"{API}/dead-letters/{job_id}/replay").status == 404
    shown = ok(put())
    assert (shown["weight"], shown["dlq"]) == (None, True)


def test_dead_letters_are_replayed_by_filter_and_rate(server, queue, worker):
    jobs = [enqueue(server, queue, retry={"maxRetries": 0}, tags=[f"{queue}-{number % 2}"]) for number in range(4)]
    for leased in lease(server, worker):
        report(server, leased, "failed")
    replay = lambda **fields: server.post(f"{API}/dead-letters:replay", fields)  # noqa: E731
    assert replay(filter={"state": "completed"}).status == 422
    for nothing in ({}, {"filter": {}}, {"filter": {"queue": queue}, "all": True}):
        assert replay(**nothing).status == 422, "all dead letters are meant only by all"
    assert replay(filter={"queue": queue}, ratePerSec=0).status == 422
    assert ok(replay(filter={"tag": f"{queue}-0"}))["replayed"] == 2
    assert [job(server, id)["state"] for id in jobs] == ["dispatched", "failed", "dispatched", "failed"]
    assert ok(replay(filter={"queue": queue}, ratePerSec=0.01))["replayed"] == 2
    assert sorted(job(server, id)["state"] for id in jobs) == ["dispatched"] * 3 + ["scheduled"]


def test_a_schedule_is_changed_only_as_it_was_read(server, queue):
    path = f"{API}/schedules/{queue}"
    spec = {"kind": "interval", "everyMs": 3_600_000, "job": {"jobType": "t", "queue": queue}}
    put = lambda tag=None: server.call("PUT", path, spec, headers={"If-Match": tag} if tag else {})  # noqa: E731
    assert put('"1"').status == 412, "it is not there"
    first = put('"0"')
    assert (first.status, first.headers["etag"]) == (201, '"1"')
    second = put(first.headers["etag"])
    assert (second.status, second.headers["etag"], second.json["revision"]) == (200, '"2"', 2)
    stale = put(first.headers["etag"])
    assert (stale.status, stale.json["code"]) == (412, "precondition_failed")
    assert server.call("PUT", f"{path}?revision=1", spec).status == 409
    assert put("2").status == 400
    assert server.get(path).headers["etag"] == '"2"'
    assert server.call("DELETE", path, headers={"If-Match": '"1"'}).status == 412
    assert server.call("DELETE", path, headers={"If-Match": '"2"'}).status == 204


def test_a_queue_is_changed_only_as_it_was_read(server, queue):
    path = f"{API}/job-queues/{queue}"
    put = lambda tag, **settings: server.call("PUT", path, settings, headers={"If-Match": tag} if tag else {})  # noqa: E731
    assert put('"0123456789abcdef"').status == 412, "it is not there"
    assert server.get(path).status == 404, "and was not made"
    first = put(None, concurrency=3)
    assert server.get(path).headers["etag"] == first.headers["etag"]
    ok(server.post(f"{API}/jobs", {"jobType": "t", "queue": queue}), 201)
    assert server.get(path).headers["etag"] == first.headers["etag"], "jobs do not change it"
    second = put(first.headers["etag"], concurrency=4)
    assert (second.status, second.json["concurrency"]) == (200, 4)
    stale = put(first.headers["etag"], concurrency=5)
    assert (stale.status, stale.json["code"]) == (412, "precondition_failed")
    assert put("3", concurrency=5).status == 400
    assert server.get(path).json["concurrency"] == 4
    paused = server.post(f"{path}/pause", {})
    assert paused.headers["etag"] != second.headers["etag"]
    assert put(second.headers["etag"], concurrency=5).status == 412, "somebody paused it"
    assert put(paused.headers["etag"], concurrency=5, paused=True).status == 200


def test_a_schedule_in_an_unknown_zone_is_refused(server, queue):
    spec = {"kind": "cron", "cron": "0 3 * * *", "timeZone": "Mars/Base", "job": {"jobType": "t", "queue": queue}}
    answer = server.call("PUT", f"{API}/schedules/{queue}", spec)
    assert answer.status == 422 and "Mars/Base" in answer.error


def test_arguments_are_an_empty_object_unless_given_also_from_schedules(server, queue):
    enqueued = enqueue(server, queue)
    put = {"kind": "interval", "everyMs": 3_600_000, "job": {"jobType": "t", "queue": queue}}
    ok(server.call("PUT", f"{API}/schedules/{queue}", put), 201)
    fired = ok(server.post(f"{API}/schedules/{queue}/trigger"), 201)["jobId"]
    assert [job(server, one)["args"] for one in (enqueued, fired)] == [{}, {}]


def test_a_worker_hears_of_a_cancellation_at_once(server, queue, worker):
    job_id = enqueue(server, queue)
    lease(server, worker)
    heard = []

    def beat():
        began = time.monotonic()
        answer = server.post(f"{API}/workers/{worker}/heartbeat", {"waitMs": 10_000})
        heard.append((time.monotonic() - began, ok(answer)["cancel"]))

    waiting = threading.Thread(target=beat)
    waiting.start()
    ok(server.post(f"{API}/jobs/{job_id}/cancel"), 202)
    waiting.join()
    [(took, cancel)] = heard
    assert cancel == [job_id] and took < 8


def test_a_worker_that_leaves_is_not_listed(server, queue, worker):
    listed = lambda: [one["workerId"] for one in ok(server.get(f"{API}/workers"))["workers"]]
    assert worker in listed()
    assert server.delete(f"{API}/workers/{worker}").status == 204
    assert worker not in listed()
    assert server.delete(f"{API}/workers/{worker}").status == 404


def test_a_worker_drains(server, queue, worker):
    enqueue(server, queue)
    (leased,) = lease(server, worker)
    enqueue(server, queue)
    ok(server.post(f"{API}/workers/{worker}/drain", {"mode": "graceful"}))
    answer = ok(server.post(f"{API}/workers/{worker}/lease", {"max": 1}))
    assert answer == {"leases": [], "desiredState": "draining"}
    assert report(server, leased, "released")["state"] == "dispatched"
    rows = {row["workerId"]: row for row in ok(server.get(f"{API}/workers"))["workers"]}
    assert rows[worker]["state"] == "draining" and rows[worker]["queues"] == [queue]
    assert server.post(f"{API}/workers/w-1/lease", {}).status == 404
    assert server.post(f"{API}/workers/{worker}/lease", {"incarnation": 1}).json["reason"] == "stale_incarnation"


def read_events(server, path, headers=None):
    """All events of a stream that ends by itself: (id, name, data)."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    connection.request("GET", path, headers={"Accept": "text/event-stream"} | (headers or {}))
    answer = connection.getresponse()
    assert answer.status == 200 and answer.headers["content-type"] == "text/event-stream"
    events = []
    for block in answer.read().decode().split("\n\n"):
        members = dict(line.split(": ", 1) for line in block.splitlines() if not line.startswith(":"))
        if members:
            events.append((members["id"], members["event"], json.loads(members["data"])))
    return events


def test_a_log_is_followed_and_resumed_without_loss(server, queue, worker):
    job_id = enqueue(server, queue)
    (leased,) = lease(server, worker)
    path = f"{API}/executions/{leased['executionId']}/logs"
    lines = [{"level": "info", "message": f"line {n}"} for n in range(1, 6)]
    assert ok(server.post(path, {"firstSeq": 1, "lines": lines[:3]})) == {"nextSeq": 4}
    assert ok(server.post(path, {"firstSeq": 2, "lines": lines[1:]})) == {"nextSeq": 6}, "what came again is kept once"
    assert server.post(path, {"firstSeq": 9, "lines": lines[:1]}).json["reason"] == "log_gap"
    report(server, leased)
    page = ok(server.get(f"{API}/jobs/{job_id}/logs?limit=2"))
    assert [line["message"] for line in page["lines"]] == ["line 1", "line 2"] and page["more"]
    events = read_events(server, f"{API}/jobs/{job_id}/logs")
    assert [data["message"] for _, name, data in events if name == "log"] == [f"line {n}" for n in range(1, 6)]
    assert events[-1][1:] == ("end", {"state": "completed"})
    third = next(event for event in events if event[1] == "log" and event[2]["seq"] == 3)
    resumed = read_events(server, f"{API}/jobs/{job_id}/logs", {"Last-Event-ID": third[0]})
    assert [data["seq"] for _, name, data in resumed if name == "log"] == [4, 5]
    stale = server.post(f"{API}/executions/{job_id}.7/logs", {"lines": lines})
    assert stale.status == 409 and stale.json["reason"] == "stale_fence"


def test_a_follower_hears_while_the_job_runs(server, queue, worker):
    job_id = enqueue(server, queue)
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    connection.request("GET", f"{API}/jobs/{job_id}/logs?follow=true")
    answer = connection.getresponse()
    (leased,) = lease(server, worker)
    path = f"{API}/executions/{leased['executionId']}/logs"
    ok(server.post(path, {"lines": [{"message": "hello"}]}))
    report(server, leased)
    text = answer.read().decode()
    assert "hello" in text and text.index('"running"') < text.index("hello") < text.index("event: end")


def test_a_caller_waits_for_the_end(server, queue, worker):
    job_id = enqueue(server, queue)
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    connection.request("GET", f"{API}/jobs/{job_id}/wait?timeoutMs=30000")
    (leased,) = lease(server, worker)
    report(server, leased)
    assert json.loads(connection.getresponse().read())["state"] == "completed"
    assert server.get(f"{API}/jobs/{uuid.uuid4()}").status == 404


def test_a_job_is_enqueued_with_acks_and_pushes_or_not_at_all(server, queue):
    server.push(queue, {"order": 1}, ids=["order-1"])
    (message,) = server.pop(queue)
    ack = {
        "type": "ack", "transactionId": "order-1", "partitionId": message["partitionId"],
        "leaseId": message["leaseId"], "status": "completed",
    }
    jobs = [{"jobType": "ship", "queue": queue, "args": {"order": 1}, "uniqueKey": "order-1", "onConflict": "reject"}]
    done = ok(server.post(f"{API}/transaction", {"operations": [ack], "jobs": jobs}))
    assert done["success"] and done["results"][-1]["type"] == "job"
    assert job(server, done["results"][-1]["jobId"])["args"] == {"order": 1}
    push = {"type": "push", "items": [{"queue": queue, "payload": 2, "transactionId": "order-2"}]}
    refused = ok(server.post(f"{API}/transaction", {"operations": [push], "jobs": jobs}))
    assert not refused["success"] and refused["reason"] == "unique_key_taken"
    assert server.pop(queue) == [], "the push did not happen either"
    # And the other way round: a lease that has ended takes the job with it.
    other = [{"jobType": "ship", "queue": queue, "tags": [queue]}]
    ended = {"operations": [ack], "jobs": other, "requiredLeases": [message["leaseId"]]}
    assert ok(server.post(f"{API}/transaction", ended))["reason"] == "lease"
    assert ok(server.get(f"{API}/jobs?tag={queue}"))["jobs"] == []


@pytest.mark.parametrize(
    "body, word",
    [
        ({}, "jobType"),
        ({"jobType": "t", "priority": 9}, "priority"),
        ({"jobType": "t", "priority": "urgent"}, "priority"),
        ({"jobType": "t", "runAt": "soon"}, "runAt"),
        ({"jobType": "t", "runAt": "2030-01-01T00:00:00Z", "delayMs": 1}, "not both"),
        ({"jobType": "t", "retry": {"maxRetries": 5000}}, "maxRetries"),
        ({"jobType": "t", "retry": {"maxRetry": 5}}, "maxRetry"),
        ({"jobType": "t", "concurrencyLimit": 1}, "concurrencyKey"),
        ({"jobType": "t", "dependsOn": ["x"]}, "dependsOn"),
        ({"jobType": "t", "dependsOn": [str(uuid.uuid4())]}, "dependsOn"),
        ({"jobType": "t", "tags": ["x"] * 17}, "tags"),
        ({"jobType": "t\u0000"}, "control"),
        ({"jobType": "t", "uniqueKey": "k", "uniqueScope": "window"}, "uniqueWindowMs"),
    ],
)
def test_what_is_wrong_is_named(server, body, word):
    answer = server.post(f"{API}/jobs", body)
    # What has not the shape of a job is no body for this route; what has, and cannot be, is told apart.
    status = 400 if word in ("jobType", "maxRetry") else 422
    assert answer.status == status and word in answer.error, answer


# The id of no job.
NO_ONE = "01900000-0000-7000-8000-000000000001"


@pytest.mark.parametrize("path, body, near", [
    ("/jobs", {"jobType": "x", "delay": 5000}, "delayMs"),
    ("/jobs", {"jobType": "x", "retry": {"maxRetry": 1}}, "maxRetries"),
    ("/jobs:batch", {"jobs": [{"jobType": "x", "delay": 5000}]}, "delayMs"),
    ("/jobs:bulk", {"action": "cancel", "filter": {"queues": "q"}}, "queue"),
    ("/workers", {"name": "w", "queue": ["q"]}, "queues"),
    ("/jobs?idempotencykey=1", {"jobType": "x"}, "idempotencyKey"),
    ("/transaction", {"jobs": [{"jobType": "x"}, {"jobType": "x", "delay": 5000}]}, "delayMs"),
    ("/executions:report", {"item": []}, "items"),
    ("/executions:report", {"items": [{"jobid": "x"}]}, "jobId"),
    ("/executions:report", {"items": [{"error": {"messages": "x"}}]}, "message"),
    (f"/executions/{NO_ONE}.1/logs", {"lines": [], "first": 1}, "firstSeq"),
    (f"/executions/{NO_ONE}.1/logs", {"lines": [{"messages": "x"}]}, "message"),
    ("/workers/w-1/heartbeat", {"running": [], "wait": 1}, "waitMs"),
    ("/workers/w-1/heartbeat", {"running": [{"progress": {"percents": 1}}]}, "percent"),
    ("/workers/w-1/lease", {"maxi": 1}, "max"),
    ("/workers/w-1/drain", {"grace": 1}, "graceMs"),
    ("/schedules/s/backfill", {"from": "2026-01-01T00:00:00Z", "dryrun": True}, "dryRun"),
])
def test_an_unknown_member_is_refused_with_the_nearest(server, path, body, near):
    answer = server.post(f"{API}{path}", body)
    assert answer.status == 400 and f'did you mean "{near}"?' in answer.json["error"], answer


@pytest.mark.parametrize("given, near", [
    ({"retries": 1}, None), ({"timezone": "UTC"}, "timeZone"), ({"everyMS": 5000}, "everyMs"),
    ({"job": {"jobType": "t", "arg": 1}}, "args"), ({"job": {"jobType": "t", "retry": {"maxRetry": 1}}}, "maxRetries"),
])
def test_an_unknown_member_of_a_schedule_is_refused_with_the_nearest(server, queue, given, near):
    body = {"kind": "interval", "everyMs": 5000, "job": {"jobType": "t", "queue": queue}, **given}
    answer = server.call("PUT", f"{API}/schedules/{queue}", body)
    assert answer.status == 400, answer
    assert (f'did you mean "{near}"?' if near else "there is no member") in answer.error, answer
    assert server.get(f"{API}/schedules/{queue}").status == 404


def test_calls_of_a_schedule_that_take_no_body_refuse_one(server, queue):
    body = {"kind": "interval", "everyMs": 3_600_000, "job": {"jobType": "t", "queue": queue}}
    assert server.call("PUT", f"{API}/schedules/{queue}", body).status == 201
    for call in ("trigger", "pause", "resume"):
        path = f"{API}/schedules/{queue}/{call}"
        for given, told in (({"args": 1}, "args"), ([], "the body is empty")):
            answer = server.post(path, given)
            assert answer.status == 400 and told in answer.error, answer
        for given in ({}, b""):
            assert server.post(path, given).status in (200, 201), call


@pytest.mark.parametrize("path, near", [
    ("/jobs?stat=failed", "state"), ("/dead-letters?limits=1", "limit"), ("/schedules?curser=a", "cursor"),
])
def test_an_unknown_parameter_is_refused_with_the_nearest(server, path, near):
    answer = server.get(f"{API}{path}")
    assert answer.status == 400 and f'did you mean "{near}"?' in answer.json["error"], answer


def test_arguments_that_are_too_large_are_refused(server, queue):
    answer = server.post(f"{API}/jobs", {"jobType": "t", "queue": queue, "args": "x" * (1 << 20)})
    assert answer.status == 413 and "args" in answer.error


def test_numbers_are_there_for_prometheus(server, queue, worker):
    enqueue(server, queue)
    (leased,) = lease(server, worker)
    report(server, leased)
    text = server.get("/metrics/prometheus").body.decode()
    assert f'baton_jobs{{queue="{queue}",state="completed"}} 1' in text
    assert "baton_job_pickup_seconds_bucket" in text
