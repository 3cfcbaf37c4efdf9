"""What an operator sees of a cluster and does to it: peers that are not heard, names given twice, and draining."""

import re
import subprocess
import uuid

import postgres
from baton import Server, binary, eventually, pop_path
from nodes import Waiting
from ports import free_port


def shown(node, *arguments):
    """What `baton cluster` prints."""
    command = [binary(), "cluster", "--url", node.url, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=30, check=True).stdout


def heard(node, count):
    return node.cluster()["peers_heard"] == count


def ready(node):
    return node.get("/ready").status


def test_a_server_that_listens_everywhere_shows_where_it_is(tmp_path):
    schema = f"cluster_{uuid.uuid4().hex[:16]}"
    arguments = ["--store", postgres.shared(), "--store-schema", schema, "--peers", f"127.0.0.1:{free_port()}"]
    arguments += ["--gossip-listen", f"127.0.0.1:{free_port()}"]
    with Server(tmp_path / "data", *arguments, listen=f"0.0.0.0:{free_port()}") as server:
        own = lambda: server.get("/api/v1/cluster").json["servers"][0]["url"]
        eventually(lambda: own() == f"http://127.0.0.1:{server.port}")


def test_a_second_server_without_peers_is_warned_of(tmp_path):
    store = ["--store", postgres.shared(), "--store-schema", f"cluster_{uuid.uuid4().hex[:16]}"]
    with Server(tmp_path / "a", *store) as first, Server(tmp_path / "b", *store) as second:
        assert "no peers are set" in second.text() and "no peers are set" not in first.text()


def test_a_batch_that_runs_again_because_of_another_server_is_counted_and_logged(tmp_path):
    store = ["--store", postgres.shared(), "--store-schema", f"cluster_{uuid.uuid4().hex[:16]}", "--log", "debug"]
    with Server(tmp_path / "a", *store) as first, Server(tmp_path / "b", *store) as second:
        servers = [first, second]

        def repeated():
            for server in servers:
                server.push("q", 1)
            return any("another server was in the way" in server.text() for server in servers)

        eventually(repeated, seconds=60, every=0)
        pages = [server.get("/metrics/prometheus").body.decode() for server in servers]
        assert any(int(re.search(r"^baton_store_repeats_total (\d+)", page, re.M)[1]) > 0 for page in pages)


def test_a_peer_that_is_cut_off_is_told_with_the_time_of_its_last_datagram(cluster):
    nodes = cluster()
    a = nodes["a"]
    told = a.cluster()
    assert (told["peers_configured"], told["peers_heard"]) == (2, 2)
    assert all(peer["heard"] and peer["reason"] is None for peer in told["peers"])
    assert "2 of 2 configured peers heard" in shown(a)
    nodes.cut("c")
    eventually(lambda: heard(a, 1), seconds=30)
    (silent,) = [peer for peer in a.cluster()["peers"] if not peer["heard"]]
    assert silent["server_id"] == "c" and silent["reason"].startswith("last heard"), silent
    text = shown(a)
    assert "1 of 2 configured peers heard" in text and "last heard" in text, text
    assert a.metric("baton_cluster_peers_configured") == 2 and a.metric("baton_cluster_peers_heard") == 1
    nodes.heal("c")
    eventually(lambda: heard(a, 2), seconds=30)


def test_a_peer_that_was_never_heard_is_told(cluster):
    nodes = cluster("ab", alone=True)
    eventually(lambda: heard(nodes["a"], 0))
    (peer,) = nodes["a"].cluster()["peers"]
    assert peer["server_id"] is None and peer["reason"].startswith("never heard"), peer
    assert "0 of 1 configured peers heard" in shown(nodes["a"])


def test_another_secret_is_told_on_both_servers(cluster):
    nodes = cluster("ab", alone=True, of={"b": ["--gossip-secret", "another"]})
    nodes.connect()
    for node in nodes.nodes.values():
        eventually(lambda: "gossip_secret" in (node.cluster()["peers"][0]["reason"] or ""))
        assert "datagrams refused: another gossip_secret" in shown(node)
        assert heard(node, 0)


def test_two_servers_with_one_name_are_told_on_both(cluster):
    nodes = cluster("ab", alone=True, of={"b": ["--node-id", "a"]})
    nodes.connect()
    for node in nodes.nodes.values():
        eventually(lambda: node.cluster()["duplicate_node_id"] is not None)
        assert "another server has the node_id" in shown(node)
        assert node.metric("baton_cluster_duplicate_node_id") == 1
        assert "node_id" in node.get("/health").json["warnings"][0]
    eventually(lambda: all(node.text().count("has the node_id of this one") == 1 for node in nodes.nodes.values()))
    nodes["b"].kill()
    eventually(lambda: nodes["a"].cluster()["duplicate_node_id"] is None, seconds=30)
    assert nodes["a"].get("/health").json["warnings"] == []


def test_a_drained_server_gets_no_requests_and_gives_away_those_that_come(cluster, queue):
    nodes = cluster()
    a, b, c = (nodes[name] for name in "abc")
    with Waiting(b, queue, 9, group="others"):
        eventually(lambda: c.seen("b")["waiting_groups"] > 0)
        push = lambda node: node.post("/api/v1/push", {"items": [{"queue": queue, "payload": 1}]})
        assert push(c).headers["x-served-by"] == "b"
        assert "b is drained" in shown(a, "--drain", "b"), "any server can be asked"
        eventually(lambda: all(node.seen("b")["draining"] for node in nodes.nodes.values()))
        assert push(c).headers["x-served-by"] == "c"
    assert "draining" in shown(a)
    assert (ready(b), b.get("/health").json["status"], b.get("/ready").json["status"]) == (
        503, "draining", "draining",
    )  # fmt: skip
    assert ready(a) == 200
    popped = b.get(pop_path(queue, consumerGroup="g"))
    assert popped.headers["x-served-by"] in ("a", "c") and popped.headers["x-forwarded-by"] == "b"
    assert push(b).headers["x-served-by"] in ("a", "c")
    # It outlives a restart.
    assert b.stop() == 0
    b.start()
    assert ready(b) == 503
    eventually(lambda: a.sees("b") and a.seen("b")["draining"], seconds=30)
    assert not a.seen("b")["healthy"]
    assert "b takes requests again" in shown(c, "--resume", "b")
    eventually(lambda: ready(b) == 200 and not a.seen("b")["draining"] and a.seen("b")["healthy"])


def test_a_drained_server_serves_what_no_other_can(cluster, queue):
    nodes = cluster("ab")
    a, b = nodes["a"], nodes["b"]
    shown(a, "--drain", "a")
    eventually(lambda: b.seen("a")["draining"])
    nodes.cut("b")
    eventually(lambda: a.sees("b", alive=False), seconds=30)
    a.push(queue, 1)
    assert a.get(pop_path(queue)).json["messages"][0]["data"] == 1


def test_a_server_that_is_not_there_cannot_be_drained(cluster):
    a = cluster("ab")["a"]
    assert a.post("/api/v1/cluster/nowhere/drain", {}).status == 404
    assert a.post("/api/v1/cluster/b/drain", {"mode": "perhaps"}).status == 400


def test_a_server_that_is_alone_can_be_drained(server):
    name = server.get("/api/v1/cluster").json["server_id"]
    server.post(f"/api/v1/cluster/{name}/drain", {})
    assert server.get("/ready").status == 503 and server.get("/health").status == 200
    server.post(f"/api/v1/cluster/{name}/drain", {"mode": "off"})
    assert server.get("/ready").status == 200
