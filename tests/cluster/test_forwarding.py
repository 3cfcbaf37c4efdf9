"""Requests are led to where they are served best, and answered wherever that is."""

import time

import pytest

import tokens
from baton import Background, Wire, ack_of, eventually, pop_path
from nodes import STAY, Waiting, busy

LEASE_SECONDS = 300


def test_a_pop_of_a_busy_server_is_served_by_another_and_stays_there(cluster, queue):
    nodes = cluster("ab")
    a, b = nodes["a"], nodes["b"]
    a.configure(queue, leaseTime=LEASE_SECONDS)
    b.push(queue, 1, 2, 3)
    with busy(a, a):
        first = a.get(pop_path(queue, consumerGroup="g"))
    assert first.json["messages"][0]["data"] == 1
    assert (first.headers["x-served-by"], first.headers["x-forwarded-by"]) == ("b", "a")
    assert "x-fallback" not in first.headers
    # The affinity outlives the reason for it.
    eventually(lambda: a.seen("a")["load_score"] < 0.1, seconds=30)
    again = a.get(pop_path(queue, consumerGroup="g", batch=5))
    assert again.headers["x-served-by"] == "b"
    assert {"key": f"{queue}:g", "server_id": "b", "requests": 2} in a.cluster()["affinities"]["busiest"]
    assert a.metric("baton_cluster_requests_total", kind="pop", outcome="forwarded") == 2
    assert b.metric("baton_cluster_requests_total", kind="pop", outcome="received") == 2


def test_equals_serve_themselves_and_a_request_is_passed_on_once(cluster, queue):
    nodes = cluster("ab")
    a = nodes["a"]
    a.push(queue, 1)
    local = a.get(pop_path(queue))
    assert local.headers["x-served-by"] == "a" and "x-forwarded-by" not in local.headers
    with busy(a, a):
        passed_on = a.get(pop_path(queue, consumerGroup="h"), headers=STAY)
    assert passed_on.headers["x-served-by"] == "a"


def test_writes_go_to_where_the_consumers_wait(cluster, queue):
    nodes = cluster()
    a, b, c = (nodes[name] for name in "abc")
    a.configure(queue, leaseTime=LEASE_SECONDS)
    nowhere = c.post("/api/v1/push", {"items": [{"queue": queue, "payload": 0}]})
    assert nowhere.headers["x-served-by"] == "c", "nobody waits"
    popped = c.get(pop_path(queue, consumerGroup="workers")).json["messages"]
    with Waiting(b, queue, 9, group="others"):
        eventually(lambda: c.seen("b")["waiting_groups"] > 0)
        push = c.post("/api/v1/push", {"items": [{"queue": queue, "payload": 1}]})
        assert (push.status, push.headers["x-served-by"], push.headers["x-forwarded-by"]) == (201, "b", "c")
        assert push.json[0]["status"] == "queued"
        ack = c.post("/api/v1/ack", {**ack_of(popped[0]), "consumerGroup": "workers"})
        assert (ack.json[0]["success"], ack.headers["x-served-by"]) == (True, "b")
        more = c.get(pop_path(queue, consumerGroup="workers")).json["messages"]
        operations = [
            {"type": "ack", **ack_of(more[0]), "consumerGroup": "workers"},
            {"type": "push", "items": [{"queue": queue, "payload": 2}]},
        ]
        done = c.post("/api/v1/transaction", {"operations": operations})
        assert (done.json["success"], done.headers["x-served-by"]) == (True, "b")
        local = b.post("/api/v1/push", {"items": [{"queue": queue, "payload": 3}]})
        assert local.headers["x-served-by"] == "b" and "x-forwarded-by" not in local.headers


def test_a_large_answer_is_passed_back_whole(cluster, queue):
    nodes = cluster("ab")
    a, b = nodes["a"], nodes["b"]
    payloads = [f"{number:04}" + "x" * 5000 for number in range(200)]
    b.push(queue, *payloads)
    with busy(a, a):
        answer = a.get(pop_path(queue, batch=1000))
    assert answer.headers["x-served-by"] == "b"
    assert [message["data"] for message in answer.json["messages"]] == payloads


def test_a_push_whose_answer_is_lost_is_stored_once(cluster, queue):
    nodes = cluster("ab")
    a, b = nodes["a"], nodes["b"]
    with Waiting(b, queue, 1, group="others"):
        eventually(lambda: a.seen("b")["waiting_groups"] > 0)
        nodes.gates["b"].mode = "mute"
        pushed = a.post("/api/v1/push", {"items": [{"queue": queue, "payload": n} for n in range(3)]})
        nodes.gates["b"].mode = "pass"
    assert (pushed.status, pushed.headers["x-fallback"]) == (201, "true")
    assert [item["status"] for item in pushed.json] == ["duplicate"] * 3, "the other server had stored them"
    assert [message["data"] for message in a.pop(queue, batch=100, consumerGroup="all")] == [0, 1, 2]


def test_a_push_that_cannot_be_repeated_is_not(cluster, queue):
    nodes = cluster("ab")
    a, b = nodes["a"], nodes["b"]
    a.configure(queue, dedupWindowSeconds=0)
    with Waiting(b, queue, 1, group="others"):
        eventually(lambda: a.seen("b")["waiting_groups"] > 0)
        nodes.gates["b"].mode = "mute"
        pushed = a.post("/api/v1/push", {"items": [{"queue": queue, "payload": 1}]})
        nodes.gates["b"].mode = "pass"
    assert (pushed.status, pushed.json["code"]) == (504, "outcome_unknown")
    eventually(lambda: a.pop(queue, batch=100, consumerGroup="all") != [])
    assert a.pop(queue, batch=100, consumerGroup="all") == []


def test_what_a_lost_answer_held_is_given_back_at_once(cluster, queue):
    nodes = cluster("ab")
    a, b = nodes["a"], nodes["b"]
    a.configure(queue, leaseTime=LEASE_SECONDS, retryLimit=3)
    b.push(queue, 1)
    with busy(a, a):
        nodes.gates["b"].mode = "mute"
        began = time.monotonic()
        answer = a.get(pop_path(queue, wait=True, timeout=1000))
        nodes.gates["b"].mode = "pass"
    assert answer.headers["x-fallback"] == "true"
    message = answer.json["messages"][0]
    assert (message["data"], message["deliveryAttempt"]) == (1, 1), "the lost delivery does not count"
    assert time.monotonic() - began < 60, "not after the lease"


def test_a_pop_that_waits_elsewhere_is_not_answered_early_when_that_server_stops(cluster, queue):
    nodes = cluster("ab")
    a, b = nodes["a"], nodes["b"]
    with busy(a, a):
        waiting = Background(a.get, pop_path(queue, wait=True, timeout=50_000))
        eventually(lambda: a.seen("b")["waiting_groups"] > 0)
        assert b.stop() == 0
        a.push(queue, 1)
        answer = waiting.result()
    assert (answer.status, answer.headers["x-served-by"]) == (200, "a"), answer


def test_a_pop_that_waits_on_a_server_that_hangs_is_answered_when_its_wait_is_over(cluster, queue):
    nodes = cluster("ab", timeout_ms=40_000)
    a = nodes["a"]
    with busy(a, a):
        nodes.gates["b"].mode = "mute"
        began = time.monotonic()
        answer = a.get(pop_path(queue, wait=True, timeout=1000), timeout=60)
    assert (answer.status, answer.headers["x-fallback"]) == (204, "true")
    assert time.monotonic() - began < 20


def test_after_a_server_that_cannot_be_connected_to_the_next_best_is_asked(cluster, queue):
    nodes = cluster("abc")
    a = nodes["a"]
    with busy(a, a), Waiting(nodes["c"], "other", 60):
        eventually(lambda: a.seen("c")["load_score"] > a.seen("b")["load_score"] + 0.06, seconds=60)
        # It takes longer to find out than anything else here.
        nodes.gates["b"].mode = "mute"
        answer = a.get(pop_path(queue), timeout=60)
    assert answer.headers["x-served-by"] == "c", answer.headers
    assert a.seen("b")["forward_failures"] == 1


def test_every_answer_says_who_gave_it(cluster, queue):
    nodes = cluster("ab")
    a = nodes["a"]
    for path, status in [
        ("/health", 200),
        ("/nowhere", 404),
        (f"/api/v1/resources/queues/{queue}", 404),
        (f"/api/v1/pop/queue/{'q' * 300}", 413),
    ]:
        answer = a.get(path)
        assert (answer.status, answer.headers.get("x-served-by")) == (status, "a"), path
    assert a.get("/health").json["shared_state"]["enabled"] is True
    statistics = a.get("/api/v1/system/shared-state").json
    assert statistics["local_sidecars"] == 1 and "groups_tracked" in statistics["group_backoff"]


def test_a_server_whose_peers_have_died_still_says_who_answers(cluster, queue):
    nodes = cluster("ab")
    a, b = nodes["a"], nodes["b"]
    b.kill()
    eventually(lambda: a.sees("b", alive=False), seconds=30)
    waiting = Background(a.get, pop_path(queue, wait=True, timeout=50_000))
    eventually(lambda: a.metric("baton_waiting_pops") == 1)
    pushed = a.post("/api/v1/push", {"items": [{"queue": queue, "payload": 1}]})
    popped = waiting.result()
    assert [answer.status for answer in (pushed, popped)] == [201, 200]
    for answer in (pushed, popped, a.get("/health"), a.get("/nowhere")):
        assert answer.headers.get("x-served-by") == "a", answer


@pytest.mark.parametrize("path", ["/api/v1/events", "/api/v1/elections/g", "/api/v1/shards/s"])
def test_a_stream_of_events_says_who_sends_it(cluster, path):
    a = cluster("ab")["a"]
    if path.startswith("/api/v1/shards"):
        worker = {"action": "register", "workerId": "w", "maxShardCount": 1, "weight": 1}
        assert a.post(path, worker).status == 200
    with Wire(a.port) as wire:
        wire.send(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n\r\n".encode())
        head = b""
        while b"\r\n\r\n" not in head:
            received = wire.socket.recv(4096)
            assert received, head
            head += received
    lines = head.split(b"\r\n\r\n")[0].decode().lower().split("\r\n")
    assert "content-type: text/event-stream" in lines and "x-served-by: a" in lines, lines


def test_what_a_consumer_that_left_was_given_is_given_back_at_once(cluster, queue):
    nodes = cluster("ab")
    a, b = nodes["a"], nodes["b"]
    a.configure(queue, leaseTime=LEASE_SECONDS)
    with busy(a, a):
        leaving = Background(a.get, pop_path(queue, wait=True, timeout=30_000), timeout=2)
        eventually(lambda: b.seen("b")["waiting_groups"] > 0)
        eventually(leaving.done)
        b.push(queue, 1)
        assert b.get(pop_path(queue, wait=True, timeout=20_000), headers=STAY).json["messages"][0]["data"] == 1


def test_a_server_that_does_not_answer_is_not_asked_for_a_while(cluster, queue):
    nodes = cluster("ab")
    a = nodes["a"]
    with busy(a, a):
        nodes.gates["b"].mode = "refuse"
        for number in range(3):
            answer = a.get(pop_path(f"{queue}-{number}"))
            assert (answer.status, answer.headers.get("x-fallback")) == (204, "true")
        circuit = a.seen("b")["circuit"]
        assert circuit["state"] in ("open", "half_open") and circuit["failures"] >= 3, circuit
        assert a.metric("baton_cluster_circuits_opened_total") >= 1
        nodes.gates["b"].mode = "pass"
        # It is tried again by itself.
        served_by = lambda: a.get(pop_path(f"{queue}-0")).headers["x-served-by"]
        eventually(lambda: served_by() == "b", seconds=60, every=0.3)
        assert a.seen("b")["circuit"]["state"] == "closed"


def test_the_token_travels_along(cluster, queue):
    names = ["--jwt-enabled", "true", "--jwt-secret", tokens.SECRET]
    names += ["--jwt-skip-paths", "/health,/metrics,/metrics/prometheus,/api/v1/cluster,/api/v1/pop/queue/busy"]
    nodes = cluster("ab", extra=names)
    a, b = nodes["a"], nodes["b"]
    token = tokens.bearer(tokens.hs256("read-write", sub="alice"))
    with busy(a, a):
        assert a.get(pop_path(queue)).status == 401
        served = a.get(pop_path(queue), headers=token)
        assert (served.status, served.headers["x-served-by"]) == (204, "b")


def test_a_server_that_comes_back_gets_keys_of_a_busier_one_and_the_log_names_each(cluster, queue):
    nodes = cluster()
    a, b = nodes["a"], nodes["b"]
    b.kill()
    eventually(lambda: a.sees("b", alive=False), seconds=30)
    served_by = lambda: a.get(pop_path(queue, consumerGroup="g")).headers["x-served-by"]
    with busy(nodes["c"], a), busy(a, a):
        assert served_by() == "a"
        b.start()
        eventually(lambda: served_by() == "b", seconds=60, every=0.3)
    moved = [line for line in a.text().splitlines() if "a key moves to another server" in line]
    assert len(moved) == 1 and f"{queue}:g" in moved[0], moved


def test_balance_is_told_in_the_documented_shape(cluster):
    nodes = cluster("ab")
    balance = nodes["a"].get("/api/v1/cluster/balance").json
    assert set(balance) == {"balanced", "imbalance_score", "servers"}
    assert [server["server_id"] for server in balance["servers"]] == ["a", "b"]
    for server in balance["servers"]:
        assert set(server) == {"server_id", "url", "load_score", "healthy"} and server["healthy"]
    shared = nodes["a"].get("/api/v1/system/shared-state").json
    assert shared["enabled"] and shared["server_health"]["servers_alive"] == 1
