"""The OpenAPI document of a live server, held against what that server answers to requests made from it.

`schemathesis` reads the document as a stranger would, makes requests that fit it and requests that do not, and
compares every answer with what is documented: status, content type, schema. A document with a mistake in it must
make the same run fail.
"""

import collections
import json
import os
import subprocess
import sys
from pathlib import Path

import jsonschema_rs
import pytest

from baton import Server

HERE = Path(__file__).resolve().parent
CHECKS = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"
EXAMPLES = 8
RUN_SECONDS = 600
# The same requests each time: what a route must have answered at least once is then known.
SEED = 7


@pytest.fixture(scope="module")
def document(server):
    answer = server.get("/api/openapi.json")
    assert answer.status == 200, answer
    assert answer.headers["content-type"] == "application/json"
    return answer.json


def operations(document):
    return {f"{method.upper()} {path}" for path, item in document["paths"].items() for method in item}


def fuzz(server, directory, location, *options):
    """Runs schemathesis; returns its exit code, its words, and the statuses seen for each operation."""
    seen_path = directory / "seen.jsonl"
    seen_path.write_text("")
    command = [sys.executable, "-m", "schemathesis.cli", "run", str(location), "--url", server.url]
    command += ["--checks", CHECKS, "--phases", "examples,coverage,fuzzing", "--max-examples", str(EXAMPLES)]
    command += ["--request-timeout", "30", "--warnings", "off", "--no-color", "--generation-database", "none"]
    environment = os.environ | {
        "SCHEMATHESIS_HOOKS": "hooks",
        "PYTHONPATH": str(HERE),
        "BATON_SEEN": str(seen_path),
    }
    run = subprocess.run(
        command + list(options), cwd=directory, env=environment, capture_output=True, text=True, timeout=RUN_SECONDS
    )
    seen = collections.defaultdict(collections.Counter)
    for line in seen_path.read_text().splitlines():
        label, method, status = json.loads(line)
        # Other methods are tried too; what they are answered shows nothing about this operation.
        if label.startswith(f"{method} "):
            seen[label][status] += 1
    return run.returncode, run.stdout + run.stderr, seen


def stage(server, queue):
    """Something to be found: a queue with messages, a group that holds one of them, and a dead letter."""
    server.configure(queue, {"namespace": "shop", "task": "ship"}, retryLimit=0)
    server.push(queue, {"n": 1}, {"n": 2}, {"n": 3}, ids=["a", "b", "c"])
    first = server.pop(queue)
    server.ack(first, status="failed", error="no stock")
    return server.pop(queue, consumerGroup="late")[0]


def stage_jobs(server, queue):
    """A worker, and jobs in several states, by the names that `KNOWING` has for them."""

    def call(path, body):
        answer = server.post(f"/api/v1{path}", body)
        assert answer.status in (200, 201), answer
        return answer.json

    worker = call("/workers", {"name": "w", "queues": [queue]})["workerId"]
    jobs = [{"jobType": "t", "queue": queue, "retry": {"maxRetries": 0}}] * 5
    ids = [item["jobId"] for item in call("/jobs:batch", {"jobs": jobs})["items"]]
    leases = call(f"/workers/{worker}/lease", {"max": 4})["leases"]
    outcomes = [{"outcome": "succeeded", "result": 1}, {"outcome": "failed"}, {"outcome": "failed"}]
    items = [{"jobId": job, "fence": 1, **outcome} for job, outcome in zip(ids, outcomes, strict=False)]
    call("/executions:report", {"items": items})
    names = ("{done}", "{dead}", "{buried}", "{running}", "{waiting}")
    return dict(zip(names, ids, strict=True)) | {"{w}": worker, "{e}": leases[3]["executionId"]}


# What a stranger cannot make succeed, because it needs ids or names of things that exist. `{m}` is a
# partition, `{q}` its queue, `{l}` a lease on it.
KNOWING = [
    ("GET", "/api/v1/messages/{partition}/{transaction}", "/api/v1/messages/{m}/b", None),
    ("POST", "/api/v1/messages/{partition}/{transaction}/retry", "/api/v1/messages/{m}/a/retry", None),
    ("DELETE", "/api/v1/messages/{partition}/{transaction}", "/api/v1/messages/{m}/b", None),
    ("GET", "/api/v1/pop", "/api/v1/pop?namespace=shop&consumerGroup=other&batch=5", None),
    ("GET", "/api/v1/pop/queue/{queue}/partition/{partition}", "/api/v1/pop/queue/{q}/partition/Default", None),
    ("GET", "/api/v1/resources/partitions", "/api/v1/resources/partitions?queue={q}", None),
    ("GET", "/api/v1/resources/queues/{queue}", "/api/v1/resources/queues/{q}", None),
    ("GET", "/api/v1/status/queues/{queue}", "/api/v1/status/queues/{q}", None),
    ("GET", "/api/v1/status/queues/{queue}/messages", "/api/v1/status/queues/{q}/messages", None),
    ("GET", "/api/v1/consumer-groups/{group}", "/api/v1/consumer-groups/late", None),
    ("GET", "/api/v1/consumer-groups/lagging", "/api/v1/consumer-groups/lagging?minLagSeconds=0", None),
    ("POST", "/api/v1/lease/{lease}/extend", "/api/v1/lease/{l}/extend", {"seconds": 9}),
    (
        "POST",
        "/api/v1/transaction",
        "/api/v1/transaction",
        {"operations": [{"type": "push", "items": [{"queue": "next"}]}], "jobs": [{"jobType": "t", "queue": "next"}]},
    ),
    (
        "POST",
        "/api/v1/consumer-groups/{group}/queues/{queue}/seek",
        "/api/v1/consumer-groups/late/queues/{q}/seek",
        {"timestamp": "2026-01-01T00:00:00Z"},
    ),
    (
        "POST",
        "/api/v1/consumer-groups/{group}/queues/{queue}/partitions/{partition}/seek",
        "/api/v1/consumer-groups/late/queues/{q}/partitions/Default/seek",
        {"toEnd": True},
    ),
    (
        "POST",
        "/api/v1/traces",
        "/api/v1/traces",
        {"transactionId": "b", "partitionId": "{m}", "traceNames": ["shipping"], "data": {"step": 1}},
    ),
    ("GET", "/api/v1/traces/{partition}/{transaction}", "/api/v1/traces/{m}/b", None),
    ("POST", "/api/v1/nodes/{node}/drain", "/api/v1/nodes/baton-1/drain", {"mode": "off"}),
    ("GET", "/api/v1/traces/by-name/{name}", "/api/v1/traces/by-name/shipping", None),
    ("POST", "/api/v1/messages/{partition}/{transaction}/dlq", "/api/v1/messages/{m}/c/dlq", {"error": "no"}),
    ("GET", "/api/v1/resources/queues/{queue}/depth", "/api/v1/resources/queues/{q}/depth?group=late", None),
    ("PUT", "/api/v1/kv/{namespace}/{key}", "/api/v1/kv/shop/a/b", {"value": [1], "forever": True}),
    ("GET", "/api/v1/kv/{namespace}/{key}", "/api/v1/kv/shop/a/b", None),
    (
        "POST",
        "/api/v1/kv",
        "/api/v1/kv",
        {"operations": [{"op": "getPrefix", "ns": "shop", "prefix": "a"}, {"op": "get", "ns": "shop", "key": "x"}]},
    ),
    ("DELETE", "/api/v1/kv/{namespace}/{key}", "/api/v1/kv/shop/a/b", None),
    (
        "POST",
        "/api/v1/locks",
        "/api/v1/locks",
        {"operations": [{"op": "acquire", "name": "till", "ttlSeconds": 60}, {"op": "get", "name": "door"}]},
    ),
    (
        "POST",
        "/api/v1/timers",
        "/api/v1/timers",
        {
            "operations": [
                {"op": "schedule", "queue": "{q}", "timerKey": "k", "delayMs": 3_600_000, "payload": "bnVsbA=="}
            ]
        },
    ),
    ("GET", "/api/v1/timers/{queue}", "/api/v1/timers/{q}", None),
    ("GET", "/api/v1/timers/{queue}/{key}", "/api/v1/timers/{q}/k", None),
    ("DELETE", "/api/v1/timers/{queue}/{key}", "/api/v1/timers/{q}/k", None),
    ("POST", "/api/v1/fetch", "/api/v1/fetch", {"entries": [{"queue": "{q}", "offset": 0}]}),
    ("POST", "/api/v1/partitions/changed", "/api/v1/partitions/changed", {"entries": [{"queue": "{q}"}]}),
    ("POST", "/api/v1/elections/{group}", "/api/v1/elections/tills", {"action": "join", "workerId": "w"}),
    ("GET", "/api/v1/elections/{group}", "/api/v1/elections/tills", None),
    ("GET", "/api/v1/elections", "/api/v1/elections", None),
    ("POST", "/api/v1/elections/{group}", "/api/v1/elections/tills", {"action": "resign", "workerId": "w"}),
    ("DELETE", "/api/v1/elections/{group}", "/api/v1/elections/tills", None),
    (
        "POST",
        "/api/v1/election-processes/{process}",
        "/api/v1/election-processes/w.1",
        {
            "action": "swap",
            "record": {"workerId": "w", "incarnation": "1", "seq": 1, "leaseMs": 60_000, "renewedAt": 1, "epoch": 1},
        },
    ),
    ("GET", "/api/v1/election-processes/{process}", "/api/v1/election-processes/w.1", None),
    ("GET", "/api/v1/election-processes", "/api/v1/election-processes", None),
    ("POST", "/api/v1/shards/{service}", "/api/v1/shards/tills", {"action": "register", "workerId": "w", "maxShardCount": 3}),
    (
        "POST",
        "/api/v1/shards/{service}",
        "/api/v1/shards/tills",
        {"action": "register", "workerId": "x", "maxShardCount": 3, "sessionId": "s"},
    ),
    ("GET", "/api/v1/shards/{service}", "/api/v1/shards/tills", None),
    ("GET", "/api/v1/shards", "/api/v1/shards", None),
    (
        "POST",
        "/streams/v1/queries",
        "/streams/v1/queries",
        {"name": "sums", "source_queue": "{q}", "config_hash": "h", "reset": True},
    ),
    ("POST", "/streams/v1/cycle", "/streams/v1/cycle", {"query_id": "sums", "partition_id": "{m}"}),
    (
        "POST",
        "/streams/v1/state/get",
        "/streams/v1/state/get",
        {"query_id": "sums", "partition_id": "{m}"},
    ),
    ("POST", "/api/v1/jobs", "/api/v1/jobs", {"jobType": "t", "queue": "{q}"}),
    ("GET", "/api/v1/jobs", "/api/v1/jobs?queue={q}", None),
    ("GET", "/api/v1/jobs/{job}", "/api/v1/jobs/{dead}", None),
    ("GET", "/api/v1/jobs/{job}/wait", "/api/v1/jobs/{done}/wait?timeoutMs=1", None),
    ("GET", "/api/v1/jobs/{job}/result", "/api/v1/jobs/{done}/result", None),
    ("POST", "/api/v1/executions/{execution}/logs", "/api/v1/executions/{e}/logs", {"lines": [{"message": "x"}]}),
    ("GET", "/api/v1/jobs/{job}/logs", "/api/v1/jobs/{running}/logs", None),
    ("POST", "/api/v1/jobs/{job}/cancel", "/api/v1/jobs/{waiting}/cancel", {"reason": "no"}),
    ("POST", "/api/v1/jobs/{job}/retry", "/api/v1/jobs/{waiting}/retry", {}),
    ("GET", "/api/v1/workers/{worker}", "/api/v1/workers/{w}", None),
    ("POST", "/api/v1/workers/{worker}/lease", "/api/v1/workers/{w}/lease", {"max": 1}),
    (
        "POST",
        "/api/v1/workers/{worker}/heartbeat",
        "/api/v1/workers/{w}/heartbeat",
        {"running": [{"jobId": "{running}", "fence": 1, "progress": {"percent": 5}}]},
    ),
    ("POST", "/api/v1/workers/{worker}/drain", "/api/v1/workers/{w}/drain", {"mode": "off"}),
    (
        "POST",
        "/api/v1/executions:report",
        "/api/v1/executions:report",
        {"items": [{"jobId": "{running}", "fence": 7, "outcome": "succeeded"}]},
    ),
    ("GET", "/api/v1/job-queues/{queue}", "/api/v1/job-queues/{q}", None),
    ("PUT", "/api/v1/job-queues/{queue}", "/api/v1/job-queues/{q}", {"concurrency": 9}),
    ("POST", "/api/v1/job-queues/{queue}/pause", "/api/v1/job-queues/{q}/pause", None),
    ("POST", "/api/v1/job-queues/{queue}/resume", "/api/v1/job-queues/{q}/resume", None),
    ("GET", "/api/v1/dead-letters", "/api/v1/dead-letters", None),
    ("POST", "/api/v1/dead-letters/{job}/replay", "/api/v1/dead-letters/{dead}/replay", None),
    ("DELETE", "/api/v1/dead-letters/{job}", "/api/v1/dead-letters/{buried}", None),
    (
        "PUT",
        "/api/v1/schedules/{schedule}",
        "/api/v1/schedules/nightly",
        {"kind": "cron", "cron": "0 3 * * *", "timeZone": "Europe/Berlin", "job": {"jobType": "backup", "queue": "{q}"}},
    ),
    ("GET", "/api/v1/schedules/{schedule}", "/api/v1/schedules/nightly", None),
    ("GET", "/api/v1/schedules", "/api/v1/schedules", None),
    ("POST", "/api/v1/schedules/{schedule}/pause", "/api/v1/schedules/nightly/pause", None),
    ("POST", "/api/v1/schedules/{schedule}/resume", "/api/v1/schedules/nightly/resume", None),
    ("POST", "/api/v1/schedules/{schedule}/trigger", "/api/v1/schedules/nightly/trigger", None),
    (
        "POST",
        "/api/v1/schedules/{schedule}/backfill",
        "/api/v1/schedules/nightly/backfill",
        {"from": "2026-01-01T00:00:00Z", "to": "2026-01-05T00:00:00Z", "dryRun": True},
    ),
    ("DELETE", "/api/v1/schedules/{schedule}", "/api/v1/schedules/nightly", None),
    (
        "POST",
        "/api/v1/shards/{service}",
        "/api/v1/shards/{q}",
        {"action": "register", "workerId": "w", "sessionId": "s", "maxShardCount": 4, "sequence": 1},
    ),
    (
        "POST",
        "/api/v1/shards/{service}",
        "/api/v1/shards/{q}",
        {"action": "release", "workerId": "w", "sessionId": "s"},
    ),
    ("DELETE", "/api/v1/shards/{service}", "/api/v1/shards/{q}", None),
    ("POST", "/api/v1/jobs:bulk", "/api/v1/jobs:bulk", {"action": "cancel", "filter": {"queue": "{q}"}}),
    ("POST", "/api/v1/dead-letters:replay", "/api/v1/dead-letters:replay", {"filter": {"queue": "{q}"}}),
    ("POST", "/api/v1/cluster/{server}/drain", "/api/v1/cluster/{s}/drain", {"mode": "off"}),
    ("GET", "/api/v1/dlq/errors", "/api/v1/dlq/errors?queue={q}", None),
    ("POST", "/api/v1/dlq:replay", "/api/v1/dlq:replay", {"filter": {"queue": "{q}"}, "ratePerSec": 100}),
    ("POST", "/api/v1/dlq:purge", "/api/v1/dlq:purge", {"filter": {"queue": "{q}"}, "dryRun": True}),
    ("DELETE", "/api/v1/queues/{queue}/clear", "/api/v1/queues/{q}/clear?partition=Default", None),
    ("DELETE", "/api/v1/workers/{worker}", "/api/v1/workers/{w}", None),
]
NEED_KNOWLEDGE = {f"{method} {template}" for method, template, _, _ in KNOWING}


def test_who_knows_the_names_gets_what_the_document_says(server, document, queue):
    message = stage(server, queue)
    known = {"{m}": message["partitionId"], "{l}": message["leaseId"], "{q}": queue} | stage_jobs(server, queue)
    known["{s}"] = server.get("/api/v1/cluster").json["server_id"]
    for method, template, path, body in KNOWING:
        body = json.dumps(body)
        for name, value in known.items():
            path, body = path.replace(name, value), body.replace(name, value)
        answer = server.call(method, path, **({} if body == "null" else {"body": body.encode()}))
        assert answer.status in (200, 201, 204), (method, path, answer)
        described = document["paths"][template][method.lower()]["responses"][str(answer.status)]
        if answer.status == 204:
            assert answer.body == b"" and "content" not in described
            continue
        schema = described["content"]["application/json"]["schema"]
        jsonschema_rs.validate(schema | {"components": document["components"]}, answer.json)


def test_a_live_server_answers_only_what_the_document_says(document, tmp_path):
    with Server(tmp_path / "data") as server:
        stage(server, "orders")
        hold_against(server, document, SEED, tmp_path)
        assert server.stop() == 0, server.text()
    assert "panicked" not in server.text(), server.text()


def hold_against(server, document, seed, tmp_path):
    # From a file: a run from its address would leave out the route of that address.
    path = tmp_path / "openapi.json"
    path.write_text(json.dumps(document))
    code, words, seen = fuzz(server, tmp_path, path, "--seed", str(seed))
    assert code == 0, words
    assert set(seen) == operations(document), set(seen) ^ operations(document)
    # What can succeed without knowing an id has succeeded, or the run has shown nothing.
    failed = {label for label, statuses in seen.items() if not any(status < 300 for status in statuses)}
    assert failed <= NEED_KNOWLEDGE, failed - NEED_KNOWLEDGE
    assert not any(status >= 500 for statuses in seen.values() for status in statuses), seen


def test_mistakes_in_the_document_are_noticed(server, document, tmp_path):
    broken = json.loads(json.dumps(document))
    answers = {path: broken["paths"][path]["get"]["responses"] for path in ("/health", "/ready", "/metrics")}
    answers["/health"].pop("200")
    answers["/ready"]["200"]["content"]["application/json"]["schema"]["properties"]["status"] = {"type": "integer"}
    answers["/metrics"]["200"]["content"] = {"text/plain": {"schema": {}}}
    path = tmp_path / "broken.json"
    path.write_text(json.dumps(broken))
    code, words, _ = fuzz(server, tmp_path, path, "--no-shrink", *(f"--include-path={path}" for path in answers))
    assert code == 1, words
    for mistake in ("Undocumented status code", "Response violates schema", "Undocumented Content-Type"):
        assert mistake in words, words


def test_the_page_is_one_file_that_reads_the_document(server):
    answer = server.get("/api/docs")
    assert answer.status == 200
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    page = answer.body.decode()
    assert 'fetch("openapi.json")' in page
    assert "src=" not in page and "://" not in page


def test_the_document_names_what_a_route_asks_of_its_caller(document):
    push = document["paths"]["/api/v1/push"]["post"]
    assert push["x-access"] == "push" and {"token": []} in push["security"]
    assert document["components"]["securitySchemes"]["token"]["scheme"] == "bearer"
    assert document["paths"]["/health"]["get"]["security"] == []
