"""/metrics, /metrics/prometheus, /api/v1/status and /api/v1/analytics"""

import json
import pathlib
import re
import time

import pytest

from baton import Background, Server, eventually

SAMPLE = re.compile(r'^([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{((?:[a-zA-Z_][a-zA-Z0-9_]*="(?:[^"\\\n]|\\["\\n])*",?)*)\})? (\S+)$')
LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\["\\n])*)"')


def scrape(server):
    """Reads the text format as strictly as Prometheus does: {(name, labels): value}."""
    assert server.post("/api/v1/stats/refresh").status == 200
    answer = server.get("/metrics/prometheus")
    assert answer.status == 200
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    text = answer.body.decode()
    assert text.endswith("\n")
    types, samples, seen, family = {}, {}, set(), None
    for line in text.splitlines():
        if line.startswith("# TYPE "):
            family, kind = line[len("# TYPE "):].split(" ")
            assert family not in seen, f"{family} is introduced twice"
            seen.add(family)
            types[family] = kind
        elif not line.startswith("# HELP "):
            match = SAMPLE.match(line)
            assert match, line
            name, labels, value = match.groups()
            base = re.sub(r"_(bucket|sum|count)$", "", name) if types[family] == "histogram" else name
            assert base == family, f"{name} stands among samples of {family}"
            key = (name, tuple(sorted(LABEL.findall(labels or ""))))
            assert key not in samples, f"{key} is told twice"
            samples[key] = float(value)
    check_histograms(types, samples)
    return samples


def check_histograms(types, samples):
    for family in (name for name, kind in types.items() if kind == "histogram"):
        series = {}
        for (name, labels), value in samples.items():
            if name == f"{family}_bucket":
                rest = tuple(pair for pair in labels if pair[0] != "le")
                series.setdefault(rest, []).append((float(dict(labels)["le"]), value))
        for labels, buckets in series.items():
            counts = [count for _, count in sorted(buckets)]
            assert counts == sorted(counts), f"{family} falls"
            assert counts[-1] == samples[(f"{family}_count", labels)]


def test_everything_that_happens_is_counted(server, queue):
    before = scrape(server)
    server.push(queue, 1, 2, 3)
    messages = server.pop(queue, batch=3)
    server.ack(messages[:2])
    server.ack(messages[2:], status="dlq")
    assert server.pop(queue) == []
    after = scrape(server)

    def of_queue(name):
        return after[(name, (("queue", queue),))]

    def grown(name, *labels):
        return after[(name, labels)] - before[(name, labels)]

    assert of_queue("baton_queue_pushed_messages_total") == 3
    assert of_queue("baton_queue_popped_messages_total") == 3
    assert of_queue("baton_queue_acked_messages_total") == 3
    assert of_queue("baton_queue_dead_letters_total") == 1
    assert of_queue("queen_dlq_depth_by_queue") == 1
    assert of_queue("queen_queue_push_messages_per_minute") in (0, 3), "another minute may have begun"
    assert grown("queen_cluster_push_messages_total", ("scope", "cluster")) == 3
    assert grown("queen_cluster_ack_total", ("result", "success"), ("scope", "cluster")) == 3
    for kind in ("push", "pop", "ack"):
        assert grown("baton_request_duration_seconds_count", ("kind", kind)) >= 1
    assert grown("baton_store_syncs_total") >= 2
    assert grown("baton_store_commit_seconds_count") >= 2
    assert after[("queen_process_resident_memory_bytes", ())] > 1_000_000


def test_every_family_of_the_reference_page_is_there(server, queue):
    server.push(queue, 1)
    server.ack(server.pop(queue, consumerGroup="g", subscriptionMode="all"), group="g")
    assert server.post("/api/v1/jobs", {"jobType": "t", "queue": queue}).status == 201
    worker = {"action": "register", "workerId": "w", "maxShardCount": 1}
    assert server.post(f"/api/v1/shards/{queue}", worker).status == 200
    told = {re.sub(r"_(bucket|sum|count)$", "", name) for name, _ in scrape(server)}
    page = (pathlib.Path(__file__).parents[2] / "docs" / "metrics.md").read_text()
    listed = set(re.findall(r"^\| `(\w+)` \|", page, re.M))
    # Those are told by servers that know others; tests/cluster has them.
    assert {family for family in listed if not family.startswith("baton_cluster_")} == told


def test_the_dashboard_asks_for_families_that_exist(server):
    page = (pathlib.Path(__file__).parents[2] / "docs" / "metrics.md").read_text()
    families = set(re.findall(r"^\| `(\w+)` \|", page, re.M))
    dashboard = json.loads((pathlib.Path(__file__).parents[2] / "docs" / "grafana" / "baton.json").read_text())
    asked = {target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", [])}
    names = {re.sub(r"_(bucket|sum|count)$", "", name)
             for expr in asked for name in re.findall(r"\b(?:baton|queen)_\w+", expr)}
    assert names and names <= families


def test_depth_and_age_are_told_by_group(server, queue):
    server.push(queue, 1, 2, 3)
    server.pop(queue, consumerGroup="slow", subscriptionMode="all")
    samples = scrape(server)
    group = (("group", "slow"), ("queue", queue))
    assert samples[("baton_group_depth", group)] == 3
    assert samples[("baton_group_leases", group)] == 1
    assert samples[("baton_group_oldest_age_seconds", group)] >= 0


def test_labels_with_quotes_and_line_ends_are_escaped(server, queue):
    name = f'{queue}"\\\nx'
    server.push(name, 1)
    escaped = name.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    assert ("baton_queue_messages", (("queue", escaped),)) in scrape(server)


def test_metrics_as_json(server, queue):
    server.push(queue, 1)
    body = server.get("/metrics").json
    assert body["uptime"] > 0 and body["requests"]["total"] >= 1 and body["messages"]["total"] >= 1
    assert body["memory"]["rss"] > 1_000_000
    assert {"database", "cpu"} <= body.keys()


def test_status_shows_throughput_and_counts(server, queue):
    server.push(queue, *range(7))
    server.ack(server.pop(queue, batch=5))
    server.post("/api/v1/stats/refresh")
    body = server.get(f"/api/v1/status?queue={queue}").json
    assert body["bucketMinutes"] == 1
    assert [row["name"] for row in body["queues"]] == [queue]
    assert (body["messages"]["total"], body["messages"]["completed"]) == (7, 5)
    points = body["throughput"]
    assert len(points) == body["pointCount"] == 61
    assert points == sorted(points, key=lambda point: point["timestamp"], reverse=True)
    assert sum(point["ingested"] for point in points) == 7
    assert sum(point["processed"] for point in points) == 5
    assert sum(point["popMessages"] for point in points) == 5
    assert {"leases", "deadLetterQueue", "workers", "errors", "statsAge"} <= body.keys()
    assert body["messages"]["requests"] == {"push": 1, "pop": 1, "ack": 1}


def test_status_of_one_queue(server, queue):
    server.push(queue, 1, 2, partition="a")
    body = server.get(f"/api/v1/status/queues/{queue}").json
    assert body["queue"]["name"] == queue
    assert body["queue"]["config"]["leaseTime"] == 300
    (partition,) = [row for row in body["partitions"] if row["name"] == "a"]
    assert partition["messages"]["total"] == partition["stats"]["total"] == 2
    assert body["totals"]["messages"]["total"] == body["totals"]["total"] == 2
    assert server.get(f"/api/v1/status/queues/{queue}-none").status == 404
    server.post("/api/v1/stats/refresh")
    rows = server.get("/api/v1/status/queues?limit=1000").json
    assert queue in [row["name"] for row in rows["queues"]]
    assert rows["pagination"] == {"limit": 1000, "offset": 0}
    messages = server.get(f"/api/v1/status/queues/{queue}/messages?limit=1").json
    assert len(messages) == 1 and messages[0]["queuePath"] == f"{queue}/a"


def test_messages_over_time(server, queue):
    server.push(queue, 1, 2)
    body = server.get(f"/api/v1/status/analytics?interval=hour&queue={queue}").json
    assert body["interval"] == "hour"
    assert len(body["dataPoints"]) == 25
    assert sum(point["messages"] for point in body["dataPoints"]) == 2
    assert server.get("/api/v1/status/analytics?interval=year").status == 400


@pytest.mark.parametrize("page, keys", [
    ("system-metrics", {"timeRange", "replicas", "replicaCount", "bucketMinutes", "pointCount"}),
    ("worker-metrics", {"timeRange", "timeSeries", "workers", "queues", "summary"}),
    ("queue-ops", {"timeRange", "bucketMinutes", "queues", "series"}),
    ("queue-parked-replicas", {"timeRange", "bucketMinutes", "replicas", "series"}),
    ("retention", {"timeRange", "bucketMinutes", "series", "totals"}),
    ("postgres-stats", {"timestamp", "database", "tableSizes"}),
])
def test_analytics_have_their_shapes(server, queue, page, keys):
    server.push(queue, 1)
    answer = server.get(f"/api/v1/analytics/{page}")
    assert answer.status == 200
    assert keys <= answer.json.keys()
    for bad in ("from=yesterday", "to=1", "from=2031-01-01T00:00:00Z&to=2030-01-01T00:00:00Z"):
        if page != "postgres-stats":
            assert server.get(f"/api/v1/analytics/{page}?{bad}").status == 400, bad


def test_analytics_of_one_queue(server, queue):
    server.push(queue, 1, 2, 3)
    server.ack(server.pop(queue, batch=2))
    body = server.get(f"/api/v1/analytics/queue-ops?queue={queue}").json
    assert body["queues"] == [queue]
    assert sum(row["pushMessages"] for row in body["series"]) == 3
    assert sum(row["ackSuccess"] for row in body["series"]) == 2
    lag = server.get(f"/api/v1/analytics/queue-lag?queue={queue}").json
    assert sum(row["popCount"] for row in lag) == 2
    summary = server.get(f"/api/v1/analytics/worker-metrics?queue={queue}").json["summary"]
    assert (summary["totalPushMessages"], summary["totalPopMessages"], summary["totalAckMessages"]) == (3, 2, 2)


def test_analytics_count_partitions_and_who_waits(server, queue):
    total = lambda name: sum(row[name] for row in rows())  # noqa: E731
    rows = lambda: server.get(f"/api/v1/analytics/queue-ops?queue={queue}").json["series"]  # noqa: E731
    for partition in ("a", "b", "a"):
        server.push(queue, 1, partition=partition)
    assert (total("partitionsCreated"), total("partitionsDeleted")) == (2, 0)
    server.ack(server.pop(queue, batch=9, partitions=9))
    waiting = Background(server.pop, queue, wait=True, timeout=60_000)
    eventually(lambda: any(row["parkedCount"] == 1 for row in rows()), 30)
    history = server.get(f"/api/v1/analytics/queue-parked-replicas?queue={queue}").json["series"]
    assert (queue, 1) in [(row["queueName"], row["parkedCount"]) for row in history]
    server.push(queue, 2, partition="c")
    assert len(waiting.result(60)) == 1
    server.call("DELETE", f"/api/v1/resources/queues/{queue}")
    assert (total("partitionsCreated"), total("partitionsDeleted")) == (3, 3)


def test_the_lag_of_the_runtime_is_measured(server):
    def lag():
        body = server.get("/api/v1/analytics/worker-metrics").json
        return body["workers"] and body["workers"][-1]["maxEventLoopLagMs"]

    server.push("lag", 1)
    assert eventually(lag, 60) > 0


def test_a_span_of_centuries_is_answered_in_time(server):
    started = time.monotonic()
    body = server.get("/api/v1/status?from=1970-01-01T00:00:00Z&to=2400-01-01T00:00:00Z").json
    assert body["bucketMinutes"] == 360 and body["pointCount"] <= 10_000
    assert time.monotonic() - started < 20


def test_refresh_counts_anew(server, queue):
    server.push(queue, 1)
    body = server.post("/api/v1/stats/refresh", {}).json
    assert body["queue"]["queuesUpdated"] >= 1 and body["cleanup"] == {"orphanedDeleted": 0}


def test_what_happened_is_known_after_a_restart(tmp_path):
    with Server(tmp_path / "data") as server:
        server.push("q", 1, 2, 3)
        server.ack(server.pop("q", batch=2))
        server.stop()
    with Server(tmp_path / "data") as server:
        server.push("q", 4)
        body = server.get("/api/v1/status").json
        assert sum(point["ingested"] for point in body["throughput"]) == 4
        assert sum(point["processed"] for point in body["throughput"]) == 2
        ops = server.get("/api/v1/analytics/queue-ops").json
        assert sum(row["pushMessages"] for row in ops["series"]) == 4
        (replica,) = server.get("/api/v1/analytics/system-metrics").json["replicas"]
        assert replica["timeSeries"][-1]["metrics"]["memory"]["rss_bytes"]["last"] > 1_000_000
