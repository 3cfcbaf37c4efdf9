"""What does not exist is answered by one convention, which `docs/queues.md` states under "What does not exist"."""

import uuid

import pytest

from baton import ROOT, pop_path

JOB = "01900000-0000-7000-8000-000000000001"

# Reading or changing one of these is 404.
THINGS = [
    ("GET", "/api/v1/resources/queues/nothing", None),
    ("GET", "/api/v1/status/queues/nothing", None),
    ("GET", "/api/v1/resources/partitions?queue=nothing", None),
    ("GET", "/api/v1/resources/queues/nothing/depth?group=g", None),
    ("DELETE", "/api/v1/queues/nothing/clear", None),
    ("POST", "/api/v1/consumer-groups/g/queues/nothing/seek", {"toEnd": True}),
    ("GET", "/api/v1/messages/1/nothing", None),
    ("DELETE", "/api/v1/messages/1/nothing", None),
    ("POST", "/api/v1/messages/1/nothing/retry", None),
    ("GET", f"/api/v1/jobs/{JOB}", None),
    ("POST", f"/api/v1/jobs/{JOB}/cancel", None),
    ("GET", "/api/v1/job-queues/nothing", None),
    ("POST", "/api/v1/job-queues/nothing/pause", None),
    ("GET", "/api/v1/workers/nothing", None),
    ("DELETE", f"/api/v1/dead-letters/{JOB}", None),
    ("GET", "/api/v1/schedules/nothing", None),
    ("DELETE", "/api/v1/schedules/nothing", None),
    ("POST", "/api/v1/schedules/nothing/trigger", None),
    ("GET", "/api/v1/shards/nothing", None),
    ("DELETE", "/api/v1/shards/nothing", None),
    ("GET", "/api/v1/elections/nothing", None),
    ("DELETE", "/api/v1/elections/nothing", None),
    ("POST", "/api/v1/nodes/nothing/drain", None),
    ("POST", "/api/v1/cluster/nothing/drain", None),
]


@pytest.mark.parametrize("method, path, body", THINGS)
def test_a_thing_that_does_not_exist_is_404(server, method, path, body):
    answer = server.call(method, path, **({} if body is None else {"body": body}))
    assert answer.status == 404 and answer.json["code"] == "not_found" and answer.json["error"], answer


def test_deleting_a_queue_or_group_again_is_200(server, queue):
    for path in (f"/api/v1/resources/queues/{queue}", "/api/v1/consumer-groups/nothing"):
        assert server.delete(path).status == 200, path


def test_a_value_that_is_not_there_is_an_ordinary_answer(server, queue):
    one = server.get("/api/v1/kv/n/nothing")
    assert (one.status, one.json["found"]) == (200, False)
    several = [{"op": "get", "ns": "n", "key": "nothing"}]
    assert server.post("/api/v1/kv", {"operations": several}).json["results"][0]["found"] is False
    removed = server.delete("/api/v1/kv/n/nothing")
    assert removed.status == 200, removed
    operations = [{"op": "get", "name": "nothing"}, {"op": "release", "name": "no", "token": 1, "slot": 0}]
    held, released = server.post("/api/v1/locks", {"operations": operations}).json["results"]
    assert held["held"] is False and (released["released"], released["reason"]) == (False, "lost")
    assert server.get("/api/v1/timers/q/nothing").json["found"] is False
    assert server.delete("/api/v1/timers/q/nothing").json["status"] == "absent"
    extended = server.post(f"/api/v1/lease/{uuid.uuid4()}/extend", {"seconds": 5})
    assert (extended.status, extended.json["success"]) == (200, False)
    assert server.get(pop_path(queue)).status == 204
    group = server.get("/api/v1/consumer-groups/nothing")
    assert (group.status, group.json) == (200, {})


def test_the_convention_is_written_down():
    page = (ROOT / "docs" / "queues.md").read_text()
    text = page[page.index("## What does not exist") :]
    for word in ("queue", "message", "job", "schedule", "service", "election group", "record", "timer", "lock", "lease", "`204`"):
        assert word in text, word
