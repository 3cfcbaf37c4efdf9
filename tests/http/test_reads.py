"""Reads without a lease: by offset, by change, and depth."""

import time

import pytest

from baton import Background


def fetch(server, *entries, **fields):
    answer = server.post("/api/v1/fetch", {"entries": list(entries), **fields})
    assert answer.status == 200, answer
    assert len(answer.json["entries"]) == len(entries)
    return answer.json["entries"]


def changed(server, *entries):
    answer = server.post("/api/v1/partitions/changed", {"entries": list(entries)})
    assert answer.status == 200, answer
    return answer.json


def depth(server, queue, group=None):
    query = f"?group={group}" if group else ""
    return server.get(f"/api/v1/resources/queues/{queue}/depth{query}")


def test_a_partition_is_read_by_offset_and_nobody_notices(server, queue):
    server.push(queue, 1, {"two": "ü"}, [3], ids=["a", "b", "c"])
    for _ in range(2):
        (entry,) = fetch(server, {"queue": queue, "offset": 1, "maxBytes": 1 << 20})
        assert [(r["offset"], r["transactionId"], r["payload"]) for r in entry["records"]] == [(1, "b", {"two": "ü"}), (2, "c", [3])]
        assert (entry["partition"], entry["highWatermark"], entry["logStartOffset"]) == ("Default", 3, 0)
        assert "error" not in entry
        assert all(r["ts"].endswith("Z") for r in entry["records"])
    assert len(server.pop(queue, batch=10)) == 3


def test_what_is_wrong_with_an_entry_stands_beside_it(server, queue):
    server.push(queue, 1, partition="7")
    entries = fetch(
        server,
        {"queue": f"{queue}-none", "offset": 0},
        {"queue": queue, "partition": "never", "offset": 0},
        {"queue": queue, "partition": 7, "offset": 0},
        {"queue": queue, "partition": "7", "offset": 9},
    )
    assert [entry.get("error") for entry in entries] == ["UNKNOWN_TOPIC_OR_PARTITION", None, None, "OFFSET_OUT_OF_RANGE"]
    assert [len(entry["records"]) for entry in entries] == [0, 0, 1, 0]
    assert entries[3]["highWatermark"] == 1


def test_the_budget_of_a_call_is_shared_and_one_message_always_comes(server, queue):
    for partition in "ab":
        server.push(queue, "x" * 1000, "y" * 1000, partition=partition)
    entries = [{"queue": queue, "partition": partition, "offset": 0} for partition in "ab"]
    first, second = fetch(server, *entries, maxBytes=2500)
    assert [len(first["records"]), len(second["records"])] == [2, 0]
    first, second = fetch(server, *entries, maxBytes=1)
    assert [len(first["records"]), len(second["records"])] == [1, 0]


def test_a_read_may_wait_for_more(server, queue):
    server.configure(queue)
    started = time.monotonic()
    waiting = Background(fetch, server, {"queue": queue, "offset": 0}, maxWaitMs=20000, minBytes=1)
    time.sleep(0.3)
    assert not waiting.done()
    server.push(queue, "now")
    (entry,) = waiting.result()
    assert [r["payload"] for r in entry["records"]] == ["now"]
    assert time.monotonic() - started < 15


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"entries": []},
        {"entries": [7]},
        {"entries": [{"offset": 0}]},
        {"entries": [{"queue": "q"}]},
        {"entries": [{"queue": "q", "offset": -1}]},
        {"entries": [{"queue": "q", "offset": "0"}]},
        {"entries": [{"queue": "q", "offset": 0, "partition": []}]},
        {"entries": [{"queue": "q" * 300, "offset": 0}]},
        {"entries": [{"queue": "q", "offset": 0}] * 1025},
        {"entries": [{"queue": "q", "offset": 0}], "maxWaitMs": "long"},
    ],
)
def test_a_wrong_read_is_refused(server, body):
    assert server.post("/api/v1/fetch", body).status in (400, 413)


def test_partitions_that_changed_are_listed_since_a_moment(server, queue):
    for partition in "abc":
        server.push(queue, 1, partition=partition)
    everything = changed(server, {"queue": queue})
    (entry,) = everything["entries"]
    assert [partition["name"] for partition in entry["partitions"]] == ["a", "b", "c"]
    assert entry["partitions"][0].items() >= {"lastOffset": 0, "logStart": 0}.items()
    assert entry["next"] is None
    server.push(queue, 2, partition="b")
    server.push(queue, 1, partition="d")
    later = changed(server, {"queue": queue, "since": everything["safeTime"]})
    (entry,) = later["entries"]
    assert [(p["name"], p["lastOffset"]) for p in entry["partitions"]] == [("b", 1), ("d", 0)]
    assert later["safeTime"] > everything["safeTime"]
    assert changed(server, {"queue": queue, "since": later["safeTime"]})["entries"][0]["partitions"] == []


def test_changed_partitions_come_in_pages(server, queue):
    for i in range(5):
        server.push(queue, 1, partition=f"p{i}")
    names, after = [], None
    while True:
        entry = {"queue": queue, "limit": 2, "since": "2020-01-01T00:00:00Z"}
        if after is not None:
            entry["after"] = after
        (answer,) = changed(server, entry)["entries"]
        names += [partition["name"] for partition in answer["partitions"]]
        after = answer["next"]
        if after is None:
            break
    assert names == [f"p{i}" for i in range(5)]
    bad = changed(server, {"queue": queue, "after": "since:1"}, {"queue": f"{queue}-none"})["entries"]
    assert [entry["error"] for entry in bad] == ["BAD_CURSOR", "UNKNOWN_TOPIC_OR_PARTITION"]
    assert server.post("/api/v1/partitions/changed", {"entries": [{"queue": queue, "since": "x"}]}).status == 400


def test_no_write_is_missed_by_following_safe_times(server, queue):
    """A writer pushes to ever new partitions while a reader follows; together the pages name each of them."""
    server.configure(queue)

    def write():
        for i in range(150):
            server.push(queue, i, partition=f"p{i}")

    writer, since, seen = Background(write), None, set()
    while True:
        done = writer.done()
        entry = {"queue": queue} if since is None else {"queue": queue, "since": since}
        answer = changed(server, entry)
        since = answer["safeTime"]
        seen |= {partition["name"] for partition in answer["entries"][0]["partitions"]}
        if done:
            break
    writer.result()
    assert seen == {f"p{i}" for i in range(150)}


def test_depth_is_counted_per_partition(server, queue):
    server.push(queue, 1, 2, 3, partition="a")
    server.push(queue, 1, partition="b")
    server.pop(queue, "a", batch=2, consumerGroup="g", subscriptionMode="all")
    body = depth(server, queue, "g").json
    expected = {"queue": queue, "group": "g", "pending": 4, "processing": 2, "ready": 2, "partitionsPending": 2}
    assert expected.items() <= body.items()
    assert body["conflation"] is False and body["effectivePending"] == 4
    assert body["partitions"] == [
        {"partition": "a", "pending": 3, "processing": 2, "ready": 1},
        {"partition": "b", "pending": 1, "processing": 0, "ready": 1},
    ]
    assert depth(server, queue, "unknown").json["pending"] == 4
    assert depth(server, queue).json["group"] is None
    missing = depth(server, f"{queue}-none")
    assert (missing.status, missing.error) == (404, "Queue not found")


def test_an_offset_is_found_by_time(server, queue):
    server.push(queue, 1, 2, ids=["a", "b"])
    (entry,) = fetch(server, {"queue": queue, "offset": 0})
    first = entry["records"][0]["ts"]
    ask = lambda *entries: server.post("/api/v1/fetch/offsets", {"entries": list(entries)})
    found = ask({"queue": queue, "timestamp": 0}, {"queue": queue, "timestamp": first}, {"queue": queue, "timestamp": "2999-01-01T00:00:00Z"})
    assert [(e["offset"], e["highWatermark"], e["logStartOffset"]) for e in found.json["entries"]] == [(0, 2, 0), (0, 2, 0), (None, 2, 0)]
    assert found.json["entries"][1]["ts"] == first and found.json["entries"][2]["ts"] is None
    other = ask({"queue": f"{queue}-none", "timestamp": 5}, {"queue": queue, "partition": "none", "timestamp": 5}).json["entries"]
    assert other[0]["error"] == "UNKNOWN_TOPIC_OR_PARTITION" and "error" not in other[1]
    for timestamp in (None, True, "soon", [], 1.5):
        assert ask({"queue": queue, "timestamp": timestamp}).status == 400


def test_depth_of_a_group_that_wants_the_newest_only(server, queue):
    server.push(queue, 1, 2, 3, partition="a")
    server.push(queue, 1, partition="b")
    server.get(f"/api/v1/pop/queue/{queue}?consumerGroup=g&conflation=true&batch=1&subscriptionMode=all")
    body = depth(server, queue, "g").json
    assert (body["conflation"], body["pending"], body["effectivePending"]) == (True, 4, 2)
