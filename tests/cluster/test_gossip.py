"""Servers tell each other what happens, and believe only each other."""

import re
import subprocess
import threading
import time

import pytest

from baton import ROOT, Background, Refused, Server, binary, eventually, pop_path

# Looking again by itself takes longer than any test waits, so what is woken was told.
PATIENT = ["--pop-wait-initial-interval-ms", "60000", "--pop-wait-max-interval-ms", "60000"]


def test_a_consumer_that_waits_on_one_server_is_woken_by_a_push_on_another(cluster, queue):
    nodes = cluster(routes=False, extra=PATIENT)
    a, c = nodes["a"], nodes["c"]
    times = []
    for number in range(20):
        waiting = Background(a.get, pop_path(queue, wait=True, timeout=50_000, autoAck=True))
        eventually(lambda: a.metric("baton_waiting_pops") == 1)
        if number == 0:
            eventually(lambda: c.seen("a")["waiting_groups"] > 0)
        began = time.monotonic()
        c.push(queue, number)
        assert waiting.result().json["messages"][0]["data"] == number
        times.append(time.monotonic() - began)
    times.sort()
    print(f"woken after {1000 * times[len(times) // 2]:.1f} ms (median)")
    assert times[len(times) // 2] < 5, times


def test_a_consumer_is_woken_while_the_servers_are_busy_with_other_queues(cluster, queue):
    nodes = cluster(routes=False, extra=PATIENT)
    a, b, c = (nodes[name] for name in "abc")
    over = threading.Event()

    def push(node):
        while not over.wait(0.005):
            node.push(f"{queue}-{node.name}", "other")

    pushing = [Background(push, node) for node in (a, b)]
    for number in range(20):
        waiting = Background(a.get, pop_path(queue, wait=True, timeout=10_000, autoAck=True))
        eventually(lambda: a.metric("baton_waiting_pops") == 1)
        if number == 0:
            eventually(lambda: c.seen("a")["waiting_groups"] > 0)
        c.push(queue, number)
        woken = waiting.result()
        assert woken.status == 200, f"{number} was not told of"
        assert woken.json["messages"][0]["data"] == number
    over.set()
    for one in pushing:
        one.result()


def test_an_ack_on_one_server_frees_the_partition_for_who_waits_on_another(cluster, queue):
    nodes = cluster(routes=False, extra=PATIENT)
    a, c = nodes["a"], nodes["c"]
    c.push(queue, 1, 2, partition="p")
    held = c.pop(queue)
    waiting = Background(a.get, pop_path(queue, wait=True, timeout=50_000))
    eventually(lambda: c.seen("a")["waiting_groups"] > 0)
    c.ack(held)
    assert waiting.result().json["messages"][0]["data"] == 2


def test_a_maintenance_mode_that_one_server_switches_holds_on_all(cluster, queue):
    nodes = cluster("ab", routes=False, extra=PATIENT)
    a, b = nodes["a"], nodes["b"]
    waiting = Background(b.get, pop_path(queue, wait=True, timeout=50_000))
    eventually(lambda: b.metric("baton_waiting_pops") == 1)
    a.post("/api/v1/system/maintenance/pop", {"enabled": True})
    assert waiting.result().status == 204
    a.post("/api/v1/system/maintenance/pop", {"enabled": False})


def test_a_server_that_dies_is_dead_for_the_others_and_one_that_stops_says_so(cluster):
    nodes = cluster()
    a, b, c = (nodes[name] for name in "abc")
    b.kill()
    eventually(lambda: a.sees("b", alive=False) and c.sees("b", alive=False), seconds=30)
    b.start()
    eventually(lambda: a.sees("b") and c.sees("b"), seconds=30)
    assert a.get("/api/v1/system/shared-state").json["server_health"]["restarts_detected"] == 1
    assert c.stop() == 0
    eventually(lambda: a.sees("c", alive=False), seconds=30)
    assert "has left" in a.text()


def test_a_server_without_jobs_stops_at_once_after_another_has_died(cluster):
    nodes = cluster()
    # It owns what jobs would be in, and the dead one would be asked to take that.
    eventually(lambda: any(node["name"] == "a" for node in nodes["a"].cluster()["nodes"]))
    nodes["b"].kill()
    nodes["c"].kill()
    assert nodes["a"].stop() == 0
    drained = re.findall(r"drained: slices of jobs handed over.*?millis=(\d+)", plain_text(nodes["a"]))
    assert drained and int(drained[-1]) < 4000, drained


def plain_text(node):
    """The log without colours."""
    return re.sub(r"\x1b\[[0-9;]*m", "", node.text())


def test_every_metric_about_the_cluster_is_there(cluster):
    nodes = cluster("ab")
    page = (ROOT / "docs" / "metrics.md").read_text()
    listed = set(re.findall(r"^\| `(baton_cluster_\w+)` \|", page, re.M))
    told = set(re.findall(r"^(baton_cluster_\w+)", nodes["a"].get("/metrics/prometheus").body.decode(), re.M))
    assert listed == told and listed


def test_servers_with_another_secret_or_another_database_are_strangers(cluster, tmp_path):
    first = cluster("ab")
    second = cluster("cd")
    # Each pair hears the other pair too.
    first.wires["b", "a"].target = second.ports["c"]
    eventually(lambda: second["c"].metric("baton_cluster_datagrams_rejected_total", reason="foreign") > 0)
    assert second["c"].seen("b") is None


def test_peers_need_a_store_that_can_be_shared(tmp_path):
    alone = Server(tmp_path / "data", "--peers", "127.0.0.1:1")
    alone.store = []
    with pytest.raises(Refused) as refused:
        alone.start()
    assert "postgres://" in refused.value.output


def test_a_server_that_is_alone_sees_itself(server):
    balance = server.get("/api/v1/cluster/balance").json
    assert balance["balanced"] and len(balance["servers"]) == 1
    assert server.get("/api/v1/cluster").json["gossip"] is False
    assert "x-served-by" not in server.get(pop_path("q")).headers


def test_the_command_shows_the_servers(cluster):
    nodes = cluster("ab")
    shown = subprocess.run(
        [binary(), "cluster", "--url", nodes["a"].url], capture_output=True, text=True, timeout=30, check=True
    )
    assert "balanced" in shown.stdout and "this one" in shown.stdout and nodes["b"].name in shown.stdout
