"""The same over HTTP: workers that register and beat by requests, and those who watch."""

import http.client

import pytest
from baton import Background, eventually
from programs import Programs
from workers import shard_server


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    with shard_server(tmp_path_factory.mktemp("shards") / "data", "--shards-allocation", "sticky") as server:
        yield server
        assert server.stop() == 0, server.text()
    assert "panicked" not in server.text(), server.text()


def act(server, service, action, worker, status=200, **says):
    answer = server.post(f"/api/v1/shards/{service}", {"action": action, "workerId": worker, **says})
    assert answer.status == status, answer
    return answer.json


def test_a_worker_registers_beats_and_releases(shards, queue):
    plain = act(shards, queue, "register", "p", maxShardCount=3)
    assert plain == {"assignedShards": [0, 1, 2]}
    assert act(shards, queue, "heartbeat", "p", assignedShards=[7]) == plain
    leased = act(shards, queue, "register", "w", maxShardCount=3, sessionId="s")
    assert leased["grants"] == [{"from": 2, "to": 2, "token": leased["generation"]}] and leased["revoking"] == []
    assert act(shards, queue, "heartbeat", "p") == {"assignedShards": [0, 1]}
    assert act(shards, queue, "release", "w", sessionId="s") == {"left": True}
    assert act(shards, queue, "heartbeat", "p") == plain
    assert act(shards, queue, "release", "w", status=404)["code"] == "not_found"
    listed = [row for row in shards.get("/api/v1/shards").json["services"] if row["service"] == queue]
    assert listed[0]["workers"] == 1 and listed[0]["maxShardCount"] == 3 and listed[0]["unassigned"] == 0


def test_an_answer_repeats_the_sequence_of_a_worker_with_a_session(shards, queue):
    says = {"maxShardCount": 3, "sessionId": "s"}
    assert act(shards, queue, "register", "w", sequence=1, **says)["sequence"] == 1
    answer = act(shards, queue, "heartbeat", "w", sequence=2**53, **says)
    assert answer["sequence"] == 2**53 and answer["leaseMs"] > 0
    assert "sequence" not in act(shards, queue, "heartbeat", "w", **says)
    assert "sequence" not in shards.get(f"/api/v1/shards/{queue}?worker=w").json
    assert "sequence" not in act(shards, queue, "register", "plain", maxShardCount=3, sequence=1)


def test_a_service_without_live_workers_can_be_deleted(shards, queue):
    programs = Programs(shards.url)
    path = f"/api/v1/shards/{queue}"
    token = act(shards, queue, "register", "w", maxShardCount=3, sessionId="s")["grants"][0]["token"]
    refused = shards.delete(path)
    assert (refused.status, refused.json["reason"]) == (409, "service_in_use"), refused
    code, _, said = programs.baton("shards", queue, "--delete")
    assert code != 0 and "workers that are alive" in said
    watch = Background(shards.get, f"{path}?wait=20000&after={shards.get(path).json['version']}")
    act(shards, queue, "release", "w", sessionId="s")
    watch.result()
    watch = Background(shards.get, f"{path}?wait=20000&after={shards.get(path).json['version']}")
    assert programs.said("shards", queue, "--delete") == f"Deleted service {queue}.\n"
    assert watch.result().status == 404
    assert shards.get(path).status == 404 and shards.delete(path).status == 404
    assert queue not in {row["service"] for row in shards.get("/api/v1/shards").json["services"]}
    again = act(shards, queue, "register", "w", maxShardCount=3, sessionId="t")
    assert again["grants"][0]["token"] > token
    act(shards, queue, "release", "w", sessionId="t")
    assert shards.delete(path).json == {"service": queue, "deleted": True}


def test_a_former_life_is_refused(shards, queue):
    act(shards, queue, "register", "w", maxShardCount=1, sessionId="one")
    act(shards, queue, "register", "w", maxShardCount=1, sessionId="two")
    refused = act(shards, queue, "heartbeat", "w", status=409, sessionId="one")
    assert refused["code"] == "fenced_session", refused


def test_what_is_wrong_is_said(shards, queue):
    path = f"/api/v1/shards/{queue}"
    assert "not an action" in shards.post(path, {"workerId": "w"}).error
    assert "maxShardCount is missing" in shards.post(path, {"action": "register", "workerId": "w"}).error
    assert "weight" in shards.post(path, {"action": "register", "workerId": "w", "maxShardCount": 1, "weight": 0}).error
    assert "allows" in shards.post(path, {"action": "register", "workerId": "w", "maxShardCount": 2_000_000}).error
    assert shards.get("/api/v1/shards/nowhere").status == 404
    assert shards.get("/api/v1/shards/nowhere?wait=1000").status == 404
    act(shards, queue, "register", "w", maxShardCount=1)
    assert shards.get(f"{path}?worker=nobody").status == 404


def test_watching_by_waiting(shards, queue):
    act(shards, queue, "register", "a", maxShardCount=4, sessionId="s")
    path = f"/api/v1/shards/{queue}"
    shown = shards.get(path).json
    watch = Background(shards.get, f"{path}?wait=20000&after={shown['version']}")
    mine = shards.get(f"{path}?worker=a").json
    assert mine["grants"] and "leaseMs" not in mine
    own = Background(shards.get, f"{path}?worker=a&wait=20000&after={mine['generation']}")
    act(shards, queue, "register", "b", maxShardCount=4, sessionId="s")
    assert watch.result().json["version"] != shown["version"]
    assert own.result().json["revoking"] == [[2, 3]]
    # Nothing new: the wait ends by itself.
    version = shards.get(path).json["version"]
    assert shards.get(f"{path}?wait=1&after={version}").json["service"] == queue


def test_watching_by_events(shards, queue):
    act(shards, queue, "register", "a", maxShardCount=4)
    connection = http.client.HTTPConnection("127.0.0.1", shards.port, timeout=30)
    connection.request("GET", f"/api/v1/shards/{queue}?worker=a", headers={"Accept": "text/event-stream"})
    stream = connection.getresponse()
    assert stream.getheader("content-type").startswith("text/event-stream")

    def data():
        line = stream.readline()
        while not line.startswith(b"data: "):
            line = stream.readline()
        return line

    assert b"[0,1,2,3]" in data()
    act(shards, queue, "register", "b", maxShardCount=4)
    assert b"[0,1]" in data()
    connection.close()


def test_metrics(shards, queue):
    act(shards, queue, "register", "a", maxShardCount=4)
    page = eventually(lambda: shards.get("/metrics/prometheus").body.decode())
    assert f'baton_shards{{service="{queue}"}} 4' in page
    assert f'baton_shards_workers{{service="{queue}",status="active"}} 1' in page
    assert f'baton_shards_unassigned{{service="{queue}"}} 0' in page
